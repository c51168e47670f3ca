"""Where values and weights of a float graph are rounded: what each operator lets be integers, and a device's rules.

1. What a weighted layer multiplies is rounded on both sides: its weight, and what goes into it. Both sides of a MatMul
   of two computed values are.
2. A value has one pair of QuantizeLinear and DequantizeLinear, however many read it, and stands behind the Relu or Clip
   that follows its layer: the range does their work.
3. What only moves numbers (MaxPool, Reshape, Transpose, Concat ...) has the scale of what goes in on both sides, so it
   runs on integers. The operands of a Concat have the scale of its result, which covers them; for onnxruntime an
   operand that something else reads keeps a finer one of its own, and so does one behind a Relu that would not merge.
4. onnxruntime wants a pair on both sides of an operator to run it on integers. So what a convolution gives is rounded
   where it leads to another layer (the last ones give floats), for all its readers; and sums, products and means are
   rounded on both sides where their results are.
5. TensorRT (`Scheme.target` ampere) fuses what follows into a layer and takes floats from it, so nothing is rounded
   because of what makes it. Of an addition behind a convolution the other operand is rounded, and so is what goes into
   a pool that takes means.
6. Recurrent weights and tables are rounded alone. Sigmoid, Softmax, normalization and other functions see floats and
   give floats, unless the scheme overrides one by its name or its operator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from onnx import ModelProto, NodeProto

from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.edit import reads
from onnxsparse.math.quantization import Grid
from onnxsparse.passes.quantization.layers import Layers
from onnxsparse.passes.quantization.values import MERGED, OWN, Values, key
from onnxsparse.planning.quantization import Quantization, QuantizedValue, Reader, Scheme

MOVES = {
    "DepthToSpace", "Expand", "Flatten", "Gather", "GlobalMaxPool", "Identity", "MaxPool", "Reshape", "Slice",
    "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
}  # fmt: skip
"""Operators whose results are numbers of their first input."""
MEANS = {"AveragePool", "GlobalAveragePool"}
ALIKE = {*MEANS, "LeakyRelu"}
"""Operators of one input that onnxruntime runs on integers between two pairs, each with a scale of its own."""
POSITIVE = {"Relu", "Sigmoid", "HardSigmoid", "Softmax", "Exp", "Abs", "Sqrt"}
STEEP = {"Exp", "Log", "Pow", "Reciprocal", "ReduceL2", "ReduceSumSquare", "Shape", "Sqrt"}
"""Functions that eight bits are too few for: a spectrum comes of convolutions, and its logarithm goes into others."""
POINTWISE = {
    "Add", "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mul", "Relu", "Sigmoid", "Sub", "Tanh",
}  # fmt: skip
"""Operators that TensorRT computes inside of the layer before them, which then gives integers."""
PAIRS = {"Add": any, "Mul": all}
"""Operators of two inputs that it runs on integers, and of how many operands that has to be known beforehand."""
PRODUCT_OPSET = 21
"""From here on onnxruntime 1.19 has no kernel for a MatMul between pairs on all sides, and fuses one all the same."""
NOT_FOR_CPU = ("ConvTranspose",)
"""Layers that onnxruntime has no integer kernel for: they multiply rounded numbers as floats."""


def quantization_of(proto: ModelProto, scheme: Scheme, left: Mapping[str, str] | None = None) -> Quantization:
    """What is rounded in a float graph by a scheme. `left` are layers that stay in float, by their first outputs, and
    why; what is rounded for them alone stays in float with them."""
    return _Placement(proto, scheme, left or {}).made()


class _Placement:
    def __init__(self, proto: ModelProto, scheme: Scheme, left: Mapping[str, str]) -> None:
        self._scheme, self._values = scheme, Values(proto)
        self._tensorrt = not scheme.residuals
        self._layers = Layers(self._values, scheme, left)
        self._readers: dict[str, dict[Reader, None]] = defaultdict(dict)
        self._grids: dict[str, Grid] = {}
        self._like: dict[str, str] = {}
        self._made: set[str] = set()
        """Values that come as integers out of what makes them, if it is between two pairs."""
        self._depth: dict[str, int] = {}

    def made(self) -> Quantization:
        for product in self._layers.products.values():
            if product.layer.inputs is not None:
                for slot in product.computed:
                    self._want(product.node, slot, product.layer.inputs)
        self._asked()
        for node in self._values.nodes:
            self._forwards(node)
        self._outputs()
        for node in reversed(self._values.nodes):
            if node.domain in OWN and not self._layers.ignored(node):
                self._backwards(node)
        if not self._tensorrt:
            self._all_readers()
            self._clipped_inputs()
        return Quantization(tuple(self._rounded()), tuple(self._layers.weights()), self._layers.left)

    def _want(self, node: NodeProto, slot: int, grid: Grid) -> None:
        """A node is to read an input as integers."""
        self._rounded_for(node.input[slot], [(key(node), slot)], grid)

    def _rounded_for(self, name: str, readers: Sequence[Reader], grid: Grid) -> None:
        known = self._grids.setdefault(name, grid)
        self._readers[name].update(dict.fromkeys(readers))
        if grid.bits > known.bits:
            self._grids[name] = grid

    def _rounded_for_all(self, name: str, grid: Grid) -> None:
        """For all readers but layers that are left in float: between two pairs onnxruntime (1.31) would round those."""
        readers = [reader for reader in self._values.readers[name] if reader[0] not in self._layers.left]
        if readers:
            self._rounded_for(name, readers, grid)

    def _is_value(self, name: str) -> bool:
        return bool(name) and name not in self._values.stored and self._values.is_float(name)

    # -- what is rounded because the scheme says so, or because of what makes it

    def _asked(self) -> None:
        """Operators that no rule rounds, but the scheme."""
        for node in self._values.nodes:
            layer = self._layers.asked(node)
            if layer is None or key(node) in self._layers.products:
                continue
            for slot, name in enumerate(node.input):
                inside = self._layers.is_inside(node, self._values.maker.get(name))
                if layer.inputs is not None and self._is_value(name) and not inside:
                    self._want(node, slot, layer.inputs)
            result = self._values.merged(node.output[0])
            readers = [self._values.maker[reader] for reader, _ in self._values.readers[result]]
            own = bool(readers) and all(self._layers.is_inside(node, reader) for reader in readers)
            if layer.outputs is not None and self._is_value(result) and not own:
                self._rounded_for_all(result, layer.outputs)

    def _forwards(self, node: NodeProto) -> None:
        """Note what comes as integers out of a node, and how deep it lies."""
        depth = 1 + max((self._depth.get(name, 0) for name in node.input), default=0)
        self._depth.update((name, depth) for name in node.output)
        if node.domain in OWN and not self._layers.ignored(node) and self._gives_integers(node):
            self._made |= {*node.output, self._values.merged(node.output[0])} - {""}

    def _gives_integers(self, node: NodeProto) -> bool:
        """Whether a node can give integers, because it multiplies or gets some."""
        if key(node) in self._layers.products:
            product = self._layers.products[key(node)]
            return product.layer.inputs is not None and (self._tensorrt or node.op_type not in NOT_FOR_CPU)
        known = [self._integer(name) for name in node.input if self._is_value(name)]
        if node.op_type == "Concat":
            return any(known)
        if self._tensorrt and node.op_type in POINTWISE:
            return any(known)
        if node.op_type in PAIRS:
            return len(known) == 2 and PAIRS[node.op_type](known)
        alike = node.op_type in ALIKE and not self._tensorrt
        return (alike or _moves(node, self._values)) and self._integer(node.input[0])

    def _integer(self, name: str) -> bool:
        return name in self._made or name in self._grids

    def _outputs(self) -> None:
        """What convolutions give, where it leads to another layer, and what the scheme wants to be rounded."""
        leading = _upstream(self._values, list(self._grids))
        for product in self._layers.products.values():
            name, layer = self._values.merged(self._biased(product.node)), product.layer
            goes_on = product.node.op_type == "Conv" and name in leading and name not in self._values.outputs
            grid = layer.outputs or (layer.inputs if goes_on and not self._tensorrt else None)
            if grid is not None:
                self._rounded_for_all(name, grid)

    def _biased(self, node: NodeProto) -> str:
        """What a layer gives: of a product the sum behind it, where a stored vector is added."""
        readers = self._values.readers[node.output[0]]
        behind = self._values.maker[readers[0][0]] if len(readers) == 1 else node
        if node.op_type != "MatMul" or behind.op_type != "Add" or node.output[0] in self._values.outputs:
            return str(node.output[0])
        added: str = behind.input[1 - readers[0][1]]
        is_vector = added in self._values.stored and len(self._values.stored[added].dims) == 1
        return str(behind.output[0] if is_vector else node.output[0])

    # -- what is rounded because the result is

    def _backwards(self, node: NodeProto) -> None:
        if node.op_type == "Concat":
            self._concat(node)
        elif _moves(node, self._values):
            self._moved(node)
        elif not self._tensorrt and (node.op_type in PAIRS or node.op_type in ALIKE):
            result = self._values.merged(node.output[0])
            if result in self._grids and result in self._made:
                self._operands(node, self._grids[result])
        elif self._tensorrt and self._integer(node.input[0]) and _takes_means(node, self._values):
            self._means(node)
        elif self._tensorrt and node.op_type == "Add":
            self._residual(node)

    def _operands(self, node: NodeProto, grid: Grid) -> None:
        for slot, name in enumerate(node.input):
            if self._is_value(name):
                self._want(node, slot, grid)

    def _moved(self, node: NodeProto) -> None:
        source = node.input[0]
        results = [name for name in node.output if name in self._grids]
        if results and self._integer(source):
            self._want(node, 0, self._grids[results[0]])
            self._like.update((name, source) for name in results)

    def _concat(self, node: NodeProto) -> None:
        result = node.output[0]
        if result not in self._grids or result not in self._made:
            return
        self._operands(node, self._grids[result])
        for name in filter(self._is_value, node.input):
            alone = all(reader == key(node) for reader, _ in self._values.readers[name])
            if self._tensorrt or (alone and self._may_share(name, result)):
                self._like.setdefault(name, result)

    def _may_share(self, name: str, result: str) -> bool:
        """Whether onnxruntime still takes a Relu into the layer before it: only where zero is the lowest step."""
        maker = self._values.maker.get(name)
        return maker is None or maker.op_type not in MERGED or self._never_negative(result)

    def _never_negative(self, name: str) -> bool:
        node = self._values.maker.get(name)
        if node is None or node.domain not in OWN:
            return False
        if node.op_type == "Clip":
            low = self._values.numbers(node.input[1]) if len(node.input) > 1 else None
            return low is not None and bool(low >= 0)
        if node.op_type in MEANS or _moves(node, self._values):
            return self._never_negative(node.input[0])
        operands = node.op_type == "Concat" and all(map(self._never_negative, node.input))
        return operands or node.op_type in POSITIVE

    def _means(self, node: NodeProto) -> None:
        """So that the layer before gives integers."""
        grid = self._grids.get(node.input[0]) or self._scheme.layers.inputs
        if grid is not None:
            self._want(node, 0, grid)

    def _residual(self, node: NodeProto) -> None:
        """Of an addition the operand that TensorRT does not add inside of a layer: of two layers' the shallower."""
        layers = [slot for slot, name in enumerate(node.input) if self._comes_of_layer(name)]
        if not layers or len(set(node.input)) < 2 or not all(map(self._is_value, node.input)):
            return
        outer = 1 - max(layers, key=lambda slot: self._depth.get(node.input[slot], 0))
        grid = self._grids.get(node.input[outer]) or self._scheme.layers.inputs
        if grid is not None:
            self._want(node, outer, grid)

    def _comes_of_layer(self, name: str) -> bool:
        maker = self._values.maker.get(name)
        return maker is not None and key(maker) in self._layers.products

    def _all_readers(self) -> None:
        """What can come as integers out of an operator is read so by all: one that reads floats keeps it in floats."""
        for name, grid in list(self._grids.items()):
            if name in self._made and name not in self._values.outputs and self._readers[name]:
                self._rounded_for_all(name, grid)

    def _clipped_inputs(self) -> None:
        """An input of the graph that is clipped is rounded as what the Clip gives: the range of integers clips, too.

        onnxruntime 1.19 takes such a Clip away, and fails where no node is before it.
        """
        for node in self._values.nodes:
            clip = node.op_type == "Clip" and node.domain in OWN
            if clip and node.output[0] in self._grids:
                first = self._first_of_merged(node)
                if first.input[0] in self._values.inputs:
                    if first.input[0] not in self._grids:
                        self._like[first.input[0]] = node.output[0]
                    self._want(first, 0, self._grids[node.output[0]])

    def _first_of_merged(self, node: NodeProto) -> NodeProto:
        """The first of the activations that one follows at once."""
        maker = self._values.maker.get(node.input[0])
        alone = maker is not None and maker.op_type in MERGED and self._values.merged(node.input[0]) != node.input[0]
        return self._first_of_merged(maker) if maker is not None and alone else node

    # -- the result

    def _rounded(self) -> Iterator[QuantizedValue]:
        for name, readers in self._readers.items():
            if readers:
                like = self._root(name)
                yield QuantizedValue(name, self._grids[like or name], tuple(readers), like)

    def _root(self, name: str) -> str:
        """The value whose range covers this one, at the end of all that it is like."""
        root = name
        while self._like.get(root, "") in self._grids:
            root = self._like[root]
        return root if root != name else ""


