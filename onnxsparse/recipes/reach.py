"""What the names of a recipe reach in a model, and what they miss: found where the model is given.

1. Scales and biases that a word or a pattern for many means, too.
2. Weights that a pattern misses because the exporter renamed them.
3. Groups of StructuredPruningModifier, which do not say what is pruned.
4. Zeros to be held, of which there are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from onnxsparse.errors import OnnxSparseError
from onnxsparse.modifiers.scheduled import Scheduled
from onnxsparse.recipes.findings import Around, Finding, every, warn
from onnxsparse.recipes.modifiers.constant import ConstantPruningModifier
from onnxsparse.recipes.modifiers.masked import Masked
from onnxsparse.recipes.modifiers.structured import StructuredPruningModifier
from onnxsparse.recipes.recipe import Recipe
from onnxsparse.train.params import REGULAR

if TYPE_CHECKING:
    from onnxsparse.train.acts.act import TimedAct
    from onnxsparse.train.params import Param

WAY_OUT = "record_match keeps the names of torch in a file, and layers may be named"


def along(recipe: Recipe, around: Around) -> Iterator[Finding]:
    """Scales and biases are pruned along with the weights."""
    for one, act in _bound(every(recipe, Masked), around):
        if act.warning:
            yield warn(one, act.warning)


def missed(recipe: Recipe, around: Around) -> Iterator[Finding]:
    """Most weights have other names here than in torch, and patterns pass them over."""
    from onnxsparse.train.params import is_renamed

    naming = [*every(recipe, Masked), *every(recipe, ConstantPruningModifier)]
    if not any(name.startswith(REGULAR) for one in naming for name in _names(one)):
        return
    reached = {
        tag for _, act in _bound(naming, around) for tag in (*(one.tag for one in act.masked()), *act.left_dense())
    }
    weights = _prunable(around)
    lost = [one for one in weights if one.tag not in reached]
    renamed = [one for one in lost if is_renamed(one)]
    if reached and renamed:
        yield warn(
            None,
            f"{len(lost)} of {len(weights)} prunable weights are reached by no modifier (first {renamed[0].name}): "
            f"exporters rename them; {WAY_OUT}",
        )


def groups(recipe: Recipe, around: Around) -> Iterator[Finding]:
    """Groups say what goes together, not what is pruned."""
    for one in every(recipe, StructuredPruningModifier):
        if one.param_groups and (isinstance(one.params, str) or not one.params):
            last = [param.name for param in _prunable(around)][-1:]
            named = f", {last[0]} among them" if last else ""
            yield warn(
                one, f"param_groups say what goes together; params says what is pruned, which is all layers{named}, "
                "also the one of the outputs; name them in params"
            )  # fmt: skip


def dense(recipe: Recipe, around: Around) -> Iterator[Finding]:
    """Nothing makes zeros before they are to be held."""
    if every(recipe, Masked):
        return
    for one, act in _bound(every(recipe, ConstantPruningModifier), around):
        if not any(goal.drop for goal in act.final_masks().values()):
            yield warn(one, "there is nothing to hold: what it names has no zeros, and no modifier makes some")


def _bound(modifiers: Iterable[Scheduled], around: Around) -> Iterator[tuple[Any, TimedAct]]:
    """Those that can be bound to the model; of others it is said elsewhere."""
    for one in modifiers if around.model is not None else ():
        act = one.act()
        try:
            act.bind(around.params)
        except OnnxSparseError:
            continue
        yield one, act


def _prunable(around: Around) -> list[Param]:
    if around.model is None:
        return []
    return [param for param in around.params if param.prunable and not param.refusal]


def _names(modifier: Any) -> list[str]:
    levels: Any = getattr(modifier, "final_sparsity", None)
    named = [modifier.params, *(levels.values() if isinstance(levels, Mapping) else ())]
    return [name for one in named if one and not isinstance(one, str) for name in one]
