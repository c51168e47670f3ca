"""Least squares under masks against lstsq, and the costs of removals against removing and refitting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsparse.math.values import Array
from onnxsparse.solvers.least_squares import Exact, Refit, Shared, inverse_factor, solver_of
from onnxsparse.solvers.quadratic import Quadratic
from tests.solvers.problems import Problem, masks_of, problems

SEEDS, SHARES = st.integers(0, 999), st.sampled_from([0.1, 0.4, 0.6, 0.9])


class Descended(Shared):
    """By conjugate gradients, however much is kept."""

    def _few_are_kept(self, mask: Array, steps: int) -> bool:
        return False


def refit(kind: type[Refit], problem: Problem, ridge: float = 1e-2, groups: Array | None = None) -> Refit:
    return kind(problem.quadratic, problem.dense, ridge, groups)


@settings(max_examples=60, deadline=None)
@given(problems(), SEEDS, SHARES, st.sampled_from([1e-2, 1.0]), st.booleans())
def test_kept_weights_are_those_of_lstsq(problem: Problem, seed: int, share: float, ridge: float, more: bool) -> None:
    mask = masks_of(problem, seed, share)
    rows, _ = refit(Exact, problem, ridge).under(mask, problem.dense, more)
    expected = np.array([problem.refitted(row, mask[row], ridge)[0] for row in range(len(mask))])
    np.testing.assert_allclose(rows, expected, rtol=1e-6, atol=1e-7 * np.abs(expected).max(initial=1.0))


@settings(max_examples=40, deadline=None)
@given(problems(), SEEDS, SHARES)
def test_the_cost_of_a_weight_is_the_error_when_it_is_removed_and_the_rest_refitted(
    problem: Problem, seed: int, share: float
) -> None:
    mask = masks_of(problem, seed, share)
    _, costs = refit(Exact, problem).under(mask, problem.dense, True)
    for row in range(len(mask)):
        _, before = problem.refitted(row, mask[row], 1e-2)
        for column in np.flatnonzero(mask[row]):
            without = mask[row] & (np.arange(mask.shape[1]) != column)
            increase = problem.refitted(row, without, 1e-2)[1] - before
            np.testing.assert_allclose(costs[row, column], increase, rtol=1e-6, atol=1e-8 * (1 + before))


@settings(max_examples=40, deadline=None)
@given(problems(), SEEDS, st.integers(1, 4), st.booleans())
def test_weights_that_go_together_have_the_cost_of_their_removal_together(
    problem: Problem, seed: int, wide: int, dense: bool
) -> None:
    size = problem.dense.shape[1]
    groups = np.random.default_rng(seed).permutation(np.arange(size) // wide)
    gone = groups == (groups[0] if not dense else -1)
    mask = np.broadcast_to(~gone, problem.dense.shape)
    found = refit(Exact, problem, groups=groups)
    _, costs = found.start() if dense else found.under(mask, problem.dense, True)
    for row in range(len(mask)):
        _, before = problem.refitted(row, mask[row], 1e-2)
        for group in np.unique(groups[mask[row]]):
            increase = problem.refitted(row, mask[row] & (groups != group), 1e-2)[1] - before
            np.testing.assert_allclose(costs[row, groups == group].sum(), increase, rtol=1e-6, atol=1e-8 * (1 + before))


@settings(max_examples=40, deadline=None)
@given(problems(most=40), SEEDS, SHARES)
def test_conjugate_gradients_end_where_factors_do(problem: Problem, seed: int, share: float) -> None:
    mask = masks_of(problem, seed, share)
    exact, _ = refit(Exact, problem).under(mask, problem.dense, False)
    shared = refit(Descended, problem).under(mask, problem.dense, False)[0]
    quadratic = problem.quadratic
    least, found = (quadratic.errors(rows).sum() for rows in (exact, shared))
    assert found <= least * 1.01 + 1e-6 * quadratic.energy.sum()
    assert not shared[~mask].any()


def test_inputs_of_unlike_scale_are_settled_alike() -> None:
    """Without a scale of their own conjugate gradients leave 15 per cent more error than factors."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((2000, 160)) @ rng.standard_normal((160, 160)) * np.geomspace(10, 0.1, 160)
    dense = rng.standard_normal((12, 160)) / np.geomspace(10, 0.1, 160)
    problem = Problem(inputs, inputs @ dense.T, dense, True)
    mask = masks_of(problem, 1, 0.5)
    least, found = (
        problem.quadratic.errors(refit(kind, problem, 1e-4).under(mask, dense, False)[0]).sum()
        for kind in (Exact, Descended)
    )
    assert found < 1.02 * least


