"""Biases, scales and statistics of normalizations, and nodes that run as in training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnx import NodeProto, TensorProto, numpy_helper

from onnxsparse.graph.attributes import label
from onnxsparse.graph.edit import bodies
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import FLOAT_KINDS, StoredTensor
from onnxsparse.graph.stores import Container

# -- The small tensors that train along with the weights: biases, and scales of normalizations.
#
# 1. An input that an operator adds to, or scales, its result with; one table says which input that is.
# 2. An Add of one stored tensor with at most one axis that is not 1, right behind an operator with a weight.
# 3. Identity is seen through. What is the mean or variance of a normalization is none of these: it is statistics. Nor
#    is what says how large a picture becomes, and was stored once with a scale of the same numbers.


SLOTS: dict[str, tuple[int, ...]] = {
    "Conv": (2,),
    "ConvTranspose": (2,),
    "Gemm": (2,),
    "LSTM": (3,),
    "GRU": (3,),
    "RNN": (3,),
    "BatchNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "GroupNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "SimplifiedLayerNormalization": (1,),
    "RMSNormalization": (1,),
    "SkipLayerNormalization": (2, 3, 4),
    "SkipSimplifiedLayerNormalization": (2, 3),
    "BiasGelu": (1,),
    "FusedConv": (2,),
    "FusedGemm": (2,),
    "Attention": (2,),
}
STATISTICS = {"BatchNormalization": (3, 4)}
SIZES = {"Resize": (1, 2), "Upsample": (1,)}
PRODUCTS = {"MatMul", "Conv", "ConvTranspose", "Gemm", "FusedMatMul"}


def vectors(model: Model) -> list[StoredTensor]:
    """The stored float tensors that train along, in the order in which the nodes read them."""
    return list(_Search(model).found({**SLOTS}))


def statistics(model: Model) -> list[StoredTensor]:
    """Running means and variances."""
    return list(_Search(model).statistics())


class _Search:
    def __init__(self, model: Model) -> None:
        self._nodes = [node for container in containers(model) for node in container.node]
        homes = model.flow.stores.homes
        self._stored = {tensor.name: tensor for tensor in homes if tensor.kind in FLOAT_KINDS}
        names = [tensor.name for tensor in homes]
        self._clashing = {name for name in names if names.count(name) > 1} if len(names) != len(set(names)) else set()
        self._alias = {n.output[0]: n.input[0] for n in self._nodes if n.op_type == "Identity" and n.input}
        self._makers = {name: node.op_type for node in self._nodes for name in node.output}

    def found(self, slots: dict[str, tuple[int, ...]]) -> dict[StoredTensor, None]:
        fixed = self._read_at({**STATISTICS, **SIZES})
        found: dict[StoredTensor, None] = {}
        for node in self._nodes:
            for slot in slots.get(node.op_type, ()):
                self._add(found, node, slot)
            if node.op_type == "Add" and any(self._makers.get(name) in PRODUCTS for name in node.input):
                for slot in range(len(node.input)):
                    self._add(found, node, slot)
        return {tensor: None for tensor in found if tensor not in fixed}

    def statistics(self) -> dict[StoredTensor, None]:
        return self._read_at(STATISTICS)

    def _read_at(self, slots: Mapping[str, tuple[int, ...]]) -> dict[StoredTensor, None]:
        found: dict[StoredTensor, None] = {}
        for node in self._nodes:
            for slot in slots.get(node.op_type, ()):
                self._add(found, node, slot)
        return found

    def _add(self, found: dict[StoredTensor, None], node: NodeProto, slot: int) -> None:
        tensor = self._tensor(node.input[slot]) if slot < len(node.input) else None
        if tensor is None or not tensor.readable:
            return
        if sum(size != 1 for size in tensor.shape) <= 1 or node.op_type in ("LSTM", "GRU", "RNN"):
            found.setdefault(tensor)

    def _tensor(self, name: str) -> StoredTensor | None:
        for _ in range(len(self._alias) + 1):
            if name in self._stored:
                return None if name in self._clashing else self._stored[name]
            if name not in self._alias:
                return None
            name = self._alias[name]
        return None


def containers(model: Model) -> Iterator[Container]:
    """The graph, the local functions, and the bodies in them."""
    pending: list[Container] = [model.proto.graph, *model.proto.functions]
    while pending:
        container = pending.pop(0)
        yield container
        for node in container.node:
            pending += bodies(node)


# -- Nodes that a file runs as in training: normalizations by their own batch, and Dropout that drops.
#
# 1. A batch normalization says so by its attribute; before opset 14 by naming the statistics among its outputs.
# 2. Dropout says so by a stored input.


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
