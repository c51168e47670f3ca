"""Cross-layer equalization (Nagel et al. 2019): a channel between two layers is scaled, and scaled back by the readers.

    y = W2 act(W1 x + b1)  =  (W2 S) act(S^-1 W1 x + S^-1 b1)        S diagonal and positive, act(s x) = s act(x)

1. One scale serves all channels of a value: where one channel is a hundred times as wide as the others, these are left
   with a few steps. Weights with a scale for each output are indifferent to S^-1; what a channel costs its readers is
   their greatest weight on it, relative to the greatest weight of the same output. With one scale for all of a weight,
   its rows are such ranges as well.
2. Factors are powers of two, so that the model computes the same bit for bit, and what is zero stays zero.
3. Only what is quantized on both sides takes part, and only where nothing else reads the value.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from onnxsparse.calibration.collecting import collect
from onnxsparse.calibration.statistics import ChannelRange
from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.edit import reads
from onnxsparse.math.values import Array
from onnxsparse.planning.quantization import Quantization

HOMOGENEOUS = ("Relu", "LeakyRelu", "PRelu", "Identity")
POOLINGS = ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")
NORMALIZATIONS = ("LayerNormalization",)
LARGEST = 2.0**8
"""A channel is scaled by no more: what is wider than that is better seen by the user."""


@dataclass(frozen=True)
class Channels:
    """The channels of one value: the stored tensors that make them, with their axes, and the layers that read them."""

    maker: NodeProto = field(repr=False)
    value: str
    axis: int
    made: tuple[tuple[str, int], ...]
    readers: tuple[NodeProto, ...] = field(repr=False)


def equalize(proto: ModelProto, quantization: Quantization, ranges: Mapping[str, Array]) -> list[str]:
    """Scale channels in a float graph, in place, and say how many values that were; `ranges` as `channel_ranges`."""
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    scaled, widest = 0, 1.0
    for channels in channels_between(proto, quantization):
        factors = _factors(channels, ranges[channels.value], quantization, stored)
        if (factors != 1).any() and scaled_by(channels, factors, stored):
            scaled, widest = scaled + 1, max(widest, float(factors.max() / factors.min()))
    if not scaled:
        return []
    values = "1 value" if scaled == 1 else f"{scaled} values"
    told = f"the channels of {values} between layers were equalized, by powers of two up to {widest:g} apart"
    return [f"{told}: the float model computes the same"]


def channel_ranges(
    proto: ModelProto, quantization: Quantization, feeds: Iterable[Mapping[str, Array]]
) -> dict[str, Array]:
    """The greatest magnitude of every channel of the values that can be equalized; without any nothing is run."""
    return ranges_of(proto, channels_between(proto, quantization), feeds)


def ranges_of(proto: ModelProto, between: Iterable[Channels], feeds: Iterable[Mapping[str, Array]]) -> dict[str, Array]:
    """The greatest magnitude of every channel of some values."""
    axes = {channels.value: channels.axis for channels in between}
    if not axes:
        return {}
    found = collect(proto, axes, feeds, lambda name: ChannelRange(axes[name]))
    return {name: statistics.largest for name, statistics in found.items()}


# -- which channels


def channels_between(
    proto: ModelProto,
    quantization: Quantization,
    normalizations: Container[str] = NORMALIZATIONS,
    values_rounded: bool = True,
) -> list[Channels]:
    """The values whose channels can be scaled, in the order of the graph; made by layers and by normalizations."""
    walks = (_Walk(proto, quantization, node, normalizations, values_rounded) for node in proto.graph.node)
    return list(filter(None, (walk.channels() for walk in walks)))


class _Walk:
    """From a layer that makes channels to the layers that read them."""

    def __init__(
        self,
        proto: ModelProto,
        quantization: Quantization,
        node: NodeProto,
        normalizations: Container[str],
        values_rounded: bool,
    ) -> None:
        self._node, self._quantization, self._normalizations = node, quantization, normalizations
        self._values_rounded = values_rounded
        self._graph = proto.graph
        self._dims = {tensor.name: list(tensor.dims) for tensor in proto.graph.initializer}
        self._outputs = {value.name for value in proto.graph.output}

    def channels(self) -> Channels | None:
        made = self._makers()
        if not made or not all(self._read_once(name) for name, _ in made):
            return None
        value, count = self._node.output[0], self._dims[made[0][0]][made[0][1]]
        last = value
        axis = 1 if self._node.op_type in ("Conv", "Gemm") else -1
        flat = False
        while last not in self._outputs:
            readers = self._readers(last)
            readers = [one for one in readers if one.op_type not in ("Shape", "Size")]  # no factor changes sizes
            if readers and all(self._is_reader(one, last, axis, flat, count) for one in readers):
                return Channels(self._node, value, axis, tuple(made), tuple(readers))
            if len(readers) != 1 or not self._passes(readers[0], last, made, axis, flat):
                return None
            flat = flat or readers[0].op_type in ("Flatten", "ReduceMean")
            last = readers[0].output[0]
            value = value if flat else last
        return None

    def _makers(self) -> list[tuple[str, int]]:
        """The tensors whose indices along an axis are the channels; none where the node is no layer to scale."""
        node, own = self._node, Attributes(self._node, {})
        if node.op_type in self._normalizations:
            return self._scales() if own.integer("axis", -1) == -1 else []
        if node.op_type not in ("Conv", "Gemm", "MatMul") or node.input[1] not in self._quantized:
            return []
        dims = self._dims[node.input[1]]
        axis = {"Conv": 0, "MatMul": len(dims) - 1}.get(node.op_type, 0 if own.integer("transB") else 1)
        if node.op_type == "MatMul" and len(dims) != 2:
            return []
        biases = [(name, 0) for name in node.input[2:3] if name]
        if any(self._dims.get(name) != [dims[axis]] for name, _ in biases):
            return []
        return [(node.input[1], axis), *biases]

    def _scales(self) -> list[tuple[str, int]]:
        """The scale of a normalization, and its bias; of one that is written out the vector that it multiplies by."""
        names = self._node.input if self._node.op_type == "Mul" else self._node.input[1:]
        found = (
            [name for name in names if name in self._dims] if self._node.op_type == "Mul" else [*filter(None, names)]
        )
        wide = all(len(self._dims.get(name, ())) == 1 and self._dims[name][0] > 1 for name in found)
        return [(name, 0) for name in found] if wide else []

    @property
    def _quantized(self) -> set[str]:
        return {weight.name for weight in self._quantization.weights}

    def _readers(self, name: str) -> list[NodeProto]:
        return [node for node in self._graph.node if name in reads(node)]

    def _read_once(self, name: str) -> bool:
        return name in self._dims and sum(reads(node).count(name) for node in self._graph.node) == 1

    def _is_reader(self, node: NodeProto, value: str, axis: int, flat: bool, count: int) -> bool:
        """A layer whose own weight can take the factor back."""
        if node.op_type not in ("Conv", "Gemm", "MatMul") or node.input[0] != value:
            return False
        if node.input[1] not in self._quantized or not self._read_once(node.input[1]):
            return False
        rounded = any((node.output[0], 0) in one.readers for one in self._quantization.values)
        if self._values_rounded and not rounded:
            return False
        if node.op_type == "Conv":
            return axis == 1 and not flat
        if node.op_type == "Gemm":
            inputs = self._dims[node.input[1]][1 if Attributes(node, {}).integer("transB") else 0]
            return (
                not Attributes(node, {}).integer("transA")
                and (self._node.op_type != "Conv" or flat)
                and (self._node.op_type != "Conv" or inputs % count == 0)
            )
        return axis == -1 and len(self._dims[node.input[1]]) == 2 and self._dims[node.input[1]][0] == count

    def _passes(self, node: NodeProto, value: str, made: list[tuple[str, int]], axis: int, flat: bool) -> bool:
        """Whether the channels go through a node as they are, or times a positive factor."""
        if node.op_type in HOMOGENEOUS:
            return bool(node.input[0] == value)
        if node.op_type == "Add" and axis == -1:
            other = node.input[1 - list(node.input).index(value)]
            if not self._read_once(other) or self._dims[other] != [self._dims[made[0][0]][-1]]:
                return False
            made.append((other, 0))
            return True
        if self._node.op_type != "Conv" or flat:
            return False
        own = Attributes(node, {})
        if node.op_type == "ReduceMean" and not own.integer("keepdims", 1):
            rank = len(self._dims[self._node.input[1]])
            axes = own.integers("axes") or []
            return {one % rank for one in axes} == set(range(2, rank))
        return node.op_type in POOLINGS or (node.op_type == "Flatten" and own.integer("axis", 1) == 1)


# -- by how much


def _factors(channels: Channels, widths: Array, quantization: Quantization, stored: Mapping[str, TensorProto]) -> Array:
    """What the channels are divided by: powers of two, 1 in the middle."""
    shared = {weight.name for weight in quantization.weights if weight.axis is None}
    maker, axis = channels.made[0]
    if maker in shared:
        rows = np.abs(np.moveaxis(numpy_helper.to_array(stored[maker]), axis, 0)).reshape(len(widths), -1).max(axis=1)
        widths = np.maximum(widths / max(widths.max(), 1e-30), rows / max(rows.max(), 1e-30))
    costs = np.zeros(len(widths))
    for reader in channels.readers:
        costs = np.maximum(costs, _costs(reader, stored[reader.input[1]], len(widths), reader.input[1] in shared))
    alive = (widths > 0) & (costs > 0)
    if not alive.any():
        return np.ones(len(widths))
    wanted = np.sqrt(np.where(alive, widths, 1.0) / np.where(alive, costs, 1.0))
    if all(_depthwise(one, stored[one.input[1]]) and one.input[1] not in shared for one in channels.readers):
        wanted = np.where(alive, widths, 1.0)  # each channel has a scale of its own in the weight that reads it
    steps = np.rint(np.log2(wanted / np.median(wanted[alive])))
    factors = np.exp2(np.clip(steps, -np.log2(LARGEST), np.log2(LARGEST)))
    return np.where(alive, factors, 1.0)


def _costs(reader: NodeProto, tensor: TensorProto, count: int, shared: bool) -> Array:
    """For each channel, the greatest weight on it relative to the greatest of those with the same scale."""
    weight = np.abs(by_channel(reader, numpy_helper.to_array(tensor), count))
    largest = weight.max(axis=None if shared else (2, 3), keepdims=True)
    relative = weight / np.where(largest > 0, largest, 1.0)
    costs: Array = relative.max(axis=(1, 3)).reshape(-1)
    return costs


def _depthwise(reader: NodeProto, tensor: TensorProto) -> bool:
    return reader.op_type == "Conv" and tensor.dims[1] == 1


def by_channel(reader: NodeProto, weight: Array, count: int) -> Array:
    """A view of a reader's weight as (group, output, input of the group, places)."""
    own = Attributes(reader, {})
    if reader.op_type == "Conv":
        groups = own.integer("group", 1)
        return weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    by_rows = weight if reader.op_type == "Gemm" and own.integer("transB") else weight.T
    return by_rows.reshape(1, by_rows.shape[0], count, -1)