def test_few_kept_weights_have_factors_in_large_layers_too() -> None:
    rng = np.random.default_rng(0)
    inputs, dense = rng.standard_normal((300, 80)) @ rng.standard_normal((80, 80)), rng.standard_normal((6, 80))
    problem = Problem(inputs, inputs @ dense.T, dense, False)
    few, many = masks_of(problem, 1, 0.1), masks_of(problem, 1, 0.9)
    for more in (True, False):
        for own, other in zip(*(refit(kind, problem).under(few, dense, more) for kind in (Exact, Shared))):
            np.testing.assert_array_equal(own, other)
    exact, shared = (refit(kind, problem).under(many, dense, True)[0] for kind in (Exact, Shared))
    assert not np.array_equal(exact, shared)


@settings(max_examples=40, deadline=None)
@given(problems(most=20), SEEDS, SHARES)
def test_errors_and_bias_are_plain_sums_over_positions(problem: Problem, seed: int, share: float) -> None:
    rows, quadratic = np.where(masks_of(problem, seed, share), problem.dense, 0.0), problem.quadratic
    missing = problem.wanted - problem.inputs @ rows.T
    bias = missing.mean(axis=0) if problem.biased else np.zeros(len(rows))
    large = 1e-9 * np.square(problem.wanted).mean(axis=0).max()
    np.testing.assert_allclose(quadratic.bias(rows), bias, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(quadratic.errors(rows), np.square(missing - bias).mean(axis=0), rtol=1e-6, atol=large)
    given_bias = bias + 0.25
    errors = np.square(missing - (given_bias if problem.biased else 0.0)).mean(axis=0)
    np.testing.assert_allclose(quadratic.errors(rows, given_bias), errors, rtol=1e-6, atol=large)


@pytest.mark.parametrize("size", [1, 47, 48, 49, 150])
def test_the_factor_of_an_inverse(size: int) -> None:
    root = np.random.default_rng(size).standard_normal((size, size))
    matrix = root @ root.T + np.eye(size)
    factor = inverse_factor(matrix)
    assert not np.triu(factor, 1).any()
    np.testing.assert_allclose(factor.T @ factor @ matrix, np.eye(size), atol=1e-8)


def test_dead_inputs_and_rows_without_weights() -> None:
    """The ridge keeps weights of inputs that are always zero where they are; a row may keep nothing."""
    rng = np.random.default_rng(0)
    inputs, dense = rng.standard_normal((30, 6)), rng.standard_normal((3, 6))
    inputs[:, 2] = 0
    problem = Problem(inputs, inputs @ dense.T, dense, False)
    mask = np.ones((3, 6), bool)
    mask[1] = False
    rows, costs = refit(Exact, problem).under(mask, dense, True)
    np.testing.assert_allclose(rows[[0, 2]], dense[[0, 2]], atol=1e-9)
    assert not rows[1].any()
    assert not costs[1].any()
    nothing = Problem(np.zeros((30, 6)), np.zeros((30, 3)), dense, False)
    np.testing.assert_allclose(refit(Exact, nothing).start()[0], dense)


def test_inputs_that_hardly_vary_are_refitted_in_spite_of_rounding() -> None:
    """Sums in float32 leave a covariance that is negative by more than its mean: weights stay about what they are."""
    rng = np.random.default_rng(0)
    dense, off = rng.standard_normal((8, 36)), rng.standard_normal(36)
    mean, cross = np.ones(36), np.zeros((36, 8))
    gram = -1e-6 * (mean @ mean) * np.outer(off, off) / (off @ off)
    quadratic = Quadratic(np.arange(8), gram, cross, np.zeros(8), mean, np.zeros(8), True, 800)
    found, _ = Exact(quadratic, dense, 1e-2).start()
    assert np.linalg.norm(found - dense) < 0.5 * np.linalg.norm(dense)


def test_the_shape_alone_decides_which_is_taken() -> None:
    rng = np.random.default_rng(0)
    inputs, dense = rng.standard_normal((8, 6)), rng.standard_normal((3, 6))
    problem = Problem(inputs, inputs @ dense.T, dense, False)
    assert isinstance(solver_of(problem.quadratic, dense, 1e-2), Exact)
    large = np.broadcast_to(dense[:1], (10**10, 6))
    assert 6**3 * len(large) > 2.5e11
