"""The sections `trainer.optimizer` and `trainer.lr_scheduler` of a training, in our own words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxsparse import optimizers, rates
from onnxsparse.dialects.msbench.arguments import in_our_case
from onnxsparse.dialects.msbench.configuration import Part, number, switch
from onnxsparse.errors import OptionError, nearest

WARM_UP, WARM_UP_EPOCHS = "warmup_iter", "warmup_epochs"
_COSINE, _STEPS = ("cosine", ("T_max", "eta_min")), ("multi-step", ("milestones", "gamma"))
_STEP, _CONSTANT = ("step", ("step_size", "gamma")), ("constant", ())
RATES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "CosineAnnealingLR": _COSINE, "Cosine": _COSINE, "cosine": _COSINE, "MultiStepLR": _STEPS, "MultiStep": _STEPS,
    "StepLR": _STEP, "Step": _STEP, "ConstantLR": _CONSTANT, "constant": _CONSTANT, "": _CONSTANT,
}  # fmt: skip
TOTALS = {"AmbaLevelPruneScheduler": "total_iters", "ProbMaskPruneScheduler": "total_iterations"}
WITHOUT_LAYERS = ("Space2Depth", "FrozenBatchNorm2d")
"""Classes that published files name as leaf modules; there is nothing in them that could become sparse."""
TORCH = ("SGD", "Adam", "AdamW")
WARM_UPS = ("linear", "exp", "constant")
SCHEDULER = (
    "type", "kwargs", WARM_UP, WARM_UP_EPOCHS, "warmup_type", "warmup_ratio", "warmup_register_type",
)  # fmt: skip


def kind_of(value: Any) -> str:
    return str(value.get("type") or "") if isinstance(value, Mapping) else str(value or "")


def kwargs_of(given: Any, name: str) -> dict[str, Any]:
    return dict(mapping_of(given.get("kwargs"), f"{name}.kwargs")) if isinstance(given, Mapping) else {}


def mapping_of(value: Any, name: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise OptionError(f"{name} is a mapping, not {value!r:.60}")
    return value or {}


def optimizer_options(given: Any) -> dict[str, Any]:
    kind, kwargs = kind_of(given), kwargs_of(given, "trainer.optimizer")
    rate, decay = kwargs.pop("lr", None), kwargs.pop("weight_decay", None)
    options: dict[str, Any] = {"lr": None if rate is None else number(rate, "lr")}
    options["weight_decay"] = 0.0 if decay is None else number(decay, "weight_decay")
    options["optimizer"] = _text_of(kind, kwargs)
    if kwargs:
        raise OptionError(f"{kind} has no argument {next(iter(kwargs))!r:.40} here")
    return options


def _text_of(kind: str, kwargs: dict[str, Any]) -> str:
    """The optimizer in our own words; what it takes of the arguments is gone from them."""
    if kind == "SGD":
        name = "nesterov" if switch(kwargs.pop("nesterov", False), "nesterov") else "sgd"
        return f"{name}:momentum={number(kwargs.pop('momentum', 0.0), 'momentum')}"
    if kind in ("Adam", "AdamW"):
        betas, eps = kwargs.pop("betas", [0.9, 0.999]), number(kwargs.pop("eps", 1e-8), "eps")
        if not isinstance(betas, list) or len(betas) != 2:
            raise OptionError(f"betas are two numbers, not {betas!r:.40}")
        first, second = (number(one, "a beta") for one in betas)
        return f"{kind.lower()}:beta1={first},beta2={second},eps={eps}"
    text = in_our_case(kind)
    if kind and text.partition(":")[0] not in (own := [one.syntax.partition(":")[0] for one in optimizers.available()]):
        raise OptionError(f"trainer.optimizer does not know {kind!r:.40}{nearest(kind, [*TORCH, *own])}")
    return text


def rate_options(given: Any) -> tuple[dict[str, Any], float | None]:
    """The schedule of the rate in our own words, and how many epochs its period has."""
    kind, kwargs = kind_of(given), kwargs_of(given, "trainer.lr_scheduler")
    if kind not in RATES:
        raise OptionError(f"trainer.lr_scheduler does not know {kind!r:.40}{nearest(kind, RATES)}")
    word, known = RATES[kind]
    wrong = next((key for key in kwargs if key not in (*known, WARM_UP, WARM_UP_EPOCHS)), None)
    if wrong is not None:
        raise OptionError(f"{kind} has no argument {wrong!r:.40} here{nearest(wrong, (*known, WARM_UP))}")
    steps = warm_up(given, WARM_UP)
    warm = {"warm_up": steps} if steps else {}
    if number(kwargs.get("eta_min", 0.0), "eta_min"):
        raise OptionError("eta_min is 0 here: the rate falls to nothing; leave it out")
    period = None if kwargs.get("T_max") is None else above_zero(kwargs["T_max"], "T_max")
    return {"lr_schedule": word + _stages(word, kwargs), **warm}, period


def warm_up(given: Any, name: str) -> float:
    """How long the warm-up is, beside the scheduler's type or among its arguments."""
    value = (given.get(name) if isinstance(given, Mapping) else None) or kwargs_of(given, "trainer.lr_scheduler").get(
        name
    )
    found = number(value, name) if value else 0.0
    if found < 0:
        raise OptionError(f"{name} is a number from 0, not {found:g}")
    return found


