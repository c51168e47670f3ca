"""What recurrent layers sum up, against the runtime: from the sums of all steps follow its hidden states."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_attribute, make_node

from onnxsparse.calibration.reductions import Reduction, reduction_of, together
from onnxsparse.graph.model import Model
from tests.calibration.test_reductions import drawn, model, ran

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "Relu": lambda x: np.maximum(x, 0),
    "HardSigmoid": lambda x: np.clip(0.3 * x + 0.4, 0, 1),
    "LeakyRelu": lambda x: np.where(x < 0, 0.05 * x, x),
}
USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
TAKES = {"HardSigmoid": (0.3, 0.4), "LeakyRelu": (0.05,)}
OTHERS = {"LSTM": ["HardSigmoid", "Relu", "Tanh"], "GRU": ["HardSigmoid", "LeakyRelu"], "RNN": ["LeakyRelu"]}


@st.composite
def layers(draw: Any) -> tuple[onnx.NodeProto, dict[str, Any], dict[str, Any]]:
    """A node, what it is fed and what is stored."""
    op = draw(st.sampled_from(sorted(GATES)))
    time, batch, inputs, hidden = (draw(st.integers(1, high)) for high in (5, 3, 4, 3))
    towards = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    sides, rows = 2 if towards == "bidirectional" else 1, GATES[op] * hidden
    lengths = draw(st.lists(st.integers(1, time), min_size=batch, max_size=batch))
    feeds = {"x": drawn(time, batch, inputs), "lengths": np.array(lengths, np.int32)}
    feeds |= {"h": drawn(sides, batch, hidden, seed=4), "c": drawn(sides, batch, hidden, seed=5)}
    stored = {"w": drawn(sides, rows, inputs, seed=1), "r": drawn(sides, rows, hidden, seed=2)}
    stored |= {"b": drawn(sides, 2 * rows, seed=3), "p": drawn(sides, 3 * hidden, seed=6)}
    optional = draw(st.sets(st.sampled_from(["b", "lengths", "h", *(["c", "p"] if op == "LSTM" else [])])))
    names = [name if name in optional else "" for name in ("b", "lengths", "h", "c", "p")[: 5 if op == "LSTM" else 3]]
    node = make_node(op, ["x", "w", "r", *names], ["y", "y_h"], hidden_size=hidden, direction=towards)
    node.attribute.extend(make_attribute(name, value) for name, value in draw(options(op, sides)).items())
    kept = {"x", "w", "r", *optional}
    return node, *({name: one for name, one in some.items() if name in kept} for some in (feeds, stored))


@st.composite
def options(draw: Any, op: str, sides: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if op != "RNN":
        found["input_forget" if op == "LSTM" else "linear_before_reset"] = draw(st.integers(0, 1))
    if draw(st.booleans()):
        found["clip"] = 0.7
    if draw(st.booleans()):
        given = [TAKES.get(name, ()) for name in OTHERS[op] * sides]
        found["activations"] = OTHERS[op] * sides
        found["activation_alpha"] = [one[0] for one in given if one]
        found["activation_beta"] = [one[1] for one in given if len(one) > 1]
    return {name: value for name, value in found.items() if value != []}


def reduction_for(proto: onnx.ModelProto, stored: dict[str, np.ndarray]) -> Reduction:
    uses = [use for weight in Model.over(proto).flow.weights for use in weight.uses if use.op in GATES]
    (both,) = together(uses[::-1])
    found = reduction_of(both, stored)
    assert isinstance(found, Reduction), found
    assert [use.slot for use in found.uses] == [1, 2]
    return found


class Replay:
    """A recurrent layer by the standard's formulas, from the sums of its steps."""

    def __init__(self, node: onnx.NodeProto, feeds: dict[str, np.ndarray], stored: dict[str, np.ndarray]) -> None:
        self.op, self.options = node.op_type, {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        self.size = self.options["hidden_size"]
        self.given = {**feeds, **stored}
        towards = self.options["direction"].decode()
        self.backward = [towards == "reverse"] if towards != "bidirectional" else [False, True]
        self.lengths = feeds.get("lengths", np.full(feeds["x"].shape[1], feeds["x"].shape[0]))

    def of(self, name: str, side: int, count: int, *sample: int) -> list[np.ndarray]:
        whole = self.given[name][(side, *sample)] if name in self.given else np.zeros(count * self.size)
        return np.split(whole.astype(np.float64), count)

    def function(self, side: int, place: int, sums: np.ndarray, clips: bool = True) -> np.ndarray:
        names = [one.decode() for one in self.options.get("activations", [])] or USUAL[self.op] * len(self.backward)
        return FUNCTIONS[names[side * len(USUAL[self.op]) + place]](self.clipped(sums) if clips else sums)

    def clipped(self, sums: np.ndarray) -> np.ndarray:
        return np.clip(sums, -self.options["clip"], self.options["clip"]) if "clip" in self.options else sums

    def states(self, sums: list[list[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        """All hidden states, and the last ones, from the sums of the gates, or for a GRU the parts of them."""
        time, batch = self.given["x"].shape[:2]
        every = np.zeros((time, len(self.backward), batch, self.size))
        last = np.zeros((len(self.backward), batch, self.size))
        for side, back in enumerate(self.backward):
            start = 0
            for sample, length in enumerate(self.lengths):
                (h,), (c,) = self.of("h", side, 1, sample), self.of("c", side, 1, sample)
                for step in range(length)[::-1] if back else range(length):
                    here = [one[start + step].astype(np.float64) for one in sums[side]]
                    h, c = getattr(self, self.op.lower())(side, here, h, c)
                    every[step, side, sample] = h
                last[side, sample] = h
                start += length
        return every, last

    def rnn(self, side: int, sums: Any, h: np.ndarray, c: np.ndarray) -> Any:
        wb, rb = self.of("b", side, 2)
        return self.function(side, 0, sums[0] + wb + rb), c

    def lstm(self, side: int, sums: Any, h: np.ndarray, c: np.ndarray) -> Any:
        b, (pi, po, pf) = self.of("b", side, 8), self.of("p", side, 3)
        i, o, f, g = (one + b[at] + b[at + 4] for at, one in enumerate(np.split(sums[0], 4)))
        i = self.function(side, 0, i + pi * c)
        f = 1 - i if self.options.get("input_forget") else self.function(side, 0, f + pf * c)
        c = f * c + i * self.function(side, 1, g)
        return self.function(side, 0, o + po * c) * self.function(side, 2, c, clips=False), c

    def gru(self, side: int, sums: Any, h: np.ndarray, c: np.ndarray) -> Any:
        b = self.of("b", side, 6)
        z, r = (self.function(side, 0, one + b[at] + b[at + 3]) for at, one in enumerate(np.split(sums[0], 2)))
        if len(sums) == 3:
            new = self.function(side, 1, sums[1] + b[2] + r * (sums[2] + b[5]))
        else:
            new = self.function(side, 1, sums[1] + b[2] + b[5])
        return (1 - z) * new + z * h, c


@given(layers())
@settings(max_examples=200)
def test_hidden_states_follow_from_the_sums(layer: Any) -> None:
    node, feeds, stored = layer
    proto = model([node], feeds, stored)
    values = {**feeds, **ran(proto, feeds)}
    reduction = reduction_for(proto, stored)
    assert set(reduction.inputs) <= {"x", "lengths"}
    assert set(reduction.dense_inputs) <= {"y", "h", "x"}
    replay, (inputs, dense) = Replay(node, feeds, stored), (reduction.inputs, reduction.dense_inputs)
    rows = reduction.rows({name: values[name] for name in inputs}, {name: values[name] for name in dense})
    matrix = reduction.matrix(stored["w"], stored["r"])
    np.testing.assert_array_equal(matrix, np.concatenate([stored["w"], stored["r"]], 2).reshape(len(matrix), -1))
    sums: list[list[np.ndarray]] = [[] for _ in replay.backward]
    for block, outputs in zip(rows, reduction.outputs):
        found = block @ matrix[outputs].T
        apart = len(found) > len(rows[0])
        sums[outputs[0] // stored["w"].shape[1]] += np.split(found, 2) if apart else [found]
    every, last = replay.states(sums)
    np.testing.assert_allclose(every, values["y"], atol=1e-5)
    np.testing.assert_allclose(last, values["y_h"], atol=1e-5)


@given(layers(), st.integers(1, 4))
@settings(max_examples=50)
def test_layouts_and_some_steps_of_each_sequence(layer: Any, most: int) -> None:
    node, feeds, stored = layer
    proto = model([node], feeds, stored)
    values = {**feeds, **ran(proto, feeds)}
    rows = reduction_for(proto, stored).rows(values)
    lengths = feeds.get("lengths", np.full(feeds["x"].shape[1], feeds["x"].shape[0]))
    starts, taken = np.cumsum(lengths) - lengths, [min(one, most) for one in lengths]
    steps = np.concatenate([at + np.arange(few) * size // few for at, few, size in zip(starts, taken, lengths)])
    node.attribute.append(make_attribute("layout", 1))
    turned = dict(values)
    for name, order in {"x": (1, 0, 2), "h": (1, 0, 2), "y": (2, 0, 1, 3)}.items():
        if name in values:
            turned[name] = values[name].transpose(order)
    other = reduction_for(model([node], feeds, stored), stored)
    for block, whole, some in zip(rows, other.rows(turned), other.rows(turned, most=most)):
        np.testing.assert_allclose(whole, block, rtol=1e-5, atol=1e-6)
        parts = np.split(whole, len(whole) // sum(lengths))
        np.testing.assert_allclose(some, np.concatenate([part[steps] for part in parts]), rtol=1e-5, atol=1e-6)


@given(layers())
@settings(max_examples=50)
def test_one_of_the_two_weights(layer: Any) -> None:
    """Its columns, and of a GRU's gate h that sum which is its own. Hidden states are those of the dense net."""
    node, feeds, stored = layer
    proto = model([node], feeds, stored)
    values = {**feeds, **ran(proto, feeds)}
    both = reduction_for(proto, stored)
    for use, columns in zip(both.uses, both.columns):
        alone = reduction_of([use], stored)
        assert isinstance(alone, Reduction)
        for one, two, takes in zip(alone.rows(values), both.rows(values), both.takes_bias):
            part = two if takes else np.split(two, 2)[use.slot - 1]
            np.testing.assert_array_equal(one, part[:, columns])
    pruned = both.rows({**values, "x": 2 * values["x"], "y": 3 * values["y"]}, values)
    for one, two in zip(pruned, both.rows(values)):
        np.testing.assert_array_equal(one[:, both.columns[0]], 2 * two[:, both.columns[0]])
        np.testing.assert_array_equal(one[:, both.columns[1]], two[:, both.columns[1]])


def test_gates_in_another_order_and_directions_that_are_joined() -> None:
    """As torch's exporter writes them: rows of gates put in order by Slice and Concat, a tensor for each direction."""
    size, feeds = 3, {"x": drawn(4, 2, 5)}
    stored = {
        f"{name}{side}": drawn(4 * size, wide, seed=side) for side in (0, 1) for name, wide in (("w", 5), ("r", 3))
    }
    ends = {f"at{at}": np.array([at * size]) for at in range(5)} | {"axis": np.array([0])}
    nodes = []
    for name in stored:
        for at in range(4):
            nodes.append(make_node("Slice", [name, f"at{at}", f"at{at + 1}", "axis"], [f"{name}_{at}"]))
        nodes.append(make_node("Concat", [f"{name}_{at}" for at in (0, 3, 1, 2)], [f"{name}_whole"], axis=0))
        nodes.append(make_node("Unsqueeze", [f"{name}_whole", "axis"], [f"{name}_one"]))
    for name in ("w", "r"):
        nodes.append(make_node("Concat", [f"{name}0_one", f"{name}1_one"], [name], axis=0))
    nodes.append(make_node("LSTM", ["x", "w", "r"], ["y", "y_h"], hidden_size=size, direction="bidirectional"))
    proto = model(nodes, feeds, {**stored, **ends})
    values = {**feeds, **ran(proto, feeds)}
    uses = [use for weight in Model.over(proto).flow.weights for use in weight.uses]
    sums: list[list[np.ndarray]] = [[], []]
    for both in together(uses):
        reduction = reduction_of(both)
        assert isinstance(reduction, Reduction)
        ((side, _),) = {use.rows for use in both}
        matrix, (rows,), (outputs,) = (
            reduction.matrix(stored[f"w{side}"], stored[f"r{side}"]),
            reduction.rows(values),
            reduction.outputs,
        )
        sums[side].append(rows @ matrix[outputs].T)
    every, _ = Replay(nodes[-1], feeds, {}).states(sums)
    np.testing.assert_allclose(every, values["y"], atol=1e-5)
    w, r = ([use for use in uses if use.slot == slot] for slot in (1, 2))
    assert isinstance(reduction_of([w[0], r[1]]), str)
