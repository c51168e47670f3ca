"""N:M along both axes against slow references: every mask of a block, a linear program, and a loop over elements."""

from __future__ import annotations

import itertools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsparse import patterns, scores
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Reading, Values
from onnxsparse.patterns import transposable
from onnxsparse.patterns.transposable import mn_1d, mn_2d_best, mn_2d_greedy
from tests.messages import refusing
from tests.property.test_math_patterns import weights

MAGNITUDE = scores.parse("magnitude")
SEEDS = st.integers(0, 2**32 - 1)


def block_of(seed, m, data):
    """Numbers of a block: any, many equal ones, or of very different sizes."""
    generator = np.random.default_rng(seed)
    if data == "ties":
        return generator.integers(-2, 3, (m, m)).astype(np.float64)
    found = generator.standard_normal((m, m))
    return found * 2.0 ** generator.integers(-30, 30, (m, m)) if data == "wide" else found


def largest_sum(scores_, n):
    """By trying every mask that keeps n in each row and column."""
    m = len(scores_)
    rows = [np.isin(np.arange(m), kept) for kept in itertools.combinations(range(m), n)]
    masks = (np.array(mask) for mask in itertools.product(rows, repeat=m))
    return max(scores_[mask].sum() for mask in masks if (mask.sum(axis=0) == n).all())


def taken_in_order(scores_, n):
    """The largest first, the last of equals first, while row and column have room."""
    m, keep = len(scores_), np.zeros(scores_.shape, bool)
    for place in sorted(range(m * m), key=lambda place: (scores_.flat[place], place), reverse=True):
        row, column = divmod(place, m)
        keep[row, column] = keep[row].sum() < n and keep[:, column].sum() < n
    return keep


@given(
    SEEDS,
    st.sampled_from([(1, 2), (1, 3), (2, 3), (1, 4), (2, 4), (3, 4), (1, 5)]),
    st.sampled_from(["any", "ties", "wide"]),
)
@settings(max_examples=150, deadline=None)
def test_the_best_mask_of_a_block_is_the_best_of_all(seed, sizes, data):
    (n, m), block = sizes, block_of(seed, sizes[1], data)
    keep = mn_2d_best(block, m, n)
    assert (keep.sum(axis=0) == n).all()
    assert (keep.sum(axis=1) == n).all()
    assert np.isclose(np.abs(block)[keep].sum(), largest_sum(np.abs(block), n), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("n", "m"), [(2, 5), (3, 6), (4, 8), (1, 8), (7, 8), (8, 16)])
@pytest.mark.parametrize("data", ["any", "ties"])
def test_the_best_mask_of_a_large_block_is_the_solution_of_its_linear_program(n, m, data):
    optimize = pytest.importorskip("scipy.optimize")
    lines = np.array(
        [np.repeat(np.eye(m)[row], m) for row in range(m)] + [np.tile(np.eye(m)[row], m) for row in range(m)]
    )
    matrix = np.block([[block_of(10 * row + column, m, data) for column in range(3)] for row in range(2)])
    keep = mn_2d_best(matrix, m, n)
    for row, column in itertools.product(range(0, 2 * m, m), range(0, 3 * m, m)):
        block, kept = (one[row : row + m, column : column + m] for one in (np.abs(matrix), keep))
        assert (kept.sum(axis=0) == n).all()
        assert (kept.sum(axis=1) == n).all()
        found = optimize.linprog(-block.ravel(), A_eq=lines, b_eq=np.full(2 * m, n), bounds=(0, 1))
        assert np.isclose(block[kept].sum(), -found.fun, rtol=1e-9)


@given(SEEDS, st.sampled_from([(1, 2), (2, 4), (3, 4), (3, 7), (4, 8)]), st.sampled_from(["any", "ties", "wide"]))
@settings(max_examples=100, deadline=None)
def test_greedy_takes_what_a_loop_takes(seed, sizes, data):
    (n, m), block = sizes, block_of(seed, sizes[1], data)
    assert np.array_equal(mn_2d_greedy(block, m, n), taken_in_order(np.abs(block), n))


def test_greedy_may_leave_a_row_and_a_column_without_their_last_element():
    """Then it may even keep more than the best of the masks that keep two everywhere."""
    block = np.array([[9, 8, 0, 0], [0, 9, 8, 0], [8, 0, 9, 0], [0, 0, 0, 5]])
    assert mn_2d_greedy(block, 4, 2).astype(int).tolist() == (block > 0).astype(int).tolist()
    assert block[mn_2d_best(block, 4, 2)].sum() == block.sum() - 8


@pytest.mark.parametrize("calculator", [mn_1d, mn_2d_best, mn_2d_greedy])
def test_the_earlier_of_equals_go_and_zeros_before_anything(calculator):
    keep = calculator(np.ones((4, 4)), 4, 2)
    assert keep[3 if calculator is mn_2d_greedy else 0].tolist() == [False, False, True, True]
    few = np.zeros((4, 4))
    few[0, 0] = few[1, 0] = 1e-300
    few[2, 3] = 1e300
    assert calculator(few, 4, 2)[[0, 1, 2], [0, 0, 3]].all()


@pytest.mark.parametrize("calculator", [mn_1d, mn_2d_best, mn_2d_greedy])
@pytest.mark.parametrize("m", [4, 8])
def test_numbers_that_are_none_end_in_a_legal_mask(calculator, m):
    matrix = np.full((m, m), np.nan)
    matrix[0, 0], matrix[1, 1] = np.inf, 5e-324
    keep = calculator(matrix, m, 2)
    assert keep.sum(axis=1).max() <= 2


