"""What prune writes: the places that loops and stable sorts choose, and nothing else in the file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs.builders import CASES, Built, Expected
from graphs.expectations import EVERYTHING, is_masked_copy, keep_mask, one_partition, row_of, values
from graphs.files import differences, find
from graphs.oracles import breaks_n_of_m, indices, keep_unstructured, scores_of
from graphs.running import demand_runtime, run

osp: Any = pytest.importorskip("onnxsparse")
NAMES = list(CASES)
INSIDE = [name for name in NAMES if not CASES[name].build().files]
RATIOS = [(1, 2), (1, 4), (3, 4), (4, 8), (2, 16)]


def refused(wanted: Expected, m: int) -> bool:
    """Whether an N:M pattern must leave the tensor alone."""
    return bool(wanted.reason and wanted.reason != "two axes" and not wanted.lenient)


def assert_n_of_m(before: np.ndarray, after: np.ndarray, row: Any, wanted: Expected, ratio: tuple[int, int]) -> None:
    n, m = ratio
    untouched = np.array_equal(before, after)
    if refused(wanted, m):
        assert row.status == "dense"
        assert row.reason
        assert untouched
    elif row.status == "dense" and (wanted.lenient or wanted.reason == "two axes" or "mask" in row.reason):
        assert row.reason
        assert untouched
    elif not one_partition(wanted, m):
        blank = after == np.asarray(wanted.zero, after.dtype)
        assert not any(breaks_n_of_m(blank, use.rows(indices(wanted.shape)), n, m) for use in wanted.uses)
    elif wanted.word != "embedding" and wanted.uses:
        assert is_masked_copy(before, after, keep_mask(wanted, n, m), wanted.zero) == ""
        assert row.status == "pruned" or keep_mask(wanted, n, m).all()


def check(built: Built, result: Any, ratio: tuple[int, int]) -> None:
    for wanted in built.expected:
        if wanted.reason == "unsupported type":
            assert row_of(result.report, wanted).status == "dense"
            continue
        before, after = values(built.model, wanted), values(result.model, wanted)
        assert_n_of_m(before, after, row_of(result.report, wanted), wanted, ratio)


@pytest.mark.parametrize("name", INSIDE)
def test_2_4_is_what_loops_choose(name: str) -> None:
    built = CASES[name].build()
    check(built, osp.prune(built.model, pattern="2:4", allow=EVERYTHING), (2, 4))


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("family", ["linear", "conv", "chains", "recurrent"])
def test_other_ratios_are_what_loops_choose(family: str, ratio: tuple[int, int]) -> None:
    for name in INSIDE:
        if CASES[name].family == family:
            built = CASES[name].build()
            check(built, osp.prune(built.model, pattern=f"{ratio[0]}:{ratio[1]}", allow=EVERYTHING), ratio)


@pytest.mark.parametrize("name", INSIDE)
def test_only_weight_values_change(name: str) -> None:
    """Rule 1: names, order, opsets, functions, metadata, fields of storage as they were; the argument not touched."""
    built = CASES[name].build()
    before = built.model.SerializeToString()
    result = osp.prune(built.model, pattern="2:4", allow=EVERYTHING)
    assert built.model.SerializeToString() == before
    pruned = [one for one in built.expected if row_of(result.report, one).status == "pruned"]
    names = [find(built.model, one.name, one.shape).name for one in pruned]
    assert differences(built.model, result.model, names) == []


@pytest.mark.parametrize("name", INSIDE)
def test_pruning_again_changes_nothing(name: str) -> None:
    built = CASES[name].build()
    for options in ({"pattern": "2:4"}, {"pattern": "unstructured", "sparsity": 0.6}):
        once = osp.prune(built.model, allow=EVERYTHING, **options).model
        again = osp.prune(once, allow=EVERYTHING, **options).model
        assert differences(once, again, []) == []


@pytest.mark.parametrize("name", INSIDE)
def test_rows_count_the_zeros(name: str) -> None:
    """Of what was pruned always; a tensor left alone need not be read, but a count must be right."""
    built = CASES[name].build()
    result = osp.prune(built.model, pattern="2:4", allow=EVERYTHING)
    for wanted in built.expected:
        row = row_of(result.report, wanted)
        if row.status == "pruned" or (row.zeros is not None and wanted.reason != "unsupported type"):
            blank = np.broadcast_to(wanted.zero.astype(np.float64), wanted.shape)
            assert row.zeros == int((values(result.model, wanted).astype(np.float64) == blank).sum())


@pytest.mark.parametrize("name", [name for name in INSIDE if CASES[name].build().runs])
def test_pruned_model_runs(name: str) -> None:
    demand_runtime(name)
    built = CASES[name].build()
    result = osp.prune(built.model, pattern="2:4", allow=EVERYTHING)
    run(result.model, built)


@pytest.mark.parametrize("sparsity", [0.0, 0.31, 0.7, 0.99])
@pytest.mark.parametrize("family", sorted({CASES[name].family for name in NAMES}))
def test_unstructured_is_what_a_stable_sort_drops(family: str, sparsity: float) -> None:
    for name in INSIDE:
        built = CASES[name].build()
        if CASES[name].family != family:
            continue
        result = osp.prune(built.model, pattern="unstructured", sparsity=sparsity, allow=EVERYTHING)
        for wanted in built.expected:
            row = row_of(result.report, wanted)
            if row.status == "pruned":
                keep = keep_unstructured(scores_of(wanted.real), sparsity)
                problem = is_masked_copy(values(built.model, wanted), values(result.model, wanted), keep, wanted.zero)
                assert problem == "", f"{name}: {problem}"
            else:
                assert row.reason or sparsity == 0.0, name
                excused = wanted.reason or wanted.lenient or "mask" in row.reason
                assert excused or sparsity == 0.0, f"{name}: {row.reason}"


@pytest.mark.parametrize("seed", [0, 1])
def test_random_score_repeats_by_seed(seed: int) -> None:
    built = CASES["conv_of_256"].build()
    options = {"pattern": "unstructured", "sparsity": 0.5, "score": "random", "seed": seed}
    first, second = (osp.prune(built.model, **options).model.SerializeToString() for _ in range(2))
    other = osp.prune(built.model, **{**options, "seed": seed + 1}).model.SerializeToString()
    assert first == second != other


def test_random_score_drops_existing_zeros_first() -> None:
    built = CASES["conv_of_256"].build()
    before = values(built.model, built.expected[0])
    result = osp.prune(built.model, pattern="unstructured", sparsity=float((before == 0).mean()), score="random")
    assert np.array_equal(values(result.model, built.expected[0]), before)


def test_plan_promises_what_prune_does() -> None:
    for name in ("many_kinds_in_one", "lstm_forward", "if_with_constants"):
        built = CASES[name].build()
        plan = osp.plan(built.model, pattern="2:4", allow=["small"]).report
        done = osp.prune(built.model, pattern="2:4", allow=["small"]).report
        assert [(row.name, row.status == "planned") for row in plan.rows] == [
            (row.name, row.status == "pruned") for row in done.rows
        ]


@pytest.mark.parametrize("include", [["w"], ["re:^w$"], ["MatMul"], ["w*"]])
def test_include_takes_names_globs_patterns_and_kinds(include: list[str]) -> None:
    built = CASES["many_kinds_in_one"].build()
    report = osp.prune(built.model, pattern="2:4", allow=["small"], include=include).report
    assert [row.name for row in report.rows if row.status == "pruned"] == ["w"]
    assert all(row.reason for row in report.rows if row.status == "dense")


@pytest.mark.parametrize("exclude", [["k"], ["Conv_c"], ["Conv"], ["re:k.*"]])
def test_exclude_wins(exclude: list[str]) -> None:
    built = CASES["many_kinds_in_one"].build()
    report = osp.prune(built.model, pattern="2:4", allow=["small"], exclude=exclude).report
    assert "k" not in [row.name for row in report.rows if row.status == "pruned"]
    assert "w" in [row.name for row in report.rows if row.status == "pruned"]


def test_names_that_look_like_globs_are_names_first() -> None:
    built = CASES["name_with_glob"].build()
    report = osp.prune(built.model, pattern="2:4", allow=["small"], include=[built.expected[0].name]).report
    assert [row.status for row in report.rows] == ["pruned"]
