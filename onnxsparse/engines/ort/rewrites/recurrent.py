"""Recurrent layers (LSTM, GRU, RNN) for the training graph: forward layers, or single steps without a kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, gather, given, part, result
from onnxsparse.graph.attributes import attributes
from onnxsparse.graph.edit import Writer

# -- Recurrent layers step by step: one forward direction of LSTM, GRU or RNN with any of ONNX's options.

ACTIVATIONS: dict[str, tuple[str, dict[str, float]]] = {
    "relu": ("Relu", {}),
    "tanh": ("Tanh", {}),
    "sigmoid": ("Sigmoid", {}),
    "softsign": ("Softsign", {}),
    "softplus": ("Softplus", {}),
    "leakyrelu": ("LeakyRelu", {"alpha": 0.01}),
    "elu": ("Elu", {"alpha": 1.0}),
    "thresholdedrelu": ("ThresholdedRelu", {"alpha": 1.0}),
    "hardsigmoid": ("HardSigmoid", {"alpha": 0.2, "beta": 0.5}),
    "affine": ("Affine", {"alpha": 1.0, "beta": 0.0}),
    "scaledtanh": ("ScaledTanh", {"alpha": 1.0, "beta": 1.0}),
}
"""The operator of each activation, in small letters, and its numbers."""


@dataclass(frozen=True)
class Cell:
    """One direction: its tensors by name (x w r b h c p), sizes and options."""

    op: str
    names: dict[str, str | None]
    time: int
    size: int
    functions: list[tuple[str, float | None, float | None]]
    clip: float | None = None
    coupled: bool = False
    reset_last: bool = False


def unroll(writer: Writer, cell: Cell) -> list[str]:
    """Every state (time, 1, batch, size), the last one (1, batch, size) and, for LSTM, the last cell."""
    return _Steps(writer, cell).run()


class _Steps:
    def __init__(self, writer: Writer, cell: Cell) -> None:
        self.writer, self.cell = writer, cell
        self.zero = writer.constant([0], "axis", np.int64)
        self.r = writer.node("Transpose", self._flat("r"), perm=(1, 0))
        self.peepholes = self._pieces(self._flat("p"), 3, 0) if cell.names["p"] else []
        self.reset_bias: str | None = None

    def run(self) -> list[str]:
        inputs = self._inputs()
        h, c = self._flat("h"), self._flat("c") if self.cell.names["c"] else ""
        states = []
        for x in inputs:
            h, c = self._step(x, h, c)
            states.append(self.writer.node("Unsqueeze", h, self.zero))
        stacked = [self.writer.node("Unsqueeze", state, self.zero) for state in states]
        every = self.writer.node("Concat", *stacked, axis=0) if len(stacked) > 1 else stacked[0]
        return [every, states[-1], *([self.writer.node("Unsqueeze", c, self.zero)] if c else [])]

    def _flat(self, key: str) -> str:
        """A tensor without its axis of directions."""
        name = self.cell.names[key]
        assert name is not None
        return self.writer.node("Squeeze", name, self.zero)

    def _inputs(self) -> list[str]:
        """For each step what the input adds to all gates, biases included."""
        writer, cell = self.writer, self.cell
        x = cell.names["x"]
        assert x is not None
        projected = writer.node("MatMul", x, writer.node("Transpose", self._flat("w"), perm=(1, 0)))
        for bias in self._biases():
            projected = writer.node("Add", projected, bias)
        if cell.time == 1:
            return [writer.node("Squeeze", projected, self.zero)]
        steps = [writer.fresh("step") for _ in range(cell.time)]
        writer.many("Split", projected, writer.constant([1] * cell.time, "sizes", np.int64), to=steps, axis=0)
        return [writer.node("Squeeze", step, self.zero) for step in steps]

    def _biases(self) -> list[str]:
        if not self.cell.names["b"]:
            return []
        width = self.cell.size * {"LSTM": 4, "GRU": 3, "RNN": 1}[self.cell.op]
        flat = self._flat("b")
        inner, outer = (part(self.writer, flat, start, start + width, 0) for start in (0, width))
        if not (self.cell.op == "GRU" and self.cell.reset_last):
            return [inner, outer]
        gates = part(self.writer, outer, 0, 2 * self.cell.size, 0)
        self.reset_bias = part(self.writer, outer, 2 * self.cell.size, width, 0)
        zeros = self.writer.constant(np.zeros(self.cell.size, np.float32), "zeros")
        return [inner, self.writer.node("Concat", gates, zeros, axis=0)]

    def _step(self, x: str, h: str, c: str) -> tuple[str, str]:
        if self.cell.op == "LSTM":
            return self._lstm(x, h, c)
        return (self._gru(x, h) if self.cell.op == "GRU" else self._rnn(x, h)), ""

    def _rnn(self, x: str, h: str) -> str:
        return self._active(0, self._sum(x, self.writer.node("MatMul", h, self.r)))

    def _lstm(self, x: str, h: str, c: str) -> tuple[str, str]:
        total = self._sum(x, self.writer.node("MatMul", h, self.r))
        i, o, f, g = self._pieces(total, 4, 1)
        i = self._active(0, self._peeped(i, 0, c))
        f = self._rest(i) if self.cell.coupled else self._active(0, self._peeped(f, 2, c))
        c = self._sum(self._product(f, c), self._product(i, self._active(1, g)))
        o = self._active(0, self._peeped(o, 1, c))
        return self._product(o, self._active(2, c, clipped=False)), c

    def _gru(self, x: str, h: str) -> str:
        size, writer = self.cell.size, self.writer
        recurrent = [part(writer, self.r, *ends, 1) for ends in ((0, 2 * size), (2 * size, 3 * size))]
        gates = self._sum(part(writer, x, 0, 2 * size, 1), writer.node("MatMul", h, recurrent[0]))
        z, r = (self._active(0, gate) for gate in self._pieces(gates, 2, 1))
        if self.cell.reset_last:
            inner = writer.node("MatMul", h, recurrent[1])
            inner = self._product(r, self._sum(inner, self.reset_bias) if self.reset_bias else inner)
        else:
            inner = writer.node("MatMul", self._product(r, h), recurrent[1])
        new = self._active(1, self._sum(part(writer, x, 2 * size, 3 * size, 1), inner))
        return self._sum(self._product(self._rest(z), new), self._product(z, h))

    def _peeped(self, gate: str, place: int, c: str) -> str:
        return self._sum(gate, self._product(self.peepholes[place], c)) if self.peepholes else gate

    def _pieces(self, value: str, count: int, axis: int) -> list[str]:
        pieces = [self.writer.fresh("gate") for _ in range(count)]
        sizes = self.writer.constant([self.cell.size] * count, "sizes", np.int64)
        return self.writer.many("Split", value, sizes, to=pieces, axis=axis)

    def _active(self, place: int, value: str, clipped: bool = True) -> str:
        writer, clip = self.writer, self.cell.clip
        if clip and clipped:
            value = writer.node("Clip", value, writer.constant(-float(clip)), writer.constant(float(clip)))
        name, *given = self.cell.functions[place]
        op, defaults = ACTIVATIONS[name]
        numbers: dict[str, Any] = {
            key: default if number is None else number for (key, default), number in zip(defaults.items(), given)
        }
        if op not in ("Affine", "ScaledTanh"):
            return writer.node(op, value, **numbers)
        alpha, beta = writer.constant(numbers["alpha"]), writer.constant(numbers["beta"])
        if op == "Affine":
            return writer.node("Add", writer.node("Mul", value, alpha), beta)
        return writer.node("Mul", writer.node("Tanh", writer.node("Mul", value, beta)), alpha)

    def _rest(self, value: str) -> str:
        return self.writer.node("Sub", self.writer.constant(1.0, "one"), value)

    def _sum(self, one: str, two: str) -> str:
        return self.writer.node("Add", one, two)

    def _product(self, one: str, two: str) -> str:
        return self.writer.node("Mul", one, two)


# -- Recurrent layers: one forward layer for each direction, or single steps where the engine knows no layer.
#
# 1. The engine differentiates forward LSTM and GRU layers of the usual activations whose weights need a gradient.
# 2. A backward layer is a forward one on the reversed sequence; two directions are two layers, joined.
# 3. Whatever else there is (RNN, other activations, clipping, peepholes, coupled gates) is written step by step.
# 4. A layer whose weights need no gradient kills the process if a gradient passes: a trained tensor times zero is added
#    to them. A layer that no gradient passes is rewritten all the same, as the engine has one kernel for both.
# 5. Sequences of different lengths are refused.

LONGEST = 256
"""Steps that are written one by one at most."""

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


@dataclass(frozen=True)
class _Layer:
    """The inputs of a layer by name, time first, and its sizes."""

    op: str
    x: str
    w: str
    r: str
    b: str | None
    h: str
    c: str | None
    p: str | None
    time: int
    batch: int
    size: int
    directions: int
    options: dict[str, Any]

    @property
    def activations(self) -> list[str]:
        named = self.options.get("activations") or _USUAL[self.op] * self.directions
        return [str(name) for name in named]

    @property
    def is_usual(self) -> bool:
        """Whether the engine's own layer does it."""
        same = [name.lower() for name in self.activations] == [
            name.lower() for name in _USUAL[self.op] * self.directions
        ]
        odd = self.options.get("clip") or self.options.get("input_forget") or self.p
        return self.op != "RNN" and same and not odd


