"""Layers with more inputs than positions: the same numbers as by the Gram matrix, which is never made."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.calibration.moments import FEW, WIDE, BlockMoments
from onnxsparse.calibration.statistics import LayerMoments
from onnxsparse.solvers import least_squares
from onnxsparse.solvers.least_squares import Exact, Few, Shared, solver_of
from onnxsparse.solvers.quadratic import Factored, Quadratic

POSITIONS, INPUTS, OUTPUTS = 12, 40, 6


def _both(biased: bool) -> tuple[Factored, Quadratic, np.ndarray]:
    draw = np.random.default_rng(5)
    x, dense = draw.standard_normal((POSITIONS, INPUTS)) + 0.3, draw.standard_normal((OUTPUTS, INPUTS))
    y = x @ dense.T + 0.1 * draw.standard_normal((POSITIONS, OUTPUTS))
    sums = LayerMoments(INPUTS, OUTPUTS)
    sums.add(x, y)
    outputs = np.arange(OUTPUTS)
    return Factored(outputs, x, y, biased), Quadratic.of(outputs, sums, biased), dense


@pytest.mark.parametrize("biased", [False, True])
def test_the_error_is_the_same(biased: bool) -> None:
    few, whole, dense = _both(biased)
    rows, bias = dense * 0.7, np.arange(OUTPUTS) / 10.0
    for one in ("gram", "cross", "energy", "squares", "mean_x", "mean_y"):
        np.testing.assert_allclose(getattr(few, one), getattr(whole, one), atol=1e-12, err_msg=one)
    np.testing.assert_allclose(few.errors(rows), whole.errors(rows), rtol=1e-9)
    np.testing.assert_allclose(few.errors(rows, bias), whole.errors(rows, bias), rtol=1e-9)
    np.testing.assert_allclose(few.ridge(0.01), whole.ridge(0.01))
    assert few.finite
    assert few.nbytes < whole.nbytes


@pytest.mark.parametrize("groups", [None, np.arange(INPUTS) // 4])
def test_refits_are_the_same(groups: np.ndarray | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(least_squares, "FACTORS", 0.0)
    for name, value in (("STEPS", 60), ("ON_THE_WAY", 60), ("CLOSE", 1e-6)):
        monkeypatch.setattr(least_squares, name, value)
    few, whole, dense = _both(True)
    mine, exact = Few(few, dense, 0.1, groups), Exact(whole, dense, 0.1, groups)
    for own, other in zip(mine.start(), exact.start()):
        np.testing.assert_allclose(own, other, rtol=1e-6, atol=1e-8)
    mask = np.random.default_rng(1).random(dense.shape) < 0.5
    shared = Shared(whole, dense, 0.1, groups)
    for own, other in zip(mine.under(mask, mine.full, True), shared.under(mask, mine.full, True)):
        np.testing.assert_allclose(own, other, rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose(mine.under(mask, mine.full, False)[0], exact.under(mask, dense, False)[0], atol=2e-3)


def test_large_layers_of_few_positions_are_refitted_so() -> None:
    few, whole, dense = _both(False)
    large = np.broadcast_to(np.zeros(()), (1 << 12, 1 << 10))
    found = [solver_of(block, rows, 0.1).name for rows in (dense, large) for block in (few, whole)]
    assert found == [Exact.name, Exact.name, Few.name, Shared.name]


def test_rows_at_a_time_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    few, _, dense = _both(False)
    mask = np.random.default_rng(1).random(dense.shape) < 0.5
    whole = Few(few, dense, 0.1).under(mask, dense, False)[0]
    monkeypatch.setattr("onnxsparse.solvers.least_squares.AT_ONCE", 2 * INPUTS)
    np.testing.assert_allclose(Few(few, dense, 0.1).under(mask, dense, False)[0], whole, atol=5e-3)


def test_rows_become_sums_when_they_are_many() -> None:
    draw, block, sums = np.random.default_rng(2), BlockMoments(WIDE, 2), LayerMoments(WIDE, 2)
    for at in range(4):
        x = draw.standard_normal((int(WIDE * FEW / 3), WIDE)).astype(np.float32)
        x[0, 0] = np.nan if at == 1 else x[0, 0]
        y = x[:, :2]
        block.add(x, y)
        sums.add(x, y)
        found = block.quadratic(np.arange(2), False)
        assert isinstance(found, Factored) == (at < 3)
        assert found.count == sums.count
        np.testing.assert_allclose(found.gram, Quadratic.of(np.arange(2), sums, False).gram, atol=1e-5)
