"""What reports say: the same in the rows and in the summary, on a screen of any width, and nothing that misleads."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse.cli import main

FLOAT = TensorProto.FLOAT


def linear(path: Path, sizes: list[tuple[int, int]], names: list[str] | None = None, rows: Any = 4) -> Path:
    """A chain of MatMul, one weight each."""
    names = names or [f"w{index}" for index in range(len(sizes))]
    random = np.random.default_rng(2)
    stored = [numpy_helper.from_array(random.standard_normal(s, np.float32), n) for s, n in zip(sizes, names)]
    nodes = [helper.make_node("MatMul", [f"h{i}", name], [f"h{i + 1}"], f"n{i}") for i, name in enumerate(names)]
    ends = [
        helper.make_tensor_value_info("h0", FLOAT, ["batch", rows, sizes[0][0]]),
        helper.make_tensor_value_info(f"h{len(names)}", FLOAT, None),
    ]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)), path)
    return path


def convolutions(path: Path, sides: tuple[Any, Any] = ("height", "width")) -> Path:
    """A stem, which stays dense by default, and a convolution."""
    random = np.random.default_rng(2)
    shapes = {"stem": (16, 3, 3, 3), "wide": (32, 16, 3, 3)}
    stored = [numpy_helper.from_array(random.standard_normal(s, np.float32), n) for n, s in shapes.items()]
    nodes = [helper.make_node("Conv", ["x", "stem"], ["a"]), helper.make_node("Conv", ["a", "wide"], ["y"])]
    ends = [
        helper.make_tensor_value_info("x", FLOAT, ["batch", 3, *sides]),
        helper.make_tensor_value_info("y", FLOAT, None),
    ]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)), path)
    return path


# -- the summary and the rows


def test_what_is_counted_as_prunable_is_what_the_rows_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = convolutions(tmp_path / "m.onnx")
    report = osp.inspect(model).report
    assert [row.status for row in report.rows] == ["dense", "prunable"]
    assert (report.totals.done, report.totals.weights) == (1, 2)
    assert main(["inspect", str(model)]) == 0
    assert "1 of 2 weights prunable, 1 more stays dense by default (--allow)" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["plan", "prune", "insert_masks", "verify"])
def test_what_is_done_is_what_the_rows_say(command: str, tmp_path: Path) -> None:
    model: Any = convolutions(tmp_path / "m.onnx")
    model = osp.prune(model, pattern="2:4").model if command == "verify" else model
    report = getattr(osp, command)(model, pattern="2:4").report
    word = {"plan": "planned", "prune": "pruned", "insert_masks": "masked", "verify": "holds"}[command]
    assert sum(row.status == word for row in report.rows) == report.totals.done == 1


# -- whether it pays


@pytest.mark.parametrize("command", ["plan", "prune", "mask", "verify"])
def test_every_command_says_what_is_unlikely_to_pay(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = linear(tmp_path / "m.onnx", [(64, 64), (64, 256), (256, 256), (256, 64)])
    if command == "verify":
        osp.prune(model, output=tmp_path / "s.onnx", target="ampere")
        model = tmp_path / "s.onnx"
    words = [command, str(model), "--target", "ampere"]
    assert main(words if command == "verify" else [*words, "-o", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "unlikely to pay: 3 of 4 weights (first w0: 64 channels; sparse kernels usually win from about 256)" in shown
    assert "verdict: the zeros are likely to pay on ampere:tensorrt in 1 of 4 weights, which has 64.0 % of" in shown
    assert (tmp_path / "out").exists() == (command != "verify")


def test_the_verdict_is_one_sentence(tmp_path: Path) -> None:
    narrow = linear(tmp_path / "a.onnx", [(64, 64), (64, 64)])
    report = osp.prune(narrow, target="ampere").report
    assert (
        report.verdict
        == "the zeros are unlikely to make the model faster on ampere:tensorrt: no weight is likely to pay"
    )
    assert [use.pays for row in report.rows for use in row.uses] == [False, False]
    wide = linear(tmp_path / "b.onnx", [(256, 256), (256, 256)])
    assert (
        osp.plan(wide, target="ampere").report.verdict
        == "the zeros are likely to pay on ampere:tensorrt, in all pruned weights"
    )
    assert osp.plan(wide, pattern="2:4").report.verdict == ""
    assert osp.plan(wide, target="amba", level=50).report.verdict == ""


# -- nothing to prune


@pytest.mark.parametrize("command", ["prune", "mask"])
def test_nothing_to_prune_ends_with_1_where_that_is_asked_for(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = linear(tmp_path / "m.onnx", [(64, 64), (64, 64)])
    out = tmp_path / "out.onnx"
    words = [command, str(model), "-o", str(out), "--pattern", "2:4", "--exclude", "*"]
    assert main([*words, "--strict"]) == 1
    assert "nothing to prune: all 2 weights stay dense" in capsys.readouterr().err
    assert not out.exists()
    assert main(words) == 0
    last = capsys.readouterr().out.rstrip().splitlines()[-1]
    assert last == "nothing to prune: every weight stays dense, see the reasons"
    assert main([*words, "--overwrite", "--quiet"]) == 0
    assert "nothing to prune" in capsys.readouterr().err


def test_nor_is_there_anything_in_a_model_without_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ends = [helper.make_tensor_value_info(name, FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    words = ["prune", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx"), "--pattern", "2:4"]
    assert main([*words, "--strict"]) == 1
    assert main(words) == 0
    assert capsys.readouterr().out.rstrip().endswith("nothing to prune: the model has no weights")
    assert main(["plan", *words[1:3], str(tmp_path / "p.yaml"), *words[4:]]) == 0
    assert capsys.readouterr().out.rstrip().endswith("nothing to prune: the model has no weights")


# -- names on a narrow screen

LONG = [
    f"model.encoder.layers.{layer}.self_attention.{part}.reparam_conv.weight"
    for layer, part in itertools.product(range(3), ("query", "key", "value"))
]
HARD = [f"{'very_' * 12}long_{number}" for number in (1, 12, 123)] + ["x" * 90 + "1", "x" * 90 + "2"]
NAMES = {
    "a prefix": LONG,
    "no prefix": [*LONG[:3], "head"],
    "long to the end": HARD,
    "one is the beginning of another": ["a.b.c." + "d" * 60, "a.b.c." + "d" * 60 + ".e", "a.b.c." + "d" * 60 + ".e.f"],
    "alone": ["model." + "n" * 100],
    "wide letters": ["層" * 60 + "一", "層" * 60 + "二"],
}


def names_shown(shown: str) -> list[str]:
    """The names that a reader puts together from a table: the lines below one another, behind the prefix."""
    lines = shown.split("\n\n")[0].splitlines()
    prefix = ""
    if lines[0].startswith("names without the prefix "):
        prefix = lines.pop(0)[len("names without the prefix ") :]
    assert lines[0].startswith("weight")
    names: list[str] = []
    for line in lines[1:]:
        name, *rest = line.split()
        if rest:
            names.append(prefix + name)
        else:
            names[-1] += name
    return names


@pytest.mark.parametrize("width", [20, 40, 80, 100, 120, 160])
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_no_two_rows_look_alike(
    names: list[str], width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = linear(tmp_path / "m.onnx", [(32, 32)] * len(names), names)
    monkeypatch.setenv("COLUMNS", str(width))
    words = [str(model), "--pattern", "2:4", "--overwrite"]
    assert main(["plan", *words, "-o", str(tmp_path / "p.yaml"), "--json", str(tmp_path / "r.json")]) == 0
    shown = capsys.readouterr().out
    assert names_shown(shown) == names
    assert [row["name"] for row in json.loads((tmp_path / "r.json").read_text())["rows"]] == names
    table = shown.split("\n\n")[0].splitlines()
    if names[0].isascii():
        assert all(len(line) <= max(width, 24) for line in table if not line.startswith("names without")), table


def test_names_that_fit_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    model = linear(tmp_path / "m.onnx", [(32, 32)] * len(LONG), LONG)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["inspect", str(model)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[0] == LONG[0]


def test_everything_is_shown_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    model = linear(tmp_path / "m.onnx", [(32, 32)] * len(LONG), LONG)
    for width in ("20", "80"):
        monkeypatch.setenv("COLUMNS", width)
        assert main(["inspect", str(model), "-v"]) == 0
        lines = capsys.readouterr().out.split("\n\n")[0].splitlines()
        column = re.compile(r"\S*")
        found = "".join(match[0] for line in lines if (match := column.match(line)))
        assert found.startswith("weight")
        assert found == "weight" + "".join(LONG)


# -- sizes of dimensions


def test_without_sizes_there_are_no_multiply_accumulates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dimension that counted as 1 made millions of a thousand millions."""
    model = str(convolutions(tmp_path / "m.onnx"))
    out = ["-o", str(tmp_path / "out"), "--overwrite", "--pattern", "2:4"]
    commands = [["inspect", model], ["plan", model, *out], ["mask", model, *out], ["prune", model, *out]]
    for words in [*commands, ["verify", str(tmp_path / "out")]]:
        assert main(words) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("multiply-accumulates")]
        said = "multiply-accumulates are left out: sizes of dimensions are not known; "
        assert lines == [f"{said}--dim height=SIZE,width=SIZE would give them"]
        assert main([*words, "--dim", "height=34,width=18"]) == 0
        shown = capsys.readouterr().out
        count = 16 * 27 * 32 * 16 + 32 * 144 * 30 * 14
        assert f"multiply-accumulates: {count / 1e6:.2f} M" in shown, shown
    report = osp.inspect(model).report
    assert (report.totals.macs, report.totals.macs_left, report.row("wide").macs) == (None, None, None)