class Recurrent(Rewrite):
    """LSTM, GRU and RNN."""

    operators = ("LSTM", "GRU", "RNN")
    needless = True

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        refusal = _refusal(node, view)
        if refusal or _is_right(node, view):
            return refusal
        layer = _read(node, view, writer)
        if not layer.is_usual:
            unknown = {name.lower() for name in layer.activations} - set(ACTIVATIONS)
            if unknown or layer.time > LONGEST:
                return f"it has {layer.time} steps, or unknown activations ({', '.join(sorted(unknown))})"
        parts = [_one(_side(layer, side, writer), side, writer) for side in range(layer.directions)]
        _join(node, layer, parts, writer)
        return None


def _refusal(node: NodeProto, view: View) -> str | None:
    x = view.shapes.get(node.input[0])
    if x is None or any(name not in view.shapes for name in node.input[1:3]):
        return "its shapes are not known"
    lengths = given(node, 4)
    if lengths:
        stored = view.constant(lengths)
        if stored is None:
            return "how long its sequences are is known only at run time"
        if (stored != x[attributes(node).get("layout", 0)]).any():
            return "its sequences have different lengths"
    return None


def _is_right(node: NodeProto, view: View) -> bool:
    """Whether this is what the engine wants already."""
    options, states = attributes(node), 2 if node.op_type == "LSTM" else 1
    plain = options.get("direction", "forward") == "forward" and not options.get("layout")
    whole = len(node.output) == states + 1 and all(node.output)
    begun = all(given(node, 5 + state) for state in range(states)) and not given(node, 4)
    trained = all(name in view.gradients for name in node.input[1:3]) or not view.flows(node)
    usual = not (options.get("clip") or options.get("input_forget") or options.get("activations") or given(node, 7))
    return node.op_type != "RNN" and plain and whole and begun and trained and usual


