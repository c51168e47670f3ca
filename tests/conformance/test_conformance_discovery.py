"""Every weight is a row, with the axis it is summed along or the reason why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from graphs.builders import CASES
from graphs.expectations import EVERYTHING, row_of

osp: Any = pytest.importorskip("onnxsparse")


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