@pytest.mark.parametrize("axes", [["batch", "steps", 64], ["seq", "batch", 64], [7, "batch", 64], ["N", 7, 64]])
def test_what_counts_samples_counts_as_one(axes: list[Any], tmp_path: Path) -> None:
    model = onnx.load(linear(tmp_path / "m.onnx", [(64, 32)]))
    for dim, size in zip(model.graph.input[0].type.tensor_type.shape.dim, axes):
        dim.Clear()
        setattr(dim, "dim_value" if isinstance(size, int) else "dim_param", size)
    open_ = [name for name in axes if name in ("steps", "seq")]
    report = osp.inspect(model).report
    assert report.totals.macs == (None if open_ else 7 * 64 * 32)
    sizes = dict.fromkeys(open_, 7)
    assert osp.inspect(model, dims=sizes).report.totals.macs == 7 * 64 * 32
    assert all(f"--dim {name}=SIZE would give them" in report.notes[0] for name in open_)


@pytest.mark.parametrize("first", ["steps", None])
def test_how_long_a_sequence_is_has_to_be_said(first: str | None, tmp_path: Path) -> None:
    """Its first axis counts no samples, whatever it is called."""
    random = np.random.default_rng(2)
    stored = [
        numpy_helper.from_array(random.standard_normal((1, 64, 16), np.float32), "w"),
        numpy_helper.from_array(random.standard_normal((1, 64, 16), np.float32), "r"),
    ]
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=16)
    ends = [helper.make_tensor_value_info("x", FLOAT, [first, 1, 16]), helper.make_tensor_value_info("y", FLOAT, None)]
    model = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:], stored))
    report, name = osp.inspect(model).report, first or "x.0"
    assert report.totals.macs is None
    assert f"--dim {name}=SIZE would give them" in report.notes[0]
    assert osp.inspect(model, dims={name: 5}).report.totals.macs == 5 * 2 * 64 * 16


