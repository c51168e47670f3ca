"""A trial makes a training graph that is right, or says what is not: one small graph for each rule."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto
from onnx.helper import make_graph, make_node

from onnxsparse.engines.engine import Batch, Pace, Spec
from onnxsparse.engines.ort import building, library
from onnxsparse.engines.ort.building import Culprit, build
from onnxsparse.engines.ort.engine import OrtEngine
from onnxsparse.errors import ModelError
from tests.engines.ort.build import FEED, W, X, info, model, numbers, tensor
from tests.messages import refusing

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")

SQUARE = numbers(6, 6, seed=3)


def graph(nodes: list[NodeProto], stored: list[TensorProto], outputs: tuple[str, ...] = ("y",)) -> ModelProto:
    return model(nodes, [X], [info(name, None) for name in outputs], stored)


def built(proto: ModelProto, folder: Path, tags: tuple[str, ...] = ("t0",), masked: tuple[str, ...] = ()) -> Any:
    spec = Spec(4, {tag: f"weight {tag}" for tag in tags}, dict.fromkeys(masked, "mask"))
    return build(str(folder / "graph"), spec, proto, FEED, "origin")


def engine(made: Any, folder: Path) -> OrtEngine:
    return OrtEngine(str(folder / "graph"), made, "relative")


def linear(out: str = "y", weight: str = "w") -> NodeProto:
    return make_node("MatMul", ["x", weight], [out])


# -- what trains, and what does not


@pytest.mark.parametrize("masked", [(), ("t0",)])
@pytest.mark.parametrize("operator", ["Mul", "MatMul"])
def test_a_tensor_that_one_node_reads_twice_trains(tmp_path: Path, operator: str, masked: tuple[str, ...]) -> None:
    nodes = [make_node(operator, ["w", "w"], ["w2"]), linear(weight="w2")]
    made = built(graph(nodes, [tensor(SQUARE, "w", "t0")]), tmp_path, masked=masked)
    assert made["trained"] == {"t0": "w"}
    assert made["still"] == []


STEPS = [make_node("Cast", ["v"], ["i"], to=TensorProto.INT64), make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT)]


def test_what_comes_through_whole_numbers_only_is_left_out(tmp_path: Path) -> None:
    nodes = [*STEPS, linear("z"), make_node("Add", ["z", "f"], ["y"])]
    stored = [tensor(W, "w", "t0"), tensor(np.arange(5, dtype=np.float32), "v", "t1")]
    made = built(graph(nodes, stored), tmp_path, ("t0", "t1"), ("t0", "t1"))
    assert list(made["trained"]) == ["t0"]
    assert list(made["frozen"]) == ["t0/mask"]
    assert "whole numbers" in made["unreached"]["t1"]


def test_a_model_of_steps_only_is_refused(tmp_path: Path) -> None:
    nodes = [*STEPS, make_node("MatMul", ["x", "f"], ["y"])]
    with pytest.raises(ModelError):
        built(graph(nodes, [tensor(W, "v", "t0")]), tmp_path)


def with_a_dead_branch() -> ModelProto:
    nodes = [
        linear("z"),
        make_node("MatMul", ["x", "v"], ["u"]),
        make_node("Sub", ["u", "much"], ["below"]),
        make_node("Relu", ["below"], ["dead"]),
        make_node("Add", ["z", "dead"], ["y"]),
    ]
    stored = [tensor(W, "w", "t0"), tensor(W + 1, "v", "t1"), tensor(np.float32([1e4]), "much")]
    return graph(nodes, stored)


def test_a_tensor_without_a_gradient_stays_still_and_is_named(tmp_path: Path) -> None:
    made = built(with_a_dead_branch(), tmp_path, ("t0", "t1"), ("t0", "t1"))
    assert made["still"] == ["t1"]
    assert any("'weight t1' (it gets no gradient)" in note for note in made["notes"])
    trained = engine(made, tmp_path)
    before = {tag: trained.weights[tag].copy() for tag in ("t0", "t1")}
    trained.frozen["t0/mask"][0] = 0
    trained.frozen["t1/mask"][0] = 0
    trained.step(Batch({"x": FEED["x"][:4]}))
    assert list(trained.gradients()) == ["t0"]
    trained.update(Pace(0.1, decay=0.1))
    assert not np.array_equal(trained.weights["t0"], before["t0"])
    assert np.array_equal(trained.weights["t1"], before["t1"])


def test_a_model_without_any_gradient_is_refused(tmp_path: Path) -> None:
    nodes = [linear("z"), make_node("Sub", ["z", "much"], ["u"]), make_node("Relu", ["u"], ["y"])]
    with refusing(ModelError):
        built(graph(nodes, [tensor(W, "w", "t0"), tensor(np.float32([1e4]), "much")]), tmp_path)


# -- what the loss measures


def test_an_output_that_is_not_finite_is_not_matched(tmp_path: Path) -> None:
    nodes = [linear(), make_node("Div", ["y", "zero"], ["far"])]
    stored = [tensor(W, "w", "t0"), tensor(np.float32([0]), "zero")]
    made = built(graph(nodes, stored, ("y", "far")), tmp_path)
    assert list(made["teacher"]) == ["y"]
    assert any("'far'" in note and "not finite" in note for note in made["notes"])
    with refusing(ModelError):
        built(graph(nodes, stored, ("far",)), tmp_path / "other")


def test_two_outputs_may_be_one_tensor(tmp_path: Path) -> None:
    nodes = [linear(), make_node("Identity", ["y"], ["z"])]
    made = built(graph(nodes, [tensor(W, "w", "t0")], ("y", "z")), tmp_path)
    assert made["still"] == []
    assert np.isfinite(made["proof"]["moved"])
    loss, outputs = engine(made, tmp_path).evaluate(Batch({"x": FEED["x"][:4]}))
    assert loss < 1e-9
    assert np.allclose(outputs["y"], FEED["x"][:4] @ W, atol=1e-5)
    assert np.array_equal(outputs["y"], outputs["z"])


def test_a_tiny_output_does_not_drown_the_others(tmp_path: Path) -> None:
    """Probabilities of 1e-18 vary by less than a thousandth of that; a moved weight makes one of them 1e-9."""
    nodes = [
        linear(),
        make_node("MatMul", ["x", "v"], ["u"]),
        make_node("Sub", ["u", "much"], ["low"]),
        make_node("Exp", ["low"], ["tiny"]),
    ]
    stored = [tensor(W, "w", "t0"), tensor(W / 1e3, "v", "t1"), tensor(np.float32([40]), "much")]
    made = built(graph(nodes, stored, ("y", "tiny")), tmp_path, ("t0", "t1"))
    assert 0 < made["proof"]["moved"] < 10
    assert made["still"] == []


@pytest.mark.parametrize("size", [1e-20, 1e-6, 1e14])
def test_signals_of_any_size_train(tmp_path: Path, size: float) -> None:
    nodes = [linear("z"), make_node("Mul", ["z", "size"], ["y"])]
    made = built(graph(nodes, [tensor(W, "w", "t0"), tensor(np.float32([size]), "size")]), tmp_path)
    assert made["still"] == []
    assert 0 < made["proof"]["moved"] < 1


# -- graphs are used again, and a dead engine is looked into


def test_a_proven_graph_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = graph([linear()], [tensor(W, "w", "t0")])
    made = built(proto, tmp_path)

    def never(*words: str) -> int:
        raise AssertionError("built again")

    monkeypatch.setattr(building, "run_worker", never)
    assert built(proto, tmp_path) == made


def layers(*operators: str) -> ModelProto:
    nodes = [make_node("MatMul", ["x", "w"], ["h0"])]
    nodes += [make_node(op, [f"h{n}"], [f"h{n + 1}"], name=f"the {op}") for n, op in enumerate(operators)]
    nodes.append(make_node("MatMul", [f"h{len(operators)}", "v"], ["y"]))
    return graph(nodes, [tensor(SQUARE, "w", "t0"), tensor(W, "v", "t1")])


def test_the_graph_is_cut_where_the_engine_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, first = building.run_worker, [True]

    def dies_once(folder: str, module: str, *words: str) -> int:
        return -11 if module == "trial" and first and first.pop() else work(folder, module, *words)

    monkeypatch.setattr(building, "run_worker", dies_once)
    monkeypatch.setattr(building, "find_culprit", lambda folder, dies: Culprit("Tanh", "the Tanh"))
    made = built(layers("Relu", "Tanh", "Neg"), tmp_path, ("t0", "t1"))
    assert set(made["trained"]) == {"t0", "t1"}
    assert [signal["kind"] for signal in made["signals"]] == ["output", "cut"]
    assert len(made["fed"]) == 1
    assert any("dies of Tanh 'the Tanh'" in note for note in made["notes"])


def test_a_death_without_a_culprit_says_where_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "run_worker", lambda *words: -11)
    with refusing(ModelError):
        built(layers("Relu"), tmp_path, ("t0", "t1"))


def test_the_culprit_is_found_by_halving(tmp_path: Path) -> None:
    made = built(layers("Relu", "Tanh", "Neg", "Exp"), tmp_path, ("t0", "t1"))
    assert not os.path.exists(tmp_path / "graph" / building.ASIDE_MODEL)
    onnx.save(layers("Relu", "Tanh", "Neg", "Exp"), tmp_path / building.ASIDE_MODEL)
    asked: list[int] = []

    def dies(count: int) -> bool:
        asked.append(count)
        return count >= 3

    assert made["still"] == []
    assert building.find_culprit(str(tmp_path), dies) == Culprit("Tanh", "the Tanh")
    assert asked[0] == 6
    assert len(asked) <= 5
    assert building.find_culprit(str(tmp_path), lambda count: False) is None
    assert building.find_culprit(str(tmp_path / "nowhere"), dies) is None


def test_the_engine_really_dies_of_the_culprit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that the table of gradients keeps out of every graph, put into one that was set aside."""
    kept = building.os.unlink
    monkeypatch.setattr(building.os, "unlink", lambda path: None)
    built(layers("Relu", "Tanh"), tmp_path, ("t0", "t1"))
    monkeypatch.setattr(building.os, "unlink", kept)
    folder = tmp_path / "graph"
    proto = onnx.load(folder / building.ASIDE_MODEL)
    place = next(n for n, node in enumerate(proto.graph.node) if node.op_type == "Tanh")
    widened = make_node(
        "ExpandDims", [proto.graph.node[place].input[0], "number"], ["wide"], "deadly", domain="com.microsoft"
    )
    back = make_node("Squeeze", ["wide", "axis"], [proto.graph.node[place].output[0]])
    nodes = [*proto.graph.node[:place], widened, back, *proto.graph.node[place + 1 :]]
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:], proto.graph.value_info[:]
    proto.graph.node.extend(copies)
    proto.graph.initializer.append(tensor(np.array([0], np.int64), "axis"))
    proto.graph.initializer.append(tensor(np.array(0, np.int32), "number"))
    proto.opset_import.add(domain="com.microsoft", version=1)
    onnx.save(proto, folder / building.ASIDE_MODEL)
    found = building._died_of(str(folder), -11)
    assert found is not None
    assert found.node == "deadly"


