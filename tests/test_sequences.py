"""Samples along another axis than the first, and states that are carried from step to step, in both engines."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse.cli import main
from onnxsparse.data import IGNORED
from onnxsparse.engines.ort import library
from tests.messages import refusing

pytest.importorskip("onnxruntime")

HIDDEN, FEATURES, CLASSES, LAYERS = 16, 8, 5, 2
ENGINES = [
    pytest.param("ort", marks=pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")),
    pytest.param("torch", marks=pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")),
]
OPTIONS: dict[str, Any] = {"pattern": "unstructured", "sparsity": 0.7, "allow": "small", "batch_size": 16}


def value(name: str, shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def gru(batch: Any = "batch", layers: int = LAYERS, out: Any = None) -> onnx.ModelProto:
    """A step of a recurrent network, as streaming models are exported: the state is [layers, batch, hidden]."""
    random = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 0.4).astype(np.float32)

    stored = {"front": weight(FEATURES, HIDDEN), "zero": np.array([0]), "head": weight(HIDDEN, CLASSES)}
    nodes = [
        helper.make_node("MatMul", ["x", "front"], ["p"]),
        helper.make_node("Tanh", ["p"], ["q"]),
        helper.make_node("Unsqueeze", ["q", "zero"], ["s"]),
        helper.make_node("Split", ["state"], [f"h{layer}" for layer in range(layers)], axis=0),
    ]
    last = "s"
    for layer in range(layers):
        stored[f"W{layer}"] = weight(1, 3 * HIDDEN, HIDDEN)
        stored[f"R{layer}"] = weight(1, 3 * HIDDEN, HIDDEN)
        names = [last, f"W{layer}", f"R{layer}", "", "", f"h{layer}"]
        nodes.append(helper.make_node("GRU", names, ["", f"Y{layer}"], hidden_size=HIDDEN, linear_before_reset=1))
        last = f"Y{layer}"
    nodes += [
        helper.make_node("Concat", [f"Y{layer}" for layer in range(layers)], ["stateN"], axis=0),
        helper.make_node("Squeeze", [last, "zero"], ["z"]),
        helper.make_node("MatMul", ["z", "head"], ["logits"]),
    ]
    inputs = [value("x", [batch, FEATURES]), value("state", [layers, batch, HIDDEN])]
    outputs = [value("logits", [batch, CLASSES]), value("stateN", out or [layers, batch, HIDDEN])]
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def numbers(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(model: onnx.ModelProto, x: np.ndarray, state: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """What a model gives for sequences [samples, steps, features], step by step, by hand."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    state = np.zeros((LAYERS, len(x), HIDDEN), np.float32) if state is None else state
    found: dict[str, list[np.ndarray]] = {"logits": [], "stateN": []}
    for step in range(x.shape[1]):
        logits, state = session.run(None, {"x": x[:, step], "state": state})
        found["logits"].append(logits)
        found["stateN"].append(state)
    return {name: np.stack(steps, 1) for name, steps in found.items()}


def distance(dense: np.ndarray, sparse: np.ndarray) -> float:
    return float(np.linalg.norm(dense - sparse) / np.linalg.norm(dense))


def details(result: Any) -> Any:
    return result.report.details


# -- another axis


@pytest.mark.parametrize("names", [("batch", "batch"), ("N", "N"), ("frames", "frames"), ("", "batch_size"), ("", "")])
def test_the_axis_of_the_samples_is_found_by_its_name(names: tuple[str, str]) -> None:
    """The same name as the first axis of another input, or one that a batch usually has; or neither has a name."""
    model = gru()
    for held, axis, name in ((model.graph.input[0], 0, names[0]), (model.graph.input[1], 1, names[1])):
        dim = held.type.tensor_type.shape.dim[axis]
        dim.Clear()
        if name:
            dim.dim_param = name
    data = {"x": numbers(6, FEATURES), "state": numbers(LAYERS, 6, HIDDEN)}
    inputs = details(osp.compare(model, model, data=data))["inputs"]
    assert (inputs["samples"], inputs["batch_axes"]) == (6, {"state": 1})
    assert inputs["shapes"] == {"x": [1, FEATURES], "state": [LAYERS, 1, HIDDEN]}