def scaled_by(channels: Channels, factors: Array, stored: Mapping[str, TensorProto]) -> bool:
    """Divide what makes some channels and multiply what reads them, in place; not where a number would overflow."""
    changed = _scaled(channels, factors, stored)
    for name, numbers in (changed or {}).items():
        stored[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(numbers), name))
    return changed is not None


def _scaled(channels: Channels, factors: Array, stored: Mapping[str, TensorProto]) -> dict[str, Array] | None:
    """The tensors that make and read the channels, scaled; None where one would overflow."""
    narrow, found = factors.astype(np.float32), dict[str, Array]()
    with np.errstate(over="ignore"):
        for name, axis in channels.made:
            numbers = numpy_helper.to_array(stored[name])
            found[name] = numbers / narrow.reshape([-1 if one == axis else 1 for one in range(numbers.ndim)])
        for reader in channels.readers:
            weight = numpy_helper.to_array(stored[reader.input[1]])
            shaped = by_channel(reader, weight, len(narrow))
            scaled = shaped * narrow.reshape(shaped.shape[0], 1, shaped.shape[2], 1)
            turned = reader.op_type == "MatMul" or (
                reader.op_type == "Gemm" and not Attributes(reader, {}).integer("transB")
            )
            found[reader.input[1]] = scaled.reshape(weight.T.shape).T if turned else scaled.reshape(weight.shape)
    return found if all(np.isfinite(numbers).all() for numbers in found.values()) else None