@pytest.mark.parametrize("command", ["inspect", "plan", "prune", "mask", "verify", "finetune", "levels"])
def test_a_dimension_that_there_is_not_is_an_error_everywhere(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(convolutions(tmp_path / "m.onnx"))
    more = {
        "inspect": [],
        "verify": ["--pattern", "2:4"],
        "finetune": ["-o", str(tmp_path / "o"), "--data", "d.npz", "--pattern", "2:4"],
        "levels": ["-o", str(tmp_path / "o"), "--data", "d.npz"],
    }.get(command, ["-o", str(tmp_path / "o"), "--pattern", "2:4"])
    assert main([command, model, *more, "--dim", "heigth=7"]) == 2
    error = capsys.readouterr().err
    assert "--dim heigth: no input has such a dimension (did you mean height, width?); they are height, width" in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("dims", "says"),
    [
        ({"x.1": 5}, 'dims["x.1"]: the model fixes it at 3'),
        ({"height": 0}, 'dims["height"]: a size is a whole number from 1, not 0'),
        ({"height": True}, "a whole number from 1, not True"),
        ({"height": "7"}, "a whole number from 1, not '7'"),
        ({"x.7": 5}, "no input has such a dimension"),
        ({"wide.0": 5}, "no input has such a dimension"),
    ],
)
def test_sizes_that_mean_nothing(dims: dict[str, Any], says: str, tmp_path: Path) -> None:
    model = convolutions(tmp_path / "m.onnx")
    for call in (osp.inspect, osp.plan, osp.prune, osp.insert_masks, osp.verify):
        rule = {} if call is osp.inspect else {"pattern": "2:4"}
        with pytest.raises(osp.OnnxSparseError, match=re.escape(says)):
            call(model, dims=dims, **rule)
    assert osp.inspect(model, dims={"x.1": 3, "x.2": np.int64(9), "width": 9}).report.totals.macs