def test_a_layer_that_does_not_train_may_stand_before_one_that_does(tmp_path: Path) -> None:
    """The engine has one kernel for recurrent layers, and that goes forward only."""
    nodes = [
        make_node("Unsqueeze", ["x", "axis"], ["steps"]),
        make_node("LSTM", ["steps", "i", "r"], ["", "last"], hidden_size=3, direction="bidirectional"),
        make_node("Transpose", ["last"], ["rows"], perm=[1, 0, 2]),
        make_node("Reshape", ["rows", "flat"], ["h"]),
        make_node("MatMul", ["h", "w"], ["y"]),
    ]
    shapes = {"axis": np.array([0], np.int64), "flat": np.array([-1, 6], np.int64)}
    stored = [tensor(array, name) for name, array in shapes.items()]
    stored += [tensor(numbers(2, 12, 6), "i"), tensor(numbers(2, 12, 3), "r"), tensor(W, "w", "t0")]
    made = built(graph(nodes, stored), tmp_path, masked=("t0",))
    assert list(made["trained"]) == ["t0"]
    assert made["still"] == []
    assert made["batch"] == 4


def test_a_model_whose_weights_are_whole_numbers_is_refused(tmp_path: Path) -> None:
    nodes = [make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])]
    nodes += [make_node("MatMulInteger", ["q", "i", "z"], ["p"]), make_node("Cast", ["p"], ["f"], to=1)]
    nodes += [make_node("Mul", ["f", "s"], ["y"])]
    stored = [tensor(np.ones((6, 5), np.int8), "i"), tensor(W, "w", "t0")]
    with refusing(ModelError):
        built(graph(nodes, stored), tmp_path)
    with refusing(ModelError):
        built(graph(nodes, stored), tmp_path / "none", ())