def above_zero(value: Any, name: str) -> float:
    found = number(value, name)
    if found <= 0:
        raise OptionError(f"{name} is a number above 0, not {found:g}")
    return found


def _stages(word: str, kwargs: Mapping[str, Any]) -> str:
    """When a schedule of stairs goes down, and by how much."""
    by = number(kwargs.get("gamma", 0.1), "gamma")
    if word == "step":
        return f":every={number(kwargs.get('step_size', 10), 'step_size'):g},by={by}"
    if word != "multi-step":
        return ""
    stones = kwargs.get("milestones") or [30, 60, 80]
    if not isinstance(stones, list):
        raise OptionError(f"milestones are a list of epochs, not {stones!r:.40}")
    at = "+".join(f"{number(epoch, 'a milestone'):g}" for epoch in stones)
    return f":at={at},by={by}"


def demand_period(period: float | None, levels: int, epochs: float | None) -> None:
    """The rate begins again with every level, so its period is that of a level; nothing says it where no epochs are."""
    if period is not None and epochs not in (None, period * levels):
        raise OptionError(
            f"T_max * levels has to be max_epoch: {period:g} * {levels} is not {epochs:g}; the rate begins again with "
            "every level"
        )


def given_total(sparsity: Mapping[str, Any]) -> Any:
    """How many iterations the scheduler's own arguments say."""
    kwargs = mapping_of(sparsity.get("scheduler"), "scheduler").get("kwargs")
    kwargs = kwargs if isinstance(kwargs, Mapping) else {}
    return next((kwargs[name] for name in TOTALS.values() if kwargs.get(name) is not None), None)


def on_length(scheduler: Part, given: Any, total: int, period: float | None, epochs: float | None) -> list[str]:
    """Who says how long a training by a scheduler is, where that may be another than one thinks."""
    if "sparsity_table" not in scheduler.kwargs and period is not None and epochs not in (None, period):
        return [f"the rate falls over the whole training, {epochs:g} epochs, and not over T_max, {period:g}"]
    if given not in (None, total) and scheduler.type in TOTALS:
        return [f"{TOTALS[scheduler.type]} is {total}, by the trainer, and not the {given} beside the scheduler"]
    return []


def demand_words(name: str, section: Any, known: Sequence[str]) -> None:
    """A word that nobody knows is an error."""
    wrong = next((key for key in section if key not in known), None) if isinstance(section, Mapping) else None
    if wrong is not None:
        raise OptionError(f"{name} has an unknown key {wrong!r:.40}{nearest(str(wrong), known)}")


# -- the rate of a network at each of its steps, as United Perception has it


@dataclass(frozen=True)
class WarmUp:
    """The first steps of a training, and of each of its stages."""

    iterations: int = 0
    epochs: float = 0.0
    kind: str = "exp"
    ratio: float | None = None
    """The share of the rate to begin with; None is the rate of one image."""

    def steps(self, per_epoch: int) -> int:
        """How many there are: the longer of the two."""
        return max(self.iterations, int(self.epochs * per_epoch))

    def factor(self, step: int, steps: int, first: float) -> float:
        """The multiple of the rate at a step of the warm-up; the last of them has the whole rate."""
        done = step / max(steps - 1, 1)
        if self.kind == "constant":
            return first
        return first + (1 - first) * done if self.kind == "linear" else float(first ** (1 - done))


def warm_up_of(section: Mapping[str, Any]) -> WarmUp:
    demand_words("trainer.lr_scheduler", section, SCHEDULER)
    kind = str(section.get("warmup_type") or "exp")
    if kind not in WARM_UPS:
        raise OptionError(f"warmup_type does not know {kind!r:.40}{nearest(kind, WARM_UPS)}")
    given = section.get("warmup_ratio")
    ratio = None if given is None or number(given, "warmup_ratio") < 0 else float(given)
    steps, epochs = warm_up(section, WARM_UP), warm_up(section, WARM_UP_EPOCHS)
    if kind == "exp" and ratio == 0 and (steps or epochs):
        raise OptionError("warmup_type exp cannot begin at a warmup_ratio of 0; say linear, or a ratio above 0")
    return WarmUp(int(steps), epochs, kind, ratio)


@dataclass(frozen=True)
class RateOfStage:
    """The rate at each step of a stage: warm-up, and the schedule. Milestones count from the first step of all."""

    base: float
    schedule: str
    warm_up: WarmUp
    per_epoch: int
    scale: float = 1.0
    """What `lr`, the rate of one image, is multiplied with."""

    def at(self, step: int, total: int) -> float:
        whole, warm = self.base * self.scale, min(self.warm_up.steps(self.per_epoch), total)
        if step < warm:
            first = 1 / self.scale if self.warm_up.ratio is None else self.warm_up.ratio
            return whole * self.warm_up.factor(step, warm, first)
        rate = rates.parse(self.schedule)
        if isinstance(rate, rates.MultiStep):
            return whole * rate.factor(step, total, self.per_epoch)
        return whole * rate.factor(step - warm, max(total - warm, 1), self.per_epoch)
