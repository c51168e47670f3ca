"""`compare`: what it runs the models on, what it says of numbers that are none, and that no model takes it along."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse.cli import main
from tests.messages import refusing

pytest.importorskip("onnxruntime")

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def value(name: str, shape: Any, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: Any, inputs: Any, outputs: Any, stored: Any = None, opset: int = 13) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (stored or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def weight(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def conv(stride: int = 2, count: int = 3, tail: Any = (), outputs: Any = None, **more: Any) -> onnx.ModelProto:
    """Convolutions on a picture of any size, and what comes behind them."""
    nodes, last, channels, stored = [], "x", 3, dict(more.get("stored", {}))
    for place in range(count):
        stored[f"w{place}"] = weight(4, channels, 3, 3)
        attributes = {"strides": [stride] * 2, "pads": [1] * 4}
        nodes.append(helper.make_node("Conv", [last, f"w{place}"], [f"c{place}"], **attributes))
        last, channels = f"c{place}", 4
    shape = ["batch", "channels", "height", "width"]
    return model([*nodes, *tail], [value("x", shape)], outputs or [value(last, None)], stored)


@contextlib.contextmanager
def loading() -> Any:
    """What the runtime does not even load says nothing."""
    try:
        yield
    except osp.OnnxSparseError as error:
        if "onnxruntime does not load the dense model" not in str(error):
            raise


def inputs_of(*models: Any, **options: Any) -> Any:
    return osp.compare(models[0], models[-1], samples=2, **options).report.details["inputs"]


# -- what the models are run on


def test_the_first_line_says_that_inputs_were_random_and_their_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(conv(), tmp_path / "m.onnx")
    assert main(["compare", str(tmp_path / "m.onnx"), str(tmp_path / "m.onnx"), "--samples", "2", "--seed", "3"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "2 random samples, seed 3: x [1, 3, 224, 224] (height=224, width=224 chosen here; --dim sets it)"


def test_sizes_that_are_given_stand(tmp_path: Path) -> None:
    found = inputs_of(conv(), dims={"height": 40})
    assert found["shapes"]["x"][2] == 40
    assert "height" not in found["chosen"]
    assert inputs_of(conv(), dims={"x.3": 48, "x.2": 32})["shapes"] == {"x": [1, 3, 32, 48]}


def test_an_unknown_dimension_is_an_error_that_names_the_others() -> None:
    with refusing(osp.OnnxSparseError):
        osp.compare(conv(), conv(), dims={"heigth": 3})


def test_a_size_that_would_do_nothing_is_an_error() -> None:
    fixed = conv()
    fixed.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3
    with refusing(osp.OnnxSparseError):
        osp.compare(fixed, fixed, dims={"x.1": 3})
    with refusing(osp.OnnxSparseError):
        osp.compare(conv(), conv(), dims={"height": 3}, data={"x": np.zeros((1, 3, 8, 8), np.float32)})


@pytest.mark.parametrize("side", [7, 28, 36])
def test_a_matrix_behind_a_flatten_decides_the_size(side: int) -> None:
    small = -(-side // 2)
    tail = [helper.make_node("Flatten", ["c0"], ["f"]), helper.make_node("Gemm", ["f", "g"], ["y"])]
    stored = {"g": weight(4 * small * small, 5)}
    found = inputs_of(conv(count=1, tail=tail, outputs=[value("y", None)], stored=stored))
    assert -(-found["shapes"]["x"][2] // 2) == small
    assert found["shapes"]["x"][2] == found["shapes"]["x"][3]


def test_the_target_of_a_reshape_decides_the_size() -> None:
    tail = [helper.make_node("Reshape", ["c0", "target"], ["y"])]
    stored = {"target": np.array([1, 4 * 12 * 12])}
    found = inputs_of(conv(count=1, tail=tail, outputs=[value("y", None)], stored=stored))
    assert -(-found["shapes"]["x"][2] // 2) == 12


def test_value_info_decides_the_size_where_nothing_contradicts_it() -> None:
    graph = conv(count=2)
    graph.graph.value_info.append(value("c0", [1, 4, 80, 80]))
    assert inputs_of(graph)["shapes"]["x"][2] in (159, 160)


def test_value_info_that_contradicts_the_operators_is_not_believed() -> None:
    tail = [helper.make_node("Flatten", ["c0"], ["f"]), helper.make_node("Gemm", ["f", "g"], ["y"])]
    graph = conv(count=1, tail=tail, outputs=[value("y", None)], stored={"g": weight(4 * 16 * 16, 5)})
    graph.graph.value_info.append(value("c0", [1, 4, 80, 80]))
    with loading():  # newer runtimes do not load a file that contradicts itself
        assert -(-inputs_of(graph)["shapes"]["x"][2] // 2) == 16


@pytest.mark.parametrize("count", [1, 5, 6])
def test_sizes_of_pictures_are_multiples_of_the_product_of_the_strides(count: int) -> None:
    """A branch that is halved and doubled again only fits at such sizes."""
    found = inputs_of(conv(count=count))
    assert found["shapes"]["x"][2] % 2**count == 0
    assert found["shapes"]["x"][2] >= 224


def test_a_side_that_the_file_fixes_stays() -> None:
    graph = conv()
    graph.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 48
    found = inputs_of(graph)
    assert found["shapes"]["x"][2] == 48
    assert list(found["chosen"]) == ["width"]


def test_channels_and_columns_come_from_the_first_layer() -> None:
    assert inputs_of(conv())["shapes"]["x"][1] == 3
    product = model([helper.make_node("MatMul", ["x", "w"], ["y"])], [value("x", ["n", "k"])], [value("y", None)],
                    {"w": weight(7, 4)})  # fmt: skip
    assert inputs_of(product)["shapes"] == {"x": [1, 7]}
    turned = model(
        [helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]), helper.make_node("Conv", ["t", "w"], ["y"])],
        [value("x", ["n", "h", "w", "c"])], [value("y", None)], {"w": weight(4, 5, 3, 3)},
    )  # fmt: skip
    assert inputs_of(turned)["shapes"]["x"] == [1, 224, 224, 5]


def test_sequences_have_a_modest_length_that_the_kernels_take() -> None:
    tokens = model([helper.make_node("Gather", ["table", "ids"], ["y"])], [value("ids", ["batch", "length"], INT64)],
                   [value("y", None)], {"table": weight(10, 4)})  # fmt: skip
    assert inputs_of(tokens)["shapes"] == {"ids": [1, 16]}
    sound = model([helper.make_node("Conv", ["x", "w"], ["y"], strides=[160])], [value("x", ["batch", 1, "time"])],
                  [value("y", None)], {"w": weight(2, 1, 400)})  # fmt: skip
    assert inputs_of(sound)["shapes"]["x"][2] >= 400


def test_a_table_of_positions_decides_the_length() -> None:
    nodes = [helper.make_node("Gather", ["table", "ids"], ["e"]), helper.make_node("Add", ["e", "p"], ["y"])]
    stored = {"table": weight(10, 4), "p": weight(1, 77, 4)}
    tokens = model(nodes, [value("ids", ["batch", "length"], INT64)], [value("y", None)], stored)
    assert inputs_of(tokens)["shapes"] == {"ids": [1, 77]}


def test_a_dimension_that_is_a_sum_is_that_of_its_parts() -> None:
    """The cache of a decoder, which is no picture, and a mask over all of it."""
    nodes = [
        helper.make_node("Concat", ["past", "new"], ["k"], axis=2),
        helper.make_node("Mul", ["k", "mask"], ["y"]),
    ]
    inputs = [
        value("past", ["batch", 2, "past_length", 4]),
        value("new", ["batch", 2, "length", 4]),
        value("mask", ["batch", 1, "past_length + length", 1]),
    ]
    shapes = inputs_of(model(nodes, inputs, [value("y", None)]))["shapes"]
    assert 1 < shapes["past"][2] < 100
    assert shapes["mask"][2] == shapes["past"][2] + shapes["new"][2]


def test_two_inputs_with_one_dimension_agree() -> None:
    inputs = [value("a", ["batch", "length", 4]), value("b", ["batch", "length", 1])]
    both = model([helper.make_node("Add", ["a", "b"], ["y"])], inputs, [value("y", None)])
    shapes = inputs_of(both)["shapes"]
    assert shapes["a"][1] == shapes["b"][1] > 1


def test_where_no_size_runs_the_dimensions_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dimension that only a run knows: 3001 of it."""
    odd = model([helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Gather", ["s", "one"], ["k"], axis=0),
                 helper.make_node("Expand", ["w", "k"], ["e"]), helper.make_node("Reshape", ["e", "to"], ["y"])],
                [value("x", ["batch", "odd"])], [value("y", None)],
                {"one": np.array([1]), "w": np.ones(1, np.float32), "to": np.array([3001])})  # fmt: skip
    onnx.save(odd, tmp_path / "m.onnx")
    assert main(["compare", str(tmp_path / "m.onnx"), str(tmp_path / "m.onnx")]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "--dim odd=SIZE" in told
    assert main(["compare", str(tmp_path / "m.onnx"), str(tmp_path / "m.onnx"), "--dim", "odd=3001"]) == 0


def test_sizes_may_be_texts_as_on_the_command_line() -> None:
    assert inputs_of(conv(), dims="x.3=48,x.2=32")["shapes"] == {"x": [1, 3, 32, 48]}
    assert inputs_of(conv(), dims=["x.3=48", "x.2=32"])["shapes"] == {"x": [1, 3, 32, 48]}
    for wrong in ("x.3", "x.3=wide"):
        with refusing(osp.OnnxSparseError):
            osp.compare(conv(), conv(), dims=wrong)


def test_what_the_runtime_says_is_what_is_wrong_and_not_where_its_sources_are() -> None:
    rows = model(
        [helper.make_node("Reshape", ["x", "to"], ["y"])],
        [value("x", ["batch", "n"])],
        [value("y", None)],
        {"to": np.array([-1, 4])},
    )
    with pytest.raises(osp.OnnxSparseError) as caught:
        osp.compare(rows, rows, dims={"n": 5})
    told = str(caught.value)
    assert "cannot be reshaped" in told
    assert ".h:" not in told
    assert ".cc:" not in told
    assert told.endswith("try other sizes with dims=, or pass data=")


def test_a_size_that_the_file_fixes_is_named_with_the_dynamic_ones() -> None:
    fixed = conv()
    fixed.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3
    with refusing(osp.OnnxSparseError):
        osp.inspect(fixed, dims={"x.1": 4})


def test_it_is_said_that_random_whole_numbers_are_0_and_1() -> None:
    words = model(
        [helper.make_node("Gather", ["table", "words"], ["y"])],
        [value("words", ["batch", 4], INT64)],
        [value("y", None)],
        {"table": weight(8, 4)},
    )
    assert any("drawn from 0 and 1: words;" in note for note in osp.compare(words, words).report.notes)
    given = osp.compare(words, words, data={"words": np.arange(8).reshape(2, 4)})
    assert not given.report.notes
    assert not osp.compare(conv(), conv()).report.notes


# -- numbers that are none


def logs(shift: float) -> onnx.ModelProto:
    return model([helper.make_node("Add", ["x", "s"], ["a"]), helper.make_node("Log", ["a"], ["y"])],
                 [value("x", ["batch", 4])], [value("y", ["batch", 4])], {"s": np.float32([shift])})  # fmt: skip


def test_nan_in_one_model_only_is_no_distance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = {"x": np.float32([[1, 2, 3, 4], [-1, 2, 3, 4]])}
    report = osp.compare(logs(0), logs(2), data=data).report
    entry: Any = report.details["outputs"][0]  # type: ignore[index]
    assert np.isnan(entry["relative"])
    assert np.isnan(entry["largest"])
    assert (entry["nonfinite"], entry["nonfinite_sparse"], entry["nonfinite_apart"]) == (1, 0, 1)
    assert "1 numbers of the dense model" in report.notes[0]
    for name, shift in (("d.onnx", 0.0), ("s.onnx", 2.0)):
        onnx.save(logs(shift), tmp_path / name)
    np.savez(tmp_path / "x.npz", **data)
    paths = [str(tmp_path / name) for name in ("d.onnx", "s.onnx")]
    assert main(["compare", *paths, "--data", str(tmp_path / "x.npz")]) == 0
    assert "nan" in capsys.readouterr().out
    assert main(["compare", *paths, "--data", str(tmp_path / "x.npz"), "--json", "-"]) == 0
    written = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(word))
    assert written["details"]["outputs"][0]["relative"] is None
    assert written["details"]["outputs"][0]["nonfinite_apart"] == 1


