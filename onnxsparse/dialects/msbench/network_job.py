"""Job file of a whole training of a network: `net:`, `dataset:`, and the sections that all training files have.

1. `runtime.runner.type: base` trains the float network, `sparse` by the section `sparsity`.
2. `lr` is the rate for one image: it is multiplied with the batch of all processes, unless `warmup_register_type` is
   `no_scale_lr`.
3. `save_freq` and `test_freq` count epochs; where `max_iter` says how long the training is, iterations.
4. What is said and means nothing here is a note; a word that nobody knows is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnxsparse.dialects.msbench import configuration
from onnxsparse.dialects.msbench.configuration import Configuration, count, number, path_text, switch
from onnxsparse.dialects.msbench.job import is_on
from onnxsparse.dialects.msbench.trainer_section import (
    TORCH,
    WarmUp,
    above_zero,
    demand_words,
    given_total,
    kind_of,
    kwargs_of,
    mapping_of,
    optimizer_options,
    rate_options,
    warm_up_of,
)
from onnxsparse.errors import OptionError, nearest

BASE, SPARSE = "base", "sparse"
KNOWN: Mapping[str, tuple[str, ...]] = {
    "runtime": ("runner", "random_seed", "seed"),
    "trainer": (
        "max_epoch", "max_iter", "optimizer", "lr_scheduler", "test_freq", "save_freq", "only_save_latest", "grad_clip",
    ),
    "saver": ("save_dir", "pretrain_model", "resume_model", "auto_resume"),
    "loss": ("type",),
    "export": ("size",),
}  # fmt: skip
IDLE: Mapping[str, tuple[str, ...]] = {
    "runtime": ("task_names", "rank_init", "verbosity"),
    "trainer": ("print_freq", "ema"),
    "saver": ("results_dir",),
}
"""What is said there, too, and has no effect here."""
OPTIMIZER = ("type", "kwargs", "register_type")
ANCHORED = "num_classes"
"""Stands at the top of published files for its anchor alone."""
TOP = ("net", "dataset", "hooks", "sparsity", "ema", ANCHORED, *KNOWN)
HOOKS: Mapping[str, str] = {
    "auto_save_best": "the best network by the test data is kept as ckpt_best.pth",
    "auto_checkpoint": "",
}
"""What hooks mean here; of one that every run has anyway nothing is said."""
SCALED, UNSCALED = "base", "no_scale_lr"
DISTILL = "distill"


@dataclass(frozen=True)
class NetworkJob:
    """What a configuration says, checked; paths are as they are given."""

    config: Mapping[str, Any]
    net: Sequence[Mapping[str, Any]]
    dataset: Mapping[str, Any]
    sparsity: Configuration | None
    epochs: float | None
    iterations: int | None
    optimizer: tuple[str, Mapping[str, Any]]
    schedule: str
    t_max: float | None
    given_total: Any
    """How many iterations the scheduler's own arguments say."""
    warm_up: WarmUp
    scaled: bool
    clip: float
    test_every: int
    save_every: int
    only_latest: bool
    saves_best: bool
    distills: bool
    save_dir: str
    pretrained: str
    resume: str
    auto_resume: bool
    seed: int
    export_size: tuple[int, int] | None
    """Height and width of the images that files are exported for."""
    notes: tuple[str, ...] = field(default=())


def describes_network(found: Any) -> bool:
    """Whether a configuration describes a network and its data, and names no ONNX model."""
    return isinstance(found, Mapping) and bool(found.get("net")) and not (found.get("model") or found.get("data"))


def without_effect(found: Mapping[str, Any], words: Sequence[str]) -> list[str]:
    """A line for each of these values that is put where only anchors were, whose values are in place already."""
    return [
        f"--opts {word} changes nothing: anchors are resolved before; name the place where the value is used, such as "
        "net.0.kwargs.num_classes"
        for word in words
        if (key := word.partition("=")[0].split(".")[0]) == ANCHORED
        or (key not in TOP and _is_anchored(key, found.get(key)))
    ]


def read_network_job(path: str, found: Any) -> NetworkJob:
    """The job that a configuration says, which was read from a file."""
    found = configuration.plain(found)
    net, dataset = found.get("net"), found.get("dataset")
    if not isinstance(net, list) or not all(isinstance(one, Mapping) for one in net):
        raise OptionError(f"{path}: net is a list of parts, each with name and type")
    if not isinstance(dataset, Mapping):
        raise OptionError(f"{path} has a net and no dataset: it says which images train and which test")
    parts = {name: _section(found, name) for name in KNOWN}
    runtime, trainer, saver = parts["runtime"], parts["trainer"], parts["saver"]
    runner = kind_of(runtime.get("runner")) or (SPARSE if "sparsity" in found else BASE)
    if runner not in (BASE, SPARSE):
        raise OptionError(f"{path}: runtime.runner.type is base or sparse here, not {runner!r:.40}")
    if runner == SPARSE and not isinstance(found.get("sparsity"), Mapping):
        raise OptionError(f"{path} has no section `sparsity`: it says which scheduler, mask generator and sparser")
    scheduler = mapping_of(trainer.get("lr_scheduler"), "trainer.lr_scheduler")
    rate, t_max = rate_options(scheduler)
    hooks, said = _hooks(found.get("hooks"))
    loss = str(parts["loss"].get("type") or "")
    if loss not in ("", DISTILL):
        raise OptionError(f"loss.type is {DISTILL} for a network, whose own losses stand in net, not {loss!r:.40}")
    sparsity = configuration.section(found) if runner == SPARSE else {}
    epochs, iterations = trainer.get("max_epoch"), trainer.get("max_iter")
    if epochs is None and iterations is None:
        raise OptionError("nothing says how long to train: trainer.max_epoch or trainer.max_iter")
    freq = {
        name: count(1 if trainer.get(name) is None else trainer[name], f"trainer.{name}", 1)
        for name in ("test_freq", "save_freq")
    }
    return NetworkJob(
        found,
        net,
        dataset,
        configuration.checked(sparsity) if runner == SPARSE else None,
        None if epochs is None else above_zero(epochs, "trainer.max_epoch"),
        None if iterations is None else count(iterations, "trainer.max_iter", 1),
        _optimizer(trainer.get("optimizer")),
        str(rate["lr_schedule"]),
        t_max,
        given_total(sparsity),
        warm_up_of(scheduler),
        _is_scaled(scheduler.get("warmup_register_type")),
        _clip(trainer.get("grad_clip")),
        freq["test_freq"],
        freq["save_freq"],
        switch(trainer.get("only_save_latest"), "trainer.only_save_latest"),
        "auto_save_best" in hooks,
        loss == DISTILL,
        path_text(saver.get("save_dir"), "saver.save_dir") or "checkpoints",
        path_text(saver.get("pretrain_model"), "saver.pretrain_model"),
        path_text(saver.get("resume_model"), "saver.resume_model"),
        switch(saver.get("auto_resume"), "saver.auto_resume", True),
        _seed(runtime.get("random_seed", runtime.get("seed"))),
        _size(parts["export"].get("size")),
        (*_idle(path, found, parts), *said),
    )


