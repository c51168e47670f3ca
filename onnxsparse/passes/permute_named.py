"""A recorded permutation by the names of a module's parameters: for another copy of it, or for a state dict.

1. A tensor of the record is the parameter that a match says, else the one of its name. Where its shape is that of the
   parameter turned round, as a linear layer lies in many files, its moves are turned.
2. A batch normalization that the export folded into a layer moves as the bias does that it became part of.
3. What has no certain place is an error that names it: half of a permutation is none. A constant of the file, such as
   the first state of a recurrent layer, has none: a match says so where it found all parameters of that size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from onnxsparse.channel_classes.permutation import Move, MovedTensor, Permutation, demand_shape
from onnxsparse.errors import OptionError, PlanError, nearest
from onnxsparse.graph.torch_match import Matched
from onnxsparse.math.values import Array

Shape = tuple[int, ...]
_MMA = ("__{}_mma_mask", "__{}_mma_pruned_p")


def by_parameters(
    permutation: Permutation, shapes: Mapping[str, Shape], match: Mapping[str, Any] | None, where: str
) -> Permutation:
    """The same permutation by the names of parameters and buffers, of which these are the shapes."""
    places, folded = _places(match, shapes), _folded(match)
    found: dict[str, MovedTensor] = {}
    for name, one in permutation.tensors.items():
        mine = places.get(name, []) if match is not None else []
        made = [_by_place(one, path, place, shapes, where) for path, place in mine]
        if not made and name not in folded.values() and not _constant(one, match, shapes):
            made = [_by_name(one, name, shapes, where)]
        found.update({moved.name: moved for moved in made})
    for path, tensor in folded.items():
        if tensor in permutation.tensors:
            found[path] = _vector(permutation.tensors[tensor], path, shapes, where)
    return Permutation(found, permutation.facts)


def _constant(one: MovedTensor, match: Mapping[str, Any] | None, shapes: Mapping[str, Shape]) -> bool:
    """Whether a tensor of a matched file is none of the module's: every parameter of its size has another place."""
    refused: Mapping[str, str] | None = getattr(match, "refused", None)
    size = int(np.prod(one.shape))
    return refused is not None and not any(int(np.prod(shapes[path])) == size for path in refused if path in shapes)


def _by_name(one: MovedTensor, name: str, shapes: Mapping[str, Shape], where: str) -> MovedTensor:
    if name not in shapes:
        raise PlanError(
            f"{where} moves '{name}', and there is no parameter of that name{nearest(name, shapes)}; say which one it "
            "is with match="
        )
    shape = shapes[name]
    if one.shape != shape and len(shape) == 2 and one.shape == shape[::-1] and all(len(m.axes) == 1 for m in one.moves):
        return MovedTensor(name, shape, tuple(Move((1 - move.axes[0],), move.order) for move in one.moves))
    demand_shape(one, shape)
    return one


def _places(match: Mapping[str, Any] | None, shapes: Mapping[str, Shape]) -> dict[str, list[tuple[str, Matched]]]:
    """The parameters of each tensor of the file, by its name and by its name behind its scope."""
    found: dict[str, list[tuple[str, Matched]]] = {}
    aliases = getattr(match, "aliases", {}) or {}
    for path, first in (match or {}).items():
        names = [path, *(alias for alias, one in aliases.items() if one == path)]
        for one in (first, *first.copies):
            title = f"{one.scope}/{one.tensor}" if one.scope else one.tensor
            found.setdefault(title, []).extend((name, one) for name in names if name in shapes)
    return found


def _by_place(one: MovedTensor, path: str, place: Matched, shapes: Mapping[str, Shape], where: str) -> MovedTensor:
    """The moves of a parameter that lies somewhere in a stored tensor, turned or with its gates in another order."""
    if place.layout == "same" and place.shape == one.shape == shapes[path]:
        return MovedTensor(path, one.shape, one.moves)
    shape, size = shapes[path], int(np.prod(one.shape))
    lies = place.places().reshape(-1)
    if tuple(place.shape) != shape or lies.size == 0 or int(lies.max()) >= size:
        raise PlanError(f"parameter '{path}' does not lie in '{one.name}' as match= says; match them again")
    moved: Array = one(np.arange(size).reshape(one.shape)).reshape(-1)
    back = np.full(size, -1)
    back[lies] = np.arange(lies.size)
    order = back[moved[lies]]
    if (order < 0).any():
        raise PlanError(f"{where} moves numbers of '{one.name}' between parameters, '{path}' is one of them")
    return MovedTensor(path, shape, (Move(tuple(range(len(shape))), order),))


def _folded(match: Mapping[str, Any] | None) -> dict[str, str]:
    """For each tensor of a folded batch normalization the bias that its shift became part of."""
    folded: Mapping[str, str] = getattr(match, "folded", {}) or {}
    shift = {path.rpartition(".")[0]: tensor for path, tensor in folded.items() if path.endswith(("bias", "_mean"))}
    return {path: shift[path.rpartition(".")[0]] for path in folded if path.rpartition(".")[0] in shift}


def _vector(bias: MovedTensor, path: str, shapes: Mapping[str, Shape], where: str) -> MovedTensor:
    shape = shapes.get(path)
    size = int(np.prod(bias.shape))
    if shape is None or int(np.prod(shape)) != size:
        raise PlanError(f"{where} moves '{bias.name}', of which '{path}' became part, and has another size")
    order: Array = bias(np.arange(size).reshape(bias.shape)).reshape(-1)
    return MovedTensor(path, shape, (Move(tuple(range(len(shape))), order),))


def beside(names: Iterable[str], path: str) -> list[str]:
    """What ASP keeps beside a parameter."""
    known = set(names)
    folder, dot, name = path.rpartition(".")
    return [one for one in (f"{folder}{dot}{form.format(name)}" for form in _MMA) if one in known]


def in_state(
    state: Mapping[str, Any], permutation: Permutation, match: Mapping[str, Any] | None, where: str, bare: Any
) -> dict[str, MovedTensor]:
    """What moves in each entry of a state dict, whose names may have prefixes of wrappers."""
    keys: dict[str, list[str]] = {}
    for key in state:
        keys.setdefault(bare(str(key)), []).append(key)
    shapes = {name: _shape(state[own[0]]) for name, own in keys.items()}
    found = by_parameters(permutation, {name: one for name, one in shapes.items() if one is not None}, match, where)
    moves: dict[str, MovedTensor] = {}
    for name, one in found.tensors.items():
        for other in (name, *beside(shapes, name)):
            if shapes[other] == one.shape:
                moves.update(dict.fromkeys(keys[other], one))
    return moves


def _shape(value: Any) -> Shape | None:
    shape = getattr(value, "shape", None)
    return None if shape is None else tuple(int(size) for size in shape)


def demand_state(state: Any) -> Mapping[str, Any]:
    if not isinstance(state, Mapping) or not any(_shape(one) is not None for one in state.values()):
        raise OptionError(
            "a state dict is expected, with tensors by name; what is inside of a checkpoint, not around it"
        )
    return state


__all__: Sequence[str] = ["by_parameters", "demand_state", "in_state"]
