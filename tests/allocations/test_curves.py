"""Levels by curves against brute force: the budget is met, nothing cheaper is on the grid, and more buys more."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsparse.allocations.curves import Curve, allocate, predicted

SHARES = tuple(float(share) for share in np.geomspace(0.6, 0.01, 9))
CURVES = st.lists(
    st.tuples(st.integers(1, 9), st.floats(5.0, 20.0), st.floats(-3.0, 3.0), st.sampled_from([1.0, 0.25, 4.0])),
    min_size=2,
    max_size=3,
)


def curves_of(drawn: list[tuple[int, float, float, float]]) -> list[Curve]:
    """Errors that fall exponentially in the share, steeply enough to be convex up to 1; of very different sizes."""
    return [
        Curve(str(number), 100 * size, SHARES, tuple(float(10**height * np.exp(-steep * one)) for one in SHARES), price)
        for number, (size, steep, height, price) in enumerate(drawn)
    ]


def spent(curves: list[Curve], shares: list[float]) -> float:
    return sum(share * curve.size * curve.price for share, curve in zip(shares, curves))


@settings(max_examples=40, deadline=None)
@given(CURVES, st.floats(0.02, 0.95))
def test_the_budget_is_met_and_nothing_on_a_grid_is_cheaper(drawn, kept: float) -> None:
    curves = curves_of(drawn)
    shares, budget = allocate(curves, kept), kept * spent(curves, [1.0] * len(curves))
    assert all(0 <= share <= 1 for share in shares)
    np.testing.assert_allclose(spent(curves, shares), budget, rtol=1e-9)
    grid = [np.linspace(0, 1, 41)] * (len(curves) - 1)
    found = predicted(curves, shares)
    for others in product(*grid):
        rest = (budget - spent(curves[1:], list(others))) / (curves[0].size * curves[0].price)
        if 0 <= rest <= 1:
            assert found <= predicted(curves, [rest, *others]) * 1.01 + 1e-12


@settings(max_examples=30, deadline=None)
@given(CURVES, st.lists(st.floats(0.0, 1.0), min_size=2, max_size=5))
def test_a_larger_budget_keeps_more_of_each_and_costs_less(drawn, budgets: list[float]) -> None:
    curves = curves_of(drawn)
    found = [allocate(curves, budget) for budget in sorted(budgets)]
    for less, more in zip(found, found[1:]):
        assert all(one <= other + 1e-12 for one, other in zip(less, more))
        assert predicted(curves, more) <= predicted(curves, less) * (1 + 1e-9) + 1e-12


def test_what_costs_nothing_goes_first_and_bounds_hold() -> None:
    free = Curve("free", 100, SHARES, (0.0,) * 9)
    dear = Curve("dear", 100, SHARES, tuple(float(np.exp(-3 * one)) for one in SHARES))
    np.testing.assert_allclose(allocate([free, dear], 0.5), [0.0, 1.0], atol=1e-12)
    bounded = Curve("bounded", 100, SHARES, dear.errors, least=0.2, most=0.4)
    low, high = allocate([bounded, dear], 0.15), allocate([bounded, dear], 0.7)
    assert low[0] >= 0.2
    np.testing.assert_allclose(high, [0.4, 1.0])


def test_a_curve_that_rises_where_more_is_kept_is_read_as_flat() -> None:
    errors = [*np.exp(-5 * np.array(SHARES))]
    errors[2] *= 3  # of noise
    curve = Curve("noisy", 100, SHARES, tuple(map(float, errors)))
    seen = curve.at(np.linspace(0, 1, 101))
    assert (np.diff(seen) <= 1e-12).all()
    assert seen[-1] == 0
