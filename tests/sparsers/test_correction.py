"""Kept numbers that make up for those that went."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onnxsparse.sparsers.mask_updates import corrected


@given(st.integers(1, 6), st.integers(2, 20), st.integers(0, 10**6), st.floats(0, 1))
def test_mean_and_deviation_stay_where_that_is_possible(rows, columns, seed, share):
    draw = np.random.Generator(np.random.Philox(key=seed))
    weight, keep = draw.standard_normal((rows, columns)), draw.random((rows, columns)) >= share
    made = corrected(weight, keep)
    assert (made[~keep] == 0).all()
    for before, after, kept in zip(weight, made, keep):
        same = np.array_equal(after[kept], before[kept])
        if not same:
            np.testing.assert_allclose(after.mean(), before.mean(), atol=1e-8)
            np.testing.assert_allclose(after.std(), before.std(), rtol=1e-6)
        elif 2 <= kept.sum() < columns:  # no two numbers can do it: their mean square is too small for that mean
            wanted = columns * before.std() ** 2 + columns * before.mean() ** 2
            assert wanted < (columns * before.mean()) ** 2 / kept.sum()


def test_all_kept_is_nothing_changed_and_one_kept_stays():
    weight = np.array([[1.0, 2.0, 4.0], [3.0, 0.5, 1.0]], np.float32)
    np.testing.assert_allclose(corrected(weight, np.ones(weight.shape, bool)), weight, rtol=1e-6)
    keep = np.array([[True, False, False], [False, False, False]])
    np.testing.assert_array_equal(corrected(weight, keep), [[1, 0, 0], [0, 0, 0]])


def test_numbers_that_are_alike_are_left_alone():
    weight = np.array([[2.0, 2.0, 1.0, 1.0]])
    keep = np.array([[True, True, False, False]])
    np.testing.assert_array_equal(corrected(weight, keep), [[2, 2, 0, 0]])
