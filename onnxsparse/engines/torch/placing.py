"""Which parameter a mask of a stored tensor belongs to, and how it lies there.

1. A given map decides, then the table of a module that `to_module` made, then equal names.
2. By name alone a mask is taken only where its shape is the parameter's, too, and both are the same way round.
3. What cannot be placed for sure is an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.materialize import TABLE
from onnxsparse.engines.torch.state_masks import bare
from onnxsparse.errors import OptionError, PlanError, nearest
from onnxsparse.values import Array

SAME, TRANSPOSED, SWAPPED = "same", "transposed", "swapped"
Match = Optional[Mapping[str, Any]]
Places = Mapping[object, Sequence[tuple[str, str]]]  # parameters and layouts, by tensor
_HOW = "say which parameter it is with match="


@dataclass(frozen=True, eq=False)
class TensorMask:
    """A mask of a stored tensor: its name in reports, its scope and name in the file, and which way round it lies."""

    name: str
    keep: Array
    key: tuple[str, str] | None = None
    inputs_first: bool | None = None


def placed(module: Any, masks: Sequence[TensorMask], match: Match) -> dict[str, Array]:
    """Masks by the names of parameters, in their shapes."""
    named, places = _named(module), _known(module, match)
    found: dict[str, Array] = {}
    for mask in masks:
        for path, layout in _places(mask, places, named, module):
            keep = laid_out(mask.keep, layout, path, tuple(named[path].shape) if path in named else mask.keep.shape)
            demand_fit(path, keep, named, mask.name)
            if path in found and not np.array_equal(found[path], keep):
                raise PlanError(f"parameter '{path}' would get two masks, one of them that of tensor '{mask.name}'")
            found[path] = keep
    return found


def places_of(module: Any, tensors: Sequence[str], match: Match) -> dict[str, str]:
    """The parameter of each tensor, by its name."""
    named, places = _named(module), _known(module, match)
    found = {}
    for name in tensors:
        path, _ = _places(TensorMask(name, np.empty(0, bool)), places, named, module)[0]
        if path not in named:
            raise PlanError(f"the module has no parameter '{path}' for tensor '{name}'{nearest(path, named)}")
        found[name] = path
    return found


def _named(module: Any) -> dict[str, Any]:
    return dict(module.named_parameters(remove_duplicate=False))


def _known(module: Any, match: Match) -> Places | None:
    return _by_match(match) if match is not None else _by_table(module)


def laid_out(keep: Array, layout: str, path: str, shape: tuple[int, ...]) -> Array:
    """A stored mask, turned as the parameter lies; axes of size 1 may come or go."""
    if layout not in (SAME, TRANSPOSED, SWAPPED):
        raise PlanError(f"parameter '{path}' lies in its tensor as {layout!r}, which masks cannot follow")
    found = keep.swapaxes(0, 1) if layout != SAME and keep.ndim > 1 else keep
    alike = [size for size in found.shape if size != 1] == [size for size in shape if size != 1]
    return found.reshape(shape) if alike else found


def demand_fit(path: str, keep: Array, named: Mapping[str, Any], title: str) -> None:
    if path not in named:
        raise PlanError(f"the module has no parameter '{path}' for the mask of '{title}'{nearest(path, named)}")
    shape = tuple(named[path].shape)
    if keep.shape != shape:
        raise PlanError(
            f"the mask of '{title}' has shape {list(keep.shape)}, parameter '{path}' {list(shape)}; "
            "match= says how a tensor lies in a parameter"
        )


def _by_match(match: Mapping[str, Any]) -> Places:
    """Parameters and layouts by the tensor's name."""
    places: dict[object, list[tuple[str, str]]] = {}
    for path, entry in match.items():
        tensor = getattr(entry, "tensor", None)
        if not isinstance(path, str) or not isinstance(tensor, str):
            raise OptionError("match is what osp.torch.match returns: for each parameter a tensor and its layout")
        places.setdefault(tensor, []).append((bare(path), str(getattr(entry, "layout", SAME) or SAME)))
    return places


def _by_table(module: Any) -> Places | None:
    """The same for a module of to_module: by scope and name, and by the name alone where it stands there once."""
    table = getattr(module, TABLE, None)
    if table is None:
        return None
    found: dict[object, list[tuple[str, str]]] = {}
    homes: dict[str, set[str]] = {}
    for path, (scope, name) in table["tensors"].items():
        found.setdefault((scope, name), []).append((path, SAME))
        homes.setdefault(name, set()).add(scope)
    for name, scopes in homes.items():
        found.update({f"{scope}/{name}": found[scope, name] for scope in scopes})
        if len(scopes) == 1:
            found[name] = found[next(iter(scopes)), name]
    return found


def _places(
    mask: TensorMask, places: Places | None, named: Mapping[str, Any], module: Any
) -> Sequence[tuple[str, str]]:
    if places is None:
        return [(mask.name, _round(mask, named, module))]
    found = places.get(mask.key) if mask.key in places else places.get(mask.name)
    if not found:
        raise PlanError(f"no parameter of the module is tensor '{mask.name}'; leave it out of the masks")
    return found


def _round(mask: TensorMask, named: Mapping[str, Any], module: Any) -> str:
    """Which way round a tensor lies in the parameter of its name: linear layers of torch are (out, in)."""
    if mask.name not in named:
        raise PlanError(f"the module has no parameter called '{mask.name}'{nearest(mask.name, named)}; {_HOW}")
    owner = module.get_submodule(mask.name.rpartition(".")[0])
    turned = mask.inputs_first and isinstance(owner, torch().nn.Linear)
    return TRANSPOSED if turned else SAME
