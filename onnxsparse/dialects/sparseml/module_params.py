"""The parameters of a torch module: their names, the layers they are of, and how they lie in rows and columns.

1. A parameter that is tied has several names and is one parameter.
2. In a module made of an ONNX file a weight also answers to the names of its layer there.
3. `__ALL_PRUNABLE__` are the weights of linear layers, convolutions and look-up tables; in a module made of an ONNX
   file those that such an operator reads.
4. What wrappers for several devices or compilers put before a name does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnxsparse.engines.torch.layers import layers_as_model
from onnxsparse.engines.torch.library import torch
from onnxsparse.epochs.params import Param
from onnxsparse.errors import PlanError
from onnxsparse.graph.model import Model
from onnxsparse.math.param import View
from onnxsparse.passes.names import Named, layers_of_node, names_of_node

PRUNABLE = ("Linear", "_ConvNd", "Embedding", "Conv1D")
OPERATORS = ("Conv", "ConvTranspose", "Einsum", "Gather", "Gemm", "MatMul")
WEIGHT = "weight"
Calls = list[Any]  # nodes of torch.fx
Homes = list[tuple[Any, str]]  # the modules a parameter stands in, and its name there


def params_of(module: Any) -> list[tuple[Param, Any, Homes]]:
    """Every parameter once, with the tensor, and everywhere that it stands."""
    named: dict[Any, list[tuple[str, Any, str]]] = {}  # by tensor
    for prefix, owner in module.named_modules():
        for name, tensor in owner._parameters.items():
            if tensor is not None:
                named.setdefault(tensor, []).append((f"{prefix}.{name}" if prefix else name, owner, name))
    calls = _calls(module)
    traced = _traced(module, calls)
    return [
        (_param(tensor, places, traced, calls), tensor, [(owner, name) for _, owner, name in places])
        for tensor, places in named.items()
    ]


def _param(
    tensor: Any, places: list[tuple[str, Any, str]], traced: Mapping[str, tuple[View, View]], calls: Mapping[str, Calls]
) -> Param:
    owner = places[0][1]
    names = tuple(bare(one) for one, _, _ in places)
    views = next((traced[one] for one, _, _ in places if one in traced), None)
    prunable = views is not None or any(_is_weight(one, local) for _, one, local in places)
    matrix, restore = views or _views(owner, tensor) or (None, None)
    layers = [name.rpartition(".")[0] for name in names if name.endswith(WEIGHT) and "." in name]
    slashes = [layer.replace(".", "/") for layer in layers]
    read = dict.fromkeys(call for one, _, _ in places if one in traced for call in calls[one])
    nodes = [call.meta["onnx"][1] for call in read if "onnx" in call.meta]
    layers = [*layers, *slashes, *(layer for node in nodes for layer in layers_of_node(node))]
    own = tuple(dict.fromkeys(name for node in nodes for name in names_of_node(node)))
    answers = Named(names[0], names, own, tuple(dict.fromkeys(layers)), of=frozenset(read or filter(None, layers)))
    return Param(
        names[0], names[0], tuple(tensor.shape), matrix, restore, lambda: numbers_of(tensor), names,
        (*answers.nodes, *answers.layers), prunable, named=answers,
    )  # fmt: skip


def bare(name: str) -> str:
    """Without the steps that wrappers and compilers add."""
    return ".".join(step for step in name.split(".") if step not in ("_orig_mod", "_fsdp_wrapped_module"))


def numbers_of(tensor: Any) -> Any:
    """As float32 on the host, flat; of a plain float32 parameter the very memory."""
    return tensor.detach().float().cpu().contiguous().numpy().reshape(-1)


def _kinds(owner: Any) -> list[str]:
    return [kind.__name__ for kind in type(owner).__mro__]


def _is_weight(owner: Any, name: str) -> bool:
    return name == WEIGHT and any(kind in PRUNABLE for kind in _kinds(owner))


def _views(owner: Any, tensor: Any) -> tuple[View, View] | None:
    """Of a matrix its first axis counts the outputs; convolutions know their groups."""
    kinds, shape = _kinds(owner), tuple(tensor.shape)
    if "_ConvNd" in kinds and len(shape) > 2:
        return (_transposed if owner.transposed else _forward)(shape, owner.groups)
    if "Conv1D" in kinds and len(shape) == 2:
        return _swapped(shape)
    return _forward(shape, 1) if len(shape) == 2 else None


def _forward(shape: tuple[int, ...], groups: int) -> tuple[View, View]:
    four = (groups, shape[0] // groups, shape[1], -1)
    return lambda flat: flat.reshape(four), lambda view: view.reshape(-1)


def _transposed(shape: tuple[int, ...], groups: int) -> tuple[View, View]:
    """Inputs first."""
    four = (groups, shape[0] // groups, shape[1], -1)
    return (
        lambda flat: flat.reshape(four).transpose(0, 2, 1, 3),
        lambda view: view.transpose(0, 2, 1, 3).reshape(-1),
    )


def _swapped(shape: tuple[int, ...]) -> tuple[View, View]:
    return _transposed((shape[0], shape[1], 1), 1)


def _traced(module: Any, calls: Mapping[str, Calls]) -> dict[str, tuple[View, View]]:
    """The weights that operators read in modules of a graph, as the plan of an ONNX model sees them."""
    if not calls:
        return {}
    try:
        model = Model.over(layers_as_model(module, {path: path for path in calls}))
    except PlanError:
        return {}
    found = {weight.tensor.name: weight.uses[0] for weight in model.weights if weight.uses and not weight.refusal}
    return {name: (use.matrix, use.restore) for name, use in found.items()}


def _calls(module: Any) -> dict[str, Calls]:
    """By parameter the operators that read it in modules of a graph; those of a file know their names there."""
    found: dict[str, Calls] = {}
    for prefix, part in module.named_modules():
        if isinstance(part, torch().fx.GraphModule):
            start, known = f"{prefix}." if prefix else "", dict(module.named_parameters(remove_duplicate=False))
            for node in part.graph.nodes:
                readers = [user for user in node.users if _operator(user) in OPERATORS] if node.op == "get_attr" else []
                if readers and f"{start}{node.target}" in known:
                    found.setdefault(f"{start}{node.target}", []).extend(readers)
    return found


def _operator(call: Any) -> str:
    return str(call.meta.get("onnx", ("",))[0] or getattr(call.target, "__name__", ""))
