"""What prune writes: the places that loops and stable sorts choose, and nothing else in the file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs.builders import CASES
from graphs.expectations import values

osp: Any = pytest.importorskip("onnxsparse")


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
