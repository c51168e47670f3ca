"""What went wrong once: each test is named after what a user saw."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse.cli import main
from onnxsparse.errors import ModelError
from tests.messages import refusing

RANDOM = np.random.default_rng(3)
ROOT = Path(__file__).resolve().parent.parent


def linear(*shapes: tuple[int, int]) -> onnx.ModelProto:
    stored = [
        numpy_helper.from_array(RANDOM.standard_normal(s).astype(np.float32), f"w{i}") for i, s in enumerate(shapes)
    ]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], name=f"mm{i}") for i in range(len(shapes))]
    shape = ["n", shapes[0][0]]
    entry = helper.make_tensor_value_info("x0", TensorProto.FLOAT, shape)
    end = helper.make_tensor_value_info(f"x{len(shapes)}", TensorProto.FLOAT, ["n", shapes[-1][1]])
    return helper.make_model(helper.make_graph(nodes, "g", [entry], [end], stored))


def with_external_data(folder: Path) -> Path:
    folder.mkdir()
    path = folder / "model.onnx"
    onnx.save(linear((32, 32)), path, save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    return path


def test_a_second_model_in_one_folder_leaves_the_data_of_the_first_alone(tmp_path: Path) -> None:
    first, second = with_external_data(tmp_path / "a"), with_external_data(tmp_path / "b")
    (tmp_path / "out").mkdir()
    osp.prune(first, output=tmp_path / "out" / "a.onnx", pattern="2:4")
    osp.prune(second, output=tmp_path / "out" / "b.onnx", pattern="unstructured", sparsity=0.8, overwrite=True)
    assert osp.verify(tmp_path / "out" / "a.onnx").report.ok
    assert osp.verify(tmp_path / "out" / "b.onnx").report.ok
    before = (tmp_path / "out" / "a.onnx").read_bytes()
    osp.prune(first, output=tmp_path / "out" / "a.onnx", pattern="2:4", overwrite=True)
    assert (tmp_path / "out" / "a.onnx").read_bytes() == before
    assert osp.verify(tmp_path / "out" / "b.onnx").report.ok


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [(np.float16, np.uint16(0x7C01)), (np.float32, np.uint32(0x7F800001)), (np.float64, np.uint64(0x7FF0000000000001))],
)
def test_a_signalling_nan_is_refused_without_a_warning(dtype: type, bits: np.unsignedinteger, tmp_path: Path) -> None:
    """A cast or a comparison of one warned; as tensor bytes, since arrays may quieten it on the way."""
    stored = RANDOM.standard_normal((64, 64)).astype(dtype).view(bits.dtype)
    stored[:, 7] = bits
    model = linear((64, 64))
    weight = model.graph.initializer[0]
    weight.data_type, weight.raw_data = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), stored.tobytes()
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert osp.inspect(tmp_path / "m.onnx").report.rows
    for command in (osp.verify, osp.prune, osp.insert_masks):
        with refusing(ModelError):
            command(tmp_path / "m.onnx", pattern="2:4")


@pytest.mark.parametrize("sparsity", [0.9, 0.99])
def test_a_layer_pruned_to_almost_nothing_is_pruned_alike_again(sparsity: float, tmp_path: Path) -> None:
    """One number left in a depthwise kernel looked like a fixed kernel, and the others lost more."""
    stored = [
        numpy_helper.from_array((RANDOM.standard_normal((48, 1, 3, 3)) * 0.01).astype(np.float32), "deep"),
        numpy_helper.from_array(RANDOM.standard_normal((64, 48, 1, 1)).astype(np.float32), "wide"),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "deep"], ["h"], group=48),
        helper.make_node("Conv", ["h", "wide"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)), tmp_path / "m.onnx")
    rule = {"pattern": "unstructured", "sparsity": sparsity, "allocation": "global"}
    osp.prune(tmp_path / "m.onnx", output=tmp_path / "a.onnx", **rule)
    osp.prune(tmp_path / "a.onnx", output=tmp_path / "b.onnx", **rule)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_an_unedited_plan_gives_the_bytes_and_the_strictness_of_its_options(tmp_path: Path) -> None:
    onnx.save(linear((64, 64), (64, 64), (64, 3)), tmp_path / "m.onnx")
    for name, rule in {
        "levels": {"pattern": "unstructured", "sparsity": 0.7, "allocation": "erk", "exclude": "mm0"},
        "random": {"pattern": "2:4", "score": "random", "seed": 7},
    }.items():
        plan = tmp_path / f"{name}.yaml"
        osp.plan(tmp_path / "m.onnx", output=plan, **rule)
        by_plan = osp.prune(tmp_path / "m.onnx", plan=plan).model
        assert by_plan == osp.prune(tmp_path / "m.onnx", **rule).model
        for options in ({"plan": plan}, rule):
            with refusing(osp.OnnxSparseError):
                osp.prune(tmp_path / "m.onnx", strict=True, **options)


def test_layers_without_a_known_shape_are_said_to_be_missing_from_the_count() -> None:
    model = linear((32, 32), (32, 32))
    model.graph.node.insert(1, helper.make_node("Mystery", ["x1"], ["y1"], domain="made.up"))
    model.graph.node[2].input[0] = "y1"
    model.opset_import.append(helper.make_opsetid("made.up", 1))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    report = osp.inspect(model).report
    assert any("multiply-accumulates are left out: " in note and "1 of 2 weights" in note for note in report.notes)
    assert (report.totals.macs, [row.macs is None for row in report.rows]) == (None, [False, True])


def loop(unchanged: bool) -> onnx.ModelProto:
    """A recurrence as some exporters write it: the kernel is a state of the Loop that every step hands on."""
    state = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [32, 32] if "w" in name else [1, 32])
        for name in ("w", "h")
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("w_out", "h_out")]
    count = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    going = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("c", "c_out")]
    nodes = [
        helper.make_node("Identity", ["c"], ["c_out"]),
        helper.make_node("MatMul", ["h", "w"], ["h_out"], name="step"),
        helper.make_node("Identity" if unchanged else "Neg", ["w"], ["w_out"]),
    ]
    body = helper.make_graph(nodes, "body", [count, going[0], *state], [going[1], *results])
    outer = helper.make_node("Loop", ["n", "", "kernel", "start"], ["k", "y"], body=body)
    stored = [
        numpy_helper.from_array(RANDOM.standard_normal((32, 32)).astype(np.float32), "kernel"),
        numpy_helper.from_array(np.zeros((1, 32), np.float32), "start"),
        numpy_helper.from_array(np.array(3), "n"),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32])
    return helper.make_model(helper.make_graph([outer], "g", [], [y], stored))


def test_a_kernel_that_a_loop_hands_on_unchanged_is_a_weight() -> None:
    report = osp.inspect(loop(unchanged=True)).report
    assert [(row.name, row.status, row.uses[0].reduction) for row in report.rows] == [("kernel", "prunable", (0,))]
    assert all(row.name != "kernel" or row.status == "dense" for row in osp.inspect(loop(unchanged=False)).report.rows)


def test_a_reader_that_stops_early_does_not_change_the_verdict(tmp_path: Path) -> None:
    onnx.save(linear((32, 32)), tmp_path / "m.onnx")
    command = f"{sys.executable} -m onnxsparse {{}} {tmp_path / 'm.onnx'} {{}} | true; exit ${{{{PIPESTATUS[0]}}}}"
    for words, code in ((("inspect", ""), 0), (("verify", "--pattern 2:4"), 1)):
        done = subprocess.run(["bash", "-c", command.format(*words)], cwd=ROOT, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (code, b"")


def test_quantized_models_are_built_in_int8(tmp_path: Path) -> None:
    scale, zero = (
        numpy_helper.from_array(np.array(0.1, np.float32), "s"),
        numpy_helper.from_array(np.array(0, np.int8), "z"),
    )
    weight = numpy_helper.from_array(RANDOM.integers(-99, 99, (32, 32)).astype(np.int8), "w")
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"]),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 32]) for name in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], [scale, zero, weight]))
    assert "--int8" in osp.prune(model, target="ampere").report.next_step
    assert "--int8" not in osp.prune(linear((32, 32)), target="ampere").report.next_step


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: osp.prune(linear((32, 32)), pattern="2:4", output=3),  # type: ignore[arg-type]
        lambda: osp.prune(linear((32, 32)), pattern="2:4", masks=3),  # type: ignore[arg-type]
        lambda: osp.prune(linear((32, 32)), plan=osp.plan(linear((32, 32)), pattern="2:4")),  # type: ignore[arg-type]
        lambda: osp.prune(3, pattern="2:4"),  # type: ignore[arg-type]
        lambda: osp.prune(linear((32, 32)), pattern=24),  # type: ignore[arg-type]
        lambda: osp.prune(linear((32, 32)), pattern="2:4", masks={"w0": [1, 2]}),
        lambda: osp.insert_masks(linear((32, 32)), pattern="2:4", form=3),  # type: ignore[arg-type]
        lambda: osp.inspect(linear((32, 32))).report.row("nope"),
        lambda: osp.compare(linear((32, 32)), linear((32, 32)), samples=0),
    ],
)
def test_a_mistake_in_python_is_an_error_of_ours(mistake: object) -> None:
    with pytest.raises(osp.OnnxSparseError):
        mistake()  # type: ignore[operator]


def test_nothing_pruned_is_said_even_when_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(linear((4, 4)), tmp_path / "m.onnx")
    assert main(["prune", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx"), "--pattern", "2:4", "-q"]) == 0
    assert "0 of 1 weights pruned" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "o.onnx"), "-q"]) == 1
    assert "1 unchecked" in capsys.readouterr().out


def external(folder: Path, locations: list[str]) -> Path:
    """A model whose weights lie one each in the named files."""
    folder.mkdir(exist_ok=True)
    model = linear(*[(32, 32)] * len(locations))
    for tensor, location in zip(model.graph.initializer, locations):
        (folder / location).write_bytes(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("locations", [["x", "m.onnx.x"], ["m.bin", "s.bin"], ["w.json", "m.json"]])
def test_data_files_never_share_a_name_or_replace_an_input(locations: list[str], tmp_path: Path) -> None:
    path = external(tmp_path / "in", locations)
    before = contents(path.parent)
    dense = [numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer]
    osp.prune(path, output=path.parent / "s.onnx", pattern="2:4", overwrite=True)
    assert {name: data for name, data in contents(path.parent).items() if name in before} == before
    for tensor, numbers in zip(onnx.load(path.parent / "s.onnx").graph.initializer, dense):
        kept = numpy_helper.to_array(tensor)
        assert (kept != 0).sum() == 512
        assert (kept[kept != 0] == numbers[kept != 0]).all()


def test_reports_and_plans_never_replace_data(tmp_path: Path) -> None:
    path = external(tmp_path / "in", ["w.json"])
    before = contents(path.parent)
    assert main(["inspect", str(path), "--json", str(path.parent / "w.json")]) == 2
    assert main(["plan", str(path), "-o", str(path.parent / "w.json"), "--pattern", "2:4", "--overwrite"]) == 2
    assert contents(path.parent) == before


def test_an_output_that_is_a_link_keeps_model_and_data_together(tmp_path: Path) -> None:
    path = external(tmp_path / "a", ["w.bin"])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "l.onnx").symlink_to(path)
    osp.prune(path, output=tmp_path / "b" / "l.onnx", pattern="2:4", overwrite=True)
    assert [entry.name for entry in (tmp_path / "b").iterdir()] == ["l.onnx"]
    assert osp.verify(path).report.ok


def test_bytes_shared_with_a_tensor_outside_the_graph_are_left_alone(tmp_path: Path) -> None:
    path = external(tmp_path / "in", ["w.bin"])
    model = onnx.load(path, load_external_data=False)
    model.training_info.add().initialization.initializer.append(model.graph.initializer[0])
    onnx.save(model, path)
    (row,) = osp.prune(path, pattern="2:4").report.rows
    assert row.status == "dense"
    assert "overlap" in row.reason


def test_a_model_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxsparse.graph.storage import Span

    path, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    onnx.save(linear((64, 64)), path)
    read = Span.read

    def changing(self: Span, *arguments: int) -> object:
        path.touch()
        return read(self, *arguments)

    monkeypatch.setattr(Span, "read", changing)
    with refusing(osp.OnnxSparseError):
        osp.prune(path, output=out, pattern="2:4")
    assert not out.exists()


def test_a_file_made_meanwhile_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxsparse.graph.model import Model

    onnx.save(linear((64, 64)), tmp_path / "m.onnx")
    out, save = tmp_path / "o.onnx", Model.save

    def slow(self: Model, *arguments: object) -> None:
        save(self, *arguments)  # type: ignore[arg-type]
        out.write_text("somebody else's")

    monkeypatch.setattr(Model, "save", slow)
    with refusing(osp.OnnxSparseError):
        osp.prune(tmp_path / "m.onnx", output=out, pattern="2:4")
    assert sorted(contents(tmp_path)) == ["m.onnx", "o.onnx"]
    assert out.read_text() == "somebody else's"


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [1]\nonnxsparse_plan: *a\nweights: []",
        "onnxsparse_plan: true\nweights: []",
        "onnxsparse_plan: 1\nweights: [{name: w0, pattern: [1]}]",
        "onnxsparse_plan: 1\nx: !!timestamp foo\nweights: []",
        "onnxsparse_plan: 1\nx: !!int ''\nweights: []",
        "onnxsparse_plan: 1\nx: !!python/object:os.system {}\nweights: []",
        "onnxsparse_plan: 1\nscore: {a: 1}\nweights: []",
    ],
)
def test_odd_plans_are_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(linear((32, 32)), tmp_path / "m.onnx")
    (tmp_path / "p.yaml").write_text(text)
    words = ["prune", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx"), "--plan", str(tmp_path / "p.yaml")]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "p.yaml" in error


def test_a_hostile_expression_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(linear((32, 32)), tmp_path / "m.onnx")
    for entry in ("re:(((a{1000}){1000}){1000})", "re:(", "re:" + "a" * 3000):
        words = ["prune", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx"), "--pattern", "2:4"]
        assert main([*words, "--include", entry]) == 2
        assert "expression" in capsys.readouterr().err


def test_a_mask_of_one_number_goes_in_and_out() -> None:
    model = linear((1, 1), (1, 1))
    masked = osp.insert_masks(model, pattern="unstructured", sparsity=0.0, allow=["small"]).model
    assert masked is not None
    assert osp.fold_masks(masked, discard=True).model == model


def test_one_scale_for_each_direction_of_a_quantized_lstm() -> None:
    """A row of two scales belongs to two directions, not to the columns."""
    size, inputs = 8, 12
    rng = np.random.default_rng(0)
    w = rng.integers(-120, 120, (2, inputs, 4 * size)).astype(np.int8)
    r = rng.integers(-120, 120, (2, size, 4 * size)).astype(np.int8)
    scales, zeros = np.array([0.01, 0.02], np.float32), np.zeros(2, np.int8)
    names = {"w": w, "r": r, "ws": scales, "wz": zeros, "rs": scales, "rz": zeros}
    node = helper.make_node(
        "DynamicQuantizeLSTM", ["x", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"], ["y"],
        domain="com.microsoft", hidden_size=size, direction="bidirectional",
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", 1, [3, 1, inputs])],
        [helper.make_tensor_value_info("y", 1, [3, 2, 1, size])],
        [numpy_helper.from_array(array, name) for name, array in names.items()],
    )  # fmt: skip
    report = osp.prune(helper.make_model(graph), pattern="2:4").report
    assert {row.name: row.zeros for row in report.rows} == {"w": w.size // 2, "r": r.size // 2}


def sliced_by_a_shape(declared: bool) -> onnx.ModelProto:
    """The halves of a weight change places; where it is cut, the shape of something with a free batch says."""
    weight = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    nodes = [
        helper.make_node("Shape", ["state"], ["half"], start=1, end=2),
        helper.make_node("Mul", ["half", "two"], ["whole"]),
        helper.make_node("Slice", ["w", "half", "whole", "one"], ["right"]),
        helper.make_node("Slice", ["w", "nought", "half", "one"], ["left"]),
        helper.make_node("Concat", ["right", "left"], ["turned"], axis=1),
        helper.make_node("MatMul", ["x", "turned"], ["y"]),
        helper.make_node("Identity", ["s"], ["state"]),
    ]
    stored = {"w": weight, **{n: np.array([v]) for n, v in (("two", 2), ("one", 1), ("nought", 0))}}
    graph = helper.make_graph(
        nodes[-1:] + nodes[:-1], "g",
        [helper.make_tensor_value_info("x", 1, ["N", 16]), helper.make_tensor_value_info("s", 1, ["N", 16])],
        [helper.make_tensor_value_info("y", 1, ["N", 32])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )  # fmt: skip
    if declared:
        graph.value_info.append(helper.make_tensor_value_info("state", 1, ["N", 16]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("declared", [True, False])
def test_a_weight_cut_where_a_shape_says_is_listed_and_pruned_where_the_shape_is_declared(declared: bool) -> None:
    report = osp.prune(sliced_by_a_shape(declared), pattern="2:4").report
    (row,) = report.rows
    assert row.name == "w"
    assert (row.zeros == 256) is declared
    assert bool(row.reason) is not declared
