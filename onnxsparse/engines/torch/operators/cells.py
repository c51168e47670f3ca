"""Recurrent cells (LSTM, GRU, RNN) one step at a time, for what torch's own layers do not do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional

from onnxsparse.engines.torch.operators.shaping import ReverseSequence
from onnxsparse.engines.torch.operators.values import Outputs, Tensor

Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Cell:
    """The weights of a layer and how it steps. `special` is linear_before_reset or input_forget."""

    step: Callable[[Gates, Tensor, list[Tensor]], list[Tensor]]
    W: Tensor
    R: Tensor
    B: Tensor | None
    P: Tensor | None
    direction: str
    activations: list[str]
    alpha: list[float] | None = None
    beta: list[float] | None = None
    clip: float | None = None
    special: bool = False

    @property
    def directions(self) -> int:
        return int(self.W.shape[0])

    def start(self, state: Tensor | None, X: Tensor) -> Tensor:
        if state is not None:
            return state
        return X.new_zeros((self.directions, X.shape[1], self.R.shape[2]))


@dataclass(frozen=True)
class Gates:
    """One direction of a layer: its weights by gate."""

    W: tuple[Tensor, ...]
    R: tuple[Tensor, ...]
    W_bias: tuple[Tensor, ...]
    R_bias: tuple[Tensor, ...]
    P: tuple[Tensor, ...]
    functions: tuple[Activation, ...]
    clip: float | None
    special: bool

    def given(self, gate: int, x: Tensor) -> Tensor:
        return functional.linear(x, self.W[gate], self.W_bias[gate])

    def kept(self, gate: int, h: Tensor) -> Tensor:
        return functional.linear(h, self.R[gate], self.R_bias[gate])

    def through(self, function: int, x: Tensor) -> Tensor:
        return self.functions[function](x if self.clip is None else x.clamp(-self.clip, self.clip))


def rnn_step(gates: Gates, x: Tensor, states: list[Tensor]) -> list[Tensor]:
    return [gates.through(0, gates.given(0, x) + gates.kept(0, states[0]))]


def gru_step(gates: Gates, x: Tensor, states: list[Tensor]) -> list[Tensor]:
    h = states[0]
    update = gates.through(0, gates.given(0, x) + gates.kept(0, h))
    reset = gates.through(0, gates.given(1, x) + gates.kept(1, h))
    kept = reset * gates.kept(2, h) if gates.special else gates.kept(2, reset * h)
    new = gates.through(1, gates.given(2, x) + kept)
    return [(1 - update) * new + update * h]


def lstm_step(gates: Gates, x: Tensor, states: list[Tensor]) -> list[Tensor]:
    h, c = states
    enter, leave, forget, new = (gates.given(gate, x) + gates.kept(gate, h) for gate in range(4))
    if gates.P:
        enter, forget = enter + gates.P[0] * c, forget + gates.P[2] * c
    entering = gates.through(0, enter)
    staying = 1 - entering if gates.special else gates.through(0, forget)
    c = staying * c + entering * gates.through(1, new)
    leave = leave + gates.P[1] * c if gates.P else leave
    return [gates.through(0, leave) * gates.functions[2](c), c]


def run(X: Tensor, cell: Cell, given: list[Tensor | None], lengths: Tensor | None) -> Outputs:
    """All steps of all directions: the outputs, then the last states."""
    states = [cell.start(state, X) for state in given]
    lengths = X.new_full((X.shape[1],), X.shape[0], dtype=torch.int64) if lengths is None else lengths.to(torch.int64)
    results = []
    for index in range(cell.directions):
        backwards = cell.direction == "reverse" or index == 1
        x = ReverseSequence(X, lengths) if backwards else X
        Y, last = _direction(x, cell, index, [state[index] for state in states], lengths)
        results.append((ReverseSequence(Y, lengths) if backwards else Y, *last))
    Y, *lasts = (torch.stack(parts, axis) for parts, axis in zip(zip(*results), (1, 0, 0)))
    return (Y, *lasts)


def _direction(X: Tensor, cell: Cell, index: int, states: list[Tensor], lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
    """After its last step a sample keeps its state and puts out zeros."""
    gates, outputs = _gates(cell, index), []
    for step, x in enumerate(X):
        running = (step < lengths).unsqueeze(1)
        new = cell.step(gates, x, states)
        states = [torch.where(running, after, before) for after, before in zip(new, states)]
        outputs.append(torch.where(running, states[0], torch.zeros_like(states[0])))
    Y = torch.stack(outputs) if outputs else X.new_zeros((0, *states[0].shape))
    return Y, states


def _gates(cell: Cell, index: int) -> Gates:
    hidden = cell.R.shape[2]
    count = cell.R.shape[1] // hidden
    bias = cell.B[index] if cell.B is not None else cell.W.new_zeros(2 * count * hidden)
    W_bias, R_bias = bias.chunk(2)
    peepholes = cell.P[index].chunk(3) if cell.P is not None else ()
    return Gates(
        cell.W[index].chunk(count), cell.R[index].chunk(count), W_bias.chunk(count), R_bias.chunk(count), peepholes,
        _functions(cell, index), cell.clip, cell.special,
    )  # fmt: skip


_PLAIN: dict[str, Activation] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softsign": functional.softsign,
    "softplus": functional.softplus,
}
_SHAPED: dict[str, tuple[float, float, Callable[[Tensor, float, float], Tensor]]] = {
    "affine": (1.0, 0.0, lambda x, a, b: a * x + b),
    "leakyrelu": (0.01, 0.0, lambda x, a, _: functional.leaky_relu(x, a)),
    "thresholdedrelu": (1.0, 0.0, lambda x, a, _: torch.where(x > a, x, torch.zeros_like(x))),
    "scaledtanh": (1.0, 1.0, lambda x, a, b: a * torch.tanh(b * x)),
    "hardsigmoid": (0.2, 0.5, lambda x, a, b: torch.clamp(a * x + b, 0, 1)),
    "elu": (1.0, 0.0, lambda x, a, _: functional.elu(x, a)),
}
_TWO = ("affine", "scaledtanh", "hardsigmoid")


def _functions(cell: Cell, index: int) -> tuple[Activation, ...]:
    """The activations of one direction; alpha and beta are handed out in order to those that take them."""
    alphas, betas = list(cell.alpha or []), list(cell.beta or [])
    made: list[Activation] = []
    for name in (word.lower() for word in cell.activations):
        if name in _PLAIN:
            made.append(_PLAIN[name])
            continue
        alpha, beta, function = _SHAPED[name]
        alpha = alphas.pop(0) if alphas else alpha
        beta = betas.pop(0) if betas and name in _TWO else beta
        made.append(partial(_shaped, function, alpha, beta))
    each = _EACH[cell.step.__name__]
    return tuple(made[index * each : index * each + each]) if len(made) > each else tuple(made)


_EACH = {"rnn_step": 1, "gru_step": 2, "lstm_step": 3}


def _shaped(function: Callable[[Tensor, float, float], Tensor], alpha: float, beta: float, x: Tensor) -> Tensor:
    return function(x, alpha, beta)
