"""The weighted layers of a float graph: what each multiplies, along which axis its weight has scales, or why it stays.

1. Scales of a weight lie along its outputs: those of a convolution, the columns of a Gemm or MatMul, the gates of a
   recurrent layer, the rows of a table. Where several nodes read a tensor along different axes it has one scale.
2. Blocks lie along its inputs; where a layer has no more of these than a block, each output has one scale.
3. A tensor that several layers read has an entry for each input and bias that it is used with, all of one scale.
4. Where a layer reads a tensor through views that others read, too, the first view reads the integers.
5. The bias of a layer becomes integers of 32 bits; for TensorRT floats that are rounded in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.edit import FLOATS
from onnxsparse.graph.operators import slots_of
from onnxsparse.math.quantization import Grid
from onnxsparse.passes.quantization.values import OWN, Stored, Values, key, nodes_in_bodies
from onnxsparse.planning.graph_layers import GraphLayers
from onnxsparse.planning.quantization import LayerScheme, QuantizedWeight, Reader, Scheme

PRODUCTS = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2, "MatMul": None}
"""Operators whose first two inputs are multiplied, and the number of the input that is added."""
RECURRENT = ("LSTM", "GRU", "RNN")


@dataclass(frozen=True, eq=False)
class Product:
    """A node that multiplies, and which of its operands are computed."""

    node: NodeProto
    layer: LayerScheme
    computed: tuple[int, ...]


@dataclass(frozen=True)
class _Use:
    """One node that reads a weight."""

    reader: Reader
    grid: Grid
    axis: int | None
    input: str = ""
    bias: str = ""
    block: int = 0


class Layers:
    """The layers that a scheme quantizes, and why the others are left in float, by the first outputs of nodes."""

    def __init__(self, values: Values, scheme: Scheme, left: Mapping[str, str]) -> None:
        self._values, self._scheme, self._given = values, scheme, left
        self._names = GraphLayers(values.proto)
        self.products: dict[str, Product] = {}
        self.left: dict[str, str] = {}
        self._uses: dict[str, list[_Use]] = {}
        for node in values.nodes:
            self._look_at(node)
        for node, around in nodes_in_bodies(values.nodes):
            if any(slot.index < len(node.input) for slot in slots_of(node.domain, node.op_type)):
                self.left[key(node)] = f"it is in the body of {around}, and bodies stay in float"

    def asked(self, node: NodeProto) -> LayerScheme | None:
        """What the scheme says of this node, or its kind of operator, and not of all."""
        return self._names.asked(node, self._scheme)

    def ignored(self, node: NodeProto) -> bool:
        """Whether the scheme wants a node to stay as it is."""
        some = self._scheme.ignore or self._scheme.only
        return bool(some) and self._scheme.of(*self._names.known_as(node)) is None

    def is_inside(self, node: NodeProto, other: NodeProto | None) -> bool:
        """Whether a value that goes from one node to another stays inside of one module."""
        return self._names.is_inside(node, other)

    def weights(self) -> Iterable[QuantizedWeight]:
        """One entry for every tensor, input and bias."""
        for name, uses in self._uses.items():
            rank = len(self._values.stored[name].dims)
            axes = {use.axis if use.axis is None else use.axis % rank for use in uses}
            grid = max((use.grid for use in uses), key=lambda one: one.bits)
            axis, block = axes.pop() if len(axes) == 1 else None, max(use.block for use in uses)
            for place in dict.fromkeys((use.input, use.bias) for use in uses):
                readers = tuple(use.reader for use in uses if (use.input, use.bias) == place)
                floats, block = bool(place[1]) and not self._scheme.residuals, block if axis is not None else 0
                yield QuantizedWeight(
                    name, grid, axis, readers, *place, block if axis is not None else 0, float_bias=floats
                )

    # -- one node

    def _look_at(self, node: NodeProto) -> None:
        slots = [slot.index for slot in slots_of(node.domain, node.op_type) if slot.index < len(node.input)]
        stored = {slot: found for slot in slots if (found := self._values.weight_behind(node.input[slot])) is not None}
        if node.op_type not in PRODUCTS and not any(map(self._is_float, stored.values())):
            return
        layer = self._names.of(node, self._scheme)
        reason = self._given.get(key(node), "") or self._obstacle(node, slots, stored)
        reason = reason or ("the scheme ignores it" if layer is None else "")
        if layer is None or reason:
            self.left[key(node)] = reason
        elif node.op_type in PRODUCTS:
            computed = tuple(slot for slot in (0, 1) if slot not in stored)
            self.products[key(node)] = Product(node, layer, computed)
            source = node.input[computed[0]] if stored and layer.inputs is not None else ""
            for slot, weight in stored.items():
                self._use(node, slot, weight, layer, source)
        else:
            for slot, weight in stored.items():
                self._use(node, slot, weight, layer, "")

    def _is_float(self, weight: Stored) -> bool:
        return self._values.stored[weight.name].data_type in FLOATS

    def _obstacle(self, node: NodeProto, slots: list[int], stored: Mapping[int, Stored]) -> str:
        """Why a node stays in float; nothing where it need not."""
        known = {*PRODUCTS, *RECURRENT, "Gather"}
        if node.domain not in OWN or node.op_type not in known:
            return f"no runtime computes {node.op_type} with integers between QuantizeLinear and DequantizeLinear"
        for weight in stored.values():
            tensor = self._values.stored[weight.name]
            if tensor.data_type != TensorProto.FLOAT:
                kind = TensorProto.DataType.Name(tensor.data_type).lower()
                return f"its weight '{tensor.name}' is {kind}; convert the model to float32 to quantize it"
        if node.op_type not in PRODUCTS:
            flat = node.op_type == "Gather" and len(self._values.stored[stored[0].name].dims) < 2
            return "it takes single numbers from a list" if flat else ""
        if len(stored) == 2:
            return "both of its operands are stored, so nothing of it depends on the input"
        if node.op_type in ("Conv", "ConvTranspose") and not stored:
            return "its weight is computed in the graph"
        wrong = [node.input[slot] for slot in slots if not self._values.is_float(node.input[slot], bool(stored))]
        return f"'{wrong[0]}', which it multiplies, is not known to be float32" if wrong and not stored else ""

    def _use(self, node: NodeProto, slot: int, weight: Stored, layer: LayerScheme, source: str) -> None:
        if layer.weights is None:
            return
        dims = self._values.stored[weight.name].dims
        seen = _axes(node, slot, len(weight.axes or dims))
        out, reduced = (None if axis is None or not weight.axes else weight.axes[axis] for axis in seen)
        block = layer.block if reduced is not None and dims[reduced] > layer.block else 0
        axis = reduced if block else out if layer.per_channel else None
        bias = self._bias(node) if source and not weight.seen_by else ""
        reader = weight.seen_by or (key(node), slot)
        use = _Use(reader, layer.weights, axis, source, bias, block)
        self._uses.setdefault(weight.name, []).append(use)

    def _bias(self, node: NodeProto) -> str:
        """The stored tensor that is added to a product as it is, without a factor.

        What a Gemm adds to each row is left out: onnxruntime (1.19 to 1.31) would take its scales for the columns'.
        """
        at, found = PRODUCTS[node.op_type], Attributes(node, {})
        if at is None:
            return self._added(node)
        if len(node.input) <= at or node.input[at] not in self._values.stored:
            return ""
        dims = self._values.stored[node.input[at]].dims
        plain = found.number("alpha", 1.0) == found.number("beta", 1.0) == 1.0 and all(size == 1 for size in dims[:-1])
        return node.input[at] if plain else ""

    def _added(self, node: NodeProto) -> str:
        """What an Add behind a MatMul adds to each column, where onnxruntime (from 1.23) makes a Gemm of both because
        all sizes are known: without an integer bias that would be one of floats."""
        readers = self._values.readers[node.output[0]]
        if len(readers) != 1 or self._values.sizes(node.input[0]) is None:
            return ""
        behind = self._values.maker[readers[0][0]]
        other = behind.input[1 - readers[0][1]] if behind.op_type == "Add" else ""
        width = self._values.stored[node.input[1]].dims[-1] if node.input[1] in self._values.stored else 0
        return other if other in self._values.stored and self._values.stored[other].dims == [width] else ""


def _axes(node: NodeProto, slot: int, rank: int) -> tuple[int | None, int | None]:
    """The axes of a weight along which its outputs lie, and along which it is summed; None for what has none.

    The left operand of a product has one scale: no kernel of onnxruntime (1.30) takes one for each of its rows.
    """
    kind, found = node.op_type, Attributes(node, {})
    if kind == "Conv":
        return 0, 1
    if kind == "ConvTranspose":
        return 1, 0
    if kind in RECURRENT:
        return 1, 2
    if kind == "Gather":
        axis = found.integer("axis", 0) % rank
        return axis, rank - 1 if axis != rank - 1 else None
    if kind == "Gemm":
        turned = bool(found.integer("transB" if slot else "transA", 0))
        return (int(not turned), int(turned)) if slot else (None, int(not turned))
    if rank != 2:  # nor for each column of one of several matrices
        return None, max(rank - 1 - slot, 0)
    return (1, 0) if slot else (None, 1)
