"""LSTM, GRU and RNN: W and R are (directions, gates * hidden, in)."""

from __future__ import annotations

import functools

import numpy as np

from .case import Built, Use, add, case, expect, feed, node, simple, tensor, weights

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _recurrent(op: str, direction: str, inside: int, hidden: int) -> Built:
    ways = 2 if direction == "bidirectional" else 1
    w = weights(ways, GATES[op] * hidden, inside)
    r = weights(ways, GATES[op] * hidden, hidden, seed=2)
    b = weights(ways, 2 * GATES[op] * hidden, seed=3)
    cell = node(op, "x w r b", "y", hidden_size=hidden, direction=direction)
    use = Use(op, (2,), (1,))
    stored = {"w": w, "r": r, "b": b}
    return simple([cell], {"x": feed(5, 2, inside)}, [("y", 4)], stored, [expect("w", w, use), expect("r", r, use)])


for _op in GATES:
    for _direction in ("forward", "reverse", "bidirectional"):
        add(f"{_op.lower()}_{_direction}", "recurrent", functools.partial(_recurrent, _op, _direction, 12, 8))
    add(f"{_op.lower()}_ragged", "recurrent", functools.partial(_recurrent, _op, "forward", 7, 6))


@case
def lstm_of_constants_with_peepholes() -> Built:
    """Weights in Constant nodes; the peepholes (1, 3 * hidden) are no matrix."""
    w, r, p = weights(1, 32, 12), weights(1, 32, 8, seed=2), weights(1, 24, seed=3)
    nodes = [node("Constant", "", name, value=tensor("", value)) for name, value in (("w", w), ("r", r), ("p", p))]
    nodes.append(node("LSTM", "x w r _ _ _ _ p", "y", hidden_size=8))
    use = Use("LSTM", (2,), (1,))
    wanted = [expect("w", w, use, storage="constant"), expect("r", r, use, storage="constant")]
    return simple(nodes, {"x": feed(5, 2, 12)}, [("y", 4)], {}, wanted)


@case
def lstm_weight_through_unsqueeze_and_concat() -> Built:
    """Old exporters stack the directions in the graph; a Concat is not traced."""
    w, v = weights(32, 12), weights(32, 12, seed=4)
    r = weights(2, 32, 8, seed=2)
    nodes = [
        node("Unsqueeze", "w a", "w1"),
        node("Unsqueeze", "v a", "v1"),
        node("Concat", "w1 v1", "both", axis=0),
        node("LSTM", "x both r", "y", hidden_size=8, direction="bidirectional"),
    ]
    use = Use("LSTM", (1,), (0,))
    lost = {"reason": "not traceable", "lenient": True}
    wanted = [expect("w", w, use, **lost), expect("v", v, use, **lost), expect("r", r, Use("LSTM", (2,), (1,)))]
    stored = {"w": w, "v": v, "r": r, "a": np.array([0])}
    return simple(nodes, {"x": feed(5, 2, 12)}, [("y", 4)], stored, wanted)
