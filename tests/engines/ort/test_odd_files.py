"""What files may hold that would end, hang or leave out: divisions that trap, endless loops, lists of floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper, parser
from onnx.helper import make_node

import onnxsparse as osp
from onnxsparse.engines.ort import library
from onnxsparse.errors import ModelError
from tests.engines.ort.build import FEED, INT64, W, X, info, model, ready, tensor
from tests.engines.ort.test_building import built
from tests.messages import refusing

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
LEAST = {np.int32: -(2**31), np.int64: -(2**63)}


def with_number(nodes, *stored, fed=()):
    """The nodes make whole numbers `q`, which are added to x @ w."""
    nodes = [
        *nodes,
        make_node("Cast", ["q"], ["f"], to=TensorProto.FLOAT),
        make_node("MatMul", ["x", "w"], ["h"]),
        make_node("Add", ["h", "f"], ["y"]),
    ]
    return model(nodes, [X, *fed], [info("y", None)], [tensor(W, "w", "t0"), *stored])


@pytest.mark.parametrize("operator", ["Div", "Mod"])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_divisions_of_constants_do_not_end_the_process(tmp_path: Path, operator: str, kind: type) -> None:
    numbers = [tensor(np.array(number, kind), name) for name, number in (("a", LEAST[kind]), ("b", -1), ("c", 3))]
    least = [make_node(operator, ["a", "b"], ["large"]), make_node("Sub", ["large", "large"], ["q"])]
    zero = [make_node("Sub", ["c", "c"], ["z"]), make_node(operator, ["c", "z"], ["q"])]
    for place, nodes in enumerate((least, zero)):
        assert built(tmp_path / str(place), FEED, with_number(nodes, *numbers))["still"] == []


@pytest.mark.parametrize("operator", ["Div", "Mod"])
def test_numbers_that_are_fed_are_divided_by_minus_one(tmp_path: Path, operator: str) -> None:
    fed = np.array([[-(2**63)], [7], [-7], [0], [5], [2**63 - 1], [1], [2]])
    divisor = np.array([[-1], [-1], [2], [-1], [0], [-1], [-3], [1]])
    nodes = [make_node(operator, ["k", "d"], ["q"])]
    proto = with_number(nodes, fed=[info("k", ["N", 1], INT64), info("d", ["N", 1], INT64)])
    built(tmp_path / "first", {**FEED, "k": fed, "d": divisor}, proto)
    safe = np.arange(3, 11).reshape(8, 1)
    made = ready(proto, {**FEED, "k": safe, "d": -np.ones_like(safe)})  # it does what the file does, where that lives
    assert made.batch == 4


LOOP = "round (int64 i, bool go, float s) => (bool more, float t) {{ {}  t = Add(s, s) }}"


def looped(body: str, rounds: int | None) -> onnx.ModelProto:
    stored = [
        tensor(W, "w", "t0"),
        tensor(np.array(rounds or 0), "n"),
        tensor(np.array(True), "yes"),
        tensor(np.array(0, np.float32), "s0"),
    ]
    nodes = [
        make_node(
            "Loop", ["n" if rounds else "", "yes", "s0"], ["s"], "turns", body=parser.parse_graph(LOOP.format(body))
        ),
        make_node("MatMul", ["x", "w"], ["h"]),
        make_node("Add", ["h", "s"], ["y"]),
    ]
    return model(nodes, [X], [info("y", None)], stored)


@pytest.mark.parametrize("rounds", [2**62, None])
@pytest.mark.parametrize("body", ["more = Identity(go)", "more = Identity(yes)"])
def test_loops_without_an_end_are_refused(body: str, rounds: int | None) -> None:
    with refusing(ModelError):
        ready(looped(body, rounds), FEED)


def test_loops_that_end_are_run() -> None:
    stop = "k = Constant<value_int = 3>()  more = Less(i, k)"
    assert "Loop" in {node.op_type for node in ready(looped(stop, 2**62), FEED).model.graph.node}
    ready(looped("more = Identity(go)", 5), FEED)


def test_lists_of_floats_train() -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((64, 8)).astype(np.float32)
    nodes = [
        make_node("Constant", [], ["flat"], value_floats=weight.reshape(-1).tolist()),
        make_node("Reshape", ["flat", "shape"], ["w"]),
        make_node("MatMul", ["x", "w"], ["y"]),
    ]
    proto = model(nodes, [info("x", ["N", 64])], [info("y", ["N", 8])], [tensor(np.array([64, 8]), "shape")])
    data = {"x": (random.standard_normal((256, 8)) @ random.standard_normal((8, 64))).astype(np.float32)}
    tuned = osp.finetune(proto, data=data, pattern="2:4", steps=60, engine="ort", init="plain")
    assert not [note for note in tuned.report.notes if "not trained" in note]
    (attribute,) = tuned.model.graph.node[0].attribute
    found = np.array(attribute.floats, np.float32).reshape(64, 8)
    assert attribute.name == "value_floats"
    assert (found.reshape(16, 4, 8) != 0).sum(axis=1).max() == 2
    kept = found != 0
    assert not np.array_equal(found[kept], weight[kept])
    pruned = osp.prune(proto, pattern="2:4").model
    assert np.array_equal(np.array(pruned.graph.node[0].attribute[0].floats, np.float32).reshape(64, 8) != 0, kept)
    assert numpy_helper.to_array(tuned.model.graph.initializer[0]).tolist() == [64, 8]


def normalized(value: str, to: str) -> list[onnx.NodeProto]:
    """A normalization as exporters wrote it before there was an operator for it."""
    step = [f"{to}{number}" for number in range(7)]
    return [
        make_node("ReduceMean", [value], [step[0]], axes=[-1]),
        make_node("Sub", [value, step[0]], [step[1]]),
        make_node("Pow", [step[1], "two"], [step[2]]),
        make_node("ReduceMean", [step[2]], [step[3]], axes=[-1]),
        make_node("Add", [step[3], "small"], [step[4]]),
        make_node("Sqrt", [step[4]], [step[5]]),
        make_node("Div", [step[1], step[5]], [step[6]]),
        make_node("Mul", [step[6], "scale"], [f"{to}.scaled"]),
        make_node("Add", [f"{to}.scaled", "bias"], [to]),
    ]


@pytest.mark.parametrize("width", [4, 8, 9])
def test_equal_vectors_of_few_numbers_stay_apart(tmp_path: Path, width: int) -> None:
    """The engine takes them for one before it writes gradients, and then writes several for it."""
    nodes = [
        make_node("MatMul", ["x", "w"], ["h"]),
        *normalized("h", "first"),
        *normalized("first", "second"),
        make_node("MatMul", ["second", "v"], ["y"]),
    ]
    random = np.random.default_rng(1)
    stored = [
        tensor(random.standard_normal((6, width)).astype(np.float32), "w", "t0"),
        tensor(random.standard_normal((width, 3)).astype(np.float32), "v"),
        tensor(np.ones(width, np.float32), "scale"),
        tensor(np.zeros(width, np.float32), "bias"),
        tensor(np.array(2, np.float32), "two"),
        tensor(np.array(1e-3, np.float32), "small"),
    ]
    proto = model(nodes, [X], [info("y", ["N", 3])], stored)
    assert built(tmp_path, FEED, proto)["still"] == []


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("samples", ["N", 1])
def test_every_sample_has_a_state_of_its_own(operator: str, samples: object) -> None:
    """Given with the samples first, though recurrent operators take them along the second axis."""
    random, gates = np.random.default_rng(2), {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
    states = ["h0", "c0"] if operator == "LSTM" else ["h0"]
    nodes = [
        make_node("Transpose", ["x"], ["turned"], perm=[1, 0, 2]),
        make_node(operator, ["turned", "w", "r", "", "", *states], ["", "last"], hidden_size=5),
        make_node("Squeeze", ["last", "first"], ["y"]),
    ]
    stored = [
        tensor(random.standard_normal((1, 5 * gates, 6)).astype(np.float32), "w", "t0"),
        tensor(random.standard_normal((1, 5 * gates, 5)).astype(np.float32), "r"),
        tensor(np.array([0]), "first"),
    ]
    proto = model(
        nodes, [info("x", ["N", 3, 6]), *(info(name, [1, samples, 5]) for name in states)], [info("y", None)], stored
    )
    feeds = {"x": random.standard_normal((8, 3, 6)).astype(np.float32)}
    feeds.update({name: random.standard_normal((8, 1, 5)).astype(np.float32) for name in states})
    made = ready(proto, feeds)
    assert made.batch == 4
    assert "trained one sample at a time" not in " ".join(made.notes)
