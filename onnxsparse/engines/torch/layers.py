"""The layers of a module as an ONNX model of one node each: so a plan's patterns see the axes of its parameters.

1. In a module of `to_module` the node is the call that reads the parameter.
2. In any other the layer that owns the parameter says which node it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import PlanError

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
                return _called(*calls[0], name, output)
    return None


def _kind(call: Any) -> str:
    return str(call.meta.get("onnx", ("",))[0] or getattr(call.target, "__name__", ""))


def _called(reader: Any, call: Any, name: str, output: str) -> NodeProto:
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