def test_the_reasons_why_nothing_trains_are_told_once_each(tmp_path: Path) -> None:
    nodes = [*STEPS, make_node("MatMul", ["x", "f"], ["y"]), linear("unread"), linear("unread, too", "u")]
    stored = [tensor(W, name, tag) for name, tag in (("v", "t0"), ("w", "t1"), ("u", "t2"))]
    with pytest.raises(ModelError) as told:
        built(graph(nodes, stored), tmp_path, ("t0", "t1", "t2"))
    assert "'weight t1', 'weight t2': no output depends on it" in str(told.value)
    assert "'weight t0': nothing that can be matched" in str(told.value)


def test_what_a_loop_holds_is_no_reason_for_words_of_the_engine(tmp_path: Path) -> None:
    steps = [make_node("MatMul", ["v", "inner"], ["m"]), make_node("Tanh", ["m"], ["next"])]
    steps.append(make_node("Identity", ["on"], ["still"]))
    ins = [info("i", [], TensorProto.INT64), info("on", [], TensorProto.BOOL), info("v", None)]
    outs = [info("still", [], TensorProto.BOOL), info("next", None)]
    body = make_graph(steps, "body", ins, outs, [tensor(SQUARE, "inner", "t0")])
    nodes = [make_node("Loop", ["often", "go", "x"], ["y"], body=body)]
    stored = [tensor(np.array(3), "often"), tensor(np.array(True), "go")]
    with refusing(ModelError):
        built(graph(nodes, stored), tmp_path)
