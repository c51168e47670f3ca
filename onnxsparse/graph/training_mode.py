"""Nodes that a file runs as in training: normalizations by their own batch, and Dropout that drops.

1. A batch normalization says so by its attribute; before opset 14 by naming the statistics among its outputs.
2. Dropout says so by a stored input.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import NodeProto, TensorProto, numpy_helper

from onnxsparse.graph.attributes import label
from onnxsparse.graph.model import Model
from onnxsparse.graph.vectors import containers

_SAID = "training_mode"


def training_mode(model: Model) -> str:
    """Which nodes of a model run as in training, in a few words; nothing where none does."""
    nodes = [node for container in containers(model) for node in container.node]
    true = set(_true(model, nodes))
    found: dict[str, list[str]] = {}
    for node in nodes:
        if _normalizes(node) or (node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] in true):
            found.setdefault(node.op_type, []).append(label(node))
    return ", ".join(f"{kind} {_some(names)}" for kind, names in sorted(found.items()))


def _normalizes(node: NodeProto) -> bool:
    if node.op_type != "BatchNormalization":
        return False
    said = [attribute.i for attribute in node.attribute if attribute.name == _SAID]
    return bool(said[0]) if said else sum(map(bool, node.output)) > 1


def _true(model: Model, nodes: list[NodeProto]) -> Iterator[str]:
    """Names of stored tensors that are a single yes."""
    yield from (tensor.name for tensor in model.proto.graph.initializer if _is_true(tensor))
    for node in nodes:
        if node.op_type == "Constant" and any(_is_true(attribute.t) for attribute in node.attribute):
            yield node.output[0]


def _is_true(tensor: TensorProto) -> bool:
    plain = tensor.data_type == TensorProto.BOOL and tensor.data_location != TensorProto.EXTERNAL
    return plain and list(tensor.dims) in ([], [1]) and bool(numpy_helper.to_array(tensor).all())


def _some(names: list[str]) -> str:
    return f"'{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