@pytest.mark.parametrize("calculator", [mn_1d, mn_2d_best, mn_2d_greedy])
def test_what_fills_no_block_is_kept(calculator):
    matrix = np.random.default_rng(0).standard_normal((10, 7)).astype(np.float16)
    keep = calculator(matrix, 4, 2)
    assert keep.shape == matrix.shape
    assert keep[:, 4:].all()
    assert (keep[8:].all() and keep[:8, :4].sum() <= 16) or calculator is mn_1d
    assert (calculator(matrix.T.copy().T, 4, 2) == keep).all()
    assert calculator(np.zeros((0, 8), np.float32), 4, 2).shape == (0, 8)


def test_calculators_take_matrices():
    with refusing(OptionError):
        mn_2d_best(np.ones((4, 4, 3, 3)), 4, 2)
    with refusing(OptionError):
        mn_2d_greedy(np.ones((4, 4)), 2, 4)


def test_a_block_by_hand():
    block = np.array([[3, 2, 1, 0], [3, 2, 1, 0], [3, 2, 1, 0], [0, 0, 0, 1.0]])
    assert block[mn_2d_best(block, 4, 2)].sum() == 3 + 3 + 2 + 2 + 1 + 1
    assert mn_1d(block, 4, 2)[:3].astype(int).tolist() == [[1, 1, 0, 0]] * 3


TEXTS = st.sampled_from(["2:4:transposable", "2:4:transposable-greedy", "1:2:transposable", "2:5:transposable"])


@given(weights(), TEXTS, st.sampled_from([1, 40, 1 << 17]))
@settings(max_examples=200, deadline=None)
def test_any_layout_and_type_is_chosen_as_the_plain_matrix_is(values, text, at_once):
    """And in pieces; what was chosen holds, and stays when it is chosen again."""
    pattern, (_, out, inputs, _) = patterns.parse(text), values.shape
    m, real = pattern.m, np.abs(values.real().astype(np.float64))
    calculator = mn_2d_greedy if text.endswith("greedy") else mn_2d_best
    with mock.patch.object(transposable, "BLOCK", at_once):
        keep = pattern.select(values, MAGNITUDE, 0)
    for group, tap in np.ndindex(values.shape[0], values.shape[3]):
        assert np.array_equal(keep[group, :, :, tap], calculator(real[group, :, :, tap], m, pattern.n))
    stored = np.empty_like(values.stored)
    pattern.prune(values, MAGNITUDE, 0, stored)
    once = Values(stored, values.reading)
    assert np.array_equal(once.stored, np.where(keep, values.stored, values.zero))
    assert not pattern.check(once, 0)
    again = np.empty_like(stored)
    pattern.prune(once, MAGNITUDE, 0, again)
    assert again.tobytes() == stored.tobytes()
    assert keep[:, out // m * m :].all()
    assert keep[:, :, inputs // m * m :].all()
    gone = np.count_nonzero(~keep)
    assert gone >= pattern.drop_count(values.shape, None)
    assert gone == pattern.drop_count(values.shape, None) or text.endswith("greedy")


@given(weights(), TEXTS, st.sampled_from([1, 40, 1 << 17]))
@settings(max_examples=150, deadline=None)
def test_crowded_rows_and_columns_are_counted(values, text, at_once):
    pattern, used = patterns.parse(text), values.real() != 0
    n, m, (groups, outs, inputs, taps) = pattern.n, pattern.m, values.shape
    wrong = set()
    for g, o, i, t in itertools.product(
        range(groups), range(0, outs - m + 1, m), range(0, inputs - m + 1, m), range(taps)
    ):
        block = used[g, o : o + m, i : i + m, t]
        wrong |= {(g, o + row, i, t, "row") for row in range(m) if block[row].sum() > n}
        wrong |= {(g, o, i + column, t, "column") for column in range(m) if block[:, column].sum() > n}
    with mock.patch.object(transposable, "BLOCK", at_once):
        found = [pattern.check(values, 0), pattern.violations(values.is_zero(), 0)]
    for one in found:
        assert (one.count, one.checked, len(one.places)) == (
            len(wrong),
            pattern.units(values.shape),
            min(5, len(wrong)),
        )
        assert set(one.places) <= {place[:4] for place in wrong}


def test_a_whole_score_chooses_too():
    """One that needs the whole weight."""
    values = Values(np.random.default_rng(0).standard_normal((1, 8, 8, 1)).astype(np.float32), Reading("float32"))
    score = scores.parse("random").bind("w")
    with mock.patch.object(transposable, "BLOCK", 16):
        keep = patterns.parse("2:4:transposable").select(values, score, 0)
    importance = score.value(values)[0, :, :, 0]
    assert np.array_equal(keep[0, :, :, 0], mn_2d_best(importance, 4, 2))
    assert not np.array_equal(keep[0, :, :, 0], mn_2d_best(values.stored[0, :, :, 0], 4, 2))


@pytest.mark.parametrize("text", ["2:4:transposible", "2:4:", "2:4:best", "4:4:transposable", "transposable", "2:4:2"])
def test_what_means_nothing_is_refused(text):
    with refusing(OptionError):
        patterns.parse(text)
