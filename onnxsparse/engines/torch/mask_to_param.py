"""Mapping masks to parameters: which parameter a mask of a stored tensor belongs to, and how it lies there.

1. A given map decides, then the table of a module that `to_module` made, then equal names.
2. By name alone a mask is taken only where its shape is the parameter's, too, and both are the same way round. A tensor
   that was merged of several parameters is all of them.
3. What cannot be placed for sure is an error that names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.parameters import TABLE
from onnxsparse.errors import OptionError, PlanError, nearest
from onnxsparse.math.values import Array

SAME, TRANSPOSED, SWAPPED = "same", "transposed", "swapped"
Match = Optional[Mapping[str, Any]]
Shape = tuple[int, ...]
_HOW = "say which parameter it is with match="


@dataclass(frozen=True, eq=False)
class TensorMask:
    """A mask of a stored tensor: its name in reports, its scope and name in the file, and which way round it lies.

    `also` are names that the file gives it besides, where equal tensors were merged.
    """

    name: str
    keep: Array
    key: tuple[str, str] | None = None
    inputs_first: bool | None = None
    also: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Place:
    """A parameter, and how it lies in its tensor; `entry` is what a given map says of it."""

    path: str
    layout: str = SAME
    entry: Any = None
    beside: tuple[str, ...] = ()  # other tensors with the numbers of this parameter


Places = Mapping[object, Sequence[Place]]


def placed(module: Any, masks: Sequence[TensorMask], match: Match) -> dict[str, Array]:
    """Masks by the names of parameters, in their shapes."""
    named, places = _named(module), _known(module, match)
    found: dict[str, Array] = {}
    alone: dict[str, tuple[str, str]] = {}
    _demand_places(masks, places, named, module)
    for mask in masks:
        mine = _places(mask, places, named, module)
        _demand_whole(mask, mine, named)
        for place in mine:
            keep = laid_out(mask.keep, place, tuple(named[place.path].shape) if place.path in named else ())
            demand_fit(place.path, keep, named, mask.name)
            if place.path in found and not np.array_equal(found[place.path], keep):
                raise PlanError(f"parameter '{place.path}' would get two masks, one of them of tensor '{mask.name}'")
            found[place.path] = keep
            alone.update(dict.fromkeys(place.beside, (place.path, mask.name)))
    _demand_all_copies(alone, masks)
    return found


def _demand_places(masks: Sequence[TensorMask], places: Places | None, named: Mapping[str, Any], module: Any) -> None:
    """A file of another module shows in how many of its tensors have a parameter."""
    errors = []
    for mask in masks:
        try:
            for place in _places(mask, places, named, module):
                _demand_there(place.path, named, mask.name)
        except PlanError as error:
            errors.append(error)
    if errors and len(masks) > 1:
        raise PlanError(f"{errors[0]} ({len(masks) - len(errors)} of {len(masks)} tensors with masks have a parameter)")
    if errors:
        raise errors[0]


def _demand_whole(mask: TensorMask, mine: Sequence[Place], named: Mapping[str, Any]) -> None:
    """A tensor may hold several parameters, such as two directions of a recurrent layer: all have to be known."""
    size = sum(named[place.path].numel() for place in mine if place.path in named)
    if mine[0].entry is not None and size < mask.keep.size and not mask.keep.all():
        raise PlanError(f"only a part of tensor '{mask.name}' is known to be parameter '{mine[0].path}'")


def _demand_all_copies(beside: Mapping[str, tuple[str, str]], masks: Sequence[TensorMask]) -> None:
    """One parameter may be two tensors of the file; with a mask on one of them it would be neither."""
    given = {mask.name for mask in masks}
    for name, (path, masked) in beside.items():
        if name not in given:
            raise PlanError(
                f"parameter '{path}' is several tensors: '{masked}' has a mask, '{name}' has none; mask both, or none "
                "of them"
            )


def places_of(module: Any, tensors: Sequence[str], match: Match) -> dict[str, str]:
    """The one parameter of each tensor, by its name."""
    named, places = _named(module), _known(module, match)
    found = {}
    for name in tensors:
        mine = _places(TensorMask(name, np.empty(0, bool)), places, named, module)
        if len({named.get(place.path) for place in mine}) > 1 or mine[0].beside:
            raise PlanError(f"tensor '{name}' is no single parameter; pass the model that the plan is for with model=")
        if mine[0].path not in named:
            raise PlanError(f"the module has no parameter '{mine[0].path}' for tensor '{name}'")
        found[name] = mine[0].path
    return found


def _named(module: Any) -> dict[str, Any]:
    return dict(module.named_parameters(remove_duplicate=False))


def _known(module: Any, match: Match) -> Places | None:
    return _by_match(match) if match is not None else _by_table(module)


def laid_out(keep: Array, place: Place, shape: Shape) -> Array:
    """A stored mask, turned as the parameter lies; axes of size 1 may come or go."""
    if hasattr(place.entry, "places") and tuple(place.entry.shape) == shape:
        where = place.entry.places()
        if where.size and int(where.max()) >= keep.size:
            raise PlanError(f"parameter '{place.path}' does not lie in its tensor as match= says; match them again")
        return np.asarray(keep.reshape(-1)[where])
    if place.layout not in (SAME, TRANSPOSED, SWAPPED):
        raise PlanError(f"parameter '{place.path}' lies in its tensor as {place.layout!r}, which masks cannot follow")
    found = keep.swapaxes(0, 1) if place.layout != SAME and keep.ndim > 1 else keep
    alike = [size for size in found.shape if size != 1] == [size for size in shape if size != 1]
    return found.reshape(shape) if alike and shape else found


def _demand_there(path: str, named: Mapping[str, Any], title: str) -> None:
    if f"{path}_orig" in named:
        raise PlanError(f"parameter '{path}' is held by torch.nn.utils.prune; call prune.remove first")
    if path not in named:
        raise PlanError(f"the module has no parameter '{path}' for the mask of '{title}'{nearest(path, named)}")


def demand_fit(path: str, keep: Array, named: Mapping[str, Any], title: str) -> None:
    _demand_there(path, named, title)
    shape = tuple(named[path].shape)
    if keep.shape != shape:
        raise PlanError(
            f"the mask of '{title}' has shape {list(keep.shape)}, parameter '{path}' {list(shape)}; "
            "match= says how a tensor lies in a parameter"
        )


def _by_match(match: Mapping[str, Any]) -> Places:
    rows = []
    for path, entry in match.items():
        tensors = [getattr(one, "tensor", None) for one in (entry, *getattr(entry, "copies", ()))]
        if not isinstance(path, str) or not all(isinstance(tensor, str) for tensor in tensors):
            raise OptionError("match is what osp.torch.match returns: for each parameter a tensor and its layout")
        for one in (entry, *getattr(entry, "copies", ())):
            beside = tuple(str(tensor) for tensor in tensors if tensor != one.tensor)
            place = Place(bare(path), str(getattr(one, "layout", SAME)), one, beside)
            rows.append((getattr(one, "scope", ""), one.tensor, place))
    return _by_names(rows)


def _by_table(module: Any) -> Places | None:
    """For a module of to_module."""
    table = getattr(module, TABLE, None)
    if table is None:
        return None
    return _by_names([(scope, name, Place(path)) for path, (scope, name) in table["tensors"].items()])


def _by_names(rows: Sequence[tuple[str, str, Place]]) -> Places:
    """By scope and name, and by the name alone where it stands in one scope only."""
    found: dict[object, list[Place]] = {}
    homes: dict[str, set[str]] = {}
    for scope, name, place in rows:
        found.setdefault((scope, name), []).append(place)
        homes.setdefault(name, set()).add(scope)
    for name, scopes in homes.items():
        found.update({f"{scope}/{name}": found[scope, name] for scope in scopes})
        if len(scopes) == 1:
            found[name] = found[next(iter(scopes)), name]
    return found


def _places(mask: TensorMask, places: Places | None, named: Mapping[str, Any], module: Any) -> Sequence[Place]:
    if places is None:
        paths = [mask.name if mask.name in named else bare(mask.name), *(one for one in mask.also if one in named)]
        return [Place(path, _round(path, mask, named, module)) for path in dict.fromkeys(paths)]
    found = places.get(mask.key) if mask.key in places else places.get(mask.name)
    if not found:
        raise PlanError(f"no parameter of the module is tensor '{mask.name}'; leave it out of the masks")
    return found


def _round(path: str, mask: TensorMask, named: Mapping[str, Any], module: Any) -> str:
    """Which way round a tensor lies in the parameter of its name: linear layers of torch are (out, in)."""
    if path not in named:
        raise PlanError(f"the module has no parameter called '{mask.name}'{nearest(path, named)}; {_HOW}")
    owner = module.get_submodule(path.rpartition(".")[0])
    turned = mask.inputs_first and isinstance(owner, torch().nn.Linear)
    return TRANSPOSED if turned else SAME


# -- The layers of a module as an ONNX model of one node each: so a plan's patterns see the axes of its parameters.
#
# 1. In a module of `to_module` the node is the call that reads the parameter.
# 2. In any other the layer that owns the parameter says which node it is.


_OPSET, _IR = 17, 8
_READERS = ("Conv", "ConvTranspose", "Einsum", "Gather", "Gemm", "MatMul")
_MATRICES = ("Linear", "LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell", "MultiheadAttention")


def layers_as_model(module: Any, paths: Mapping[str, str]) -> ModelProto:
    """A model whose stored tensors are the parameters at `paths`, under the names of `paths`."""
    nodes = [_layer(module, path, name, f"out{place}") for place, (name, path) in enumerate(paths.items())]
    stored = [_stored(module.get_parameter(path), name) for name, path in paths.items()]
    made = {name for node in nodes for name in node.output} | set(paths)
    inputs = dict.fromkeys(name for node in nodes for name in node.input if name and name not in made)
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in inputs],
        [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None) for node in nodes],
        stored,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)


def _stored(parameter: Any, name: str) -> TensorProto:
    return numpy_helper.from_array(parameter.detach().float().cpu().contiguous().numpy(), name)


def _layer(module: Any, path: str, name: str, output: str) -> NodeProto:
    node = _by_call(module, path, name, output) or _by_owner(module, path, name, output)
    if node is None:
        raise PlanError(
            f"which axes of parameter '{path}' are inputs and outputs cannot be seen in the module; "
            "pass the model that the plan was made for with model="
        )
    return node


def _by_call(module: Any, path: str, name: str, output: str) -> NodeProto | None:
    for prefix, part in module.named_modules():
        if isinstance(part, torch().fx.GraphModule):
            start = f"{prefix}." if prefix else ""
            readers = [one for one in part.graph.nodes if one.op == "get_attr" and start + one.target == path]
            calls = [(one, user) for one in readers for user in one.users if _kind(user) in _READERS]
            if calls:
                return _layer_type(*calls[0], name, output)
    return None


def _kind(call: Any) -> str:
    return str(call.meta.get("onnx", ("",))[0] or getattr(call.target, "__name__", ""))


def _layer_type(reader: Any, call: Any, name: str, output: str) -> NodeProto:
    inputs = [name if one is reader else f"{output}_{slot}" for slot, one in enumerate(call.args)]
    attributes: dict[str, Any] = {
        key: value for key, value in call.kwargs.items() if isinstance(value, (int, float, str, list, tuple))
    }
    return helper.make_node(_kind(call), inputs, [output], **attributes)


def _by_owner(module: Any, path: str, name: str, output: str) -> NodeProto | None:
    owner, data = module.get_submodule(path.rpartition(".")[0]), f"{output}_x"
    kinds = [kind.__name__ for kind in type(owner).__mro__]
    if "_ConvNd" in kinds:
        operator = "ConvTranspose" if owner.transposed else "Conv"
        return helper.make_node(operator, [data, name], [output], group=owner.groups)
    if "Embedding" in kinds:
        return helper.make_node("Gather", [name, data], [output])
    if any(kind in kinds for kind in _MATRICES) and module.get_parameter(path).dim() == 2:
        return helper.make_node("Gemm", [data, name], [output], transB=1)
    return None


# -- Masks that other tools left in a state dict, by the names of parameters; and masks as plain arrays.
#
# mask_dict            an entry of that name holds the masks, each called as its parameter
# __weight_mma_mask    beside `weight`: those of the ASP of NVIDIA's apex
# weight_mask          beside `weight_orig`: those of torch.nn.utils.prune


DICT = "mask_dict"
_MMA = re.compile(r"(.*\.|)__(.+)_mma_mask")
_SUFFIXES = ("", "_mask", ".mask", "_fake_sparse.mask")
_PREFIXES = ("module.", "_orig_mod.")


def masks_of_state(state: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Array] | None:
    """Masks by parameter; None where a mapping is no state dict with masks in it."""
    inner = state.get(DICT)
    if isinstance(inner, Mapping):
        return {_called(str(name), parameters): array_of(mask, str(name)) for name, mask in inner.items()}
    found = {}
    for key in map(str, state):
        name = _beside(key, state)
        if name is not None:
            found[bare(name)] = array_of(state[key], key)
    return found or None


def _beside(key: str, state: Mapping[str, Any]) -> str | None:
    """The parameter whose mask an entry is."""
    mma = _MMA.fullmatch(key)
    if mma:
        return mma[1] + mma[2]
    name = key[: -len("_mask")] if key.endswith("_mask") else ""
    return name if name and f"{name}_orig" in state else None


def _called(name: str, parameters: Mapping[str, Any]) -> str:
    """The parameter that an entry of a `mask_dict` means; its own name where it means none."""
    plain = bare(name)
    for suffix in _SUFFIXES:
        if plain.endswith(suffix):
            stem = plain[: len(plain) - len(suffix)]
            for one in (stem, f"{stem}.weight"):
                if one in parameters:
                    return one
    return plain


def bare(name: str) -> str:
    """A parameter's name without what DistributedDataParallel and torch.compile put before it."""
    while name.startswith(_PREFIXES):
        name = name.partition(".")[2]
    return name


def array_of(mask: Any, name: str) -> Array:
    """A mask of zeros and ones as an array, True = keep."""
    array: Array = np.asarray(mask.detach().cpu().numpy() if hasattr(mask, "detach") else mask)
    if array.dtype.kind not in "biuf":
        raise PlanError(f"the mask of '{name}' is no array of zeros and ones")
    if array.dtype.kind != "b" and not np.isin(array, (0, 1)).all():
        raise PlanError(f"the mask of '{name}' holds other numbers than 0 and 1; pass masks, not weights")
    return np.asarray(array != 0)