def _read(node: NodeProto, view: View, writer: Writer) -> _Layer:
    options = attributes(node)
    turned = options.get("layout", 0) == 1
    first, second, _ = view.shapes[node.input[0]]
    time, batch = (second, first) if turned else (first, second)
    directions, rows, _ = view.shapes[node.input[1]]
    size = rows // _GATES[node.op_type]
    states = [
        _state(writer, given(node, place), (directions, batch, size), turned)
        for place in (5, *([6] if node.op_type == "LSTM" else []))
    ]
    x = writer.node("Transpose", node.input[0], perm=(1, 0, 2)) if turned else node.input[0]
    w, r = (_anchored(writer, name, view) if view.flows(node) else name for name in node.input[1:3])
    cell = states[1] if len(states) > 1 else None
    peepholes, bias = given(node, 7), given(node, 3)
    return _Layer(node.op_type, x, w, r, bias, states[0], cell, peepholes, time, batch, size, directions, options)


def _state(writer: Writer, name: str | None, shape: tuple[int, ...], turned: bool) -> str:
    if name is None:
        return writer.constant(np.zeros(shape, np.float32), "state")
    return writer.node("Transpose", name, perm=(1, 0, 2)) if turned else name


def _anchored(writer: Writer, name: str, view: View) -> str:
    if name in view.gradients:
        return name
    stored = sorted(tensor.name for tensor in writer.graph.initializer if tensor.name in view.gradients)
    if not stored:
        return name
    trained = min(stored, key=lambda one: int(np.prod(view.shapes[one])))
    flat = writer.node("Reshape", trained, writer.constant([-1], "flat", np.int64))
    total = writer.node("ReduceSum", flat, writer.constant([0], "axes", np.int64), keepdims=0)
    return writer.node("Add", name, writer.node("Mul", total, writer.constant(0.0, "nothing")))