def test_an_infinity_in_one_model_only_is_infinitely_far() -> None:
    entry: Any = osp.compare(logs(0), logs(2), data={"x": np.float32([[0, 2, 3, 4]])}).report.details["outputs"]
    assert entry[0]["relative"] == entry[0]["largest"] == np.inf


def test_the_same_nan_in_both_models_is_equal_and_counted() -> None:
    data = {"x": np.float32([[-9, 0, 3, 4]])}
    report = osp.compare(logs(0), logs(0), data=data).report
    entry: Any = report.details["outputs"][0]  # type: ignore[index]
    assert (entry["relative"], entry["nonfinite"], entry["nonfinite_apart"]) == (0.0, 2, 0)
    assert "2 numbers are NaN or infinite" in report.notes[0]


# -- winners, and what is not compared


def test_the_winner_is_looked_for_along_the_axis_of_the_classes() -> None:
    """Pixels of one class each: along the last axis the winner would be a column."""
    scores = np.zeros((1, 3, 2, 2), np.float32)
    scores[:, 1] = 1
    scores[..., 1] += 5
    head = model([helper.make_node("Mul", ["x", "f"], ["m"]), helper.make_node("Conv", ["m", "w"], ["y"])],
                 [value("x", [1, 3, 2, 2])], [value("y", [1, 3, 2, 2])],
                 {"f": np.float32([1]), "w": np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1)})  # fmt: skip
    other = onnx.ModelProto()
    other.CopyFrom(head)
    turned = np.eye(3, dtype=np.float32)[[1, 0, 2]].reshape(3, 3, 1, 1)
    other.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(turned), "w"))

    def winner(**options: Any) -> Any:
        return osp.compare(head, other, data={"x": scores}, **options).report.details["outputs"][0]["agreement"]  # type: ignore[index]

    assert winner() == 0.0
    assert winner(axis=3) == winner(axis={"y": -1}) == winner(axis=["y=3"]) == 1.0


