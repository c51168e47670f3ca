"""Blocks of the inverse Fisher matrix are those of the matrix made as a whole and inverted."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsparse.math.fisher import Rows, Sums

SHAPES = st.tuples(st.integers(1, 13), st.integers(1, 15), st.integers(0, 9), st.integers(0, 99))


def gradients(count: int, size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, size)).astype(np.float32)


def dense(rows: np.ndarray, block: int, damp: float, count: int, keep: np.ndarray) -> np.ndarray:
    """The inverse as a whole: what lies between two blocks is no part of the matrix."""
    rows = rows.astype(np.float64) * keep
    size = rows.shape[1]
    places = np.arange(size) // block
    same = places[:, None] == places[None, :]
    return np.linalg.inv(damp * np.eye(size) + same * (rows.T @ rows) / count)


def agrees(found, whole: np.ndarray, vector: np.ndarray) -> None:
    np.testing.assert_allclose(found.diagonal(), np.diagonal(whole), rtol=1e-5)
    sums = np.abs(whole) @ np.abs(vector)  # of what may cancel
    np.testing.assert_allclose(found.times(vector), whole @ vector, rtol=1e-5, atol=1e-5 * sums.max())


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.integers(1, 7))
def test_sums_of_outer_products(shape: tuple[int, int, int, int], at_once: int) -> None:
    size, block, count, seed = shape
    rows = gradients(count, size, seed)
    keep = np.random.default_rng(seed).random(size) < 0.7
    sums = Sums(size, block, 0.05, max(1, count))
    for start in range(0, count, at_once):
        sums.add(rows[start : start + at_once])
    agrees(sums.inverse(keep), dense(rows, block, 0.05, max(1, count), keep), np.arange(1.0, size + 1))


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.integers(0, 3), st.booleans())
def test_the_last_gradients(shape: tuple[int, int, int, int], more: int, whole: bool) -> None:
    size, block, count, seed = shape
    rows, wanted = gradients(count, size, seed), max(1, count - more)
    kept = Rows(size, wanted)
    for row in rows:
        kept.add(row)
    expected = dense(rows[-wanted:], size if whole else block, 0.05, wanted, np.ones(size))
    agrees(kept.inverse(None if whole else block, 0.05), expected, np.arange(1.0, size + 1))


def test_squares_along_the_diagonal_and_gradients_that_fade() -> None:
    rows = gradients(6, 8, 0)
    sums = Sums(8, 8, 0.1, 6)
    sums.add(rows)
    whole = dense(rows, 8, 0.1, 6, np.ones(8))
    np.testing.assert_allclose(sums.inverse(np.ones(8)).cells(4), [whole[:4, :4], whole[4:, 4:]], rtol=1e-5)
    before = sums.total.copy()
    sums.add(rows[0])
    np.testing.assert_allclose(sums.total[0], before[0] * (5 / 6) + np.outer(rows[0], rows[0]), rtol=1e-5)
