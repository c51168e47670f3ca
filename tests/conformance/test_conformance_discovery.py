"""Every weight is a row, with the axis it is summed along or the reason why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from graphs.builders import CASES, Built
from graphs.expectations import EVERYTHING, explains, row_of, uses_of, wanted_uses

osp: Any = pytest.importorskip("onnxsparse")
NAMES = list(CASES)


def source(built: Built, folder: Path) -> Any:
    """A path where there is external data, else the model itself."""
    return built.write(folder) if built.files else built.model


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_is_one_row(name: str, tmp_path: Path) -> None:
    built = CASES[name].build()
    report = osp.inspect(source(built, tmp_path)).report
    for wanted in built.expected:
        row_of(report, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_the_axis_is_right(name: str, tmp_path: Path) -> None:
    """Operators and reduction axes of all uses; nothing is demanded of uses that are no product."""
    built = CASES[name].build()
    report = osp.inspect(source(built, tmp_path)).report
    for wanted in built.expected:
        row = row_of(report, wanted)
        if not wanted.lenient and wanted.word not in ("embedding", "tied-embedding"):
            unsupported = wanted.reason in ("unsupported type", "einsum not matrix form", "unknown operator", "1-D")
            assert (unsupported and not row.uses) or unsupported or uses_of(row) == wanted_uses(wanted)
        if wanted.word == "tied-embedding":
            assert set(wanted_uses(wanted)) <= set(uses_of(row))


@pytest.mark.parametrize("name", NAMES)
def test_what_stays_dense_says_why(name: str, tmp_path: Path) -> None:
    built = CASES[name].build()
    report = osp.inspect(source(built, tmp_path)).report
    for row in report.rows:
        assert row.status in ("prunable", "dense")
        assert row.reason or row.status == "prunable", f"{row.name} is {row.status} and nobody says why"
    for wanted in built.expected:
        row = row_of(report, wanted)
        if wanted.reason and not wanted.lenient and wanted.reason != "two axes":
            assert row.status == "dense"
            assert explains(row, wanted), row.reason
        elif wanted.word:
            assert wanted.word in row.reason


@pytest.mark.parametrize("name", NAMES)
def test_inspect_changes_nothing_and_repeats(name: str, tmp_path: Path) -> None:
    built = CASES[name].build()
    before = built.model.SerializeToString()
    first = osp.inspect(source(built, tmp_path)).report
    second = osp.inspect(source(built, tmp_path)).report
    assert first.rows == second.rows
    assert built.model.SerializeToString() == before


@pytest.mark.parametrize("name", [name for name in NAMES if any(one.word for one in CASES[name].build().expected)])
def test_default_names_the_word_that_allows(name: str) -> None:
    """Kept dense by default: the reason says which word to give to --allow."""
    built = CASES[name].build()
    words = {one.word for one in built.expected if one.word}
    report = osp.prune(built.model, pattern="unstructured", sparsity=0.5, allow=["small"]).report
    for wanted in built.expected:
        row = row_of(report, wanted)
        if wanted.word:
            assert row.status == "dense"
            assert any(word in row.reason for word in words), row.reason


def test_small_weights_stay_dense_unless_allowed() -> None:
    built = CASES["matmul_right"].build()
    row = row_of(osp.prune(built.model, pattern="2:4").report, built.expected[0])
    assert row.status == "dense"
    assert "small" in row.reason
    assert row_of(osp.prune(built.model, pattern="2:4", allow=["small"]).report, built.expected[0]).status == "pruned"


def test_256_elements_are_not_small() -> None:
    built = CASES["matmul_of_256"].build()
    assert row_of(osp.prune(built.model, pattern="2:4").report, built.expected[0]).status == "pruned"


@pytest.mark.parametrize(
    "name", ["if_branches_use_one_name", "function_inside_name_hides_outer_name", "if_shadows_outer_name"]
)
def test_scopes_tell_equal_names_apart(name: str) -> None:
    built = CASES[name].build()
    rows = [row_of(osp.inspect(built.model).report, wanted) for wanted in built.expected]
    assert len({row.scope for row in rows}) == len(rows)


def test_rows_are_frozen_and_sized() -> None:
    built = CASES["conv_2d"].build()
    row = row_of(osp.inspect(built.model).report, built.expected[0])
    assert row.size == 6 * 8 * 9
    assert row.zeros == int((built.expected[0].real == 0).sum())
    with pytest.raises(AttributeError):
        row.status = "other"


def test_report_is_empty_without_weights() -> None:
    assert not osp.inspect(CASES["no_weights_at_all"].build().model).report.rows


def test_path_and_model_give_one_report(tmp_path: Path) -> None:
    built = CASES["many_kinds_in_one"].build()
    path = built.write(tmp_path)
    assert osp.inspect(path).report.rows == osp.inspect(built.model).report.rows == osp.inspect(str(path)).report.rows
    assert isinstance(osp.prune(path, pattern="2:4", allow=EVERYTHING).model, onnx.ModelProto)
