"""What a recipe says that its writer may not mean: found before anything runs.

`wrong` cannot be run as it is, `refused` is known and has nothing that runs it, `warning` runs, but perhaps not to what
was meant, and `note` is worth knowing. Steps are looked at where it is known how many an epoch has, names where a model
is given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from onnxsparse.errors import OnnxSparseError
from onnxsparse.modifiers.acdc_pruning import ACDCPruningModifier
from onnxsparse.modifiers.constant_pruning import ConstantPruningModifier
from onnxsparse.modifiers.distillation import DISABLE, SELF, DistillationModifier
from onnxsparse.modifiers.gradual import FROM_PARAM, Gradual
from onnxsparse.modifiers.masked import Masked
from onnxsparse.modifiers.scheduled import NEVER, Scheduled
from onnxsparse.modifiers.training import Training
from onnxsparse.recipes import reach
from onnxsparse.recipes.findings import (
    LEVELS,
    NOTE,
    REFUSED,
    WARNING,
    WRONG,
    Around,
    Finding,
    end_of,
    every,
    found,
    warn,
)
from onnxsparse.recipes.modifiers.unsupported import Quantizing
from onnxsparse.recipes.order import has_epochs
from onnxsparse.recipes.overlaps import twice
from onnxsparse.recipes.recipe import Recipe
from onnxsparse.recipes.times import adam, frequency, late, length, misfit, rates, steps

BY_SHARES = ("pruning", "levels")
LEAST_USEFUL = 0.4
"""Below this share of zeros no runtime is faster."""


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
    training = next(iter(every(recipe, Training)), Training())
    made = None if data_size is None else steps_of_data(recipe, data_size, batch_size)[0]
    said = steps_per_epoch or training.steps_per_epoch
    used = optimizer or (training.optimizer if every(recipe, Training) else None)
    around = Around(model, said or made, made, used)
    all_ = [finding for rule in ALONE for finding in rule(recipe)]
    all_ += [finding for rule in BESIDE for finding in rule(recipe, around)]
    return sorted(all_, key=lambda finding: LEVELS.index(finding.level))


def steps_of_data(recipe: Recipe, data_size: int, batch_size: int | None = None) -> tuple[int, int]:
    """How many steps of `finetune` make an epoch, and how many samples it holds out and does not train on."""
    from onnxsparse.runs.feeding import held_out

    training = next(iter(every(recipe, Training)), Training())
    held = held_out(data_size)
    return max(1, (data_size - held) // ((batch_size or training.batch) * training.accumulate)), held


# -- what its text has twice


def _doubled(recipe: Recipe) -> Iterator[Finding]:
    for one in recipe.twice:
        yield Finding(NOTE if one.alike else WARNING, "", str(one), one.second)


# -- what nothing runs


def _refused(recipe: Recipe) -> Iterator[Finding]:
    level, text = (REFUSED, "nothing runs it yet") if recipe.strict else (NOTE, "it is left out")
    for one in recipe.modifiers:
        if one.missing:
            yield found(level, one, f"{text}: {one.missing}")


def _teachers(recipe: Recipe) -> Iterator[Finding]:
    for one in every(recipe, DistillationModifier):
        if one.teacher not in (SELF, DISABLE) and not os.path.isfile(one.teacher):
            yield found(WRONG, one, f"teacher: there is no file {one.teacher:.100}")


def _names(recipe: Recipe, around: Around) -> Iterator[Finding]:
    """The modifiers are bound to the model; where that fails, each by itself."""
    if around.model is None:
        return
    from onnxsparse.graph.model import Model

    opened = Model.open(around.model)
    driven = [one for one in every(recipe, Scheduled) if not one.missing]
    if _problem(opened, driven):
        problems = ((one, _problem(opened, [one])) for one in driven)
        yield from (found(WRONG, one, problem) for one, problem in problems if problem)


def _keys(recipe: Recipe, around: Around) -> Iterator[Finding]:
    """Teachers are heard on outputs that are there."""
    teaching = [one for one in every(recipe, DistillationModifier) if one.distill_output_keys]
    if around.model is None or not teaching:
        return
    from onnxsparse.graph.model import Model

    names = [value.name for value in Model.open(around.model).proto.graph.output]
    for one in teaching:
        try:
            one.outputs_of(names)
        except OnnxSparseError as error:
            yield found(WRONG, one, str(error).removeprefix(f"{one.called}: "))


def _problem(model: Any, modifiers: Sequence[Scheduled]) -> str:
    """Why modifiers cannot act on a model."""
    from onnxsparse.epochs.planning import by_epochs

    try:
        by_epochs(model, modifiers)
    except OnnxSparseError as error:
        return str(error).removeprefix(f"{modifiers[0].called}: ")
    return ""


# -- how sparse


def _levels(modifier: Masked) -> Iterable[float]:
    if isinstance(modifier, ACDCPruningModifier):
        return (modifier.compression_sparsity,)
    last = modifier.final_sparsity if isinstance(modifier, Gradual) else ()
    return tuple(last) if isinstance(last, Mapping) else (last,) if isinstance(last, float) else ()


def _low(recipe: Recipe) -> Iterator[Finding]:
    for one in every(recipe, Masked):
        level = min(_levels(one), default=1.0)
        if level < LEAST_USEFUL:
            yield warn(one, f"it ends at {level:g}, and below {LEAST_USEFUL} zeros make nothing faster")


def _rises(recipe: Recipe) -> Iterator[Finding]:
    for one in every(recipe, Gradual):
        last = max(_levels(one))
        if one.init_sparsity != FROM_PARAM and one.init_sparsity > last:
            yield warn(one, f"it begins at {one.init_sparsity:g} and ends at {last:g}: zeros come back")
        if one.end_epoch == NEVER and one.init_sparsity != last:
            yield warn(one, "with end_epoch -1 it never comes to its final_sparsity")


def _let_go(recipe: Recipe) -> Iterator[Finding]:
    """Zeros that nothing holds when the masks are gone."""
    held = every(recipe, ConstantPruningModifier)
    last = recipe.max_epochs
    for one in every(recipe, Masked):
        if getattr(one, "leave_enabled", True) or end_of(one) >= last:
            continue
        if not any(keep.start_epoch <= one.end_epoch <= end_of(keep) for keep in held):
            yield warn(one, f"its masks are let go at {one.end_epoch:g}, and the zeros with them")


def _quantized(recipe: Recipe, around: Around) -> Iterator[Finding]:
    """Rounding moves zeros, unless a mask holds them."""
    held = every(recipe, ConstantPruningModifier)
    for one in every(recipe, Quantizing):
        if any(end_of(keep) > one.start_epoch and keep.start_epoch <= max(one.start_epoch, 0) for keep in held):
            continue
        free = [mask for mask in every(recipe, Masked) if not getattr(mask, "leave_enabled", True)]
        if any(end_of(mask) <= recipe.max_epochs for mask in free):
            yield warn(one, "the zeros are lost while it trains: add !ConstantPruningModifier, or leave_enabled: true")
        elif not every(recipe, Masked) and _is_sparse(around.model):
            yield warn(one, "the model is sparse, and its zeros are lost while it trains: add !ConstantPruningModifier")


def _is_sparse(source: Any) -> bool:
    if source is None:
        return False
    from onnxsparse.graph.model import Model
    from onnxsparse.passes.inspect import count_zeros

    counted = [(count_zeros(one), one.tensor.size) for one in Model.open(source).weights]
    known = [(zeros, size) for zeros, size in counted if zeros is not None]
    return sum(zeros for zeros, _ in known) > LEAST_USEFUL / 2 * sum(size for _, size in known)


def _foreign(recipe: Recipe) -> Iterator[Finding]:
    """Our own pruning goes by shares of the run, the others by epochs."""
    own = [one for one in recipe.modifiers if one.name in BY_SHARES]
    for one in own if any(has_epochs(one) for one in recipe.modifiers) else ():
        yield found(WRONG, one, "it goes by shares of the run and the other modifiers by epochs; leave one out")


ALONE: tuple[Callable[[Recipe], Iterator[Finding]], ...] = (
    _doubled, _foreign, _refused, _teachers, _low, _rises, _let_go, rates, length, frequency, late,
)  # fmt: skip
BESIDE: tuple[Callable[[Recipe, Around], Iterator[Finding]], ...] = (
    _names, _keys, twice, reach.along, reach.missed, reach.groups, reach.dense, _quantized, adam, misfit, steps,
)  # fmt: skip
