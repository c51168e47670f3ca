"""Job file of a whole training: model, data, length, optimizer, and the sparsity configuration that goes with it.

runtime: {runner: {type: sparse}}
model: net.onnx                                   # or saver.pretrain_model, where that is an ONNX model
data: {train: train.npz, test: test.npz, labels: y, batch_size: 32}
trainer:
  max_epoch: 112                                  # or max_iter
  optimizer: {type: SGD, kwargs: {lr: 0.01, nesterov: true, momentum: 0.9, weight_decay: 0.0001}}
  lr_scheduler: {warmup_iter: 2000, type: CosineAnnealingLR, kwargs: {T_max: 16}}
loss: {type: cross_entropy, label_smooth: 0.1}    # and hardness, temperature
saver: {save_dir: checkpoints, pretrain_model: dense.pth, resume_model: None, auto_resume: true, save_freq: 500}
sparsity: {...}                                   # see `configuration`

Files of United Perception are read as they are: what their networks, data and transformations say is noted, and label
smoothing that stands there counts where the job trains with cross-entropy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnxsparse import losses
from onnxsparse.dialects.msbench import configuration
from onnxsparse.dialects.msbench.configuration import Configuration, number, path_text, switch
from onnxsparse.dialects.msbench.overrides import overridden
from onnxsparse.dialects.msbench.trainer_section import (
    WARM_UP,
    WARM_UP_EPOCHS,
    given_total,
    kind_of,
    mapping_of,
    optimizer_options,
    rate_options,
    warm_up,
)
from onnxsparse.errors import OptionError, nearest
from onnxsparse.losses import CrossEntropy

SMOOTHING = ("label_smooth", "label_smoothing", "smooth_ratio", "smoothing")
FIGURES = ("hardness", "temperature")
KNOWN: Mapping[str, tuple[str, ...]] = {
    "runtime": ("runner", "task_names", "random_seed", "seed", "engine", "verbosity"),
    "data": ("train", "test", "labels", "batch_size", "seed"),
    "trainer": ("max_epoch", "max_iter", "optimizer", "lr_scheduler", "train_bn"),
    "loss": ("type", "kwargs", "hardness", "temperature", "output", *SMOOTHING),
    "saver": ("save_dir", "pretrain_model", "resume_model", "auto_resume", "save_freq"),
}
IDLE: Mapping[str, tuple[str, ...]] = {
    "runtime": ("rank_init",),
    "trainer": ("test_freq", "print_freq", "save_freq", "only_save_latest", "ema"),
    "saver": ("results_dir",),
    "optimizer": ("register_type",),
    "lr_scheduler": ("warmup_type", "warmup_register_type", "warmup_init_lr", "warmup_ratio"),
}
"""What configurations of the runner say, too, and nothing here takes: that is noted."""
NETWORKS, TRAINING_DATA = ("net", "criterion"), "dataset"
"""Sections of United Perception that hold losses, and one that is in all of its files."""
SMOOTHED = "label_smooth"
"""How the names of its losses with label smoothing begin."""
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
    given_total: Any = None
    """How many iterations the scheduler's own arguments say."""
    warm_up_epochs: float = 0.0
    smoothing: float = 0.0
    """That of labels, as a network's own loss says it; `smoothed_by` is where."""
    smoothed_by: str = ""

    @property
    def task(self) -> str:
        """The loss against labels or of distillation, without its options."""
        return str(self.options.get("loss") or "").partition(":")[0]