def test_without_an_axis_of_classes_there_is_no_winner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(logs(9), tmp_path / "m.onnx")
    assert main(["compare", str(tmp_path / "m.onnx"), str(tmp_path / "m.onnx"), "--samples", "2"]) == 0
    assert "same winner" not in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "m.onnx"), str(tmp_path / "m.onnx"), "--axis", "y=1"]) == 0
    assert "same winner" in capsys.readouterr().out


@pytest.mark.parametrize("axis", ["5", "z=1", "y=9", "y=", "y", {"z": 1}])
def test_an_axis_that_there_is_not_is_one_line(axis: Any) -> None:
    with refusing(osp.OnnxSparseError):
        osp.compare(logs(9), logs(9), axis=axis)


def test_what_cannot_be_compared_is_said() -> None:
    nodes = [helper.make_node("SplitToSequence", ["x"], ["s"], axis=1), helper.make_node("Neg", ["x"], ["y"])]
    outputs = [helper.make_tensor_sequence_value_info("s", FLOAT, None), value("y", None), value("z", None)]
    dense = model([*nodes, helper.make_node("Abs", ["x"], ["z"])], [value("x", [1, 4])], outputs)
    sparse = model(nodes, [value("x", [1, 4])], outputs[:2])
    report = osp.compare(dense, sparse).report
    assert [entry["output"] for entry in report.details["outputs"]] == ["y"]  # type: ignore[attr-defined]
    assert any("'s'" in note and "sequence" in note for note in report.notes)
    assert any("'z'" in note and "only the dense model" in note for note in report.notes)