def _section(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = mapping_of(found.get(name), name)
    known = (*KNOWN[name], *IDLE.get(name, ()))
    for key in section:
        if key not in known:
            raise OptionError(f"{name} has an unknown key {key!r:.40}{nearest(str(key), known)}")
    return section


def _optimizer(given: Any) -> tuple[str, Mapping[str, Any]]:
    """The class of torch, and its arguments."""
    kind = kind_of(given)
    demand_words("trainer.optimizer", given, OPTIMIZER)
    if kind not in TORCH:
        raise OptionError(f"trainer.optimizer.type is {', '.join(TORCH)}, not {kind!r:.40}{nearest(kind, TORCH)}")
    optimizer_options(given)  # refuses what it does not take
    kwargs = {name: one for name, one in kwargs_of(given, "trainer.optimizer").items() if one is not None}
    if kwargs.get("lr") is None:
        raise OptionError("trainer.optimizer.kwargs.lr is missing: nothing says the rate")
    return kind, {**kwargs, "betas": tuple(kwargs["betas"])} if "betas" in kwargs else kwargs


def _seed(given: Any) -> int:
    found = count(given or 0, "runtime.random_seed")
    if found >= 1 << 63:
        raise OptionError(f"runtime.random_seed has at most 63 bits, and {found:.3g} has more")
    return found


def _size(given: Any) -> tuple[int, int] | None:
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 2:
        raise OptionError(f"export.size is [height, width], not {given!r:.60}")
    height, width = (count(one, "a side of export.size", 1) for one in given)
    return height, width


def _is_scaled(given: Any) -> bool:
    if given not in (None, SCALED, UNSCALED):
        raise OptionError(f"warmup_register_type is {SCALED} or {UNSCALED}, not {given!r:.40}")
    return bool(given != UNSCALED)


def _clip(given: Any) -> float:
    """The longest gradient, as a number or as {max_norm: number}; 0 is any."""
    demand_words("trainer.grad_clip", given, ("max_norm", "norm_type"))
    if isinstance(given, Mapping) and given.get("norm_type", 2) != 2:
        raise OptionError(f"trainer.grad_clip.norm_type is 2 here, not {given['norm_type']!r:.40}")
    value = given.get("max_norm") if isinstance(given, Mapping) else given
    found = 0.0 if value is None else number(value, "trainer.grad_clip")
    if found < 0:
        raise OptionError(f"trainer.grad_clip is a length from 0, not {found:g}")
    return found


def _hooks(given: Any) -> tuple[set[str], list[str]]:
    """The types of hooks, and what each means here."""
    if given is not None and not isinstance(given, list):
        raise OptionError(f"hooks are a list of types, not {given!r:.60}")
    kinds = [kind_of(one) for one in given or []]
    if not all(kinds):
        raise OptionError("hooks are a list of types, and one of them has none")
    said = {kind: HOOKS.get(kind, "it has no meaning here") for kind in kinds}
    return set(kinds), [f"hook {kind}: {meaning}" for kind, meaning in said.items() if meaning]


def _idle(path: str, found: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for all words that nothing takes, and one for EMA."""
    idle = [f"{name}.{key}" for name, keys in IDLE.items() for key in keys if key in parts[name]]
    idle = [word for word in idle if word != "trainer.ema"]
    if kind_of(mapping_of(parts["trainer"].get("optimizer"), "trainer.optimizer").get("register_type")):
        idle.append("trainer.optimizer.register_type")
    # templates that only anchors refer to are no sections: their values stand where they are used
    idle += [key for key, one in found.items() if key not in TOP and not _is_anchored(key, one)]
    notes = [f"{path}: nothing here takes {', '.join(idle)}"] if idle else []
    if any(is_on(one) for one in (found.get("ema"), parts["trainer"].get("ema"))):
        notes.append("EMA is ignored: it is off, and of a checkpoint that has an EMA state that is what is loaded")
    return notes


def _is_anchored(key: str, value: Any) -> bool:
    """Whether it is a template, which stands at the top for its anchor."""
    part = isinstance(value, Mapping) and set(value) <= {"type", "kwargs"} and "type" in value
    return key.startswith("_") or part
