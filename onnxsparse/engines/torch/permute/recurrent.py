"""Recurrent layers of torch as operators of ONNX, whose gates lie in another order there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxsparse.engines.torch.permute.emitter import Call, Emitter, Made, NotHereError, Value, layers
from onnxsparse.graph.torch_match import GATES


@layers("LSTM", "GRU", "RNN")
def recurrent(emitter: Emitter, call: Call) -> Made:
    """From a state of zeros; one that is given, and a projection of it, are another thing."""
    layer, value = call.layer, call.tensor()
    if value.rank != 3 or len(call.tensors) > 1 or layer.proj_size:
        raise NotHereError
    value = emitter.turned(value, (1, 0, 2)) if layer.batch_first else value
    states: list[list[Value]] = []
    for depth in range(layer.num_layers):
        value, *ends = _one_layer(emitter, call, value, depth)
        states.append(ends)
    value = emitter.turned(value, (1, 0, 2)) if layer.batch_first else value
    if call.only_first:
        return [value, None]
    last = [_stacked(emitter, [one[at] for one in states]) for at in range(len(states[0]))]
    return [value, last[0] if len(last) == 1 else last]


def _one_layer(emitter: Emitter, call: Call, value: Value, depth: int) -> list[Value]:
    layer, ways = call.layer, 2 if call.layer.bidirectional else 1
    ends = [f"_l{depth}", f"_l{depth}_reverse"][:ways]
    weights = [_stacked(emitter, [_of(emitter, call, f"weight_{kind}{end}") for end in ends]) for kind in ("ih", "hh")]
    bias = _biases(emitter, call, ends) if layer.bias else None
    length, batch, hidden = value.shape[0], value.shape[1], layer.hidden_size
    state = ((ways, batch, hidden), "float32")
    kind = type(layer).__name__
    made = emitter.several(
        kind, [value, *weights, bias],
        [((length, ways, batch, hidden), "float32"), state, *([state] if kind == "LSTM" else [])],
        hidden_size=hidden, direction="bidirectional" if ways == 2 else "forward",
    )  # fmt: skip
    beside = emitter.turned(made[0], (0, 2, 1, 3))
    return [emitter.reshaped(beside, (length, batch, ways * hidden)), *made[1:]]


def _of(emitter: Emitter, call: Call, name: str) -> Value:
    """A parameter with its gates in the order of ONNX, of one direction."""
    one = emitter.own(call, name)
    if one is None or not one.shape[0]:
        raise NotHereError
    order = GATES.get(type(call.layer).__name__.lower())
    if order is not None:
        parts = emitter.split(one, 0, [one.shape[0] // len(order)] * len(order))
        one = emitter.new("Concat", [parts[at] for at in order], one.shape, axis=0)
    return emitter.reshaped(one, (1, *one.shape))


def _biases(emitter: Emitter, call: Call, ends: Sequence[str]) -> Value:
    rows = []
    for end in ends:
        pair: list[Any] = [_of(emitter, call, f"bias_{kind}{end}") for kind in ("ih", "hh")]
        rows.append(emitter.new("Concat", pair, (1, 2 * pair[0].shape[1]), axis=1))
    return _stacked(emitter, rows)


def _stacked(emitter: Emitter, parts: Sequence[Value]) -> Value:
    shape = (sum(one.shape[0] or 0 for one in parts), *parts[0].shape[1:])
    return parts[0] if len(parts) == 1 else emitter.new("Concat", list(parts), shape, axis=0)
