"""The weighted layers of a float graph: what each multiplies, along which axis its weight has scales, or why it stays.

1. Scales of a weight lie along its outputs: those of a convolution, the columns of a Gemm or MatMul, the gates of a
   recurrent layer, the rows of a table. Where several nodes read a tensor along different axes it has one scale.
2. A tensor that several layers read has an entry for each input and bias that it is used with, all of one scale.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.operators import slots_of
from onnxsparse.math.quantization import Grid
from onnxsparse.passes.quantization.values import OWN, Values, key, nodes_in_bodies
from onnxsparse.planning.layer_kinds import kinds_of_node
from onnxsparse.planning.quantization import LayerScheme, QuantizedWeight, Reader, Scheme

PRODUCTS = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2, "MatMul": None}
"""Operators whose first two inputs are multiplied, and the number of the input that is added."""
RECURRENT = ("LSTM", "GRU", "RNN")


@dataclass(frozen=True, eq=False)
class Product:
    """A node that multiplies, with the inputs that are stored weights and those that are computed."""

    node: NodeProto
    layer: LayerScheme
    stored: tuple[int, ...]
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

    def __init__(self, values: Values, scheme: Scheme) -> None:
        self._values, self._scheme = values, scheme
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
        return self._scheme.asked(*self._known_as(node))

    def weights(self) -> Iterable[QuantizedWeight]:
        """One entry for every tensor, input and bias."""
        for name, uses in self._uses.items():
            rank = len(self._values.stored[name].dims)
            axes = {use.axis if use.axis is None else use.axis % rank for use in uses}
            grid = max((use.grid for use in uses), key=lambda one: one.bits)
            axis, block = axes.pop() if len(axes) == 1 else None, max(use.block for use in uses)
            for place in dict.fromkeys((use.input, use.bias) for use in uses):
                readers = tuple(use.reader for use in uses if (use.input, use.bias) == place)
                yield QuantizedWeight(name, grid, axis, readers, *place, block if axis is not None else 0)

    # -- one node

    def _look_at(self, node: NodeProto) -> None:
        slots = [slot.index for slot in slots_of(node.domain, node.op_type) if slot.index < len(node.input)]
        stored = [slot for slot in slots if node.input[slot] in self._values.stored]
        floats = [slot for slot in stored if self._values.stored[node.input[slot]].data_type != TensorProto.INT64]
        if node.op_type not in PRODUCTS and not floats:
            return
        layer = self._scheme.of(*self._known_as(node))
        reason = "the scheme ignores it" if layer is None else self._obstacle(node, slots, floats)
        if layer is None or reason:
            self.left[key(node)] = reason
        elif node.op_type in PRODUCTS:
            self._product(node, layer, tuple(floats))
        elif layer.weights is not None:
            for slot in floats:
                self._use(node, slot, layer, "", "")

    def _known_as(self, node: NodeProto) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What a scheme may call a node: its name, its results, its tensors; and its kinds."""
        stored = [name for name in node.input if name in self._values.stored]
        ranks = [len(self._values.stored[name].dims) for name in stored]
        names = (node.name, *node.output, *stored)
        live = not stored and node.op_type in PRODUCTS
        return tuple(name for name in names if name), kinds_of_node(node.op_type, max(ranks, default=0), live)

    def _obstacle(self, node: NodeProto, slots: list[int], stored: list[int]) -> str:
        """Why a node stays in float; nothing where it need not."""
        known = {*PRODUCTS, *RECURRENT, "Gather"}
        if node.domain not in OWN or node.op_type not in known:
            return f"no runtime computes {node.op_type} with integers between QuantizeLinear and DequantizeLinear"
        for slot in stored:
            tensor = self._values.stored[node.input[slot]]
            if tensor.data_type != TensorProto.FLOAT:
                kind = TensorProto.DataType.Name(tensor.data_type).lower()
                return f"its weight '{tensor.name}' is {kind}; convert the model to float32 to quantize it"
        if node.op_type not in PRODUCTS:
            flat = node.op_type == "Gather" and len(self._values.stored[node.input[0]].dims) < 2
            return "it takes single numbers from a list" if flat else ""
        if len(stored) == 2:
            return "both of its operands are stored, so nothing of it depends on the input"
        if node.op_type in ("Conv", "ConvTranspose") and not stored:
            return "its weight is computed in the graph"
        wrong = [node.input[slot] for slot in slots if not self._values.is_float(node.input[slot], bool(stored))]
        return f"'{wrong[0]}', which it multiplies, is not known to be float32" if wrong and not stored else ""

    def _product(self, node: NodeProto, layer: LayerScheme, stored: tuple[int, ...]) -> None:
        computed = tuple(slot for slot in (0, 1) if slot not in stored)
        self.products[key(node)] = Product(node, layer, stored, computed)
        for slot in stored:
            if layer.weights is not None:
                source = node.input[1 - slot] if layer.inputs is not None else ""
                self._use(node, slot, layer, source, self._bias(node) if source else "")

    def _bias(self, node: NodeProto) -> str:
        """The stored tensor that is added to a product as it is, without a factor."""
        at, found = PRODUCTS[node.op_type], Attributes(node, {})
        if at is None or len(node.input) <= at or node.input[at] not in self._values.stored:
            return ""
        plain = found.number("alpha", 1.0) == found.number("beta", 1.0) == 1.0
        return node.input[at] if plain else ""

    def _use(self, node: NodeProto, slot: int, layer: LayerScheme, source: str, bias: str) -> None:
        assert layer.weights is not None
        name = node.input[slot]
        rank = len(self._values.stored[name].dims)
        out, reduced = _axes(node, slot, rank)
        axis = reduced if layer.block else out if layer.per_channel else None
        use = _Use((key(node), slot), layer.weights, axis, source, bias, layer.block if axis is not None else 0)
        self._uses.setdefault(name, []).append(use)


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
    if rank < 2:
        return None, 0
    return (rank - 1, rank - 2) if slot else (None, rank - 1)
