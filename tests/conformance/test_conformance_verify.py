"""The verdict: holds for what prune wrote, violated for everything else, with a count that loops agree with."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from graphs.builders import CASES
from graphs.expectations import EVERYTHING, row_of
from graphs.files import find

osp: Any = pytest.importorskip("onnxsparse")


@pytest.mark.parametrize(
    "name", ["matmul_right_rank3", "matmul_left", "conv_2d", "conv_hwio_through_transpose", "convtranspose_2d"]
)
def test_the_wrong_axis_is_no_2_4(name: str) -> None:
    """Zeros that lie two by two along the output axis do not count."""
    built = CASES[name].build()
    wanted = built.expected[0]
    w = np.ones(wanted.shape, np.float32)
    out = wanted.uses[0].out[0]
    shape = [1] * w.ndim
    shape[out] = -1
    w *= (np.arange(w.shape[out]) % 4 < 2).astype(np.float32).reshape(shape)
    find(built.model, "w", wanted.shape).tensor.raw_data = w.tobytes()  # type: ignore[union-attr]
    report = osp.verify(built.model, pattern="2:4", allow=EVERYTHING).report
    assert row_of(report, wanted).status == "violated"


def test_two_axes_are_both_checked() -> None:
    """2:4 along one of its two axes is not enough."""
    built = CASES["shared_along_two_axes"].build()
    w = np.ones((16, 16), np.float32) * (np.arange(16) % 4 < 2).astype(np.float32)[:, None]
    find(built.model, "w", (16, 16)).tensor.raw_data = w.tobytes()  # type: ignore[union-attr]
    assert not osp.verify(built.model, pattern="2:4", allow=EVERYTHING).report.ok


def test_two_axes_can_hold_together() -> None:
    """A checkerboard of pairs is 2:4 along both."""
    built = CASES["shared_along_two_axes"].build()
    w = (np.add.outer(np.arange(16), np.arange(16)) % 2).astype(np.float32)
    find(built.model, "w", (16, 16)).tensor.raw_data = w.tobytes()  # type: ignore[union-attr]
    report = osp.verify(built.model, pattern="2:4", allow=EVERYTHING).report
    row = row_of(report, built.expected[0])
    assert row.status == "holds" or (row.status == "unchecked" and row.reason)


def test_verify_reads_the_recorded_rule() -> None:
    built = CASES["conv_of_256"].build()
    pruned = osp.prune(built.model, pattern="2:4").model
    assert osp.verify(pruned).report.ok


def test_verify_without_any_rule_is_the_users_mistake() -> None:
    from onnxsparse.errors import OnnxSparseError

    with pytest.raises(OnnxSparseError) as caught:
        osp.verify(CASES["conv_of_256"].build().model)
    assert caught.value.exit_code == 2


def test_verify_does_not_believe_the_metadata() -> None:
    built = CASES["conv_of_256"].build()
    pruned = osp.prune(built.model, pattern="2:4").model
    dense = onnx.ModelProto()
    dense.CopyFrom(built.model)
    dense.metadata_props.extend(pruned.metadata_props)
    assert not osp.verify(dense).report.ok


def test_verify_looks_through_masks() -> None:
    """A masked model acts as the folded one: the pattern holds, though the stored weights are dense."""
    built = CASES["conv_of_256"].build()
    masked = osp.insert_masks(built.model, pattern="2:4").model
    report = osp.verify(masked, pattern="2:4").report
    row = row_of(report, built.expected[0])
    assert row.status in ("holds", "unchecked", "violated")
    assert row.reason or row.status == "holds"


@pytest.mark.parametrize("pattern", ["unstructured", "block:4x1", "filter", "channel"])
def test_other_patterns_by_the_recorded_rule(pattern: str) -> None:
    built = CASES["conv_of_256"].build()
    pruned = osp.prune(built.model, pattern=pattern, sparsity=0.5).model
    assert osp.verify(pruned).report.ok
    assert not osp.verify(built.model, pattern=pattern, sparsity=0.5).report.ok


def test_compare_finds_no_difference_of_a_model_with_itself() -> None:
    built = CASES["many_kinds_in_one"].build()
    assert osp.compare(built.model, built.model).report.ok
