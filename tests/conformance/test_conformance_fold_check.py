"""`fold` checks what it would write: one group too full in one weight of a masked file, wherever it is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs.builders import CASES, Built, Expected
from graphs.expectations import EVERYTHING, indices, row_of, values
from onnx import helper, numpy_helper

from onnxsparse import cli

osp: Any = pytest.importorskip("onnxsparse")
FAMILIES = ("linear", "conv", "chains", "scopes", "functions", "combined", "recurrent", "storage", "external")
AMPERE = ["--target", "ampere", "--allow", *EVERYTHING]


def masked_weights(name: str) -> list[Expected]:
    """The weights of a case that ampere takes and a mask can be put on."""
    built = CASES[name].build()
    if built.files or not built.checks:
        return []
    report = osp.insert_masks(built.model, target="ampere", allow=EVERYTHING).report
    return [one for one in built.expected if one.uses and one.name and row_of(report, one).status == "masked"]


VARIANTS = [
    (name, one.name)
    for name in CASES
    if CASES[name].family in FAMILIES
    for one in masked_weights(name)[:1]
    if one.dtype == "float32"
]


def full_groups(one: Expected, zero: np.ndarray) -> dict[int, set[int]]:
    """Masked elements, each with the elements of the groups of four that it makes too full by coming back."""
    numbers, found = indices(one.shape), {}
    for use in one.uses:
        for row in use.rows(numbers):
            for start in range(0, len(row) - 3, 4):
                group = row[start : start + 4]
                gone = [int(at) for at in group if zero.flat[at] and one.real.flat[at]]
                if np.count_nonzero(zero.flat[group]) == 2:
                    for at in gone:
                        found.setdefault(at, set()).update(int(number) for number in group)
    return found


def violated(name: str, weight: str) -> tuple[Built, onnx.ModelProto, Expected, set[int]]:
    """The case with masks of 2:4, one element of which came back; and the places of its groups."""
    built = CASES[name].build()
    one = next(entry for entry in built.expected if entry.name == weight)
    pruned = osp.prune(built.model, target="ampere", allow=EVERYTHING)
    masks = {
        row_of(pruned.report, other).name: values(pruned.model, other) != 0
        for other in built.expected
        if other.name and row_of(pruned.report, other).status == "pruned" and other.dtype == "float32"
    }
    key = row_of(pruned.report, one).name
    groups = full_groups(one, ~masks[key])
    back = sorted(groups)[len(groups) // 2]
    masks[key].flat[back] = True
    masked = osp.insert_masks(built.model, masks=masks)
    return built, masked.model, one, groups[back]


def without_record(model: onnx.ModelProto) -> onnx.ModelProto:
    """As a trainer writes it that knows nothing of metadata."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.metadata_props[:]
    return bare


def test_there_are_enough_of_them() -> None:
    assert len(VARIANTS) >= 40
    assert {CASES[name].family for name, _ in VARIANTS} >= {"linear", "conv", "chains", "scopes", "functions"}


@pytest.mark.parametrize(("name", "weight"), VARIANTS)
def test_one_group_too_full_is_found(
    name: str, weight: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, model, one, group = violated(name, weight)
    onnx.save(without_record(model), str(tmp_path / "masked.onnx"))
    fold = ["fold", str(tmp_path / "masked.onnx"), "-o", str(tmp_path / "out.onnx")]
    assert cli.main([*fold, *AMPERE]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["masked.onnx"]
    said = capsys.readouterr().out
    assert "DOES NOT HOLD" in said
    assert "nothing was written" in said
    row = row_of(osp.fold_masks(tmp_path / "masked.onnx", target="ampere", allow=EVERYTHING).report, one)
    assert row.status == "violated"
    assert {int(np.ravel_multi_index(place, one.shape)) for place in row.places} <= group
    assert row.places
    assert f"{row.name}: {row.reason}" in said
    assert str(list(row.places[0])) in row.reason
    assert cli.main(fold) == 0  # nobody says what has to hold
    assert "nothing was checked" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "weight"), VARIANTS[::4])
def test_a_record_is_enough(name: str, weight: str, tmp_path: Path) -> None:
    """The same without a rule, where the file records the plan; and it is fine where no mask was touched."""
    built, model, one, _ = violated(name, weight)
    right = osp.insert_masks(built.model, target="ampere", allow=EVERYTHING)
    held = osp.fold_masks(right.model)
    assert held.report.ok
    assert row_of(held.report, one).status == "folded"
    assert {use.verdict for use in row_of(held.report, one).uses} == {"holds"}
    assert osp.verify(held.model).report.ok
    wrong = without_record(model)
    wrong.metadata_props.extend(right.model.metadata_props)
    result = osp.fold_masks(wrong, output=tmp_path / "out.onnx")
    assert not result.report.ok
    assert (result.path, result.model, result.report.output) == (None, None, "")
    assert row_of(result.report, one).violations >= 1
    assert not list(tmp_path.iterdir())


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
