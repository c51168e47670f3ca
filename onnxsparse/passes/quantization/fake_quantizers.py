"""Finding fake quantization in a graph: what rounds a value to an integer grid and gives floats again, in every form.

    QuantizeLinear, DequantizeLinear                     torch.onnx.export, SparseML, TensorRT's toolkits, tf2onnx
    QuantizeLinear, Clip, DequantizeLinear               torch with quant_min and quant_max of fewer bits
    Div, [Add], [Clip], Round, [Clip], [Sub], Mul        learned step size and others, in plain operators
    com.microsoft FakeQuant, also between Div and Mul    onnxruntime-training, and the training graphs of this package

1. Scale and zero point have to be known without running the model; they may be computed from stored tensors.
2. In plain operators the bounds are those of Clip, or of Max and Min, and the zero point is what is added before them.
3. `Add(u, Sub(Round(u), u))`, as a straight-through estimator is exported, counts as `Round(u)`.
What it does not do: look into bodies and functions. What cannot be told is in `left`, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from onnxsparse.errors import ModelError
from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.constant_operators import Call, UnclearError, known_operator, results
from onnxsparse.graph.constants import Constant, NoNumbersError
from onnxsparse.graph.edit import bodies, reads
from onnxsparse.math.quantization import Grid, QParams
from onnxsparse.math.values import Array

ONNX = ("", "ai.onnx")
KINDS: dict[int, str] = {
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
    TensorProto.INT16: "int16",
    TensorProto.UINT16: "uint16",
}
Bounds = tuple[float, float]
WIDE_OPSET = 21
"""The first one whose QuantizeLinear knows integers of 16 bits."""


@dataclass(frozen=True, eq=False)
class FakeQuantizer:
    """A value, what comes out of rounding it, the grid, and the integers in use of those that its type holds."""

    source: str
    output: str
    params: QParams
    low: int
    high: int

    @property
    def limited(self) -> bool:
        """Whether it uses fewer integers than the type has: QuantizeLinear alone would not keep to them."""
        return (self.low, self.high) != (self.params.grid.low, self.params.grid.high)

    def integers(self, numbers: Array) -> Array:
        return np.clip(self.params.quantize(numbers), self.low, self.high).astype(self.params.grid.dtype)

    def same_as(self, other: FakeQuantizer) -> bool:
        """Whether rounding by one and then by the other is the same as once."""
        return (self.low, self.high) == (other.low, other.high) and same(self.params, other.params)


def same(one: QParams, other: QParams) -> bool:
    return (
        (one.grid.dtype, one.axis, one.block) == (other.grid.dtype, other.axis, other.block)
        and np.array_equal(one.scale, other.scale)
        and np.array_equal(one.zero_point, other.zero_point)
    )


class KnownValues:
    """Values of a graph that are known without running it, computed when they are asked for."""

    def __init__(self, graph: GraphProto, opset: int) -> None:
        self._opset = opset
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._made: dict[str, NodeProto] = {}
        self._inputs: dict[str, tuple[str, ...]] = {}
        """Of what makes a value, as they were: readers of weights are changed while others are still asked for."""
        self._found: dict[str, Constant] = {}
        for node in graph.node:
            known = node.input and known_operator(node.domain, node.op_type)
            if known and all(map(self.has, filter(None, node.input))):
                self._made.update(dict.fromkeys(node.output, node))
                self._inputs.update(dict.fromkeys(node.output, tuple(node.input)))

    def has(self, name: str) -> bool:
        return name in self._tensors or name in self._made

    def computes(self, name: str) -> bool:
        """Whether it is known, and neither stored nor the floats that stored integers stand for."""
        return name in self._made and self._made[name].op_type != "DequantizeLinear"

    def numbers(self, name: str) -> Array | None:
        """The numbers of a value; None where only a run tells them."""
        if not self.has(name):
            return None
        try:
            return self._constant(name).numbers()
        except (UnclearError, NoNumbersError, ValueError):
            return None

    def size(self, name: str) -> int:
        found = self.numbers(name)
        return 0 if found is None else found.size

    def stored(self, name: str) -> Iterator[TensorProto]:
        """The stored tensors that a value is computed from."""
        waiting, seen = [name], {name}
        while waiting:
            found = waiting.pop()
            if found in self._tensors:
                yield self._tensors[found]
            elif found in self._made:
                waiting += [one for one in self._inputs[found] if one and one not in seen]
                seen.update(self._inputs[found])

    def _constant(self, name: str) -> Constant:
        if name not in self._found and name in self._tensors:
            self._found[name] = Constant.literal(numpy_helper.to_array(self._tensors[name]))
        elif name not in self._found:
            node = self._made[name]
            given = [self._constant(one) if one else None for one in self._inputs[name]]
            call = Call(node.op_type, given, Attributes(node, {}), self._opset, len(node.output))
            self._found.update(zip(node.output, results(call)))
        return self._found[name]


@dataclass
class _Steps:
    """What operators around Round do to a value: it is shifted by the zero point, and bounded there."""

    shift: float = 0.0
    zero: float = 0.0
    low: float = -np.inf
    high: float = np.inf

    def bound(self, bounds: Bounds) -> None:
        self.zero = self.shift
        self.low, self.high = max(self.low, bounds[0] - self.shift), min(self.high, bounds[1] - self.shift)


class FakeQuantizers:
    """One search over a graph; `found` are in the order of the nodes, `left` says why others are none."""

    def __init__(self, graph: GraphProto, opset: int) -> None:
        self._opset = opset
        self.known = KnownValues(graph, opset)
        self.found: list[FakeQuantizer] = []
        self.left: dict[str, str] = {}
        self._by_output = {name: node for node in graph.node for name in node.output if name}
        self._count = Counter(name for node in graph.node for name in reads(node))
        self._count.update(entry.name for entry in graph.output)
        self._reader = {name: node for node in graph.node for name in node.input if name}
        for node in graph.node:
            self._look(node)

    def _look(self, node: NodeProto) -> None:
        if node.op_type == "DequantizeLinear":
            made = self._pair(node)
        elif node.op_type == "FakeQuant" and node.domain == "com.microsoft":
            made = self._fake_quant(node)
        elif node.op_type == "Round" and node.domain in ONNX:
            made = self._round(node)
        else:
            return
        if isinstance(made, FakeQuantizer):
            self.found.append(made)
        elif made:
            self.left[node.output[0]] = made

    # -- QuantizeLinear and DequantizeLinear

    def _pair(self, last: NodeProto) -> FakeQuantizer | str:
        limits = list[Bounds]()
        first = self._by_output.get(last.input[0])
        while first is not None and (first.op_type == "Identity" or self._is_clip(first)):
            if first.op_type != "Identity":
                limits.append(self._bounds(first))
            first = self._by_output.get(first.input[0])
        if first is None or first.op_type != "QuantizeLinear":
            return ""
        params = self.params(first)
        if isinstance(params, str):
            return params
        other = self.params(last)
        if isinstance(other, str) or not same(params, other):
            return "it is quantized and dequantized with different scales or zero points"
        low = max([params.grid.low, *(bounds[0] for bounds in limits)])
        high = min([params.grid.high, *(bounds[1] for bounds in limits)])
        return FakeQuantizer(first.input[0], last.output[0], params, int(low), int(high))

    def params(self, node: NodeProto) -> QParams | str:
        """Scale and zero point of QuantizeLinear or DequantizeLinear, or why they cannot be told."""
        scale = self.known.numbers(node.input[1])
        if scale is None:
            return f"the scale '{node.input[1]}' is known only at run time"
        if scale.dtype != np.float32:
            return f"the scale '{node.input[1]}' is {scale.dtype}, and only float32 is converted"
        attributes = Attributes(node, {})
        zero, kind = self._zero_point(node, attributes)
        if zero is None:
            return f"its integers are {kind}"
        if kind.endswith("16") and self._opset < WIDE_OPSET:
            return f"integers of 16 bits are written from opset {WIDE_OPSET} on, and the model has {self._opset}"
        block = attributes.integer("block_size", 0)
        axis = attributes.integer("axis", 1) if scale.size > 1 else None
        return params_of(scale if block else scale.ravel(), zero if block else zero.ravel(), kind, axis, block, node)

    def _zero_point(self, node: NodeProto, attributes: Attributes) -> tuple[Array | None, str]:
        if len(node.input) > 2 and node.input[2]:
            zero = self.known.numbers(node.input[2])
            if zero is None:
                return None, "shifted by a zero point that is known only at run time"
            return (zero if zero.dtype.name in KINDS.values() else None), zero.dtype.name
        kind = KINDS.get(attributes.integer("output_dtype", TensorProto.UINT8), "of another type")
        return np.zeros((), np.int32), kind

    # -- FakeQuant

    def _fake_quant(self, node: NodeProto) -> FakeQuantizer | str:
        scale, zero = (self.known.numbers(name) for name in node.input[1:3])
        if scale is None or zero is None:
            return "its scale or zero point is known only at run time"
        attributes = Attributes(node, {})
        low, high = attributes.integer("quant_min", 0), attributes.integer("quant_max", 255)
        source, output = node.input[0], node.output[0]
        outer = self._scaled(self._by_output.get(source))
        behind = self._scaled(self._only_reader(output), back=True)
        if outer is not None and behind is not None and _close(outer[1], behind[1]):
            source, output, scale = outer[0], behind[2], scale * behind[1]
        middle = float(zero.ravel()[0])
        return self._on_grid(source, output, scale, middle, low - middle, high - middle, node)

    # -- plain operators

    def _round(self, node: NodeProto) -> FakeQuantizer | str:
        steps, before = _Steps(), list[NodeProto]()
        at = self._by_output.get(node.input[0])
        while at is not None and (self._shift(at) is not None or self._is_clip(at)):
            before.append(at)
            at = self._by_output.get(self._moving(at))
        scaled = self._scaled(at)
        if scaled is None:
            return ""
        for one in reversed(before):
            self._step(one, steps)
        output, behind = self._straight_through(node), None
        while behind is None:
            after = self._only_reader(output)
            behind = self._scaled(after, back=True)
            if behind is None:
                if after is None or not self._step(after, steps):
                    return ""
                output = after.output[0]
        if not _close(behind[1], scaled[1]) or abs(steps.shift) > 1e-6:
            return "it is multiplied by another scale than it was divided by, or its zero point does not go away"
        if not np.isfinite([steps.low, steps.high]).all():
            return "nothing bounds its integers"
        return self._on_grid(scaled[0], behind[2], behind[1], steps.zero, steps.low, steps.high, node)

    def _step(self, node: NodeProto, steps: _Steps) -> bool:
        shift = self._shift(node)
        if shift is not None:
            steps.shift = steps.shift + shift
        elif self._is_clip(node):
            steps.bound(self._bounds(node))
        return shift is not None or self._is_clip(node)

    def _moving(self, node: NodeProto) -> str:
        """The input of a node that is no constant; of a weight and a constant the larger."""
        given = [name for name in node.input if name]
        return str(next((name for name in given if not self.known.has(name)), max(given, key=self.known.size)))

    def _beside(self, node: NodeProto) -> Array | None:
        """The constant that a node with two inputs combines a value with; the value may be a constant, too."""
        names = [name for name in node.input if name != self._moving(node)]
        return self.known.numbers(names[0]) if len(names) == 1 else None

    def _shift(self, node: NodeProto) -> float | None:
        if node.op_type not in ("Add", "Sub") or node.domain not in ONNX:
            return None
        constant = self._beside(node)
        if constant is None or (node.op_type == "Sub" and self._moving(node) != node.input[0]):
            return None
        if constant.size < 1 or np.ptp(constant) > 0:
            return None
        return float(constant.ravel()[0]) * (1 if node.op_type == "Add" else -1)

    def _scaled(self, node: NodeProto | None, back: bool = False) -> tuple[str, Array, str] | None:
        """What is divided by a scale, or multiplied with it (`back`): the value, the scale, and the result."""
        if node is None or node.op_type not in ("Div", "Mul") or node.domain not in ONNX:
            return None
        constant = self._beside(node)
        if constant is None or (node.op_type == "Div" and self._moving(node) != node.input[0]):
            return None
        with np.errstate(divide="ignore"):
            scale = constant if (node.op_type == "Mul") == back else (1 / constant).astype(np.float32)
        return self._moving(node), scale, node.output[0]

    def _is_clip(self, node: NodeProto) -> bool:
        """Whether a node bounds a value by constants."""
        if node.domain not in ONNX or node.op_type not in ("Clip", "Max", "Min"):
            return False
        if node.op_type == "Clip":
            return all(self.known.has(name) for name in node.input[1:] if name)
        return self._beside(node) is not None

    def _bounds(self, node: NodeProto) -> Bounds:
        if node.op_type in ("Max", "Min"):
            bound = self._beside(node)
            assert bound is not None
            return (float(bound.max()), np.inf) if node.op_type == "Max" else (-np.inf, float(bound.min()))
        given = [self.known.numbers(name) if name else None for name in (*node.input[1:3], "", "")]
        low, high = (None if one is None else float(one.ravel()[0]) for one in given[:2])
        return -np.inf if low is None else low, np.inf if high is None else high

    def _straight_through(self, node: NodeProto) -> str:
        """What stands for the rounded value: `Add(u, Sub(Round(u), u))` where that is all that reads it."""
        value, rounded = node.input[0], node.output[0]
        apart = self._only_reader(rounded)
        if apart is None or apart.op_type != "Sub" or [*apart.input] != [rounded, value]:
            return str(rounded)
        joined = self._only_reader(apart.output[0])
        if joined is None or joined.op_type != "Add" or {*joined.input} != {value, apart.output[0]}:
            return str(rounded)
        return str(joined.output[0])

    def _only_reader(self, name: str) -> NodeProto | None:
        node = self._reader.get(name)
        return node if self._count[name] == 1 and node is not None and not list(bodies(node)) else None

    def _on_grid(
        self, source: str, output: str, scale: Array, zero: float, low: float, high: float, node: NodeProto
    ) -> FakeQuantizer | str:
        """A fake quantizer by the least and greatest step from zero, in the integers whose type holds them."""
        low, high = float(np.ceil(low)), float(np.floor(high))
        widest = 65535 if self._opset >= WIDE_OPSET else 255
        if high - low > widest or low > 0 or high < 0:
            return f"steps from {low:g} to {high:g} are no integers that opset {self._opset} can quantize to"
        first = float(round(zero))
        if abs(zero - first) > 1e-4:
            return "its zero point is no whole number"
        bits = 8 if high - low <= 255 else 16
        for signed in (True, False):
            grid = Grid(bits, signed)
            if grid.low <= low + first and high + first <= grid.high:
                break
        else:
            grid, first = Grid(bits), Grid(bits).low - low
        axis = next((at - scale.ndim for at, size in enumerate(scale.shape) if size > 1), None)
        if scale.size > 1 and sum(size > 1 for size in scale.shape) > 1:
            return "its scale goes along several axes"
        zeros = np.full(scale.size, first)
        params = params_of(scale.ravel().astype(np.float32), zeros, grid.dtype.name, axis, 0, node)
        return FakeQuantizer(source, output, params, int(low + first), int(high + first))


def params_of(scale: Array, zero: Array, kind: str, axis: int | None, block: int, node: NodeProto) -> QParams:
    """Scale and zero point for every integer of a type, checked."""
    if not scale.size or not np.isfinite(scale).all() or (scale <= 0).any():
        raise ModelError(f"a scale of '{node.output[0]}' ({node.op_type}) is not a number above zero")
    if zero.size not in (1, scale.size):
        raise ModelError(f"'{node.output[0]}' ({node.op_type}) has {scale.size} scales and {zero.size} zero points")
    grid = Grid(np.dtype(kind).itemsize * 8, kind.startswith("int"), bool((zero == 0).all()))
    zero = np.broadcast_to(zero, scale.shape).astype(np.int32)
    if axis is None:
        scale, zero = scale.reshape(()), zero.reshape(())
    return QParams(scale, zero, grid, axis, block)


def _close(one: Array, other: Array) -> bool:
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=1e-5, atol=0.0))


__all__ = ["FakeQuantizer", "FakeQuantizers", "KnownValues", "same"]
