"""The configuration of a whole training: what is trained, on what, how long, and how its sparsity section goes with it.

runtime: {runner: {type: sparse}}
model: net.onnx                                   # or saver.pretrain_model, where that is an ONNX model
data: {train: train.npz, test: test.npz, labels: y, batch_size: 32}
trainer:
  max_epoch: 112                                  # or max_iter
  optimizer: {type: SGD, kwargs: {lr: 0.01, nesterov: true, momentum: 0.9, weight_decay: 0.0001}}
  lr_scheduler: {warmup_iter: 2000, type: CosineAnnealingLR, kwargs: {T_max: 16}}
loss: {type: cross_entropy}                       # and hardness, temperature
saver: {save_dir: checkpoints, pretrain_model: dense.pth, resume_model: None, auto_resume: true, save_freq: 500}
sparsity: {...}                                   # see `configuration`
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onnxsparse.dialects.msbench import configuration
from onnxsparse.dialects.msbench.configuration import Configuration
from onnxsparse.errors import OptionError, nearest

KNOWN: Mapping[str, tuple[str, ...]] = {
    "runtime": ("runner", "task_names", "random_seed", "seed", "engine", "verbosity"),
    "data": ("train", "test", "labels", "batch_size", "seed"),
    "trainer": ("max_epoch", "max_iter", "optimizer", "lr_scheduler", "train_bn"),
    "loss": ("type", "hardness", "temperature", "output"),
    "saver": ("save_dir", "pretrain_model", "resume_model", "auto_resume", "save_freq"),
}
LOSSES = {"cross_entropy": "cross-entropy", "mse": "mse", "bce": "bce", "l1": "l1", "distill": "distill", "kl": "kl"}


@dataclass(frozen=True)
class Job:
    """What a configuration says, checked; paths are as they are given."""

    sparsity: Configuration
    model: str = ""
    train: str = ""
    test: str = ""
    labels: str | None = None
    batch: int = 32
    epochs: float | None = None
    iterations: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    save_dir: str = "checkpoints"
    pretrained: str = ""
    resume: str = ""
    auto_resume: bool = True
    every: int = 500
    seed: int = 0
    t_max: float | None = None
    notes: tuple[str, ...] = ()


def read_job(path: str) -> Job:
    """Read the file of a training; what it says that means nothing here is a note."""
    found = configuration.plain(configuration.load(path))
    if not isinstance(found, Mapping):
        raise OptionError(f"{path} is no configuration of a training")
    parts = {name: _section(found, name) for name in KNOWN}
    runner = _kind(parts["runtime"].get("runner"))
    if runner not in ("", "sparse"):
        raise OptionError(f"{path}: runtime.runner.type is sparse here, not {runner!r:.40}")
    if not isinstance(found.get("sparsity"), Mapping):
        raise OptionError(f"{path} has no section `sparsity`: it says which scheduler, mask generator and sparser")
    trainer, saver, data, runtime = (parts[name] for name in ("trainer", "saver", "data", "runtime"))
    options, notes, t_max = _training(trainer, parts["loss"])
    seed = runtime.get("random_seed", runtime.get("seed", data.get("seed"))) or 0
    ignored = [key for key in found if key not in (*KNOWN, "sparsity", "model", "ema") and not key.startswith("_")]
    notes += [f"{path}: nothing here takes section {key!r}" for key in ignored]
    if found.get("ema") or trainer.get("ema"):
        notes.append("EMA is ignored: it is off while a network is made sparse")
    return Job(
        configuration.checked(configuration.section(found)),
        _text(found.get("model") if not isinstance(found.get("model"), Mapping) else found["model"].get("path")),
        _text(data.get("train")),
        _text(data.get("test")),
        data.get("labels"),
        configuration.count(32 if data.get("batch_size") is None else data["batch_size"], "data.batch_size", 1),
        None if trainer.get("max_epoch") is None else float(trainer["max_epoch"]),
        None if trainer.get("max_iter") is None else configuration.count(trainer["max_iter"], "trainer.max_iter", 1),
        {**options, "engine": runtime.get("engine") or "auto", "seed": seed},
        _text(saver.get("save_dir")) or "checkpoints",
        _text(saver.get("pretrain_model")),
        _text(saver.get("resume_model")),
        bool(saver.get("auto_resume", True)),
        configuration.count(saver.get("save_freq") or 500, "saver.save_freq", 1),
        configuration.count(seed, "runtime.random_seed"),
        t_max,
        tuple(notes),
    )


def _section(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = found.get(name) or {}
    if not isinstance(section, Mapping):
        raise OptionError(f"{name} is a mapping, not {section!r:.60}")
    for key in section:
        if key not in KNOWN[name] and not (name == "trainer" and key == "ema"):
            raise OptionError(f"{name} has an unknown key {key!r:.40}{nearest(str(key), KNOWN[name])}")
    return section


def _kind(value: Any) -> str:
    return str(value.get("type") or "") if isinstance(value, Mapping) else str(value or "")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, (str, os.PathLike)):
        raise OptionError(f"a path is a text, not {value!r:.60}")
    return os.fspath(value)


def _training(trainer: Mapping[str, Any], loss: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], float | None]:
    """Optimizer, rate and loss in our own words."""
    options: dict[str, Any] = {"train_bn": bool(trainer.get("train_bn"))}
    optimizer = trainer.get("optimizer")
    options.update(_optimizer(optimizer) if optimizer else {})
    scheduler = trainer.get("lr_scheduler")
    rate, t_max = _rate(scheduler) if scheduler else ({}, None)
    options.update(rate)
    kind = str(loss.get("type") or "")
    if kind:
        word = kind.replace("-", "_")
        if word not in LOSSES:
            raise OptionError(f"loss.type does not know {kind!r:.40}{nearest(word, LOSSES)}")
        options["loss"] = LOSSES[word]
    options.update({name: loss[name] for name in ("hardness", "temperature", "output") if loss.get(name) is not None})
    return options, [], t_max


def _optimizer(given: Any) -> dict[str, Any]:
    kind, kwargs = _kind(given), dict(given.get("kwargs") or {}) if isinstance(given, Mapping) else {}
    rate = {"lr": kwargs.pop("lr", None), "weight_decay": kwargs.pop("weight_decay", 0.0) or 0.0}
    if kind == "SGD":
        name = "nesterov" if kwargs.pop("nesterov", False) else "sgd"
        return {"optimizer": f"{name}:momentum={kwargs.pop('momentum', 0.0)}", **rate, **_none_left(kind, kwargs)}
    if kind in ("Adam", "AdamW"):
        betas, eps = kwargs.pop("betas", (0.9, 0.999)), kwargs.pop("eps", 1e-8)
        text = f"{kind.lower()}:beta1={betas[0]},beta2={betas[1]},eps={eps}"
        return {"optimizer": text, **rate, **_none_left(kind, kwargs)}
    return {"optimizer": kind, **rate, **_none_left(kind, kwargs)}


def _none_left(kind: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if kwargs:
        raise OptionError(f"{kind} has no argument {next(iter(kwargs))!r:.40} here")
    return {}


def _rate(given: Any) -> tuple[dict[str, Any], float | None]:
    kind, kwargs = _kind(given), dict(given.get("kwargs") or {}) if isinstance(given, Mapping) else {}
    more = given if isinstance(given, Mapping) else {}
    warm = {"warm_up": float(more["warmup_iter"])} if more.get("warmup_iter") else {}
    if kind in ("CosineAnnealingLR", "Cosine", "cosine"):
        return {"lr_schedule": "cosine", **warm}, kwargs.get("T_max")
    if kind in ("MultiStepLR", "MultiStep"):
        at = "+".join(f"{epoch:g}" for epoch in kwargs.get("milestones") or [30, 60, 80])
        return {"lr_schedule": f"multi-step:at={at},by={kwargs.get('gamma', 0.1)}", **warm}, None
    if kind in ("StepLR", "Step"):
        return {"lr_schedule": f"step:every={kwargs.get('step_size', 10)},by={kwargs.get('gamma', 0.1)}", **warm}, None
    if kind in ("", "ConstantLR", "constant"):
        return {"lr_schedule": "constant", **warm}, None
    known = ("CosineAnnealingLR", "MultiStepLR", "StepLR", "ConstantLR")
    raise OptionError(f"trainer.lr_scheduler does not know {kind!r:.40}{nearest(kind, known)}")
