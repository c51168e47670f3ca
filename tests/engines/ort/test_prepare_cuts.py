"""Where no gradient passes, the graph is cut, and both sides train on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import ModelProto, NodeProto
from onnx.helper import make_graph, make_node

from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.gradients import cut, teacher
from onnxsparse.engines.ort.library import Runner
from onnxsparse.engines.ort.numerics import draw_random, random_inputs
from onnxsparse.engines.ort.prepare import Prepared, inputs_of
from onnxsparse.errors import ModelError
from tests.engines.ort.build import BOOL, FEED, INT64, X, info, model, numbers, ready, tensor
from tests.messages import refusing

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")

A, B = numbers(6, 6, seed=1), numbers(6, 4, seed=2)
TWO = ("t0", "t1")
STORED = [tensor(A, "a", "t0"), tensor(B, "b", "t1")]


def around(middle: list[NodeProto], stored: list[object] = [], opset: int = 17) -> Prepared:  # noqa: B006
    """x @ a -> h -> (middle) -> k @ b -> y"""
    nodes = [make_node("MatMul", ["x", "a"], ["h"]), *middle, make_node("MatMul", ["k", "b"], ["y"])]
    return ready(model(nodes, [X], [info("y", None)], [*STORED, *stored], opset=opset), FEED, tags=TWO)


def named(prepared: Prepared, *operators: str) -> list[str]:
    return [node.name for node in prepared.model.graph.node if node.op_type in operators]


def agrees(before: Prepared, after: Prepared) -> None:
    """Fed by the teacher, the cut graph gives the teacher's signals; every weight of it has a gradient's way."""
    feed = {name: numbers(*shape, seed=5).astype(dtype) for name, dtype, shape in before.inputs}
    model = teacher(before, after)
    chance = draw_random(random_inputs({name: shape for name, _, shape in inputs_of(model)}), feed, 0)
    dense = Runner(model)({**feed, **chance})
    outputs = Runner(after.model)({**feed, **{name: dense[name] for name in after.fed}})
    assert list(outputs) == [signal.name for signal in after.signals]
    for name, value in outputs.items():
        assert np.allclose(value, dense[name], atol=1e-5)
    assert set(after.weights.values()) | set(after.unreached) == set(TWO)


def kinds(prepared: Prepared) -> list[tuple[str, str, str]]:
    return [(signal.name, signal.original, signal.kind) for signal in prepared.signals]


def test_nothing_blocked_nothing_cut() -> None:
    made = around([make_node("Relu", ["h"], ["k"])])
    assert cut(made) is made
    assert cut(made, ["no such node"]) is made


def test_both_sides_of_a_blocked_node_train() -> None:
    made = around([make_node("CumSum", ["h", "one"], ["k"])], [ONE])
    after = cut(made, named(made, "CumSum"))
    assert kinds(after) == [("y", "y", "output"), ("h", "y", "cut")]
    assert after.fed == ["k"]
    assert after.inputs[-1] == ("k", np.dtype(np.float32), (4, 6))
    assert set(after.weights) == {"a", "b"}
    assert any("cut at CumSum" in note for note in after.notes)
    agrees(made, after)


def test_the_teacher_knows_values_that_were_written_in_later() -> None:
    made = around([make_node("CumSum", ["h", "one"], ["k"])], [ONE])
    later = replace(made, model=ModelProto.FromString(made.model.SerializeToString()))
    graph = later.model.graph
    place = next(place for place, node in enumerate(graph.node) if node.op_type == "CumSum")
    graph.node[place].input[0] = "scaled"
    graph.node.insert(place, make_node("Mul", ["h", "two"], ["scaled"], name="new"))
    graph.initializer.append(tensor(np.array(1, np.float32), "two"))
    after = cut(later, named(later, "CumSum"))
    assert ("scaled", "y", "cut") in kinds(after)
    agrees(made, after)


def test_what_the_dense_model_does_not_compute_is_named() -> None:
    made = around([make_node("CumSum", ["h", "one"], ["k"])], [ONE])
    after = cut(made, named(made, "CumSum"))
    with refusing(ModelError):
        teacher(made, replace(after, fed=["other"]))


ONE = tensor(np.array(1), "one")


def test_a_weight_that_only_a_blocked_node_reads_is_not_reached() -> None:
    made = around([make_node("CumSum", ["a", "one"], ["c"]), make_node("MatMul", ["x", "c"], ["k"])], [ONE])
    after = cut(made, named(made, "CumSum"))
    assert set(after.weights) == {"b"}
    assert "no gradient of CumSum" in after.unreached["t0"]
    assert after.fed == ["c"]
    agrees(made, after)


def loop(trips: str) -> NodeProto:
    """k = h, doubled and added to in every step"""
    body = make_graph(
        [make_node("Identity", ["go"], ["on"]), make_node("Add", ["state", "h"], ["next"])],
        "body",
        [info("i", [], INT64), info("go", [], BOOL), info("state", None)],
        [info("on", [], BOOL), info("next", None)],
    )
    return make_node("Loop", [trips, "", "h"], ["k"], body=body)


def test_a_loop_is_cut_without_being_named() -> None:
    made = around([loop("three")], [tensor(np.array(3), "three")])
    after = cut(made)
    assert ("h", "y", "cut") in kinds(after)
    assert after.fed == ["k"]
    assert set(after.weights) == {"a", "b"}
    agrees(made, after)


def test_a_loop_that_no_weight_has_a_say_in_stays() -> None:
    body = make_graph(
        [make_node("Identity", ["go"], ["on"]), make_node("Add", ["state", "state"], ["next"])],
        "body",
        [info("i", [], INT64), info("go", [], BOOL), info("state", None)],
        [info("on", [], BOOL), info("next", None)],
    )
    nodes = [make_node("Loop", ["two", "", "x"], ["u"], body=body), make_node("MatMul", ["u", "a"], ["y"])]
    stored = [tensor(A, "a", "t0"), tensor(np.array(2), "two")]
    made = ready(model(nodes, [X], [info("y", None)], stored), FEED)
    assert cut(made) is made


def test_a_branch_that_the_data_decides_is_cut() -> None:
    nodes = [
        make_node("ReduceSum", ["h"], ["s"], keepdims=0),
        make_node("Greater", ["s", "zero"], ["c"]),
        make_node(
            "If",
            ["c"],
            ["k"],
            then_branch=make_graph([make_node("Relu", ["h"], ["o"])], "one", [], [info("o", None)]),
            else_branch=make_graph([make_node("Neg", ["h"], ["o"])], "other", [], [info("o", None)]),
        ),
    ]
    made = around(nodes, [tensor(np.array(0, np.float32), "zero")])
    assert any("depends on the sample" in note for note in made.notes)
    after = cut(made)
    assert ("h", "y", "cut") in kinds(after)
    assert set(after.weights) == {"a", "b"}
    agrees(made, after)


def test_sequences_are_cut_as_a_whole() -> None:
    nodes = [
        make_node("SplitToSequence", ["h"], ["parts"], axis=1, keepdims=0),
        make_node("ConcatFromSequence", ["parts"], ["k"], axis=1, new_axis=1),
    ]
    made = around(nodes)
    after = cut(made, named(made, "SplitToSequence"))
    assert after.fed == ["k"]
    agrees(made, after)


def test_sequences_that_say_split_and_concat_are_not_cut() -> None:
    nodes = [
        make_node("SplitToSequence", ["h", "four"], ["parts"], axis=1),
        make_node("SequenceAt", ["parts", "last"], ["p"]),
        make_node("SequenceAt", ["parts", "first"], ["q"]),
        make_node("SequenceConstruct", ["p", "q"], ["turned"]),
        make_node("ConcatFromSequence", ["turned"], ["k"], axis=1),
    ]
    stored = [tensor(np.array(number), name) for name, number in (("four", 4), ("first", 0), ("last", -1))]
    made = around(nodes, stored)
    assert {node.op_type for node in made.model.graph.node} == {"MatMul", "Split", "Concat"}
    assert set(made.weights) == {"a", "b"}


def test_picked_numbers_are_matched_before_they_are_picked() -> None:
    nodes = [
        make_node("MatMul", ["x", "a"], ["h"]),
        make_node("MatMul", ["x", "b"], ["g"]),
        make_node("TopK", ["h", "two"], ["best", "places"], axis=1),
        make_node("GatherElements", ["g", "places"], ["y"], axis=1),
    ]
    stored = [tensor(A, "a", "t0"), tensor(numbers(6, 6, seed=3), "b", "t1"), tensor(np.array([2]), "two")]
    made = ready(model(nodes, [X], [info("y", None)], stored), FEED, tags=TWO)
    assert kinds(made) == [("y", "y", "output"), ("g", "y", "tap"), ("h", "y", "tap")]
    assert set(made.weights) == {"a", "b"}


def test_what_the_data_counts_is_matched_before_it_is_counted() -> None:
    nodes = [
        make_node("MatMul", ["x", "a"], ["h"]),
        make_node("Sigmoid", ["h"], ["p"]),
        make_node("Greater", ["p", "half"], ["m"]),
        make_node("NonZero", ["m"], ["places"]),
        make_node("Transpose", ["places"], ["turned"], perm=[1, 0]),
        make_node("GatherND", ["p", "turned"], ["y"]),
    ]
    proto = model(nodes, [X], [info("y", None)], [tensor(A, "a", "t0"), tensor(np.array(0.5, np.float32), "half")])
    made = ready(proto, FEED)
    assert ("p", "y", "tap") in kinds(made)
    assert all(signal.name != "y" for signal in made.signals)


def test_chance_is_fed() -> None:
    nodes = [make_node("RandomNormalLike", ["h"], ["noise"]), make_node("Add", ["h", "noise"], ["k"])]
    made = around(nodes)
    after = cut(made)
    assert after.fed == ["noise"]
    assert kinds(after) == [("y", "y", "output")]
    agrees(made, after)
