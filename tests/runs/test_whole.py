"""What is reported of a network that trains in parts is what `compare` says of the file that is delivered."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto
from onnx.helper import make_graph, make_node

import onnxsparse as osp
from onnxsparse.cli import main
from onnxsparse.data import hold_out
from onnxsparse.data.samples import held_out
from onnxsparse.engines.ort import library
from onnxsparse.errors import ModelError
from onnxsparse.passes import compare_process
from onnxsparse.train import evaluation
from tests.engines.ort.build import BOOL, INT64, info, model, numbers, tensor

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")

SIZE, COUNT = 32, 128
X = numbers(COUNT, SIZE)
ZEROS: dict[str, Any] = {
    "pattern": "unstructured",
    "sparsity": 0.7,
    "allocation": "uniform",
    "allow": ["output", "small", "stem"],
}
KINDS = ("before", "inside")


def looped(kind: str, batch: Any = "N", outputs: Any = ()) -> ModelProto:
    """x @ a -> h -> (a Loop that makes it twice tanh(h), or tanh(h @ c)) -> k @ b -> y; `a` is before the cut and, with
    'inside', has no gradient; `c` never has one."""
    step = [make_node("MatMul", ["s", "c"], ["t"])] if kind == "inside" else [make_node("Add", ["s", "s"], ["t"])]
    nodes = [*step, make_node("Tanh", ["t"], ["next"]), make_node("Identity", ["go"], ["on"])]
    inputs = [info("i", [], INT64), info("go", [], BOOL), info("s", [batch, SIZE])]
    body = make_graph(nodes, "body", inputs, [info("on", [], BOOL), info("next", [batch, SIZE])])
    weights = [tensor(numbers(SIZE, SIZE, seed=seed) / 5, name) for seed, name in ((1, "a"), (2, "b"), (3, "c"))]
    stored = [one for one in weights if kind == "inside" or one.name != "c"]
    stored += [tensor(np.int64(2), "twice"), tensor(np.array(True), "yes")]
    middle = make_node("Loop", ["twice", "yes", "h"], ["k"], name="turns", body=body)
    ends = [make_node("MatMul", ["x", "a"], ["h"]), middle, make_node("MatMul", ["k", "b"], ["y"])]
    return model(ends, [info("x", [batch, SIZE])], [info("y", [batch, SIZE]), *outputs], stored)


def tune(proto: ModelProto, **options: Any) -> Any:
    return osp.finetune(proto, **{**ZEROS, "steps": 4, "engine": "ort", "data": {"x": X}, **options})


def pruned(proto: ModelProto) -> ModelProto:
    made = osp.prune(proto, **ZEROS).model
    assert made is not None
    return made


def distance(dense: ModelProto, sparse: ModelProto, x: Any) -> float:
    return float(osp.compare(dense, sparse, data={"x": x}).report.details["outputs"][0]["relative"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", ["N", 8])
def test_the_distance_is_that_of_the_file_on_the_samples_held_out(kind: str, batch: Any) -> None:
    dense = looped(kind, batch)
    result = tune(dense)
    details = result.report.details
    assert any(note.startswith("cut at Loop") for note in result.report.notes)
    held = X[hold_out(COUNT, held_out(COUNT), 0)[1]]
    assert details["metrics"]["distance"] == pytest.approx(distance(dense, result.model, held), rel=1e-5)
    before = details["metrics_without_training"]["distance"]
    assert before == pytest.approx(distance(dense, pruned(dense), held), rel=1e-5)
    assert details["measured_on"] == "samples held out"
    assert details["loss_unit"].endswith(", of the part that trains")
    assert any("the other figures of the whole file" in note for note in result.report.notes)


@pytest.mark.parametrize("kind", KINDS)
def test_and_on_data_of_their_own_with_samples_that_fill_no_batch(kind: str) -> None:
    dense, other = looped(kind), numbers(45, SIZE, seed=9)
    result = tune(dense, eval_data={"x": other})
    found = result.report.details["metrics"]["distance"]
    assert found == pytest.approx(distance(dense, result.model, other), rel=1e-5)


def test_an_output_before_the_cut_is_measured_too() -> None:
    dense = looped("inside", outputs=[info("h", ["N", SIZE])])
    result = tune(dense, eval_data={"x": X})
    entries = osp.compare(dense, result.model, data={"x": X}).report.details["outputs"]
    assert {one["output"] for one in entries} == {"h", "y"}
    for one in entries:
        found = result.report.details["metrics"][f"distance:{one['output']}"]
        assert found == pytest.approx(one["relative"], rel=1e-5)


def test_accuracy_is_that_of_the_file() -> None:
    dense = looped("inside")
    labels = run(dense, X).argmax(axis=1)
    result = tune(dense, data={"x": X, "labels": labels}, eval_data={"x": X, "labels": labels})
    details = result.report.details
    assert details["metrics_dense"]["accuracy"] == 1.0
    assert details["metrics"]["accuracy"] == np.mean(run(result.model, X).argmax(axis=1) == labels) < 1
    assert details["metrics_without_training"]["accuracy"] == np.mean(run(pruned(dense), X).argmax(axis=1) == labels)


def run(proto: ModelProto, x: Any) -> Any:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(["y"], {"x": x})[0]


def test_a_sequence_carries_the_states_of_the_file() -> None:
    dense = looped("inside", outputs=[info("stateN", ["N", SIZE])])
    dense.graph.input.append(info("state", ["N", SIZE]))
    dense.graph.node.extend([make_node("Add", ["k", "state"], ["sum"]), make_node("Tanh", ["sum"], ["stateN"])])
    dense.graph.node[2].input[0] = "stateN"
    nodes = list(dense.graph.node)
    del dense.graph.node[:]
    dense.graph.node.extend([*nodes[:2], *nodes[3:], nodes[2]])
    steps = numbers(64, 5, SIZE)
    result = tune(dense, data={"x": steps}, eval_data={"x": steps}, state="state=stateN")
    told = osp.compare(dense, result.model, data={"x": steps}, state="state=stateN").report.details["outputs"]
    for one in told:
        found = result.report.details["metrics"][f"distance:{one['output']}"]
        assert found == pytest.approx(one["relative"], rel=1e-5)


def test_where_the_file_cannot_be_run_the_figures_say_what_they_are_of(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Any
) -> None:
    class Refusing(compare_process.Session):
        def run(self, feed: Any) -> Any:
            raise ModelError("no room")

    monkeypatch.setattr(evaluation, "Session", Refusing)
    path = tmp_path / "net.onnx"
    path.write_bytes(looped("inside").SerializeToString())
    np.savez(tmp_path / "data.npz", x=X)
    words = ["--pattern", "2:4", "--steps", "2", "--engine", "ort", "--allow", "output,small,stem"]
    target = tmp_path / "report.json"
    data = str(tmp_path / "data.npz")
    made = str(tmp_path / "made.onnx")
    assert main(["finetune", str(path), "--data", data, *words, "-o", made, "--json", str(target)]) == 0
    said = capsys.readouterr().out
    assert "relative distance on samples held out, of the part that trains: " in said
    assert "the metrics are of the part that trains, not of the delivered file" in said
    assert "the other figures of the whole file" not in said
    assert json.loads(target.read_text())["details"]["measured_on"] == "samples held out, of the part that trains"


def test_a_file_that_fails_once_it_is_trained_is_delivered_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(compare_process.Session):
        def run(self, feed: Any) -> Any:
            return super().run(feed) if self is first[0] else broken()

        def __init__(self, source: Any) -> None:
            super().__init__(source)
            first.append(self)

    def broken() -> Any:
        raise ModelError("no room")

    first: list[Any] = []
    monkeypatch.setattr(evaluation, "Session", Failing)
    result = tune(looped("inside"))
    assert result.model is not None
    assert result.report.details["metrics"] == {}
    assert "not measured: the whole file could not be run to the end: no room" in result.report.notes


def test_a_level_is_measured_as_its_file(tmp_path: Any) -> None:
    dense, options = looped("before"), {"steps": 2, "engine": "ort", "allow": ["output", "small", "stem"]}
    result = osp.levels(
        dense, data={"x": X}, eval_data={"x": X}, output=tmp_path / "out", levels=[0, 50], overwrite=True, **options
    )
    told: Any = result.report.details["levels"]
    assert len(told) == 2
    for level in told:
        sparse = onnx.load(str(tmp_path / "out" / level["file"]))
        assert level["metrics"]["distance"] == pytest.approx(distance(dense, sparse, X), rel=1e-5)


def test_what_another_engine_would_train_is_said() -> None:
    told = "`--engine torch` trains the weights of which this engine has no gradient"
    assert told in tune(looped("inside")).report.notes
    assert told not in tune(looped("before")).report.notes


def test_a_network_that_trains_as_a_whole_is_measured_as_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "Session", None)
    nodes = [make_node("MatMul", ["x", "a"], ["h"]), make_node("Relu", ["h"], ["r"])]
    stored = [tensor(numbers(SIZE, SIZE, seed=1), "a"), tensor(numbers(SIZE, SIZE, seed=2), "b")]
    proto = model([*nodes, make_node("MatMul", ["r", "b"], ["y"])], [info("x", ["N", SIZE])], [info("y", None)], stored)
    details = tune(proto, init="plain").report.details
    assert "part" not in details["loss_unit"]
    assert details["metrics"]["distance"] > 0