@pytest.mark.parametrize("engine", ENGINES)
def test_inputs_are_trained_on_along_the_axis_that_is_found(engine: str) -> None:
    batch = "frames"
    data = {"x": numbers(96, FEATURES), "state": numbers(LAYERS, 96, HIDDEN, seed=2)}
    result = osp.finetune(gru(batch), data=data, eval_data=data, steps=30, engine=engine, **OPTIONS)
    assert details(result)["batch_axes"] == {"state": 1}
    assert details(result)["helped"]
    assert any("'state' lie along axis 1" in note for note in result.report.notes)
    found = osp.compare(gru(batch), result.model, data=data)
    assert details(found)["outputs"][0]["relative"] == pytest.approx(
        details(result)["metrics"]["distance:logits"], rel=1e-3
    )
    assert list(map(str, result.model.graph.input)) == list(map(str, gru(batch).graph.input))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_axis_without_a_name_is_given(engine: str, tmp_path: Path) -> None:
    model = gru("batch")
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "odd"
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=numbers(64, FEATURES), state=numbers(LAYERS, 64, HIDDEN))
    words = ["finetune", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx"), "--data", str(tmp_path / "d.npz"),
             "--pattern", "unstructured", "--sparsity", "0.5", "--allow", "small", "--steps", "4", "--batch-size", "16",
             "--engine", engine, "--batch-axis", "state=1", "--json", str(tmp_path / "r.json"), "-q"]  # fmt: skip
    assert main(words) == 0
    assert json.loads((tmp_path / "r.json").read_text())["details"]["batch_axes"] == {"state": 1}


def test_arrays_that_have_the_samples_first_are_taken_where_only_that_fits() -> None:
    data = {"x": numbers(64, FEATURES), "state": numbers(64, 1, HIDDEN)}
    engine = "ort" if library.available() else "torch"
    pytest.importorskip("onnxruntime.training" if engine == "ort" else "torch")
    result = osp.finetune(gru(layers=1), data=data, steps=4, engine=engine, **OPTIONS)
    assert not any("lie along axis" in note for note in result.report.notes)
    found = details(osp.compare(gru(layers=1), result.model, data=data))["inputs"]
    assert (found["samples"], found["shapes"]["state"]) == (64, [1, 1, HIDDEN])


def test_a_state_for_one_sample_is_what_all_of_them_begin_with() -> None:
    engine = "ort" if library.available() else "torch"
    pytest.importorskip("onnxruntime.training" if engine == "ort" else "torch")
    state = numbers(LAYERS, 1, HIDDEN)
    one, all_of_them = (
        details(osp.finetune(gru(), data={"x": numbers(64, FEATURES), "state": given}, steps=4, engine=engine,
                             **OPTIONS))["loss"]
        for given in (state, np.repeat(state, 64, axis=1))
    )  # fmt: skip
    assert one == all_of_them
    found, wanted = (
        details(osp.compare(gru(), gru(), data={"x": numbers(4, FEATURES), "state": given}))["inputs"]
        for given in (state, np.repeat(state, 4, axis=1))
    )
    assert found == wanted