def _backwards(layer: _Layer, side: int) -> bool:
    return side == 1 or layer.options.get("direction") == "reverse"


def _side(layer: _Layer, side: int, writer: Writer) -> _Layer:
    """One direction, as a forward layer."""
    names = {name: getattr(layer, name) for name in ("w", "r", "b", "h", "c", "p")}
    if layer.directions > 1:
        names = {key: name and part(writer, name, side, side + 1, 0) for key, name in names.items()}
    x = gather(writer, layer.x, np.arange(layer.time)[::-1], 0) if _backwards(layer, side) else layer.x
    return replace(layer, x=x, **names)


def _one(layer: _Layer, side: int, writer: Writer) -> list[str]:
    """Results (time, 1, batch, size), (1, batch, size) and, for LSTM, the last cell, of a forward layer."""
    if layer.is_usual:
        inputs = [layer.x, layer.w, layer.r, layer.b or "", "", layer.h, *([layer.c] if layer.c else [])]
        stems = ("every", "last", "cell")[: 3 if layer.c else 2]
        kept = {key: layer.options[key] for key in ("linear_before_reset",) if key in layer.options}
        made = [writer.fresh(stem) for stem in stems]
        results = writer.many(layer.op, *inputs, to=made, hidden_size=layer.size, **kept)
    else:
        results = unroll(writer, _cell(layer, side))
    if _backwards(layer, side):
        results = [gather(writer, results[0], np.arange(layer.time)[::-1], 0), *results[1:]]
    return results


def _cell(layer: _Layer, side: int) -> Cell:
    count, options = len(_USUAL[layer.op]), layer.options
    chosen = slice(side * count, side * count + count)
    alphas, betas = _numbers(layer, "alpha"), _numbers(layer, "beta")
    functions = list(zip((name.lower() for name in layer.activations), alphas, betas))[chosen]
    return Cell(
        op=layer.op,
        names={key: getattr(layer, key) for key in ("x", "w", "r", "b", "h", "c", "p")},
        time=layer.time,
        size=layer.size,
        functions=functions,
        clip=options.get("clip"),
        coupled=bool(options.get("input_forget", 0)),
        reset_last=bool(options.get("linear_before_reset", 0)),
    )


def _numbers(layer: _Layer, key: str) -> list[float | None]:
    """Each activation's `alpha` or `beta`: they are listed only for the activations that have one."""
    listed = list(layer.options.get(f"activation_{key}", []))
    taking = [name.lower() in ACTIVATIONS and key in ACTIVATIONS[name.lower()][1] for name in layer.activations]
    return [listed.pop(0) if takes and listed else None for takes in taking]


def _join(node: NodeProto, layer: _Layer, parts: list[list[str]], writer: Writer) -> None:
    turned = layer.options.get("layout", 0) == 1
    for place, pieces in enumerate(zip(*parts)):
        name = result(node, place)
        if name:
            axis, order = (1, (2, 0, 1, 3)) if place == 0 else (0, (1, 0, 2))
            joined = writer.node("Concat", *pieces, axis=axis) if len(pieces) > 1 else pieces[0]
            writer.node("Transpose" if turned else "Identity", joined, to=name, perm=order if turned else None)
