"""What recurrent layers sum up: at every step of every sequence the inputs and the hidden state before it, [x h].

W and R are one matrix [W R], a block for each direction. Hidden states come from the dense net, so that steps do not
depend on each other. Sums are those of the gates, before biases, peepholes and activations. A GRU has two blocks for a
direction:

    the gates z and r                          [x h]
    the gate h, linear_before_reset = 0        [x r*h] with the r of the dense net
    the gate h, linear_before_reset = 1        [x 0] for each step, and behind those [0 h] for each: the gate r stands
                                               between the two sums, so each is a problem of its own
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxsparse.calibration.reductions.placing import Placed
from onnxsparse.calibration.reductions.reduction import Reduction, Values, array_of
from onnxsparse.graph.attributes import attributes
from onnxsparse.graph.weights import Use
from onnxsparse.math.values import Array

GATES = {"LSTM": 4, "DynamicQuantizeLSTM": 4, "GRU": 3, "RNN": 1}
X, W, R, B, LENGTHS, INITIAL = range(6)
WHOLE, RESET, APART = "[x h]", "[x r*h]", "[x 0] and [0 h]"


@dataclass(frozen=True)
class Steps:
    """Steps of sequences: which sample, which step, and how long its sequence is."""

    sample: Array
    step: Array
    length: Array

    @classmethod
    def of(cls, lengths: Array, most: int | None) -> Steps:
        """Those before the end of each sequence; of each at most so many, evenly spread."""
        taken = np.minimum(lengths, most) if most else lengths
        sample = np.repeat(np.arange(len(lengths)), taken)
        place = np.arange(len(sample)) - np.repeat(np.cumsum(taken) - taken, taken)
        return cls(sample, place * lengths[sample] // taken[sample], lengths[sample])


@dataclass(frozen=True, eq=False)
class Recurrent(Reduction):
    """The uses of W and R of one node, or of one of them."""

    names: tuple[str, ...]
    """Of the inputs of the node; empty where one is left out."""
    states: str
    """The value that has the hidden states of all steps."""
    blocks: tuple[tuple[int, str], ...]
    """For each block its direction, and what its rows are."""
    backward: tuple[bool, ...]
    """For each direction whether it starts at the end."""
    resets: tuple[Callable[[Array], Array], ...]
    """For each direction what makes the gate r of a GRU of its sums."""
    batch_first: bool
    stored: Values

    @property
    def dense_inputs(self) -> tuple[str, ...]:
        read = [self.states, self.names[INITIAL]] if self._with_states else []
        if self._with_states and any(part == RESET for _, part in self.blocks):
            read += [self.names[place] for place in (X, W, R, B)]
        return tuple(name for name in read if name and name not in self.stored)

    @property
    def fed_back(self) -> str:
        return self.states if self._with_states else ""

    @property
    def takes_bias(self) -> tuple[bool, ...]:
        return tuple(part != APART or len(self.uses) == 1 for _, part in self.blocks)

    def rows(self, values: Values, dense: Values | None = None, most: int | None = None) -> Sequence[Array]:
        dense = values if dense is None else dense
        x = self._batch_first(values[self.names[X]])
        lengths = np.full(len(x), x.shape[1])
        if self.names[LENGTHS]:
            lengths = array_of(self.names[LENGTHS], self.stored, values).astype(np.int64)
        steps = Steps.of(lengths, most)
        inputs = x[steps.sample, steps.step]
        return [self._block(direction, part, inputs, steps, dense) for direction, part in self.blocks]

    def by_output(self, value: Array) -> Sequence[Array]:
        raise TypeError("the sums of a recurrent layer are no value of the graph")

    @property
    def _with_states(self) -> bool:
        return any(use.slot == R for use in self.uses)

    def _block(self, direction: int, part: str, inputs: Array, steps: Steps, dense: Values) -> Array:
        if not self._with_states:
            return inputs
        hidden = self._before(direction, steps, dense)
        if part == RESET:
            hidden = hidden * self._reset(direction, hidden, steps, dense)
        parts = [inputs if use.slot == W else hidden for use in self.uses]
        if len(parts) == 1:
            return parts[0]
        if part != APART:
            return np.concatenate(parts, axis=1)
        apart = [np.zeros((len(inputs), inputs.shape[1] + hidden.shape[1]), np.float32) for _ in parts]
        apart[0][:, : inputs.shape[1]], apart[1][:, inputs.shape[1] :] = parts
        return np.concatenate(apart)

    # -- the dense net

    def _batch_first(self, numbers: Array) -> Array:
        """(sample, step, numbers)"""
        numbers = np.asarray(numbers, np.float32)
        return numbers if self.batch_first else np.moveaxis(numbers, 0, 1)

    def _before(self, direction: int, steps: Steps, dense: Values) -> Array:
        """The hidden state before each step."""
        axis = 2 if self.batch_first else 1
        states = self._batch_first(np.take(dense[self.states], direction, axis))
        earlier = steps.step + 1 if self.backward[direction] else steps.step - 1
        first = (earlier < 0) | (earlier >= steps.length)
        found = states[steps.sample, np.where(first, 0, earlier)]
        found[first] = 0
        if self.names[INITIAL]:
            given = array_of(self.names[INITIAL], self.stored, dense)
            initial = np.take(given, direction, 1 if self.batch_first else 0)
            found[first] = initial[steps.sample[first]]
        return found

    def _reset(self, direction: int, hidden: Array, steps: Steps, dense: Values) -> Array:
        """The gate r of a GRU."""
        size = hidden.shape[1]
        gate = slice(size, 2 * size)
        x = self._batch_first(dense[self.names[X]])[steps.sample, steps.step]
        w, r = (array_of(self.names[at], self.stored, dense)[direction, gate].astype(np.float32) for at in (W, R))
        sums = x @ w.T + hidden @ r.T
        if self.names[B]:
            bias = array_of(self.names[B], self.stored, dense)[direction].astype(np.float32)
            sums += bias[gate] + bias[3 * size :][gate]
        return self.resets[direction](sums)


# -- from nodes


def recurrent(uses: Sequence[Use], placed: Placed, stored: Values) -> Reduction | str:
    """The uses of W and R of one node, which lie in the same place."""
    node, options = uses[0].source, attributes(uses[0].source)
    states = next(iter(node.output), "")
    if not states and any(use.slot == R for use in uses):
        return f"the states of all steps of its {node.op_type}, the first output, have no name"
    names = (*node.input, *[""] * 6)[:6]
    towards = str(options.get("direction", "forward"))
    backward = {"forward": (False,), "reverse": (True,)}.get(towards, (False, True))
    resets = _resets(options, len(backward)) if node.op_type == "GRU" else ()
    if isinstance(resets, str):
        return resets
    blocks = _blocks(node.op_type, options, _hidden(uses, node.op_type, options), placed)
    given = tuple(name for name in (names[X], names[LENGTHS]) if name and name not in stored)
    return Recurrent(
        tuple(uses), given, "", tuple(outputs for _, _, outputs in blocks), names, states,
        tuple((direction, part) for direction, part, _ in blocks), backward, resets,
        options.get("layout", 0) == 1, stored,
    )  # fmt: skip


def _hidden(uses: Sequence[Use], op: str, options: Mapping[str, Any]) -> int:
    """How many hidden states there are."""
    given = options.get("hidden_size")
    states = next((use.shape4[2] for use in uses if use.slot == R), uses[0].shape4[1] // GATES[op])
    return int(given or states)


def _blocks(op: str, options: Mapping[str, Any], size: int, placed: Placed) -> list[tuple[int, str, Array]]:
    """The direction, what the rows are, and the outputs of each block."""
    axis, start, _ = placed.joined or (0, 0, 0)
    found = []
    for at, outputs in enumerate(placed.outputs):
        direction, row = (at + start, 0) if axis == 0 else (at, start)
        if op != "GRU":
            found.append((direction, WHOLE, outputs))
            continue
        last = np.arange(row, row + len(outputs)) >= 2 * size
        found.append((direction, WHOLE, outputs[~last]))
        found.append((direction, APART if options.get("linear_before_reset") else RESET, outputs[last]))
    return [block for block in found if len(block[2])]


_FUNCTIONS: dict[str, tuple[Callable[..., Array], dict[str, float]]] = {
    "relu": (lambda x: np.maximum(x, 0), {}),
    "tanh": (np.tanh, {}),
    "sigmoid": (lambda x: 0.5 + 0.5 * np.tanh(0.5 * x), {}),
    "softsign": (lambda x: x / (1 + np.abs(x)), {}),
    "softplus": (lambda x: np.logaddexp(x, 0), {}),
    "leakyrelu": (lambda x, alpha: np.where(x < 0, alpha * x, x), {"alpha": 0.01}),
    "elu": (lambda x, alpha: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x), {"alpha": 1.0}),
    "thresholdedrelu": (lambda x, alpha: np.where(x > alpha, x, 0), {"alpha": 1.0}),
    "hardsigmoid": (lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1), {"alpha": 0.2, "beta": 0.5}),
    "affine": (lambda x, alpha, beta: alpha * x + beta, {"alpha": 1.0, "beta": 0.0}),
    "scaledtanh": (lambda x, alpha, beta: alpha * np.tanh(beta * x), {"alpha": 1.0, "beta": 1.0}),
}
"""Activations in small letters, and the numbers that each of them takes."""


def _resets(options: Mapping[str, Any], directions: int) -> tuple[Callable[[Array], Array], ...] | str:
    """What makes the gate r of its sums, for each direction: the first of two activations."""
    names = [str(name).lower() for name in options.get("activations") or ["Sigmoid", "Tanh"] * directions]
    unknown = sorted(set(names) - set(_FUNCTIONS))
    if unknown:
        return f"its activation {unknown[0]} is not known here"
    taken = {key: iter(options.get(f"activation_{key}", [])) for key in ("alpha", "beta")}
    # they are listed only for the activations that have one
    numbers = [{key: next(taken[key], usual) for key, usual in _FUNCTIONS[name][1].items()} for name in names]
    return tuple(_clipped(names[at], numbers[at], options.get("clip")) for at in range(0, 2 * directions, 2))


def _clipped(name: str, numbers: Mapping[str, float], clip: float | None) -> Callable[[Array], Array]:
    def made(sums: Array) -> Array:
        limited = np.clip(sums, -clip, clip) if clip else sums
        found = _FUNCTIONS[name][0](limited, **numbers)
        return found.astype(np.float32, copy=False)

    return made