@pytest.mark.parametrize("name", ["N", "points", "b"])
def test_many_of_one_sample_are_no_samples(name: str) -> None:
    """A cloud of N points in a file for one sample: one letter is no proof."""
    inputs, outputs = [value("x", [1, name, 3])], [value("y", [1, name, 4])]
    stored = numpy_helper.from_array(numbers(3, 4), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", inputs, outputs, [stored])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    found = details(osp.compare(model, model, data={"x": numbers(5, 7, 3)}))["inputs"]
    assert found["samples"] == 5
    assert found["shapes"] == {"x": [1, 7, 3]}


@pytest.mark.parametrize(
    ("axis", "word"),
    [
        ({"stat": 1}, "did you mean state"),
        ({"state": 3}, "3 axes"),
        ({"state": -1}, "number from 0"),
        ({"state": "one"}, "number from 0"),
        ("state", "INPUT=AXIS"),
    ],
)
def test_an_axis_that_there_is_not_is_refused(axis: Any, word: str) -> None:
    data = {"x": numbers(64, FEATURES), "state": numbers(LAYERS, 64, HIDDEN)}
    for call in (lambda: osp.compare(gru(), gru(), data=data, batch_axis=axis),
                 lambda: osp.finetune(gru(), data=data, batch_axis=axis, **OPTIONS)):  # fmt: skip
        with pytest.raises(osp.OnnxSparseError, match=f"batch_axis=.*{word}"):
            call()


def test_what_does_not_fit_the_axis_says_what_would() -> None:
    with refusing(osp.OnnxSparseError):
        osp.finetune(gru(), data={"x": numbers(64, FEATURES), "state": numbers(3, 64, HIDDEN)}, **OPTIONS)
    with refusing(osp.OnnxSparseError):
        osp.finetune(gru(), data={"x": numbers(64, FEATURES), "state": numbers(LAYERS, 60, HIDDEN)}, **OPTIONS)


# -- states


@pytest.mark.parametrize("engine", ENGINES)
def test_each_network_goes_by_its_own_states(engine: str) -> None:
    """The distance that is measured is that of two networks that run through the sequences on their own."""
    x = numbers(40, 5, FEATURES)
    result = osp.finetune(
        gru(), data={"x": numbers(64, 5, FEATURES, seed=3)}, eval_data={"x": x}, steps=20, engine=engine,
        state={"state": "stateN"}, **OPTIONS,
    )  # fmt: skip
    assert details(result)["states"] == {"state": "stateN"}
    assert details(result)["helped"]
    dense, sparse = run(gru(), x), run(result.model, x)
    for name in ("logits", "stateN"):
        wanted = distance(dense[name], sparse[name])
        assert details(result)["metrics"][f"distance:{name}"] == pytest.approx(wanted, rel=1e-3)
    found = details(osp.compare(gru(), result.model, data={"x": x}, state="state=stateN"))
    assert found["inputs"]["steps"] == 5
    assert found["outputs"][0]["relative"] == pytest.approx(distance(dense["logits"], sparse["logits"]), rel=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_sequences_begin_with_what_the_data_says(engine: str) -> None:
    x, begin = numbers(40, 3, FEATURES), 2 * numbers(LAYERS, 40, HIDDEN, seed=5)
    data = {"x": x, "state": begin}
    result = osp.finetune(gru(), data=data, eval_data=data, steps=4, engine=engine, state=["state=stateN"], **OPTIONS)
    dense, sparse = run(gru(), x, begin), run(result.model, x, begin)
    wanted = distance(dense["logits"], sparse["logits"])
    assert details(result)["metrics"]["distance:logits"] == pytest.approx(wanted, rel=1e-3)
    assert wanted != pytest.approx(distance(run(gru(), x)["logits"], run(result.model, x)["logits"]), rel=1e-2)
    found = details(osp.compare(gru(), result.model, data=data, state="state=stateN"))["outputs"][0]
    assert found["relative"] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_for_one_sample_at_a_time_is_trained_on_sequences(engine: str) -> None:
    data = {"x": numbers(40, 3, FEATURES)}
    result = osp.finetune(gru(1), data=data, eval_data=data, steps=4, engine=engine, state="state=stateN", **OPTIONS)
    assert details(result)["batch_axes"] == {"state": 1}
    found = details(osp.compare(gru(1), result.model, data=data, state="state=stateN"))
    assert found["inputs"]["shapes"] == {"x": [1, FEATURES], "state": [LAYERS, 1, HIDDEN]}
    assert details(result)["metrics"]["distance:logits"] == pytest.approx(found["outputs"][0]["relative"], rel=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_labels_of_sequences_are_one_for_each_step(engine: str) -> None:
    x = numbers(80, CLASSES, FEATURES)  # as many steps as classes, which no shape tells apart
    labels = run(gru(), x)["logits"].argmax(-1)
    data = {"x": x, "labels": labels}
    result = osp.finetune(
        gru(), data=data, eval_data=data, loss="cross-entropy", steps=30, engine=engine, state="state=stateN",
        **OPTIONS,
    )  # fmt: skip
    assert details(result)["metrics_dense"]["accuracy"] == 1.0
    wanted = (run(result.model, x)["logits"].argmax(-1) == labels).mean()
    assert details(result)["metrics"]["accuracy"] == pytest.approx(wanted, abs=1e-6)
    with refusing(osp.OnnxSparseError):
        osp.finetune(gru(), data={"x": x, "labels": labels[:, 0]}, loss="cross-entropy", state="state=stateN",
                     **OPTIONS)  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_whose_labels_are_left_out_count_for_nothing(engine: str) -> None:
    """Sequences that are filled up at their end: what stands there changes nothing of what is measured."""
    x = numbers(48, 4, FEATURES)
    labels = run(gru(), x)["logits"].argmax(-1)
    labels[:, 2:] = IGNORED
    other = x.copy()
    other[:, 2:] = 7
    found = [
        details(osp.finetune(gru(), data={"x": one, "labels": labels}, eval_data={"x": one, "labels": labels},
                             metrics=["accuracy"], loss="cross-entropy", hardness=0.0, steps=3, engine=engine,
                             state="state=stateN", **OPTIONS))["metrics"]["accuracy"]
        for one in (x, other)
    ]  # fmt: skip
    assert found[0] == pytest.approx(found[1], abs=1e-6)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None or not library.available(), reason="needs both engines")
def test_both_engines_train_alike_on_sequences() -> None:
    data = {"x": numbers(64, 4, FEATURES)}
    losses = [
        details(osp.finetune(gru(), data=data, steps=10, engine=engine, state="state=stateN", **OPTIONS))["loss"]
        for engine in ("ort", "torch")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_resumed_run_on_sequences_goes_on_as_it_was(engine: str, tmp_path: Path) -> None:
    data = {"x": numbers(64, 3, FEATURES)}

    class StopError(Exception):
        pass

    def stop(row: Any) -> None:
        if row["step"] >= 6:
            raise StopError

    options = {**OPTIONS, "data": data, "steps": 12, "engine": engine, "state": "state=stateN"}
    whole = osp.finetune(gru(), **options).model
    with pytest.raises(StopError):
        osp.finetune(gru(), checkpoint=tmp_path / "c", watch=stop, **options)
    assert osp.finetune(gru(), checkpoint=tmp_path / "c", resume=True, **options).model == whole


def test_a_cache_that_no_weight_has_a_say_in_is_carried() -> None:
    """A convolution over time keeps the last inputs: its state is data alone."""
    engine = "ort" if library.available() else "torch"
    pytest.importorskip("onnxruntime.training" if engine == "ort" else "torch")
    stored = {"w": numbers(2 * FEATURES, 12), "v": numbers(12, CLASSES)}
    nodes = [
        helper.make_node("Concat", ["cache", "x"], ["both"], axis=1),
        helper.make_node("MatMul", ["both", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
        helper.make_node("Identity", ["x"], ["next"]),
    ]
    inputs = [value("x", ["batch", FEATURES]), value("cache", ["batch", FEATURES])]
    outputs = [value("y", ["batch", CLASSES]), value("next", ["batch", FEATURES])]
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    x = numbers(64, 3, FEATURES)
    result = osp.finetune(
        model, data={"x": x}, eval_data={"x": x}, steps=20, engine=engine, state="cache=next", **OPTIONS
    )
    found = details(osp.compare(model, result.model, data={"x": x}, state="cache=next"))["outputs"]
    assert details(result)["metrics"]["distance"] == pytest.approx(found[0]["relative"], rel=1e-3)


def test_random_samples_with_a_state_are_the_steps_of_one_sequence() -> None:
    sparse = osp.prune(gru(), pattern="unstructured", sparsity=0.7, allow="small").model
    report = osp.compare(gru(), sparse, samples=6, state="state=stateN").report
    assert report.rule.startswith("6 random steps of one sequence, seed 0: x [1, 8], state [2, 1, 16]")
    first: Any = osp.compare(gru(), sparse, samples=1, state="state=stateN").report.details["outputs"]
    last: Any = report.details["outputs"]
    assert first[0]["relative"] != last[0]["relative"]


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ({"stat": "stateN"}, "did you mean state"),
        ({"state": "statN"}, "did you mean stateN"),
        ({"state": "logits"}, "cannot be carried over"),
        ({"x": "stateN"}, "cannot be carried over"),
        ("state", "INPUT=OUTPUT"),
        ({"state": "stateN", "x": "stateN"}, "state="),
    ],
)
def test_states_that_do_not_fit_are_refused(state: Any, word: str) -> None:
    data = {"x": numbers(64, 3, FEATURES)}
    for call in (lambda: osp.compare(gru(), gru(), data=data, state=state),
                 lambda: osp.finetune(gru(), data=data, state=state, **OPTIONS)):  # fmt: skip
        with pytest.raises(osp.OnnxSparseError, match=word):
            call()


def test_data_without_steps_is_refused() -> None:
    data = {"x": numbers(64, FEATURES)}
    for call in (lambda: osp.compare(gru(), gru(), data=data, state="state=stateN"),
                 lambda: osp.finetune(gru(), data=data, state="state=stateN", **OPTIONS)):  # fmt: skip
        with refusing(osp.OnnxSparseError):
            call()


def test_a_state_of_unknown_size_begins_with_data() -> None:
    model = gru()
    for held in (model.graph.input[1], model.graph.output[1]):
        held.type.tensor_type.shape.dim[2].dim_param = "hidden"
    data = {"x": numbers(64, 3, FEATURES)}
    for call in (lambda one: osp.compare(model, model, data=one, state="state=stateN"),
                 lambda one: osp.finetune(model, data=one, steps=2, state="state=stateN", **OPTIONS)):  # fmt: skip
        with refusing(osp.OnnxSparseError):
            call(data)
    osp.compare(model, model, data={**data, "state": np.zeros((LAYERS, 64, HIDDEN), np.float32)}, state="state=stateN")