def read_job(path: str, others: Sequence[str] = ()) -> Job:
    """Read the file of a training, and others of its values; what it says that means nothing here is a note."""
    found = configuration.plain(overridden(configuration.load(path), others))
    if not isinstance(found, Mapping):
        raise OptionError(f"{path} is no configuration of a training")
    parts = {name: _section(found, name) for name in KNOWN}
    runner = kind_of(parts["runtime"].get("runner"))
    if runner not in ("", "sparse"):
        raise OptionError(f"{path}: runtime.runner.type is sparse here, not {runner!r:.40}")
    if not isinstance(found.get("sparsity"), Mapping):
        raise OptionError(f"{path} has no section `sparsity`: it says which scheduler, mask generator and sparser")
    trainer, saver, data, runtime = (parts[name] for name in ("trainer", "saver", "data", "runtime"))
    options, t_max = _training(trainer, parts["loss"])
    notes = _idle({**parts, **{name: trainer.get(name) for name in ("optimizer", "lr_scheduler")}})
    if "num_classes" in mapping_of(parts["loss"].get("kwargs"), "loss.kwargs"):
        notes.append("nothing here takes loss.kwargs.num_classes: the model says how many classes there are")
    notes += _on_scaled_rates(found, trainer.get("lr_scheduler"))
    smoothing, smoothed_by = _smoothed_in(found)
    seed = runtime.get("random_seed", runtime.get("seed", data.get("seed"))) or 0
    ignored = [key for key in found if key not in (*KNOWN, "sparsity", "model", "ema") and not key.startswith("_")]
    if ignored:
        several = "s" if ignored[1:] else ""
        notes.append(f"{path}: nothing here takes the section{several} {', '.join(map(repr, ignored))}")
    if any(map(is_on, (found.get("ema"), trainer.get("ema")))):
        notes.append("EMA is ignored: it is off while a network is made sparse")
    return Job(
        configuration.checked(configuration.section(found)),
        path_text(
            found["model"].get("path") if isinstance(found.get("model"), Mapping) else found.get("model"), "model"
        ),
        path_text(data.get("train"), "data.train"),
        path_text(data.get("test"), "data.test"),
        path_text(data.get("labels"), "data.labels") or None,
        configuration.count(32 if data.get("batch_size") is None else data["batch_size"], "data.batch_size", 1),
        None if trainer.get("max_epoch") is None else number(trainer["max_epoch"], "trainer.max_epoch"),
        None if trainer.get("max_iter") is None else configuration.count(trainer["max_iter"], "trainer.max_iter", 1),
        {**options, "engine": runtime.get("engine") or "auto", "seed": seed},
        path_text(saver.get("save_dir"), "saver.save_dir") or "checkpoints",
        path_text(saver.get("pretrain_model"), "saver.pretrain_model"),
        path_text(saver.get("resume_model"), "saver.resume_model"),
        switch(saver.get("auto_resume"), "saver.auto_resume", True),
        configuration.count(saver.get("save_freq") or 500, "saver.save_freq", 1),
        configuration.count(seed, "runtime.random_seed"),
        t_max,
        tuple(notes),
        given_total(configuration.section(found)),
        warm_up(trainer.get("lr_scheduler"), WARM_UP_EPOCHS),
        smoothing,
        smoothed_by,
    )


