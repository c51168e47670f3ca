"""Recurrent layers are refitted to the hidden states that they give themselves, where outputs come closer by that."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.helper import make_node

import onnxsparse as osp
from onnxsparse.calibration import own_states
from onnxsparse.math.values import Array
from tests.cases import for_each
from tests.calibration.test_reach import drawn, model, ran

HIDDEN, STEPS, INPUTS = 16, 12, 8
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OPTIONS: dict[str, Any] = {
    "pattern": "unstructured", "sparsity": 0.5, "allow": ["stem", "small"], "exclude": ["v"],
    "sensitivity": "measured", "allocation": "uniform", "workers": 1,
}  # fmt: skip


def net(op: str, scale: float, behind: bool = True, **options: int) -> onnx.ModelProto:
    """A recurrent layer, whose memory is as long as the scale of R says, and its last states or a matrix behind them."""
    rows = GATES[op] * HIDDEN
    stored = {"w": drawn(1, rows, INPUTS, seed=1), "b": drawn(1, 2 * rows, seed=3) / 4, "v": drawn(HIDDEN, 4, seed=5)}
    turned = np.linalg.qr(np.random.default_rng(2).normal(size=(rows, HIDDEN)))[0]
    stored["r"] = (scale * turned[None] * GATES[op] ** 0.5).astype(np.float32)
    last = "h" if behind else "y"
    nodes = [
        make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        make_node(op, ["t", "w", "r", "b"], ["s", last] if behind else [last], hidden_size=HIDDEN, **options),
        *([make_node("MatMul", ["h", "v"], ["y"])] if behind else []),
    ]
    return model(nodes, ["n", STEPS, INPUTS], stored)


def samples(seed: int = 0) -> Array:
    """Rows that change slowly, as those of an image."""
    noise = np.random.default_rng(seed).normal(size=(200, STEPS, INPUTS))
    return np.cumsum(noise, axis=1).astype(np.float32) / 4


def distances(monkeypatch: pytest.MonkeyPatch, proto: onnx.ModelProto, **options: Any) -> list[float]:
    """How far the outputs are with refits to the states of the dense net alone, and to its own."""
    found, x = [], samples()
    for repeats in (0, own_states.REPEATS):
        monkeypatch.setattr(own_states, "REPEATS", repeats)
        made = osp.prune(proto, data={"x": x}, samples=200, **{**OPTIONS, **options})
        assert osp.verify(made.model).report.ok
        (wanted, *_), (out, *_) = ran(proto, x), ran(made.model, x)
        found.append(float(np.square(wanted - out).sum() / np.square(wanted).sum()))
    return found


KINDS = [("LSTM", {}), ("GRU", {"linear_before_reset": 1}), ("GRU", {}), ("RNN", {})]


@for_each(("op", "options"), KINDS)
def test_outputs_come_closer(op: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = [distances(monkeypatch, net(op, scale, **options)) for scale in (0.5, 0.8, 1.2)]
    print(op, options, found)


def test_x(monkeypatch):
    print([distances(monkeypatch, net("RNN", s, behind=False), exclude=[]) for s in (0.8, 1.2, 2.0)])
    print([distances(monkeypatch, net("GRU", s), exclude=["r","v"]) for s in (0.8, 1.2, 2.0)])
    print([distances(monkeypatch, net("GRU", s), exclude=["w","v"]) for s in (0.8, 1.2, 2.0)])
    print([distances(monkeypatch, net("GRU", s), pattern="2:4", sparsity=None) for s in (0.8, 1.2, 2.0)])
