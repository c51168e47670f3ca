"""Rounds of removal and refit: legal masks, exact counts, and what must not decide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsparse import patterns, scores, solvers
from onnxsparse.math.values import Array
from onnxsparse.scores import Obs
from onnxsparse.solvers import blocked
from onnxsparse.solvers.choosing import Part, goals, groups_of, keep_shares
from onnxsparse.solvers.least_squares import Exact, Refit, Shared
from onnxsparse.solvers.rounds import EXCHANGES, Fitted, rounds
from onnxsparse.solvers.solver import LeastSquares, last
from tests.cases import for_each
from tests.solvers.problems import Problem, legal, problems

PATTERNS = (
    "unstructured", "alive", "2:4", "1:4", "3:8", "2:4:transposable", "block:2x2", "block:1x4", "tile:3x3", "filter",
    "channel",
)  # fmt: skip


def problem(rows: int = 8, size: int = 24, seed: int = 0, biased: bool = True) -> Problem:
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((200, size)) @ rng.standard_normal((size, size)) + 0.5
    dense = rng.standard_normal((rows, size))
    return Problem(inputs, inputs @ dense.T, dense, biased)


def part_of(given: Problem, pattern: str | None, taps: int = 1) -> Part:
    rows, size = given.dense.shape
    return Part(
        "w", slice(0, size), (1, rows, size // taps, taps), None if pattern is None else patterns.parse(pattern)
    )


def solved(given: Problem, parts: list[Part], drops: list[int], sensitivity: Array | None = None) -> Fitted:
    return LeastSquares().solve(given.layer(sensitivity), parts, drops, Obs(), False)


@for_each(("text", "taps"), [(text, taps) for text in PATTERNS for taps in (1, 3)])
def test_masks_are_legal_and_as_sparse_as_asked(text: str, taps: int) -> None:
    given = problem()
    part = part_of(given, text, taps)
    assert part.pattern is not None
    drop = part.pattern.drop_count(part.shape4, 0.5 if part.pattern.takes_sparsity else None)
    fitted = solved(given, [part], [drop])
    zero = ~part.as_axes(fitted.mask)
    assert not part.pattern.violations(zero, drop)
    assert text.startswith("tile") or zero.sum() == part.pattern.dropped(part.shape4, drop)
    assert not fitted.rows[~fitted.mask].any()


@for_each("text", PATTERNS)
def test_masks_by_cost_lose_less_than_masks_by_magnitude(text: str) -> None:
    lost = []
    for seed in range(6):
        given = problem(seed=seed)
        part = part_of(given, text)
        assert part.pattern is not None
        drop = part.pattern.drop_count(part.shape4, 0.5 if part.pattern.takes_sparsity else None)
        found = [
            LeastSquares().solve(given.layer(), [part], [drop], score, False) for score in (Obs(), scores.Magnitude())
        ]
        lost.append([given.layer().cost(one.rows) for one in found])
    by_cost, by_magnitude = np.log(lost).mean(axis=0)
    assert by_cost < by_magnitude


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), st.sampled_from([(2, 4), (1, 4), (3, 8), (1, 16), (1, 2)]))
def test_n_of_m_goes_through_larger_n(seed: int, nm: tuple[int, int]) -> None:
    n, m = nm
    given, choices = problem(4, 32, seed), goals([part_of(problem(4, 32), f"{n}:{m}")], [0])
    found = list(rounds(given.layer(), choices))
    assert len(found) == min(m - n, 5)
    kept = [one.mask[0, :m].sum() for one in found]
    assert kept == sorted(kept, reverse=True)
    assert all(legal(one.mask, k, m) for one, k in zip(found, kept))
    assert all((later.mask <= earlier.mask).all() for earlier, later in zip(found, found[1:]))


def test_n_of_m_of_large_layers_is_one_step() -> None:
    part = Part("w", slice(0, 404), (1, 2, 404, 1), patterns.parse("2:4"))
    assert len(goals([part], [404])) == 1
    assert len(goals([replace(part, pattern=patterns.parse("unstructured"))], [404])) == 8


@settings(max_examples=30, deadline=None)
@given(problems(most=12), st.integers(0, 999), st.floats(0.1, 0.9), st.sampled_from(["unstructured", "2:4", "filter"]))
def test_the_scale_of_an_output_decides_nothing(given: Problem, seed: int, share: float, text: str) -> None:
    """A folded normalization multiplies rows; what matters then matters inversely as the square."""
    factors = 2.0 ** np.random.default_rng(seed).integers(-8, 9, len(given.dense))
    folded = Problem(given.inputs, given.wanted * factors, given.dense * factors[:, None], given.biased)
    part = part_of(given, text)
    assert part.pattern is not None
    drop = part.pattern.drop_count(part.shape4, share if part.pattern.takes_sparsity else None)
    matters = np.random.default_rng(seed).random(len(factors)) + 0.5
    one, other = solved(given, [part], [drop], matters), solved(folded, [part], [drop], matters / factors**2)
    np.testing.assert_array_equal(one.mask, other.mask)
    np.testing.assert_allclose(other.rows, one.rows * factors[:, None], rtol=1e-6, atol=1e-9)


@for_each("score", ["wanda", "ria", "obs"])
def test_scores_by_samples_ignore_the_scale_of_an_output(score: str) -> None:
    given, factors = problem(), 2.0 ** np.arange(-4, 4)
    folded = Problem(given.inputs, given.wanted * factors, given.dense * factors[:, None], True)
    part, word = part_of(given, "unstructured"), scores.parse(score)
    masks = [
        solvers.parse("zero").solve(one.layer(1 / scale**2), [part], [90], word, False).mask
        for one, scale in ((given, np.ones(8)), (folded, factors))
    ]
    np.testing.assert_array_equal(*masks)


def test_parts_of_a_layer_have_levels_of_their_own_or_share_one() -> None:
    given = problem(8, 24)
    given.inputs[:, 12:] *= 0.01  # hidden states that hardly matter
    given = Problem(given.inputs, given.inputs @ given.dense.T, given.dense, True)
    pattern = patterns.parse("unstructured")
    parts = [Part("w", slice(0, 12), (1, 8, 12, 1), pattern), Part("r", slice(12, 24), (1, 8, 12, 1), pattern)]
    alone = LeastSquares().solve(given.layer(), parts, [48, 48], Obs(), False)
    joint = LeastSquares().solve(given.layer(), parts, [48, 48], Obs(), True)
    assert [(~alone.mask[:, part.columns]).sum() for part in parts] == [48, 48]
    assert (~joint.mask).sum() == 96
    assert (~joint.mask[:, 12:]).sum() > 75
    *_, by_share = rounds(given.layer(), keep_shares(parts, (0.75, 0.5), joint=True))
    assert (~by_share.mask).sum() == 96
    assert (~by_share.mask[:, 12:]).sum() > 75
    assert given.layer().cost(joint.rows) < given.layer().cost(alone.rows)


def test_a_part_without_a_pattern_stays_but_is_refitted() -> None:
    given = problem(8, 24)
    parts = [
        Part("w", slice(0, 12), (1, 8, 12, 1), patterns.parse("unstructured")),
        Part("r", slice(12, 24), (1, 8, 12, 1), None),
    ]
    fitted = solved(given, parts, [60, 0])
    assert fitted.mask[:, 12:].all()
    assert (~fitted.mask).sum() == 60
    assert not np.allclose(fitted.rows[:, 12:], given.dense[:, 12:])


def test_zeros_go_first_and_what_is_gone_stays_gone() -> None:
    given = problem(8, 24)
    dense = np.where(np.random.default_rng(1).random(given.dense.shape) < 0.3, 0.0, given.dense)
    given = Problem(given.inputs, given.inputs @ dense.T, dense, True)
    fitted = list(rounds(given.layer(), goals([part_of(given, "unstructured")], [100])))
    assert not fitted[-1].mask[dense == 0].any()
    assert (~fitted[-1].mask).sum() == 100
    assert all((later.mask <= earlier.mask).all() for earlier, later in zip(fitted, fitted[1:]))


def test_columns_that_go_together() -> None:
    shape = (1, 4, 5, 2)
    part = Part("w", slice(0, 10), shape, patterns.parse("block:2x2"))
    assert _same(groups_of([part]), [[0, 1], [2, 3], [4], [5, 6], [7, 8], [9]])
    assert _same(groups_of([replace(part, pattern=patterns.parse("tile:2x3"))]), [[0, 1, 2], [3, 4], [5, 6, 7], [8, 9]])
    assert _same(groups_of([replace(part, pattern=patterns.parse("channel"))]), [[n, n + 5] for n in range(5)])
    assert _same(groups_of([replace(part, pattern=patterns.parse("filter"))]), [list(range(10))])
    for text in ("unstructured", "2:4", "2:4:transposable"):
        assert groups_of([replace(part, pattern=patterns.parse(text))]) is None


def _same(groups: Array | None, sets: list[list[int]]) -> bool:
    assert groups is not None
    return sorted(np.flatnonzero(groups == group).tolist() for group in np.unique(groups)) == sorted(sets)


@for_each(("text", "taps"), [(text, taps) for text in PATTERNS for taps in (1, 3)])
def test_the_pass_over_columns_makes_up_for_what_goes(text: str, taps: int) -> None:
    """Its masks are legal; its errors lie between those of the mask alone and of least squares."""
    given = problem(8, 24)
    part, layer = part_of(given, text, taps), given.layer()
    assert part.pattern is not None
    drop = part.pattern.drop_count(part.shape4, 0.5 if part.pattern.takes_sparsity else None)
    fitted = solvers.parse("obs").solve(layer, [part], [drop], Obs(), False)
    assert not part.pattern.violations(~part.as_axes(fitted.mask), drop)
    assert not fitted.rows[~fitted.mask].any()
    best, _ = Exact(layer.blocks[0], layer.dense, layer.ridge).under(fitted.mask, layer.dense, False)
    plain = np.where(fitted.mask, layer.dense, 0.0)
    assert layer.cost(best) <= layer.cost(fitted.rows) * 1.001
    assert text == "filter" or layer.cost(fitted.rows) < layer.cost(plain)


def test_the_pass_refits_what_lies_behind_a_column() -> None:
    """With one column gone in all rows, the last before others, those to its right are least squares."""
    given = problem(3, 10)
    layer = given.layer()
    exact = Exact(layer.blocks[0], layer.dense, layer.ridge)
    one = blocked.Pass(exact)
    mask = np.ones((3, 10), bool)
    mask[:, 6] = False
    one.settle(mask, 0, 8)
    assert np.array_equal(one.rows[:, :6], exact.full[:, :6])
    left = exact.wanted - one.rows[:, :7] @ exact.damped[:7]
    np.testing.assert_allclose(one.rows[:, 7:], np.linalg.solve(exact.damped[7:, 7:], left[:, 7:].T).T, rtol=1e-8)


@pytest.mark.parametrize("name", ["zero", "bias", "least-squares", "obs"])
def test_every_solver_keeps_what_it_says(name: str) -> None:
    given = problem(8, 24)
    part, layer = part_of(given, "unstructured"), given.layer()
    fitted = solvers.parse(name).solve(layer, [part], [100], scores.parse("obs"), False)
    assert (~fitted.mask).sum() == 100
    assert not fitted.rows[~fitted.mask].any()
    moved = name in ("least-squares", "obs")
    assert np.array_equal(fitted.rows, np.where(fitted.mask, given.dense, 0)) != moved
    assert fitted.bias.any() == (name != "zero")


def exchanged(given: Problem, drop: int, exchanges: int) -> Fitted:
    part = [part_of(given, "unstructured")]
    return last(rounds(given.layer(), goals(part, [drop]), None, exchanges))


def test_exchanges_keep_the_count_and_only_lose_less() -> None:
    ratios = []
    for seed in range(6):
        given = problem(seed=seed)
        plain, found = exchanged(given, 150, 0), exchanged(given, 150, EXCHANGES)
        assert plain.mask.sum() == found.mask.sum() == given.dense.size - 150
        assert not found.rows[~found.mask].any()
        ratios.append(given.layer().cost(found.rows) / given.layer().cost(plain.rows))
    assert max(ratios) <= 1
    assert np.exp(np.log(ratios).mean()) < 0.95


@for_each("kind", (Exact, Shared))
def test_what_a_weight_gains_when_it_comes_back_is_what_its_own_best_value_does(kind: type[Refit]) -> None:
    given = problem(3, 8)
    layer = given.layer()
    refit, mask = kind(layer.blocks[0], given.dense, 1e-2), np.random.default_rng(0).random((3, 8)) < 0.5
    rows, _ = refit.under(mask, given.dense, False)

    def objective(weights: Array) -> float:
        steady = refit.ridge * np.square(weights - given.dense[1]).sum()
        return float(layer.blocks[0].errors(np.vstack([rows[:1], weights, rows[2:]]))[1] + steady)

    for column in np.flatnonzero(~mask[1]):
        unit = np.eye(8)[column]
        places = [objective(rows[1] + step * unit) for step in (-1.0, 0.0, 1.0)]
        slope, bend = (places[2] - places[0]) / 2, places[2] + places[0] - 2 * places[1]
        assert refit.gains(rows, mask)[1, column] == pytest.approx(slope**2 / (2 * bend), rel=1e-6)
    assert not refit.gains(rows, mask)[mask].any()


def test_what_was_zero_does_not_come_back() -> None:
    plain = problem(4, 12)
    dense = np.where(np.arange(12) < 5, 0.0, plain.dense)
    given = replace(plain, dense=dense, wanted=plain.inputs @ dense.T)
    found = exchanged(given, 4 * 5 + 14, EXCHANGES)
    assert not found.mask[:, :5].any()


@for_each("text", ("2:4", "1:4"))
def test_exchanges_of_a_pattern_stay_within_it(text: str) -> None:
    lost = []
    for seed in range(4):
        given = problem(seed=seed)
        part = part_of(given, text)
        plain = last(rounds(given.layer(), goals([part], [0])))
        found = solved(given, [part], [0])
        assert legal(found.mask, *map(int, text.split(":")))
        lost.append([given.layer().cost(one.rows) for one in (plain, found)])
    before, after = np.log(lost).mean(axis=0)
    assert after < before
