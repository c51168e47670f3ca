"""Mask types of SparseML: which weights are pruned in which pattern, how many units go, and which ones.

1. `params` is a list of names and of `re:` patterns, or one of the two words for all; an empty list means all that can
   be pruned.
2. `mask_type` is `unstructured`, `block4`, a block `[outputs, inputs]`, `N:M`, or `tensorrt`, which is 2:4. N:M says by
   itself how many zeros there are: a final sparsity that says something else is refused.
3. Everywhere floor(s * n + 0.5) of n units go, the smallest first; among equals the earlier in stored order.
4. `unstructured` counts elements. `block4` counts blocks of 4 along the inputs, the shorter ones at the ends, too, and
   `[a, b]` blocks of a outputs by b inputs, which have to divide the weight; a block is as large as the mean of it.
5. `N:M` counts groups, and ramps (see `patterns.nm`).
6. `filter` and `channel` count outputs and inputs by the 2-norm of their elements; one always stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Union

import numpy as np

from onnxsparse.acts.params import ALL_PRUNABLE, Param
from onnxsparse.errors import OptionError, nearest
from onnxsparse.math import rank
from onnxsparse.math.values import Array, Reading, Values, halved
from onnxsparse.patterns.cells import Block, Channel, Filter, Tile
from onnxsparse.patterns.nm import NMRamp
from onnxsparse.patterns.pattern import Pattern
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.recipes.modifiers.modifier import REQUIRED, Scheduled, WrongOptionError, demand_inside, demand_params
from onnxsparse.scores import Magnitude
from onnxsparse.sparsers.mask_updates import Choice

UNSTRUCTURED, BLOCK4, TENSORRT, FILTER, CHANNEL = "unstructured", "block4", "tensorrt", "filter", "channel"
GROUPS = re.compile(r"([1-9]\d{0,5}):([1-9]\d{0,5})")
NEAR = 0.01
"""How far a final sparsity may lie from what N:M means."""

MaskType = Union[str, Sequence[int]]

_MAGNITUDE = Magnitude()
_KEPT_AXES = {"filter": (1, 2), "channel": (2, 1)}
"""Of (group, out, in, tap): the axis that is counted beside the group, and the one that is summed beside the tap."""


@dataclass(frozen=True)
class Masked(Scheduled):
    """A modifier that prunes."""

    unwritten: ClassVar[tuple[str, ...]] = ()
    mask_types: ClassVar[tuple[str, ...]] = (UNSTRUCTURED, BLOCK4, TENSORRT)

    start_epoch: float = REQUIRED
    end_epoch: float = REQUIRED
    update_frequency: float = REQUIRED
    params: str | tuple[str, ...] | None = REQUIRED
    mask_type: str | tuple[int, ...] = UNSTRUCTURED

    def check(self) -> None:
        if self.params is None:
            object.__setattr__(self, "params", ())
        demand_params("params", self.params or ())
        self._check_mask()

    @property
    def levels(self) -> tuple[float, ...]:
        """The sparsities that it has from its start to its end, where they stand still."""
        return ()

    @property
    def n_of_m(self) -> tuple[int, int] | None:
        """N and M, where the mask is of that kind."""
        if self.mask_type == TENSORRT:
            return 2, 4
        found = GROUPS.fullmatch(self.mask_type) if isinstance(self.mask_type, str) else None
        return None if found is None else (int(found[1]), int(found[2]))

    def demand_fit(self, option: str, sparsity: float) -> None:
        """The zeros asked for are those that N:M means."""
        if self.n_of_m is None:
            return
        kept, of = self.n_of_m
        if abs(sparsity - (1 - kept / of)) > NEAR:
            raise WrongOptionError(option, f"mask_type {self.mask_type} means {1 - kept / of:g}, not {sparsity:g}")

    def _check_mask(self) -> None:
        if isinstance(self.mask_type, tuple):
            return self._check_block(self.mask_type)
        if self.mask_type in self.mask_types:
            return None
        if self.n_of_m is not None and TENSORRT in self.mask_types:
            kept, of = self.n_of_m
            if kept >= of:
                raise WrongOptionError("mask_type", f"{kept}:{of} keeps all; N:M keeps N of every M")
            return None
        if self.mask_type in (FILTER, CHANNEL):
            raise WrongOptionError("mask_type", f"{self.mask_type} is for !StructuredPruningModifier")
        hint = nearest(self.mask_type, self.mask_types) or f" (known: {', '.join(self.mask_types)}{self._more()})"
        if self.mask_type in (BLOCK4, TENSORRT) or self.n_of_m is not None:
            raise WrongOptionError("mask_type", f"it is {' or '.join(self.mask_types)} here, not {self.mask_type:.40}")
        raise WrongOptionError("mask_type", f"{self.mask_type!r:.40} is not known{hint}")

    def _more(self) -> str:
        return ", N:M, [outputs, inputs]" if TENSORRT in self.mask_types else ""

    def _check_block(self, sides: tuple[int, ...]) -> None:
        trimmed = sides[:2] if all(side == 1 for side in sides[2:]) else sides
        if TENSORRT not in self.mask_types:
            raise WrongOptionError("mask_type", f"it is one of {', '.join(self.mask_types)}, not a block")
        if len(trimmed) != 2 or not all(side == -1 or side >= 1 for side in trimmed):
            raise WrongOptionError(
                "mask_type", f"a block is [outputs, inputs], from 1 or -1 for all, not {list(sides)}"
            )


def demand_levels(modifier: Masked, option: str, levels: float | Mapping[float, tuple[str, ...]]) -> None:
    """One level for all that `params` names, or names by level: then `params` is empty."""
    if isinstance(levels, Mapping):
        if modifier.params != ():
            raise WrongOptionError(option, "it names its own weights for each level, so params has to be []")
        for names in levels.values():
            demand_params(option, names)
    for level in levels if isinstance(levels, Mapping) else (levels,):
        demand_inside(option, level, 0, 1)
        modifier.demand_fit(option, level)


# -- the masks


def pattern_of(mask_type: MaskType, param: Param, where: str) -> Pattern:
    """The pattern that a mask type is for one parameter."""
    if mask_type == "unstructured":
        return Unstructured()
    if param.matrix is None:
        raise OptionError(
            f"{where}: {param.name} of shape {list(param.shape)} has no rows and columns for mask_type {mask_type}"
        )
    if isinstance(mask_type, str):
        return _named(mask_type)
    return _block(mask_type, param, where)


def no_unit(mask_type: MaskType, param: Param) -> str:
    """Why not even one unit of a mask type lies in a parameter; nothing where one does."""
    if mask_type == "unstructured":
        return ""
    if param.matrix is None:
        return f"its shape {list(param.shape)} has no rows and columns for mask_type {mask_type}"
    _, outputs, inputs, _ = param.shape4
    if not isinstance(mask_type, str):
        rows, columns = mask_type[:2]
        few = rows > outputs or columns > inputs
        return f"it has {outputs} outputs and {inputs} inputs, fewer than a block of {rows} by {columns}" * few
    pattern = _named(mask_type)
    few = isinstance(pattern, NMRamp) and inputs < pattern.m
    return f"it has {inputs} inputs, fewer than a group of {pattern.text}" * few


def _named(mask_type: str) -> Pattern:
    fixed: dict[str, Pattern] = {
        "block4": Tile(1, 4), "tensorrt": NMRamp(2, 4), "filter": Filter(), "channel": Channel(),
    }  # fmt: skip
    if mask_type in fixed:
        return fixed[mask_type]
    kept, _, of = mask_type.partition(":")
    if not re.fullmatch(r"\d{1,3}:\d{1,3}", mask_type):
        raise OptionError(f"mask_type {mask_type!r:.40} is not known")
    return NMRamp(int(kept), int(of))


def _block(sides: Sequence[int], param: Param, where: str) -> Pattern:
    _, outputs, inputs, _ = param.shape4
    rows, columns = (whole if side == -1 else side for side, whole in zip(sides, (outputs, inputs)))
    if outputs % rows or inputs % columns:
        raise OptionError(
            f"{where}: blocks of {rows} by {columns} do not divide {param.name}, which has {outputs} outputs and "
            f"{inputs} inputs"
        )
    return Block(rows, columns)


def drop_of(pattern: Pattern, param: Param, sparsity: float) -> int:
    """How many units go."""
    return pattern.drop_count(param.shape4, sparsity)


def keep_of(pattern: Pattern, param: Param, numbers: Array, drop: int) -> Array:
    """True where an element stays, flat in stored order."""
    if isinstance(pattern, (Filter, Channel)):
        return keep_together(pattern, [param], [numbers], drop)[0]
    same = param.matrix or _row
    return Choice(pattern, _MAGNITUDE, drop, same, param.restore or _flat).keep(numbers)


def choice_of(drop: int) -> Choice:
    """So many elements go, wherever they are."""
    return Choice(Unstructured(), _MAGNITUDE, drop, _row, _flat)


def drops_together(
    patterns: Sequence[Pattern], params: Sequence[Param], numbers: Sequence[Array], sparsity: float
) -> list[int]:
    """How many units of each go when the smallest of all together do."""
    scores = [_scores(*triple) for triple in zip(patterns, params, numbers)]
    # SparseML rounds halves up; Python's round() would take the even neighbour.
    total = int(np.floor(sparsity * sum(one.size for one in scores) + 0.5))
    widest = np.result_type(*scores)
    return list(rank.cut([_stream(one.astype(widest)) for one in scores], total).counts)


def keep_together(pattern: Pattern, params: Sequence[Param], numbers: Sequence[Array], drop: int) -> list[Array]:
    """Masks of parameters whose outputs, or inputs, go together, by the sum of their norms."""
    norms = [_norms(pattern, param, one) for param, one in zip(params, numbers)]
    count = min(norm.size for norm in norms)
    total = sum(norm.reshape(count, -1).sum(axis=1) / (norm.size // count) for norm in norms)
    gone = rank.smallest(np.ascontiguousarray(total), min(drop, count - 1))
    return [_spread(pattern, param, np.repeat(gone, norm.size // count)) for param, norm in zip(params, norms)]


def demand_alike(pattern: Pattern, params: Sequence[Param], where: str) -> None:
    """Parameters that go together have as many units, or some of them a multiple."""
    counts = [pattern.units(param.shape4) for param in params]
    if any(count % min(counts) for count in counts):
        raise OptionError(
            f"{where}: {', '.join(param.name for param in params)} have {', '.join(map(str, counts))} "
            f"{pattern.text}s, so they cannot go together"
        )


def _norms(pattern: Pattern, param: Param, numbers: Array) -> Array:
    """The 2-norm of every output, or input, one after the other."""
    assert param.matrix is not None
    _, other = _KEPT_AXES[pattern.text]
    # Sums by halves, in an order of our own: the same bytes on every machine, whatever numpy's summation does.
    squares = np.square(param.matrix(numbers.reshape(-1)).astype(np.float64))
    return np.sqrt(halved(halved(squares, 3), other)).reshape(-1)


def _spread(pattern: Pattern, param: Param, gone: Array) -> Array:
    assert param.restore is not None
    own, _ = _KEPT_AXES[pattern.text]
    shape = param.shape4
    sides = [shape[0] if axis == 0 else shape[axis] if axis == own else 1 for axis in range(4)]
    return param.restore(np.ascontiguousarray(np.broadcast_to(~gone.reshape(sides), shape)))


def _scores(pattern: Pattern, param: Param, numbers: Array) -> Array:
    view = (param.matrix or _row)(numbers.reshape(-1))
    return pattern.unit_scores(Values(view, Reading(numbers.dtype.name)), _MAGNITUDE)


def _stream(scores: Array) -> rank.Stream:
    return lambda: (scores,)


def _row(flat: Array) -> Array:
    return flat.reshape(1, 1, 1, -1)


def _flat(view: Array) -> Array:
    return view.reshape(-1)


def names_in(modifier: Any) -> list[str]:
    """Every name, pattern and word by which a modifier that prunes or holds zeros names weights."""
    levels = getattr(modifier, "final_sparsity", None)
    found = []
    for names in levels.values() if isinstance(levels, Mapping) else (modifier.params,):
        found += [names] if isinstance(names, str) else list(names or ()) or [ALL_PRUNABLE]
    return found
