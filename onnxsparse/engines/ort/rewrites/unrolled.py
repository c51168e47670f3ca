"""Recurrent layers step by step: one forward direction of LSTM, GRU or RNN with any of ONNX's options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxsparse.engines.ort.rewrites.shorthand import part
from onnxsparse.engines.ort.writer import Writer

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