def found_by(threshold: float) -> onnx.ModelProto:
    """As many rows as there are numbers above a threshold, and the numbers themselves."""
    nodes = [
        helper.make_node("Greater", ["x", "t"], ["g"]),
        helper.make_node("NonZero", ["g"], ["rows"]),
        helper.make_node("Neg", ["x"], ["y"]),
    ]
    outputs = [value("rows", None, INT64), value("y", None)]
    return model(nodes, [value("x", ["batch", 4])], outputs, {"t": np.array([threshold], np.float32)})


def test_outputs_without_elements_and_of_other_shapes_have_no_distance() -> None:
    data = {"x": np.arange(4, dtype=np.float32).reshape(1, 4)}
    for thresholds, word in (((9, 9), "empty"), ((0, 2), "of shape")):
        report = osp.compare(*map(found_by, thresholds), data=data).report
        assert [entry["output"] for entry in report.details["outputs"]] == ["y"]  # type: ignore[attr-defined]
        assert word in report.notes[0]
        assert "'rows'" in report.notes[0]
    alone = found_by(9)
    del alone.graph.output[1]
    with refusing(osp.OnnxSparseError):
        osp.compare(alone, alone, data=data)


def test_whole_numbers_and_texts_are_equal_or_not() -> None:
    def chosen(text: str) -> onnx.ModelProto:
        stored = {"t": np.array([text, "b"], dtype=object), "i": np.array([0, 1])}
        return model([helper.make_node("Gather", ["t", "i"], ["y"]), helper.make_node("ArgMax", ["x"], ["z"], axis=1)],
                     [value("x", [1, 4])], [value("y", [2], TensorProto.STRING), value("z", None, INT64)],
                     stored)  # fmt: skip

    entries: Any = osp.compare(chosen("a"), chosen("c")).report.details["outputs"]
    assert [entry["equal"] for entry in entries] == [0.5, 1.0]
    assert entries[0]["relative"] is None