def needed(proto: ModelProto, quantization: Quantization) -> list[str]:
    """What a runtime has to have for a float graph that is rounded like this, where not all have it."""
    opset = next((one.version for one in proto.opset_import if one.domain in OWN), 1)
    makers = {name: node for node in proto.graph.node for name in node.output}
    rounded = {reader for value in quantization.values for reader in value.readers}
    rounded |= {reader for weight in quantization.weights for reader in weight.readers}
    for value in quantization.values if opset >= PRODUCT_OPSET else ():
        node = makers.get(value.name)
        while node is not None and node.op_type in MOVES:
            node = makers.get(node.input[0])
        if node is not None and node.op_type == "MatMul" and {(key(node), 0), (key(node), 1)} <= rounded:
            return [f"onnxruntime runs this from 1.20 on: older ones have no QLinearMatMul of opset {opset}"]
    return []


def _takes_means(node: NodeProto, values: Values) -> bool:
    """Whether a node pools an image by its mean."""
    if node.op_type != "ReduceMean":
        return node.op_type in MEANS
    given = values.numbers(node.input[1]) if len(node.input) > 1 else Attributes(node, {}).integers("axes")
    return given is not None and sorted(int(axis) for axis in given) in ([2, 3], [-2, -1])


def _moves(node: NodeProto, values: Values) -> bool:
    """Whether the results of a node are numbers of its first input, or zero."""
    found = Attributes(node, {})
    if node.op_type in ("Resize", "Upsample"):
        return found.text("mode", "nearest") == "nearest"
    if node.op_type == "Pad":
        filled = values.numbers(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        named = len(node.input) > 2 and bool(node.input[2])
        return not named or (filled is not None and not filled.any())
    return node.op_type in MOVES


def _upstream(values: Values, names: Sequence[str]) -> set[str]:
    """All values that some depend on, and these; not what goes through functions that make small steps large ones."""
    found = set(names)
    for node in reversed(values.nodes):
        if node.op_type not in STEEP and any(name in found for name in node.output):
            found.update(node.input[:1] if node.op_type == "Div" else reads(node))
    return found
