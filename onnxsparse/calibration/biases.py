"""The bias of a layer: what a refit may add to each of its outputs, and where that is stored.

1. It is a stored vector that nothing else reads, added by the node or by the Add behind it; or the mean of the
   BatchNormalization behind it, which takes off what a bias would add.
2. That of a recurrent layer is the input half of its biases.
3. It may be stored as integers: with a scale of its own that follows that of the weight, or with none where the node
   makes it of the scales of its input and its weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxsparse.calibration.stored_numbers import Floats, IntegerBias, Integers, Numbers, StoredNumbers, follows
from onnxsparse.calibration.streams import Cut
from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.storage import FLOAT_KINDS, StoredTensor
from onnxsparse.graph.weights import Use
from onnxsparse.math.values import Array

OWN_BIAS = {"Conv": 2, "ConvTranspose": 2, "FusedConv": 2, "Gemm": 2, "FusedGemm": 2, "Attention": 2, "QLinearConv": 8}
RECURRENT = ("LSTM", "GRU", "RNN")
GEMMS = ("Gemm", "FusedGemm")


@dataclass(frozen=True, eq=False)
class Bias:
    """A stored vector that moves with the outputs of a layer: by `sign` times what each output's bias does."""

    store: StoredNumbers
    sign: float = 1.0
    places: Array | None = None
    """Where the outputs lie in it, where it holds more."""

    def moved(self, by: Array, changed: Numbers) -> dict[str, Array]:
        """The tensors that store it, when something is added to each output."""
        flat = self.store.real(changed).copy()
        flat[slice(None) if self.places is None else self.places] += self.sign * by
        return self.store.written(flat, changed)


@dataclass(frozen=True, eq=False)
class Biases:
    """The biases of the nodes of a model."""

    cut: Cut
    tensors: Mapping[str, StoredTensor]
    """Those of the main graph."""

    def of(self, use: Use, weight: StoredNumbers) -> Bias | None:
        """That of the node of a use; `weight` is how that is stored."""
        node, outputs = use.source, use.shape4[0] * use.shape4[1]
        if node.op_type in RECURRENT:
            return self._recurrent(node, use)
        slot = OWN_BIAS.get(node.op_type)
        if slot is not None and len(node.input) > slot and node.input[slot]:
            return self._vector(node.input[slot], outputs, weight, node=node) if _plain(node, use) else None
        if node.op_type.startswith("QLinear"):
            return None
        return self._behind(node, use, weight)

    def _behind(self, node: NodeProto, use: Use, weight: StoredNumbers) -> Bias | None:
        readers = self.cut.reading(node.output[0])
        if len(readers) != 1 or self.cut.readers[node.output[0]] != 1:
            return None
        outputs = use.shape4[0] * use.shape4[1]
        if readers[0].op_type == "BatchNormalization" and node.op_type in ("Conv", "ConvTranspose"):
            return self._vector(readers[0].input[3], outputs, weight, -1.0)
        if readers[0].op_type == "Add" and node.op_type == "MatMul" and use.slot == 1:
            other = next((name for name in readers[0].input if name != node.output[0]), "")
            return self._vector(other, outputs, weight)
        return None

    def _vector(
        self, name: str, outputs: int, weight: StoredNumbers, sign: float = 1.0, node: NodeProto | None = None
    ) -> Bias | None:
        """A stored vector of the main graph that nothing else reads."""
        if self.cut.readers[name] != 1:
            return None
        tensor = self.tensors.get(name)
        if tensor is not None and tensor.kind in FLOAT_KINDS:
            return Bias(Floats(tensor), sign) if _is_row(tensor, outputs) else None
        store = self._made(tensor, weight, node) if tensor is not None else self._dequantised(name, weight)
        return Bias(store, sign) if store is not None and _is_row(store.tensor, outputs) else None

    def _made(self, tensor: StoredTensor, weight: StoredNumbers, node: NodeProto | None) -> IntegerBias | None:
        """The integers of a node that multiplies the scales of its input and its weight itself."""
        if node is None or node.op_type != "QLinearConv" or not isinstance(weight, Integers):
            return None
        if not self.cut.is_constant(node.input[1]):
            return None
        scales = self.cut.constant(node.input[1]).astype(np.float64).reshape(-1) * weight.scales({}).reshape(-1)
        return IntegerBias(tensor, scales, None, weight)

    def _dequantised(self, name: str, weight: StoredNumbers) -> IntegerBias | None:
        found = self.cut.dequantised(name)
        tensor = self.tensors.get(found.input[0]) if found is not None else None
        if found is None or tensor is None or self.cut.readers[tensor.name] != 1:
            return None
        if len(found.input) > 2 and found.input[2] and self.cut.constant(found.input[2]).any():
            return None
        scales = self.cut.constant(found.input[1]).astype(np.float64).reshape(-1)
        leader = weight if isinstance(weight, Integers) and follows(scales, weight.scales({})) else None
        own = self.tensors.get(found.input[1]) if self.cut.readers[found.input[1]] == 1 else None
        if own is None and leader is not None and not leader.held:
            return None
        return IntegerBias(tensor, scales, own if leader is not None else None, leader)

    def _recurrent(self, node: NodeProto, use: Use) -> Bias | None:
        """The input half of the biases: (directions, twice the gates)."""
        if len(node.input) <= 3 or not node.input[3]:
            return None
        tensor, (group, out, _, _) = self.tensors.get(node.input[3]), use.shape4
        if tensor is None or self.cut.readers[node.input[3]] != 1 or tensor.shape != (group, 2 * out):
            return None
        places = np.arange(group * 2 * out).reshape(group, 2 * out)[:, :out].reshape(-1)
        return Bias(Floats(tensor), 1.0, places) if tensor.kind in FLOAT_KINDS else None

    def stays_behind(self, use: Use, weight: Integers, bias: Bias | None) -> bool:
        """Whether the node has an integer bias whose scale follows that of the weight but cannot grow along."""
        slot = OWN_BIAS.get(use.source.op_type)
        if bias is not None or slot is None or len(use.source.input) <= slot or not use.source.input[slot]:
            return False
        found = self.cut.dequantised(use.source.input[slot])
        if found is None:
            return use.source.op_type == "QLinearConv"
        return follows(self.cut.constant(found.input[1]), weight.scales({}))


def _is_row(tensor: StoredTensor, outputs: int) -> bool:
    return tensor.size == outputs and tensor.shape[-1:] == (outputs,)


def _plain(node: NodeProto, use: Use) -> bool:
    """Whether the bias is added as it is, one number for each output."""
    return node.op_type not in GEMMS or (Attributes(node, {}).number("beta", 1.0) == 1.0 and use.slot == 1)


__all__ = ["RECURRENT", "Bias", "Biases"]