# -- what else reads a weight


@pytest.mark.parametrize("command", ["plan", "prune", "mask"])
def test_what_moves_with_the_zeros_is_said_in_the_row(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = onnx.load(linear(tmp_path / "m.onnx", [(64, 64), (64, 64)]))
    proto.graph.input.append(helper.make_tensor_value_info("z", FLOAT, [64, 64]))
    proto.graph.node.append(helper.make_node("Add", ["w0", "z"], ["seen"], "far"))
    proto.graph.node.append(helper.make_node("Identity", ["w0"], ["given"], "out"))
    proto.graph.node.append(helper.make_node("Shape", ["w1"], ["form"], "shape"))
    proto.graph.output.append(helper.make_tensor_value_info("seen", FLOAT, [64, 64]))
    proto.graph.output.append(helper.make_tensor_value_info("given", FLOAT, [64, 64]))
    proto.graph.output.append(helper.make_tensor_value_info("form", TensorProto.INT64, [2]))
    onnx.save(proto, tmp_path / "m.onnx")
    words = [command, str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o"), "--pattern", "2:4"]
    assert main([*words, "--json", str(tmp_path / "r.json")]) == 0
    shown = capsys.readouterr().out
    said = "its numbers also go to Add 'far', a graph output: what comes out there moves with the zeros"
    assert f"not read by layers alone:\n  w0: {said}\n" in shown
    first, second = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert (first["others"], second["others"], second["reason"]) == (["Add 'far'", "a graph output"], [], "")
    assert first["reason"] == said
    assert first["status"] != "dense"


@pytest.mark.parametrize("read", [False, True])
def test_a_state_of_a_loop_that_nobody_reads_behind_it_is_no_other_reader(read: bool) -> None:
    """Exporters hand weights into a Loop as states that no step changes."""
    weight = numpy_helper.from_array(np.random.default_rng(1).standard_normal((32, 32), np.float32), "w")
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Identity", ["state"], ["same"]),
            helper.make_node("MatMul", ["x", "state"], ["step"]),
        ],
        "body",
        [info("at", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("state", FLOAT, [32, 32])],
        [info("on", TensorProto.BOOL, []), info("same", FLOAT, [32, 32]), info("step", FLOAT, [3, 32])],
    )
    stored = [weight, numpy_helper.from_array(np.array(2), "n"), numpy_helper.from_array(np.array(True), "c")]
    outputs = [info("steps", FLOAT, None), *([info("last", FLOAT, None)] if read else [])]
    loop = helper.make_node("Loop", ["n", "c", "w"], ["last", "steps"], "loop", body=body)
    graph = helper.make_graph([loop], "g", [info("x", FLOAT, [3, 32])], outputs, stored)
    row = osp.prune(helper.make_model(graph), pattern="2:4").report.row("w")
    assert row.status == "pruned"
    assert bool(row.others) == read