# -- data


def test_samples_that_do_not_match_are_an_error() -> None:
    both = model([helper.make_node("Add", ["a", "b"], ["y"])], [value("a", ["n", 2]), value("b", ["n", 2])],
                 [value("y", None)])  # fmt: skip
    with refusing(osp.OnnxSparseError):
        osp.compare(both, both, data={"a": np.zeros((3, 2), np.float32), "b": np.zeros((2, 2), np.float32)})


def test_samples_lie_along_the_axis_that_is_named_or_given() -> None:
    def turned(name: str) -> onnx.ModelProto:
        nodes = [helper.make_node("Transpose", ["h"], ["t"], perm=[1, 0, 2]),
                 helper.make_node("Flatten", ["t"], ["f"]), helper.make_node("Add", ["x", "f"], ["y"])]  # fmt: skip
        return model(nodes, [value("x", ["batch", 6]), value("h", [2, name, 3])], [value("y", None)])

    data = {"x": np.zeros((4, 6), np.float32), "h": np.ones((2, 4, 3), np.float32)}
    by_name = osp.compare(turned("batch"), turned("batch"), data=data).report.details["inputs"]
    assert by_name["samples"] == 4  # type: ignore[index]
    assert by_name["shapes"] == {"x": [1, 6], "h": [2, 1, 3]}  # type: ignore[index]
    given = osp.compare(turned("odd"), turned("odd"), data=data, batch_axis={"h": 1}).report.details["inputs"]
    assert given["shapes"] == {"x": [1, 6], "h": [2, 1, 3]}  # type: ignore[index]


# -- the process


def test_a_runtime_that_dies_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in the place of the runtime that ends as an arithmetic fault does."""
    (tmp_path / "onnxruntime.py").write_text(
        "import os, signal\n"
        "class SessionOptions: pass\n"
        "class InferenceSession:\n"
        "    def __init__(self, *_, **__): os.kill(os.getpid(), signal.SIGFPE)\n"
    )
    onnx.save(logs(9), tmp_path / "m.onnx")
    done = command(tmp_path, PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "died while loading" in done.stderr
    assert "SIGFPE" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def command(folder: Path, *words: str, **environment: str) -> Any:
    model_path = str(folder / "m.onnx")
    return subprocess.run(
        [sys.executable, "-m", "onnxsparse", "compare", model_path, model_path, *words],
        cwd=Path(osp.__file__).parents[1], env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("redirection", ["<&-", "</dev/null", "<&- 2>&1"])
def test_it_works_without_a_terminal(tmp_path: Path, redirection: str) -> None:
    onnx.save(logs(9), tmp_path / "m.onnx")
    path = tmp_path / "m.onnx"
    words = f"{sys.executable} -m onnxsparse compare {path} {path} --samples 1 {redirection}"
    done = subprocess.run(words, shell=True, cwd=Path(osp.__file__).parents[1], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_an_interrupt_ends_it_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text("import pathlib, time\npathlib.Path('here').touch()\ntime.sleep(60)\n")
    onnx.save(logs(9), tmp_path / "m.onnx")
    room = tmp_path / "room"
    room.mkdir()
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    start = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "import sys; from onnxsparse.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", start, "compare", str(tmp_path / "m.onnx"), str(tmp_path / "m.onnx")],
        cwd=Path(osp.__file__).parents[1], env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(room)},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 50
    while not list(room.glob("*/here")):
        assert time.monotonic() < until
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    assert "interrupted" in running.communicate(timeout=30)[1]
    assert running.returncode == 130
    assert list(room.iterdir()) == []


def test_a_script_without_a_guard_can_compare(tmp_path: Path) -> None:
    onnx.save(logs(9), tmp_path / "m.onnx")
    script = tmp_path / "script.py"
    script.write_text(
        "import onnxsparse as osp\nprint('once')\n"
        f"print(osp.compare({str(tmp_path / 'm.onnx')!r}, {str(tmp_path / 'm.onnx')!r}).report.rule)\n"
    )
    path = os.pathsep.join([str(Path(osp.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, str(script)], env={**os.environ, "PYTHONPATH": path}, capture_output=True,
                          text=True, timeout=60)  # fmt: skip
    assert done.stdout.splitlines() == ["once", "8 random samples, seed 0: x [1, 4]"]
