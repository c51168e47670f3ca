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
from tests.calibration.test_reach import drawn, model, ran
from tests.cases import for_each

HIDDEN, STEPS, INPUTS = 16, 12, 8
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OPTIONS: dict[str, Any] = {
    "pattern": "unstructured", "sparsity": 0.5, "allow": ["stem", "small"], "exclude": ["v"],
    "sensitivity": "measured", "allocation": "uniform", "workers": 1,
}  # fmt: skip


def net(op: str, scale: float, behind: bool = True, **options: int) -> onnx.ModelProto:
    """A recurrent layer that remembers as long as the scale of R says, and a matrix behind its last states."""
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


@for_each(("op", "options"), [("LSTM", {}), ("GRU", {"linear_before_reset": 1}), ("GRU", {}), ("RNN", {})])
def test_outputs_come_closer_or_stay_where_they_are(
    op: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [distances(monkeypatch, net(op, scale, **options)) for scale in (0.5, 0.8, 1.2)]
    ratios = [after / before for before, after in found]
    assert max(ratios) <= 1 + 1e-6, ratios
    assert min(ratios) < 0.985, ratios


def test_states_that_are_the_output_come_closer(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = distances(monkeypatch, net("RNN", 1.2, behind=False), exclude=[])
    assert after < 0.9 * before


@for_each(("beside", "most"), [("r", 0.99), ("w", 0.99)])
def test_a_weight_beside_that_stays_is_reckoned_with(beside: str, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = distances(monkeypatch, net("GRU", 2.0), exclude=[beside, "v"])
    assert after <= most * before


def test_n_of_m_comes_closer(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = distances(monkeypatch, net("GRU", 0.8), pattern="2:4", sparsity=None)
    assert after < 0.95 * before


def test_outputs_that_never_vary_leave_the_refit_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = net("RNN", 0.8)
    made = []
    for repeats in (0, own_states.REPEATS):
        monkeypatch.setattr(own_states, "REPEATS", repeats)
        copy = onnx.ModelProto.FromString(proto.SerializeToString())
        copy.graph.node[-1].CopyFrom(make_node("Shape", ["h"], ["y"]))
        copy.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
        made.append(osp.prune(copy, data={"x": samples()}, **{**OPTIONS, "sensitivity": "none", "exclude": []}).model)
    assert made[0].SerializeToString() == made[1].SerializeToString()
