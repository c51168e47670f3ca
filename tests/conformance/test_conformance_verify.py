"""The verdict: holds for what prune wrote, violated for everything else, with a count that loops agree with."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from graphs.builders import CASES
from graphs.expectations import EVERYTHING, row_of, values
from graphs.files import find
from graphs.oracles import breaks_n_of_m, indices

osp: Any = pytest.importorskip("onnxsparse")
INSIDE = [name for name in CASES if not CASES[name].build().files]
PRUNABLE = [
    name
    for name in INSIDE
    if CASES[name].family not in ("masked", "decoys")
    and all(one.uses and not one.reason and not one.word for one in CASES[name].build().expected)
    and CASES[name].build().expected
]
ONE_RAW_FLOAT = [
    name
    for name in PRUNABLE
    if len(CASES[name].build().expected) == 1
    and CASES[name].build().expected[0].dtype == "float32"
    and CASES[name].build().expected[0].storage == "initializer"
    and "float_data" not in name
]


@pytest.mark.parametrize("name", PRUNABLE)
def test_what_prune_wrote_holds(name: str) -> None:
    built = CASES[name].build()
    pruned = osp.prune(built.model, pattern="2:4", allow=EVERYTHING).model
    report = osp.verify(pruned, pattern="2:4", allow=EVERYTHING).report
    states = {row_of(report, wanted).status for wanted in built.expected}
    assert states <= {"holds", "unchecked"}
    assert report.ok == ("holds" in states)


@pytest.mark.parametrize("name", PRUNABLE)
def test_dense_does_not_hold(name: str) -> None:
    """Violated exactly where loops find a group with more than two weights."""
    built = CASES[name].build()
    report = osp.verify(built.model, pattern="2:4", allow=EVERYTHING).report
    bad = not any(one.uses[0].rows(indices(one.shape)).shape[1] >= 4 for one in built.expected)
    for wanted in built.expected:
        blank = wanted.real == 0
        broken = any(breaks_n_of_m(blank, use.rows(indices(wanted.shape)), 2, 4) for use in wanted.uses)
        assert (row_of(report, wanted).status == "violated") == broken
        bad = bad or broken
    assert report.ok != bad


@pytest.mark.parametrize("name", ONE_RAW_FLOAT)
def test_one_weight_too_many_is_seen(name: str) -> None:
    """Put one dropped weight back where its group is full: nothing else is wrong, and it must be found."""
    built = CASES[name].build()
    wanted = built.expected[0]
    pruned = osp.prune(built.model, pattern="2:4", allow=EVERYTHING).model
    after = values(pruned, wanted).copy()
    row = wanted.uses[0].rows(indices(wanted.shape))[-1]
    if len(row) < 4:
        return
    group = row[: len(row) // 4 * 4][-4:]
    after.flat[group] = 1.0
    after.flat[group[:1]] = 0.0
    find(pruned, wanted.name, wanted.shape).tensor.raw_data = after.tobytes()  # type: ignore[union-attr]
    report = osp.verify(pruned, pattern="2:4", allow=EVERYTHING).report
    assert row_of(report, wanted).status == "violated"
    assert not report.ok


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


@pytest.mark.parametrize("name", [name for name in INSIDE if any(one.reason for one in CASES[name].build().expected)])
def test_unchecked_says_why(name: str) -> None:
    built = CASES[name].build()
    report = osp.verify(built.model, pattern="2:4", allow=EVERYTHING).report
    for wanted in built.expected:
        row = row_of(report, wanted)
        assert row.status in ("holds", "violated", "unchecked")
        assert row.reason or row.status == "holds"
        if wanted.reason in ("unsupported type", "1-D", "einsum not matrix form", "unknown operator"):
            assert row.status == "unchecked"


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
