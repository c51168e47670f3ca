"""`quantize`: a float model and samples become one with integers that the runtime runs, and every zero stays one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import onnxsparse as osp
from onnxsparse import progress
from onnxsparse.calibration.feeding import Feeds
from onnxsparse.cli import main
from onnxsparse.data import open_data
from onnxsparse.engines.ort import library
from onnxsparse.errors import MissingExtraError, ModelError, OptionError, ProofError
from onnxsparse.graph.model import Model
from onnxsparse.planning.model_inputs import SampleAxes, fields_of
from tests.messages import refusing

ort = pytest.importorskip("onnxruntime")

FLOAT = TensorProto.FLOAT


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model(nodes: Any, inputs: Any, outputs: Any, stored: Any, opset: int = 17) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()]
    graph = make_graph(nodes, "g", inputs, outputs, tensors)
    return make_model(graph, opset_imports=[make_opsetid("", opset)], ir_version=8)


def classifier(batch: Any = "N", opset: int = 17) -> onnx.ModelProto:
    """Two convolutions and a layer of scores."""
    nodes = [
        make_node("Conv", ["x", "stem.weight", "stem.bias"], ["stem"], "/stem/Conv", pads=[1, 1, 1, 1]),
        make_node("Relu", ["stem"], ["active"], "/stem/Relu"),
        make_node("Conv", ["active", "body.weight"], ["body"], "/body/Conv", pads=[1, 1, 1, 1]),
        make_node("GlobalAveragePool", ["body"], ["pooled"], "/pool"),
        make_node("Flatten", ["pooled"], ["row"], "/flat"),
        make_node("Gemm", ["row", "head.weight", "head.bias"], ["scores"], "/head/Gemm", transB=1),
    ]
    stored = {
        "stem.weight": drawn(8, 3, 3, 3), "stem.bias": drawn(8, seed=1), "body.weight": drawn(16, 8, 3, 3, seed=2),
        "head.weight": drawn(5, 16, seed=3), "head.bias": drawn(5, seed=4),
    }  # fmt: skip
    inputs = [make_tensor_value_info("x", FLOAT, [batch, 3, 8, 8])]
    return model(nodes, inputs, [make_tensor_value_info("scores", FLOAT, [batch, 5])], stored, opset)


def line(wide: int = 8, opset: int = 17, deep: int = 4) -> onnx.ModelProto:
    """One product of matrices."""
    inputs = [make_tensor_value_info("x", FLOAT, ["N", deep])]
    outputs = [make_tensor_value_info("y", FLOAT, ["N", wide])]
    return model([make_node("MatMul", ["x", "w"], ["y"])], inputs, outputs, {"w": drawn(deep, wide)}, opset)


SAMPLES = drawn(40, 3, 8, 8, seed=5)


def ran(proto: Any, name: str, array: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {name: array})[0]
    return found


def stored(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


# -- how it is fed


def test_an_input_of_unknown_shape_is_fed_in_batches() -> None:
    proto, wanted = classifier(), osp.quantize(classifier(), data=SAMPLES).model
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    found = osp.quantize(proto, data=SAMPLES).model
    np.testing.assert_array_equal(ran(found, "x", SAMPLES), ran(wanted, "x", SAMPLES))


@pytest.mark.parametrize(("side", "most"), [(8, 32), (256, 5), (1024, 1)])
def test_large_samples_come_a_few_at_a_time(side: int, most: int) -> None:
    """All that is observed of a batch is held at once."""
    proto = classifier()
    for axis in (2, 3):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = side
    samples = np.zeros((2, 3, side, side), np.float32)
    feeds = Feeds(proto, open_data(samples, fields_of(Model.open(proto), SampleAxes()), None, False, None))
    assert feeds.size == most


# -- what comes out


def test_weights_are_integers_and_the_outputs_stay_near() -> None:
    result = osp.quantize(classifier(), data=SAMPLES)
    onnx.checker.check_model(result.model, full_check=True)
    found, wanted = (ran(one, "x", SAMPLES) for one in (result.model, classifier()))
    assert np.linalg.norm(found - wanted) < 0.03 * np.linalg.norm(wanted)
    kinds = {name: str(array.dtype) for name, array in stored(result.model).items()}
    assert {kinds[name] for name in ("stem.weight", "body.weight", "head.weight")} == {"int8"}
    assert {kinds[name] for name in ("stem.bias", "head.bias")} == {"int32"}
    assert [(row.status, row.quantized) for row in result.report.rows] == [("quantized", "int8, axis 0")] * 3
    assert result.report.totals.done == 3
    assert result.report.details["samples"] == 40


def test_the_model_that_was_given_stays_as_it_is() -> None:
    given = classifier()
    before = given.SerializeToString()
    osp.quantize(given, data=SAMPLES)
    assert given.SerializeToString() == before


@pytest.mark.parametrize("rule", [{"pattern": "2:4"}, {"pattern": "unstructured", "sparsity": 0.9}])
def test_every_zero_is_the_zero_point_and_the_record_holds(rule: dict[str, Any], tmp_path: Path) -> None:
    sparse = osp.prune(classifier(), allow="stem,small,output", **rule)
    path = tmp_path / "int8.onnx"
    result = osp.quantize(sparse.model, output=path, data=SAMPLES)
    before, after = stored(sparse.model), stored(onnx.load(path))
    for row in result.report.rows:
        assert after[row.name].dtype == np.int8
        assert not after[row.name][before[row.name] == 0].any()
        assert row.zeros_before == np.count_nonzero(before[row.name] == 0)
        assert row.zeros == np.count_nonzero(after[row.name] == 0)
    assert osp.verify(path).report.ok
    assert main(["verify", str(path), "--quiet"]) == 0


def test_integers_with_zeros_pack_small() -> None:
    sparse = osp.prune(line(256, deep=512), pattern="unstructured", sparsity=0.9, allow="small,output,stem")
    sizes = osp.quantize(sparse.model, data=drawn(64, 512)).report.details
    assert sizes["file_bytes"] < 0.27 * sizes["file_bytes_before"]
    assert sizes["zipped_bytes"] < sizes["file_bytes_before"] / 16


def test_sizes_are_those_of_the_files(tmp_path: Path) -> None:
    before, after = tmp_path / "sparse.onnx", tmp_path / "int8.onnx"
    osp.prune(classifier(opset=11), pattern="2:4", allow="stem,small,output", output=before)
    report = osp.quantize(before, data=SAMPLES, output=after).report
    sizes = report.details
    assert (sizes["file_bytes_before"], sizes["file_bytes"]) == (before.stat().st_size, after.stat().st_size)
    assert report.totals.file_bytes == sizes["file_bytes"]
    assert report.row("body.weight").bytes_sparse == 1152 // 2 + 1152 // 2 * 2 // 8  # a byte and 2 bits for each kept


def test_few_samples_are_said_and_given_scales_are_no_observers(tmp_path: Path) -> None:
    few, many = (osp.quantize(line(), data=drawn(count, 4), refine="none") for count in (8, 64))
    assert [any("samples are few" in note for note in one.report.notes) for one in (few, many)] == [True, False]
    onnx.save(many.model, tmp_path / "first.onnx")
    again = osp.quantize(line(), scales=tmp_path / "first.onnx").report
    assert again.rule == "int8, per channel, given scales"
    assert again.details["observer"] == ""


@pytest.mark.parametrize(
    ("options", "values", "most"),
    [({}, "uint8", 127), ({"target": "ampere"}, "int8", 127), ({"reduce_range": True}, "uint8", 63)],
)
def test_the_integers_of_a_device(options: dict[str, Any], values: str, most: int) -> None:
    arrays = stored(osp.quantize(line(), data=drawn(32, 4), **options).model)
    assert np.abs(arrays["w"].astype(int)).max() == most
    assert str(arrays["x_zero_point"].dtype) == values
    assert values == "uint8" or arrays["x_zero_point"] == 0


def test_one_scale_for_each_output_or_for_all() -> None:
    each, one = (stored(osp.quantize(line(), data=drawn(32, 4), per_tensor=flat).model) for flat in (False, True))
    assert each["w_scale"].shape == (8,)
    assert one["w_scale"].size == 1


@pytest.mark.parametrize(("flags", "said"), [("fpu avx2", True), ("fpu avx2 avx_vnni", False), ("amx_int8", False)])
def test_a_cpu_whose_sums_saturate_is_said(
    flags: str, said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    monkeypatch.setattr("onnxsparse.passes.quantization.report.CPU", str(tmp_path / "cpuinfo"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    notes = osp.quantize(line(), data=drawn(8, 4)).report.notes
    assert any("saturate" in note for note in notes) == said
    assert not any(
        "saturate" in note for note in osp.quantize(line(), data=drawn(8, 4), reduce_range=True).report.notes
    )
    assert not any("saturate" in note for note in osp.quantize(line(), data=drawn(8, 4), target="ampere").report.notes)


def test_layers_that_are_excluded_stay_in_float() -> None:
    result = osp.quantize(classifier(), data=SAMPLES, exclude=["stem", "Gemm"])
    assert {row.name: row.status for row in result.report.rows} == {
        "stem.weight": "float",
        "body.weight": "quantized",
        "head.weight": "float",
    }
    assert result.report.row("stem.weight").reason == "excluded by --exclude stem"
    assert stored(result.model)["stem.weight"].dtype == np.float32


def test_an_old_opset_is_raised_in_the_copy_and_said() -> None:
    result = osp.quantize(line(opset=11), data=drawn(32, 4))
    assert any("11" in note and "13" in note for note in result.report.notes)


def test_the_same_call_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        osp.quantize(classifier(), output=tmp_path / name, data=SAMPLES, max_loss="0.5%", metrics="distance")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize(
    ("options", "kinds", "near"),
    [
        ({"scheme": "w8"}, {TensorProto.INT8}, 0.02),
        ({"scheme": "w8", "block": 32}, {TensorProto.INT8}, 0.02),
        ({"scheme": "w4"}, {TensorProto.INT4}, 0.2),
        ({"dynamic": True}, {TensorProto.INT8}, 0.03),
    ],
)
def test_weights_alone_and_dynamic_values_need_no_samples(options: Any, kinds: set[int], near: float) -> None:
    dense = line(32, deep=64)
    sparse = osp.prune(dense, pattern="2:4", allow="small,output,stem").model
    result = osp.quantize(sparse, eval_data={"x": drawn(50, 64, seed=7)}, **options)
    tensor = next(one for one in result.model.graph.initializer if one.name == "w")
    assert {tensor.data_type} == kinds
    before = stored(sparse)["w"]
    assert not numpy_helper.to_array(tensor).astype(int)[before == 0].any()
    assert result.report.details["metrics"]["distance"] < near
    assert result.report.details["values"] == 0
    assert osp.verify(result.model).report.ok


def test_the_most_sensitive_layers_also_of_weights_alone() -> None:
    measured = {"scheme": "w4", "metrics": "distance", "eval_data": {"x": SAMPLES}}
    loose, tight = (osp.quantize(classifier(), max_loss=most, **measured).report for most in ("50%", "4%"))
    assert loose.totals.done == 3
    assert 0 < tight.totals.done < 3
    assert tight.details["metrics"]["distance"] <= 0.04 < loose.details["metrics"]["distance"]


def test_scales_that_exist_are_kept(tmp_path: Path) -> None:
    first, path = osp.quantize(classifier(), data=SAMPLES, refine="none"), tmp_path / "int8.onnx"
    onnx.save(first.model, path)
    again = osp.quantize(classifier(), scales=path)
    assert stored(again.model).keys() == stored(first.model).keys()
    for name, array in stored(first.model).items():
        np.testing.assert_array_equal(stored(again.model)[name], array)
    (tmp_path / "some.json").write_text('{"x": {"scale": 0.5, "zero_point": 7, "type": "uint8"}, "z": {"scale": 1}}')
    with refusing(OptionError):
        osp.quantize(classifier(), scales=tmp_path / "some.json")
    partly = osp.quantize(classifier(), scales=tmp_path / "some.json", data=SAMPLES)
    assert stored(partly.model)["x_scale"] == 0.5
    assert any("1 of the scales, and 1 that nothing here has" in note for note in partly.report.notes)


# -- samples in all forms


class Reader:
    """As onnxruntime's CalibrationDataReader: every batch once."""

    def __init__(self, array: np.ndarray) -> None:
        self._batches: Iterator[dict[str, np.ndarray]] = iter([{"x": part} for part in np.array_split(array, 3)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


def test_samples_in_any_form_give_the_same_model(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", SAMPLES)
    np.savez(tmp_path / "x.npz", x=SAMPLES)

    def yielding() -> Iterator[dict[str, np.ndarray]]:
        for part in np.array_split(SAMPLES, 7):
            yield {"x": part}

    forms = [SAMPLES, {"x": SAMPLES}, yielding, Reader(SAMPLES), lambda: Reader(SAMPLES)]
    forms += [tmp_path / "x.npy", str(tmp_path / "x.npz"), str(tmp_path)[:0] or tmp_path / "x.npz"]
    made = [osp.quantize(classifier(), data=data, max_loss=50).model for data in forms]
    assert len({one.SerializeToString() for one in made}) == 1


def test_so_many_samples_are_used() -> None:
    few = osp.quantize(line(), data=np.concatenate([drawn(5, 4), 100 * drawn(35, 4)]), samples=5)
    assert few.report.details["samples"] == 5
    assert stored(few.model)["x_scale"] < 0.1


def test_a_file_that_takes_a_fixed_number_of_samples() -> None:
    plain = {"eval_data": {"x": SAMPLES}, "refine": "none", "observer": "minmax"}
    result = osp.quantize(classifier(batch=16), data=SAMPLES, **plain)
    free = osp.quantize(classifier(), data=SAMPLES, **plain)
    assert result.report.details["metrics"] == free.report.details["metrics"]
    assert stored(result.model)["x_scale"] == stored(free.model)["x_scale"]


def test_a_size_below_zero_says_nothing() -> None:
    """Some exporters write -1 for a free axis."""
    free = line()
    free.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert osp.quantize(free, data=drawn(50, 4)).report.details["samples"] == 50


def test_an_input_that_declares_no_shape() -> None:
    bare = classifier()
    bare.graph.input[0].type.tensor_type.ClearField("shape")
    told = [osp.quantize(one, data=SAMPLES, eval_data={"x": SAMPLES}).report.details for one in (bare, classifier())]
    assert told[0]["metrics"]["distance"] == pytest.approx(told[1]["metrics"]["distance"], rel=1e-3)
    steps = {"x": np.ones((6, 10, 4), np.float32)}
    for place in (0, 1):
        sequence = summing()
        sequence.graph.input[place].type.tensor_type.ClearField("shape")
        with refusing(OptionError):
            osp.quantize(sequence, data=steps, state={"h": "n"})
    given = {**steps, "h": np.zeros((6, 4), np.float32)}
    assert osp.quantize(sequence, data=given, state={"h": "n"}).report.details["samples"] == 6


def test_nothing_is_left_of_what_is_interrupted(tmp_path: Path) -> None:
    def yielding() -> Iterator[dict[str, np.ndarray]]:
        yield {"x": drawn(8, 4)}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        osp.quantize(line(), output=tmp_path / "int8.onnx", data=yielding)
    assert not list(tmp_path.iterdir())


def test_it_says_how_far_it_is() -> None:
    seen: list[tuple[str, int, int]] = []
    with progress.listening(lambda *told: seen.append(told)):
        osp.quantize(hard(), data=SAMPLES, max_loss="5%", metrics="distance", refine="none")
    assert ("calibrate", 40, 40) in seen
    assert any(stage == "sensitivity of layers" and done == total > 2 for stage, done, total in seen)


def test_samples_along_another_axis() -> None:
    """A model that takes [4, samples]."""
    nodes = [make_node("Transpose", ["x"], ["t"], perm=[1, 0]), make_node("MatMul", ["t", "w"], ["y"])]
    inputs = [make_tensor_value_info("x", FLOAT, [4, "N"])]
    turned = model(nodes, inputs, [make_tensor_value_info("y", FLOAT, ["N", 8])], {"w": drawn(4, 8)})
    array = drawn(50, 4)
    found = osp.quantize(turned, data=array.T.copy(), batch_axis={"x": 1}, eval_data={"x": array.T.copy()})
    assert found.report.details["samples"] == 50
    assert found.report.details["metrics"]["distance"] < 0.05


def summing() -> onnx.ModelProto:
    """A sum of all steps, times a matrix: its range is not that of the samples."""
    nodes = [
        make_node("Add", ["x", "h"], ["s"]),
        make_node("MatMul", ["s", "w"], ["y"]),
        make_node("Identity", ["s"], ["n"]),
    ]
    ends = [make_tensor_value_info(name, FLOAT, ["N", size]) for name, size in (("y", 8), ("n", 4))]
    starts = [make_tensor_value_info(name, FLOAT, ["N", 4]) for name in ("x", "h")]
    return model(nodes, starts, ends, {"w": drawn(4, 8)})


def test_states_are_carried_through_sequences() -> None:
    result = osp.quantize(summing(), data={"x": np.ones((6, 10, 4), np.float32)}, state={"h": "n"})
    scales = [array for name, array in stored(result.model).items() if name.startswith("s") and name.endswith("scale")]
    assert scales[0] == pytest.approx(10 / 255)


def test_sequences_are_measured_step_by_step() -> None:
    steps = drawn(6, 10, 4)
    labels = (np.cumsum(steps, axis=1) @ drawn(4, 8)).argmax(-1).astype(np.int64)
    labels[:, ::2] = (labels[:, ::2] + 1) % 8
    data = {"x": steps, "labels": labels}
    told = osp.quantize(summing(), data=data, state={"h": "n"}, metrics=["accuracy", "distance"], eval_data=data)
    figures = told.report.details
    assert figures["metrics_dense"] == {"accuracy": 0.5}
    assert 0.4 < figures["metrics"]["accuracy"] < 0.6
    assert 0 < figures["metrics"]["distance"] < 0.1


def test_every_command_with_data_takes_a_folder_of_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("a", "b", "c"):
        image.new("L", (8, 8), 40 * len(name) + ord(name)).save(tmp_path / f"{name}.png")
    model = Path(__file__).resolve().parents[2] / "models" / "digits_cnn.onnx"
    sparse = osp.prune(model, pattern="2:4").model
    told = osp.compare(model, sparse, data=tmp_path, mean=0, std=1, samples=2).report.details["inputs"]
    assert told["samples"] == 2
    assert osp.quantize(model, data=tmp_path, mean=0, std=1).report.details["samples"] == 3
    if library.available():
        trained = osp.finetune(model, data=tmp_path, mean=0, std=1, pattern="2:4", steps=2)
        assert trained.report.totals.done == 4


# -- what is measured, and what may be lost


def test_accuracy_of_both_models_is_reported(tmp_path: Path) -> None:
    labels = ran(classifier(), "x", SAMPLES).argmax(1).astype(np.int64)
    found = osp.quantize(classifier(), data=SAMPLES, eval_data={"x": SAMPLES, "labels": labels}).report.details
    assert found["metrics_dense"] == {"accuracy": 1.0}
    assert 0.8 < found["metrics"]["accuracy"] <= 1
    assert found["measured_on"] == "--eval-data"


def test_without_labels_a_classifier_is_measured_by_agreement_and_others_by_distance() -> None:
    told = osp.quantize(classifier(), data=SAMPLES, eval_data={"x": SAMPLES}).report.details
    assert list(told["metrics"]) == ["agreement", "distance"]
    image = classifier()
    del image.graph.node[3:]
    del image.graph.output[:]
    image.graph.output.append(make_tensor_value_info("body", FLOAT, ["N", 16, 8, 8]))
    told = osp.quantize(image, data=SAMPLES, eval_data={"x": SAMPLES}).report.details
    assert list(told["metrics"]) == ["distance"]


def hard() -> onnx.ModelProto:
    """One layer of three is hard on integers: a channel of its input dwarfs the others, which its weights undo."""
    proto = classifier()
    arrays = {tensor.name: tensor for tensor in proto.graph.initializer}
    stem, body = (numpy_helper.to_array(arrays[name]).copy() for name in ("stem.weight", "body.weight"))
    stem[0] *= 1000
    body[:, 0] /= 1000
    arrays["stem.weight"].CopyFrom(numpy_helper.from_array(stem, "stem.weight"))
    arrays["body.weight"].CopyFrom(numpy_helper.from_array(body, "body.weight"))
    return proto


def test_the_most_sensitive_layer_stays_in_float() -> None:
    asked = {"data": SAMPLES, "metrics": "distance", "refine": "none"}
    everything = osp.quantize(hard(), eval_data={"x": SAMPLES}, **asked).report.details
    limited = osp.quantize(hard(), max_loss="5%", **asked).report
    lost = limited.details["max_loss"]
    assert everything["metrics"]["distance"] > 0.1
    assert limited.details["metrics"]["distance"] == lost["lost"] <= 0.05
    assert [one["layer"] for one in lost["left"]] == ["body"]
    assert {row.name: row.status for row in limited.rows}["body.weight"] == "float"
    assert limited.row("body.weight").reason == "left in float for --max-loss 5 %"
    distances = [one["distance"] for one in lost["left"]]
    assert distances == sorted(distances, reverse=True)


@pytest.mark.parametrize("sign", [1, -1])
def test_of_a_figure_of_ones_own_any_change_is_a_loss(sign: int) -> None:
    def largest(outputs: Any, batch: Any) -> float:
        return sign * float(outputs["scores"].max())

    asked = {"data": SAMPLES, "metrics": [largest, "distance"], "refine": "none"}
    told = osp.quantize(hard(), max_loss=1e6, **asked).report.details
    moved = abs(told["metrics"]["largest"] - told["metrics_dense"]["largest"])
    assert told["max_loss"]["lost"] == pytest.approx(moved)
    limited = osp.quantize(hard(), max_loss=moved / 2, **asked).report.details["max_loss"]
    assert limited["left"]
    assert 0 <= limited["lost"] <= moved / 2


def test_nothing_is_left_in_float_where_little_is_lost() -> None:
    lost = osp.quantize(classifier(), data=SAMPLES, max_loss=20).report.details["max_loss"]
    assert lost["left"] == []
    assert lost["runs"] == 0
    assert lost["metric"] == "agreement"


def test_a_limit_that_cannot_be_met_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "int8.onnx"
    with refusing(ProofError):
        osp.quantize(classifier(), output=path, data=SAMPLES, max_loss="0.0001%", metrics="distance", refine="none")
    assert not list(tmp_path.iterdir())


# -- the command line


def test_the_command_writes_a_model_and_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    onnx.save(classifier(), tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", x=SAMPLES, labels=np.zeros(40, np.int64))
    words = ["quantize", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "int8.onnx"), "--data"]
    words += [str(tmp_path / "data.npz"), "--max-loss", "90", "--eval-data", str(tmp_path / "data.npz")]
    assert main([*words, "--json", str(tmp_path / "report.json")]) == 0
    shown = capsys.readouterr().out
    assert "3 of 3 weights quantized" in shown
    assert "accuracy on --eval-data" in shown
    report = json.loads((tmp_path / "report.json").read_text())
    schema = json.loads((Path(osp.__file__).parent / "report" / "schema.json").read_text())
    jsonschema.validate(report, schema)
    assert main(words) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*words, "--overwrite", "--quiet"]) == 0
    assert not capsys.readouterr().out


# -- refusals


def halved() -> onnx.ModelProto:
    inputs = [make_tensor_value_info("x", TensorProto.FLOAT16, ["N", 4])]
    outputs = [make_tensor_value_info("y", TensorProto.FLOAT16, ["N", 8])]
    return model([make_node("MatMul", ["x", "w"], ["y"])], inputs, outputs, {"w": drawn(4, 8).astype(np.float16)})


def test_models_that_cannot_be_quantized() -> None:
    with refusing(OptionError):
        osp.quantize(halved(), data=drawn(8, 4).astype(np.float16))
    with refusing(ModelError):
        osp.quantize(osp.quantize(line(), data=drawn(8, 4)).model, data=drawn(8, 4))
    plain = line()
    del plain.graph.node[:]
    plain.graph.node.append(make_node("Tanh", ["x"], ["y"]))
    with refusing(OptionError):
        osp.quantize(plain, data=drawn(8, 4))
    with refusing(OptionError):
        osp.quantize(line(), data=drawn(8, 4), exclude="w")
    masked = osp.insert_masks(classifier(), pattern="2:4", allow="small,output,stem").model
    with refusing(OptionError):
        osp.quantize(masked, data=SAMPLES)


def test_samples_that_do_not_fit() -> None:
    with refusing(OptionError):
        osp.quantize(line())
    with refusing(OptionError):
        osp.quantize(line(), dynamic=True, max_loss=1)
    with refusing(OptionError):
        osp.quantize(line(), data=drawn(8, 5))
    with refusing(OptionError):
        osp.quantize(line(), data={"z": drawn(8, 4)})
    with refusing(OptionError):
        osp.quantize(line(), data=np.full((8, 4), np.nan, np.float32))
    with refusing(OptionError):
        osp.quantize(line(), data=Reader(drawn(0, 4)))


def test_values_that_are_no_numbers_inside() -> None:
    root = line()
    root.graph.node.insert(0, make_node("Log", ["x"], ["log"]))
    root.graph.node[1].input[0] = "log"
    with refusing(ModelError):
        osp.quantize(root, data=np.zeros((8, 4), np.float32))


def test_options_that_mean_nothing() -> None:
    for options in (
        {"scheme": "int9"}, {"target": "amba"}, {"observer": "min"}, {"max_loss": "-1"}, {"max_loss": "much"},
        {"samples": 0}, {"metrics": "accuracy"}, {"metrics": "loss", "max_loss": 1}, {"exclude": "haed"},
        {"metrics": "accuracy", "max_loss": 1}, {"mean": "0.5"}, {"scheme": "w4", "dynamic": True}, {"block": 32},
        {"asymmetric": True},
        {"scheme": "w4", "block": 3}, {"dynamic": True, "target": "ampere"}, {"scheme": "w8", "observer": "mse"},
        {"scheme": "w8", "block": 0}, {"scheme": "w4", "per_tensor": True},
        {"scheme": "w8", "block": 32, "per_tensor": True}, {"dynamic": True, "scales": "scales.json"},
        {"scales": "missing.json"},
    ):  # fmt: skip
        with refusing(OptionError):
            osp.quantize(line(), data=drawn(8, 4), **options)


def test_what_is_read_is_not_replaced(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", drawn(8, 4))
    with refusing(OptionError):
        osp.quantize(line(), data=tmp_path / "x.npy", output=tmp_path / "x.npy", overwrite=True)
    assert np.load(tmp_path / "x.npy").shape == (8, 4)
    path = tmp_path / "model.onnx"
    onnx.save(line(), path, save_as_external_data=True, location="weights", size_threshold=0)
    before = (tmp_path / "weights").read_bytes()
    with refusing(OptionError):
        osp.quantize(path, data=drawn(8, 4), output=tmp_path / "weights", overwrite=True)
    assert (tmp_path / "weights").read_bytes() == before
    osp.quantize(path, data=drawn(8, 4), output=path, overwrite=True)  # the model itself may be
    assert stored(onnx.load(path))["w"].dtype == np.int8


def test_without_a_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "onnxruntime" else find(name))
    with refusing(MissingExtraError):
        osp.quantize(line(), data=drawn(8, 4))
    for options in ({"scheme": "w8"}, {"scheme": "w4"}, {"dynamic": True}):
        assert osp.quantize(line(), **options).report.ok
