"""The masks of a manager in a state: by modifier and parameter, and by stage where the recipe has some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.modifiers.scheduled import Scheduled
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.writing import identifier
from onnxsparse.train.acts.act import TimedAct
from onnxsparse.train.module_trainee import ModuleTrainee
from onnxsparse.train.params import Param

MASK = ".sparsity_mask"
Acts = Sequence[tuple[Scheduled, TimedAct]]


def saved(trainee: ModuleTrainee, recipe: Recipe, acts: Acts) -> dict[str, Any]:
    """Copies of all masks."""
    if not recipe.stages:
        return _masks(trainee, acts)
    found = {}
    for stage in recipe.stages:
        own = [pair for pair in acts if any(pair[0] is one for one in stage.modifiers)]  # equal ones may be of another
        found[stage.name] = _masks(trainee, own)
    return found


def _masks(trainee: ModuleTrainee, acts: Acts) -> dict[str, Any]:
    return {
        identifier(one): {param.name + MASK: trainee.mask_tensor(act, param) for param in act.masked()}
        for one, act in acts
        if act.masked()
    }


def take(trainee: ModuleTrainee, acts: Acts, own: Mapping[str, Any], state: Mapping[str, Any], strict: bool) -> None:
    """Put the masks of a state on the module; `own` is the state that it has."""
    if not isinstance(state, Mapping):
        raise OptionError(f"the state of a manager is a mapping, not a {type(state).__name__}")
    known, given = _flat(own), _flat(state)
    if strict and set(known) != set(given):
        other = sorted(set(known) ^ set(given))[0]
        raise OptionError(f"the state is that of another recipe or module: {'/'.join(other)} is in one of them only")
    by_name = {param.name: param for param in trainee.params}
    by_identifier = {identifier(one): act for one, act in acts}
    keys = {key: by_name[key[-1][: -len(MASK)]] for key in known if key in given}
    masks = {key: _mask(given[key], param) for key, param in keys.items()}
    for key, param in keys.items():
        trainee.put_for(by_identifier[key[-2]], param, masks[key])


def _mask(given: Any, param: Param) -> Array:
    if not torch().is_tensor(given) or tuple(given.shape) != param.shape:
        shape = list(given.shape) if torch().is_tensor(given) else type(given).__name__
        raise OptionError(f"the mask of {param.name} in the state is {shape}, and the parameter {list(param.shape)}")
    return cast(Array, given.bool().cpu().numpy().reshape(-1))


def _flat(state: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for key, value in state.items():
        if isinstance(value, Mapping):
            found.update(_flat(value, (*path, key)))
        else:
            found[(*path, key)] = value
    return found
