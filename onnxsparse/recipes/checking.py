"""What a recipe says that its writer may not mean: found before anything runs.

`wrong` cannot be run as it is, `refused` is known and has nothing that runs it, `warning` runs, but perhaps not to what
was meant. Steps are looked at where it is known how many an epoch has, names where a model is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Union

from onnxsparse.errors import OnnxSparseError
from onnxsparse.modifiers.acdc_pruning import ACDCPruningModifier
from onnxsparse.modifiers.constant_pruning import ConstantPruningModifier
from onnxsparse.modifiers.epoch_range import EpochRangeModifier
from onnxsparse.modifiers.gradual import FROM_PARAM, Gradual
from onnxsparse.modifiers.learning_rate import LearningRateModifier
from onnxsparse.modifiers.learning_rate_function import LearningRateFunctionModifier
from onnxsparse.modifiers.masked import Masked
from onnxsparse.modifiers.modifier import Modifier
from onnxsparse.modifiers.quantizing import Quantizing
from onnxsparse.modifiers.scheduled import NEVER, Scheduled
from onnxsparse.modifiers.set_learning_rate import SetLearningRateModifier
from onnxsparse.modifiers.training import Training
from onnxsparse.recipes.order import has_epochs
from onnxsparse.recipes.recipe import Recipe
from onnxsparse.recipes.writing import tag_of

WRONG, REFUSED, WARNING = "wrong", "refused", "warning"
LEVELS = (WRONG, REFUSED, WARNING)
LEAST_USEFUL = 0.4
"""Below this share of zeros no runtime is faster."""
ADAM = ("adam", "adamw", "ort-adamw")
NEAR = 1e-6
Rate = Union[LearningRateModifier, LearningRateFunctionModifier, SetLearningRateModifier]
RATES = (LearningRateModifier, LearningRateFunctionModifier, SetLearningRateModifier)


@dataclass(frozen=True)
class Finding:
    """One thing that is found, and in which modifier."""

    level: str
    tag: str
    text: str

    def __str__(self) -> str:
        return f"{self.level}: !{self.tag}: {self.text}" if self.tag else f"{self.level}: {self.text}"


@dataclass(frozen=True)
class Around:
    """What is known beside the recipe."""

    model: Any = None
    steps_per_epoch: int | None = None
    optimizer: str | None = None


def check(
    recipe: Recipe,
    *,
    model: Any = None,
    data_size: int | None = None,
    batch_size: int | None = None,
    steps_per_epoch: int | None = None,
    optimizer: str | None = None,
) -> list[Finding]:
    """Everything that is found in a recipe; nothing where all is well."""
    training = next((one for one in recipe.modifiers if isinstance(one, Training)), None)
    steps = steps_per_epoch or (training.steps_per_epoch if training is not None else None)
    if steps is None and data_size is not None:
        steps = max(1, data_size // (batch_size or (training.batch if training is not None else Training().batch)))
    used = optimizer or (training.optimizer if training is not None else None)
    around = Around(model, steps, used)
    found = [finding for rule in ALONE for finding in rule(recipe)]
    found += [finding for rule in BESIDE for finding in rule(recipe, around)]
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))


def _of(recipe: Recipe, kind: Any) -> list[Any]:
    return [one for one in recipe.modifiers if isinstance(one, kind)]


def _warn(modifier: Modifier, text: str) -> Finding:
    return Finding(WARNING, tag_of(modifier), text)


def _end(modifier: Scheduled) -> float:
    return math.inf if modifier.end_epoch == NEVER else modifier.end_epoch


# -- what nothing runs


def _refused(recipe: Recipe) -> Iterator[Finding]:
    for one in dict.fromkeys(recipe.not_applied):
        yield Finding(REFUSED, one.tag, f"nothing runs it yet: {one.reason}")


def _names(recipe: Recipe, around: Around) -> Iterator[Finding]:
    """Every modifier by itself is bound to the model."""
    if around.model is None:
        return
    from onnxsparse.epochs.planning import by_epochs
    from onnxsparse.graph.model import Model

    opened = Model.open(around.model)
    for one in _of(recipe, Scheduled):
        if one.missing:
            continue
        try:
            by_epochs(opened, [one])
        except OnnxSparseError as error:
            yield Finding(WRONG, tag_of(one), str(error).removeprefix(f"{one.called}: "))


# -- how sparse


def _levels(modifier: Masked) -> Iterable[float]:
    if isinstance(modifier, ACDCPruningModifier):
        return (modifier.compression_sparsity,)
    last = modifier.final_sparsity if isinstance(modifier, Gradual) else ()
    return tuple(last) if isinstance(last, Mapping) else (last,) if isinstance(last, float) else ()


def _low(recipe: Recipe) -> Iterator[Finding]:
    for one in _of(recipe, Masked):
        level = min(_levels(one), default=1.0)
        if level < LEAST_USEFUL:
            yield _warn(one, f"it ends at {level:g}, and below {LEAST_USEFUL} zeros make nothing faster")


def _rises(recipe: Recipe) -> Iterator[Finding]:
    for one in _of(recipe, Gradual):
        last = max(_levels(one))
        if one.init_sparsity != FROM_PARAM and one.init_sparsity > last:
            yield _warn(one, f"it begins at {one.init_sparsity:g} and ends at {last:g}: zeros come back")
        if one.end_epoch == NEVER and one.init_sparsity != last:
            yield _warn(one, "with end_epoch -1 it never comes to its final_sparsity")


def _let_go(recipe: Recipe) -> Iterator[Finding]:
    """Zeros that nothing holds when the masks are gone."""
    held = _of(recipe, ConstantPruningModifier)
    last = recipe.max_epochs
    for one in _of(recipe, Masked):
        if getattr(one, "leave_enabled", True) or _end(one) >= last:
            continue
        if not any(keep.start_epoch <= one.end_epoch <= _end(keep) for keep in held):
            yield _warn(one, f"its masks are let go at {one.end_epoch:g}, and the zeros with them")


def _quantized(recipe: Recipe, around: Around) -> Iterator[Finding]:
    """Rounding moves zeros, unless a mask holds them."""
    held = _of(recipe, ConstantPruningModifier)
    for one in _of(recipe, Quantizing):
        if any(_end(keep) > one.start_epoch and keep.start_epoch <= max(one.start_epoch, 0) for keep in held):
            continue
        free = [mask for mask in _of(recipe, Masked) if not getattr(mask, "leave_enabled", True)]
        if any(_end(mask) <= recipe.max_epochs for mask in free):
            yield _warn(one, "the zeros are lost while it trains: add !ConstantPruningModifier, or leave_enabled: true")
        elif not _of(recipe, Masked) and _is_sparse(around.model):
            yield _warn(
                one, "the model is sparse, and its zeros are lost while it trains: add !ConstantPruningModifier"
            )


def _is_sparse(source: Any) -> bool:
    if source is None:
        return False
    from onnxsparse.graph.model import Model
    from onnxsparse.passes.inspect import count_zeros

    counted = [(count_zeros(one), one.tensor.size) for one in Model.open(source).weights]
    known = [(zeros, size) for zeros, size in counted if zeros is not None]
    return sum(zeros for zeros, _ in known) > LEAST_USEFUL / 2 * sum(size for _, size in known)


def _twice(recipe: Recipe) -> Iterator[Finding]:
    """Two that prune the same weights at the same time: the one that acts last decides."""
    pruning = _of(recipe, Masked)
    for first, second in combinations(pruning, 2):
        if _meet(first, second) and _share(first, second):
            yield _warn(
                second, f"it prunes what !{tag_of(first)} prunes at the same time; the one that ends last decides"
            )


def _meet(first: Scheduled, second: Scheduled) -> bool:
    return max(first.start_epoch, second.start_epoch) < min(_end(first), _end(second))


def _share(first: Masked, second: Masked) -> bool:
    if isinstance(first.params, str) or isinstance(second.params, str) or not (first.params and second.params):
        named = [getattr(one, "final_sparsity", None) for one in (first, second)]
        return not any(isinstance(one, Mapping) for one in named)
    return bool(set(first.params) & set(second.params))


# -- the learning rate


def _adam(recipe: Recipe, around: Around) -> Iterator[Finding]:
    if around.optimizer is None or around.optimizer.partition(":")[0].lower() not in ADAM:
        return
    for one in _of(recipe, RATES):
        yield _warn(one, f"{around.optimizer} finds its own steps; a learning rate is rarely worth moving for it")


def _rates(recipe: Recipe) -> Iterator[Finding]:
    for first, second in combinations(_of(recipe, RATES), 2):
        if _apart(first, second):
            continue
        start, end = max(first.start_epoch, second.start_epoch), min(_until(first), _until(second))
        if start < end or (start == end == first.start_epoch == second.start_epoch):
            yield _warn(second, f"it moves the learning rate at epoch {max(start, 0):g}, as !{tag_of(first)} does")


def _until(modifier: Rate) -> float:
    """One that sets the rate once is over at once."""
    return modifier.start_epoch + NEAR if isinstance(modifier, SetLearningRateModifier) else _end(modifier)


def _apart(first: Rate, second: Rate) -> bool:
    groups = [set(getattr(one, "param_groups", None) or ()) for one in (first, second)]
    return all(groups) and not groups[0] & groups[1]


# -- times


def _length(recipe: Recipe) -> Iterator[Finding]:
    last, training = recipe.max_epochs, _of(recipe, Training)
    if _of(recipe, Scheduled) and last < 0 and not any(one.epochs or one.steps for one in training):
        yield Finding(WARNING, "", "nothing says how long the run is: add !EpochRangeModifier, or say --epochs")
    for one in sorted(_of(recipe, EpochRangeModifier), key=_end)[-1:]:
        if math.ceil(min(_end(one), last)) < last:
            yield _warn(one, f"it ends at {one.end_epoch:g}, but other modifiers make the run last {last} epochs")
    for frame in training:
        if frame.epochs is not None and frame.epochs < last:
            yield _warn(
                frame, f"it lasts {frame.epochs:g} epochs, and modifiers go on to {last}: their end never comes"
            )


def _frequency(recipe: Recipe) -> Iterator[Finding]:
    for one in _timed(recipe):
        length = one.end_epoch - max(one.start_epoch, 0)
        if isinstance(one, ACDCPruningModifier) and length < 3 * one.update_frequency:
            yield _warn(one, "there is time for no more than two phases, dense and pruned")
        elif one.end_epoch != NEVER and one.update_frequency > length > 0:
            yield _warn(
                one, f"the next update after the first comes at its end: update_frequency {one.update_frequency:g}"
            )


def _timed(recipe: Recipe) -> list[Any]:
    """Those whose frequency means something."""
    return [one for one in _of(recipe, Scheduled) if "update_frequency" not in one.unwritten]


def _steps(recipe: Recipe, around: Around) -> Iterator[Finding]:
    """Times that fall between two steps."""
    steps = around.steps_per_epoch
    if steps is None:
        return
    for one in _timed(recipe):
        exact = one.update_frequency * steps
        if 0 <= exact < 1 - NEAR:
            yield _warn(one, f"update_frequency {one.update_frequency:g} is less than a step of {steps} per epoch")
        elif exact > 0 and _off(exact):
            met = math.ceil(exact) / steps
            yield _warn(
                one, f"update_frequency {one.update_frequency:g} is {exact:g} steps: it acts every {met:g} epochs"
            )
    for one in _of(recipe, Scheduled):
        for option in ("start_epoch", "end_epoch"):
            epoch = getattr(one, option)
            if epoch > 0 and _off(epoch * steps):
                met = math.ceil(epoch * steps) / steps
                yield _warn(one, f"{option} {epoch:g} lies between two of {steps} steps per epoch: it acts at {met:g}")


def _off(steps: float) -> bool:
    return abs(steps - round(steps)) > NEAR * max(1.0, steps)


def _foreign(recipe: Recipe) -> Iterator[Finding]:
    """Our own pruning goes by shares of the run, the others by epochs."""
    own = [one for one in recipe.modifiers if one.name == "pruning"]
    if own and any(has_epochs(one) for one in recipe.modifiers):
        yield Finding(WRONG, "pruning", "it goes by shares of the run and the other modifiers by epochs; leave one out")


ALONE: tuple[Callable[[Recipe], Iterator[Finding]], ...] = (
    _foreign, _refused, _low, _rises, _let_go, _twice, _rates, _length, _frequency,
)  # fmt: skip
BESIDE: tuple[Callable[[Recipe, Around], Iterator[Finding]], ...] = (_names, _quantized, _adam, _steps)
