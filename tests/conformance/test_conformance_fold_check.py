"""`fold` checks what it would write, and every way to say what has to hold is understood.

That one group too full is found wherever a weight is used, is a property of the walk (tests/graphs/properties.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs.builders import CASES
from graphs.expectations import EVERYTHING
from graphs.walk import without_record
from onnx import helper, numpy_helper

from onnxsparse import cli

osp: Any = pytest.importorskip("onnxsparse")


def digits(folder: Path, repository: Path) -> tuple[str, str]:
    """The small network masked for ampere, and its plan."""
    model, masked, plan = str(repository / "models" / "digits_cnn.onnx"), str(folder / "m.onnx"), str(folder / "p.yaml")
    assert cli.main(["mask", model, "-o", masked, "--target", "ampere", "-q"]) == 0
    assert cli.main(["plan", model, "-o", plan, "--target", "ampere", "-q"]) == 0
    return masked, plan


def break_a_group(path: str, mask: str = "head.weight_mask") -> None:
    model = onnx.load(path)
    tensor = next(one for one in model.graph.initializer if one.name == mask)
    numbers = numpy_helper.to_array(tensor).copy()
    numbers[3, 8:12] = 1
    tensor.CopyFrom(numpy_helper.from_array(numbers, mask))
    onnx.save(model, path)


@pytest.mark.parametrize("rule", [[], ["--target", "ampere"], ["--pattern", "2:4"], ["--plan", "PLAN"]])
def test_every_way_to_say_what_has_to_hold(
    rule: list[str], tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    masked, plan = digits(tmp_path, repository)
    words = [plan if word == "PLAN" else word for word in rule]
    out = tmp_path / "out.onnx"
    assert cli.main(["fold", masked, "-o", str(out), *words]) == 0
    assert "4 of 5 weights hold" in capsys.readouterr().out
    assert cli.main(["verify", str(out), "-q"]) == 0
    out.unlink()
    break_a_group(masked)
    assert cli.main(["fold", masked, "-o", str(out), "--json", str(tmp_path / "r.json"), *words]) == 1
    assert not out.exists()
    assert "head.weight: 1 groups hold more than 2 non-zeros, first at [3, 8]" in capsys.readouterr().out
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["ok"], report["output"]) == (False, "")
    assert [row["status"] for row in report["rows"]] == ["left", "folded", "folded", "folded", "violated"]
    assert report["rows"][-1]["places"] == [[3, 8]]
    assert cli.main(["fold", masked, "-o", str(out), "-q", *words]) == 1
    assert capsys.readouterr().out.startswith("DOES NOT HOLD")


def test_a_file_that_was_there_stays(tmp_path: Path, repository: Path) -> None:
    masked, _ = digits(tmp_path, repository)
    break_a_group(masked)
    before = Path(masked).read_bytes()
    assert cli.main(["fold", masked, "-o", masked, "--overwrite", "-q"]) == 1
    assert Path(masked).read_bytes() == before


def test_folders_of_data_files_go_again(tmp_path: Path) -> None:
    built = CASES["external_many_files"].build()
    path = built.write(tmp_path)
    names = [one.name for one in built.expected]
    keep = {one.name: np.arange(one.real.size).reshape(one.shape) % 4 != 0 for one in built.expected}
    (tmp_path / "masked").mkdir()
    masked = tmp_path / "masked" / "m.onnx"
    osp.insert_masks(path, output=masked, masks=keep)
    before = sorted(tmp_path.rglob("*"))
    result = osp.fold_masks(masked, output=tmp_path / "out.onnx", pattern="2:4", allow=EVERYTHING)
    assert not result.report.ok
    assert {row.status for row in result.report.rows if row.name in names} == {"violated"}
    assert sorted(tmp_path.rglob("*")) == before


def test_strict_wants_something_to_hold(tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    masked, _ = digits(tmp_path, repository)
    out = tmp_path / "out.onnx"
    fold = ["fold", masked, "-o", str(out), "--strict", "-q"]
    assert cli.main([*fold, "--target", "ampere"]) == 1
    assert "stem.weight" in capsys.readouterr().out
    onnx.save(without_record(onnx.load(masked)), masked)
    assert cli.main(fold) == 1
    assert "nothing was checked" in capsys.readouterr().out
    assert not out.exists()
    assert cli.main([*fold, "--target", "ampere", "--exclude", "stem"]) == 0


def test_a_mask_that_stays_is_said_and_strict_refuses_it(tmp_path: Path) -> None:
    """Two layers read one weight, one of them without the mask."""
    weight = numpy_helper.from_array(np.arange(1, 257, dtype=np.float32).reshape(16, 16), "w")
    mask = numpy_helper.from_array(np.tile(np.array([[1], [1], [0], [0]], np.float32), (4, 16)), "k")
    nodes = [
        helper.make_node("Mul", ["w", "k"], ["m"]),
        helper.make_node("MatMul", ["x", "m"], ["y"]),
        helper.make_node("Add", ["w", "w"], ["z"]),
    ]
    entry = helper.make_tensor_value_info
    ends = [entry(name, onnx.TensorProto.FLOAT, [None, None]) for name in "xyz"]
    model = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight, mask]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    report = osp.fold_masks(model, pattern="2:4").report
    assert report.ok
    assert any("1 mask stays in the graph (the first: of 'w')" in note for note in report.notes)
    strict = osp.fold_masks(model, pattern="2:4", strict=True)
    assert not strict.report.ok
    assert strict.model is None


@pytest.mark.parametrize("text", ["{", "[]", '{"pruned": {"w": 3}, "dense": {}}'])
def test_a_damaged_record_needs_a_rule(text: str, tmp_path: Path, repository: Path, capsys: Any) -> None:
    """Named, it is enough; the message of the commands that need the record says so."""
    masked, _ = digits(tmp_path, repository)
    model = onnx.load(masked)
    next(entry for entry in model.metadata_props if entry.key == "onnxsparse.mask.plan").value = text
    onnx.save(model, masked)
    out = str(tmp_path / "out.onnx")
    assert cli.main(["fold", masked, "-o", out]) == 2
    assert "is damaged; name a --pattern or --target" in capsys.readouterr().err
    assert cli.main(["fold", masked, "-o", out, "--target", "ampere", "-q"]) == 0
    assert cli.main(["verify", out, "--pattern", "2:4", "-q"]) == 0
    assert cli.main(["prune", out, "-o", out, "--overwrite", "--target", "ampere", "-q"]) == 0
    assert cli.main(["verify", out, "-q"]) == 0


@pytest.mark.parametrize(
    "words",
    [
        ["--discard", "--target", "ampere"],
        ["--discard", "--pattern", "2:4"],
        ["--discard", "--plan", "p.yaml"],
        ["--discard", "--strict"],
        ["--discard", "--sparsity", "0.5"],
        ["--sparsity", "0.5"],
        ["--exclude", "head"],
        ["--target", "amper"],
        ["--target", "ampere", "--pattern", "1:4"],
        ["--pattern", "2:4", "--plan", "p.yaml"],
        ["--plan", "none.yaml"],
    ],
)
def test_what_means_nothing_together(
    words: list[str], tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    masked, plan = digits(tmp_path, repository)
    words = [plan if word == "p.yaml" else word for word in words]
    assert cli.main(["fold", masked, "-o", str(tmp_path / "out.onnx"), *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "out.onnx").exists()
