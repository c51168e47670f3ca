"""Two modifiers of a recipe that prune the same weights at the same time.

With a model names are looked up in it. Without one they are compared as they are spelt: a layer is its weight, an
expression is what it matches of the other's names, and the words for all are everything.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any

from onnxsparse.errors import OnnxSparseError
from onnxsparse.modifiers.scheduled import Scheduled
from onnxsparse.recipes.findings import Around, Finding, end_of, every, line_of, warn
from onnxsparse.recipes.modifiers.masked import Masked
from onnxsparse.recipes.recipe import Recipe
from onnxsparse.recipes.writing import tag_of
from onnxsparse.train.params import ALL, ALL_PRUNABLE, REGULAR

WEIGHT = ".weight"


def twice(recipe: Recipe, around: Around) -> Iterator[Finding]:
    """Both hold their zeros; the one that wants fewer does not come to what it says."""
    meeting = [pair for pair in combinations(every(recipe, Masked), 2) if _meet(*pair)]
    params = around.params if meeting and around.model is not None else []
    for first, second in meeting:
        if _share(first, second, params):
            line = line_of(first)
            where = f"!{tag_of(first)}" if line is None else f"!{tag_of(first)} of line {line}"
            yield warn(second, f"it prunes what {where} prunes at the same time; the zeros of both stay")


def _meet(first: Scheduled, second: Scheduled) -> bool:
    return max(first.start_epoch, second.start_epoch) < min(end_of(first), end_of(second))


def _share(first: Masked, second: Masked, params: list[Any]) -> bool:
    found = [_tags(one, params) for one in (first, second)] if params else [None, None]
    if found[0] is not None and found[1] is not None:
        return bool(found[0] & found[1])
    ours, theirs = _names(first), _names(second)
    return any(_alike(one, other) or _alike(other, one) for one in ours for other in theirs)


def _tags(modifier: Masked, params: list[Any]) -> set[str] | None:
    """What it masks in a model; None where it cannot be bound."""
    if modifier.missing:
        return None
    try:
        act = modifier.act()
        act.bind(params)
    except OnnxSparseError:
        return None
    return {param.tag for param in act.masked()}


def _names(modifier: Masked) -> list[str]:
    levels = getattr(modifier, "final_sparsity", None)
    if isinstance(levels, Mapping):
        return [name for names in levels.values() for name in _listed(names)]
    return _listed(modifier.params)


def _listed(names: str | Iterable[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ()) or [ALL_PRUNABLE]


def _alike(one: str, other: str) -> bool:
    """Whether the first names the second, as far as that can be told."""
    if one.upper() in (ALL, ALL_PRUNABLE):
        return True
    if not one.startswith(REGULAR):
        return one.removesuffix(WEIGHT) == other.removesuffix(WEIGHT)
    if other.startswith(REGULAR):
        return one == other
    regex: Any = importlib.import_module("regex")
    try:
        matches = [regex.match(one[len(REGULAR) :], name, timeout=1.0) for name in (other, other + WEIGHT)]
    except TimeoutError:
        return False
    return any(found is not None for found in matches)