def _section(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = found.get(name) or {}
    if not isinstance(section, Mapping):
        raise OptionError(f"{name} is a mapping, not {section!r:.60}")
    for key in section:
        if key not in (*KNOWN[name], *IDLE.get(name, ())):
            raise OptionError(f"{name} has an unknown key {key!r:.40}{nearest(str(key), KNOWN[name])}")
    return section


def _on_scaled_rates(found: Mapping[str, Any], rate: Any) -> list[str]:
    """United Perception multiplies rates with the batch, unless the warm-up is registered as one that does not."""
    if TRAINING_DATA not in found or not isinstance(rate, Mapping) or rate.get("warmup_register_type") == "no_scale_lr":
        return []
    return ["lr is the rate as it is: United Perception multiplies it with the batch size of all processes"]


def _smoothed_in(found: Mapping[str, Any]) -> tuple[float, str]:
    """The label smoothing of a network's own loss, and where it stands; 0 where there is none."""
    for section in NETWORKS:
        for loss in _mappings_in(found.get(section)):
            kind, kwargs = loss.get("type"), loss.get("kwargs")
            given = {**loss, **(kwargs if isinstance(kwargs, Mapping) else {})}
            name = next((one for one in SMOOTHING if given.get(one)), "")
            if name and (name != "smoothing" or str(kind).startswith(SMOOTHED)):
                called = f"section {section!r}, {kind or 'loss'}, {name} {given[name]}"
                return number(given[name], f"{section}: {name}"), called
    return 0.0, ""


def _mappings_in(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for one in inner:
        yield from _mappings_in(one)


def _idle(parts: Mapping[str, Any]) -> list[str]:
    """A line for each thing that is said and that nothing takes; a word that nobody knows is an error."""
    found = []
    for name, words in IDLE.items():
        part = parts[name] if isinstance(parts[name], Mapping) else {}
        more = (*KNOWN.get(name, ("type", "kwargs", WARM_UP, WARM_UP_EPOCHS)), *words)
        wrong = next((key for key in part if key not in more), None)
        if wrong is not None:
            raise OptionError(f"trainer.{name} has an unknown key {wrong!r:.40}{nearest(str(wrong), more)}")
        found += [f"nothing here takes {name}.{key}" for key in part if key in words and key != "ema"]
    return found


def is_on(section: Any) -> bool:
    return bool(section.get("enable", True) if isinstance(section, Mapping) and section else section)


def _training(trainer: Mapping[str, Any], loss: Mapping[str, Any]) -> tuple[dict[str, Any], float | None]:
    """Optimizer, rate and loss in our own words, and how many epochs the rate's period has."""
    options: dict[str, Any] = {"train_bn": switch(trainer.get("train_bn"), "trainer.train_bn")}
    optimizer = trainer.get("optimizer")
    options.update(optimizer_options(optimizer) if optimizer else {})
    scheduler = trainer.get("lr_scheduler")
    rate, t_max = rate_options(scheduler) if scheduler else ({}, None)
    options.update(rate)
    options.update(_loss(loss))
    return options, t_max


def _loss(loss: Mapping[str, Any]) -> dict[str, Any]:
    word, _, options = str(loss.get("type") or "").partition(":")
    kind, smooth = word.replace("-", "_"), next((name for name in SMOOTHING if _named(loss, name) is not None), "")
    if kind.startswith(SMOOTHED):
        if not smooth:
            raise OptionError(f"loss.type {word} needs to know by how much: smooth_ratio, such as 0.1")
        kind = "cross_entropy"
    if kind and kind not in LOSSES:
        raise OptionError(f"loss.type does not know {kind!r:.40}{nearest(kind, LOSSES)}")
    if mapping_of(loss.get("kwargs"), "loss.kwargs").keys() - {*SMOOTHING, "num_classes"}:
        raise OptionError("loss.kwargs: hardness, temperature and output stand beside the type")
    found = {name: number(loss[name], f"loss.{name}") for name in FIGURES if loss.get(name) is not None}
    output = {"output": path_text(loss["output"], "loss.output")} if loss.get("output") is not None else {}
    text = f"{LOSSES[kind]}:{options}" if options else LOSSES.get(kind, "")
    if smooth:
        text = _smoothed(text or "cross-entropy", number(_named(loss, smooth), f"loss.{smooth}"), f"loss.{smooth}")
    return {**({"loss": text} if text else {}), **found, **output}


def _smoothed(loss: str, share: float, name: str) -> str:
    """The loss with its labels smoothed, in our own words; also what is said of none, which is not smoothed at all."""
    if loss != CrossEntropy.name:
        raise OptionError(f"{name}: labels are smoothed for cross_entropy alone, once, and not for {loss}")
    text = f"{CrossEntropy.name}:smoothing={share}" if share else loss
    try:
        losses.parse(text)
    except OptionError as error:
        raise OptionError(f"{name}: {error}") from error
    return text


def _named(loss: Mapping[str, Any], name: str) -> Any:
    return loss.get(name, mapping_of(loss.get("kwargs"), "loss.kwargs").get(name))
