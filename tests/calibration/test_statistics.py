"""Statistics are the same whatever the order and the split of the batches, and go on from a saved state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxsparse.calibration.statistics import BatchRanges, ChannelRange, Histogram, LayerMoments, Moments, Range

LARGEST = float(np.float32(1e30))
FLOATS = st.floats(-LARGEST, LARGEST, width=32) | st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 2.0**20, -(2.0**-20)])
NUMBERS = hnp.arrays(np.float32, st.tuples(st.integers(1, 12), st.just(3)), elements=FLOATS)
EXACT = {"range": Range, "channel range": ChannelRange, "histogram": Histogram}


def seen(make, batches):
    statistics = make()
    for batch in batches:
        statistics.add(batch)
    return statistics


def same(one, other):
    left, right = one.state(), other.state()
    return left.keys() == right.keys() and all(np.array_equal(left[key], right[key]) for key in left)


def parts(numbers, draw):
    """The rows in another order, cut anywhere."""
    order = draw(st.permutations(range(len(numbers))))
    cuts = sorted(draw(st.lists(st.integers(0, len(numbers)), max_size=4)))
    return np.split(numbers[list(order)], cuts)


@pytest.mark.parametrize("kind", sorted(EXACT))
@given(numbers=NUMBERS, data=st.data())
@settings(max_examples=60, deadline=None)
def test_order_and_split_change_nothing(kind, numbers, data):
    make = EXACT[kind]
    batches = [batch for batch in parts(numbers, data.draw) if batch.size]
    at = data.draw(st.integers(0, len(batches)))
    whole, pieces = seen(make, [numbers]), seen(make, batches[:at])
    pieces.merge(seen(make, batches[at:]))
    assert same(whole, pieces)


@given(numbers=NUMBERS, data=st.data())
@settings(max_examples=40, deadline=None)
def test_moments_are_sums(numbers, data):
    numbers = numbers / np.float32(1e25)
    batches = [batch for batch in parts(numbers, data.draw) if batch.size]
    whole, pieces = seen(Moments, [numbers]), Moments()
    for batch in batches:
        pieces.merge(seen(Moments, [batch]))
    assert whole.count == pieces.count == len(numbers)
    scale = np.abs(numbers).max() + 1e-30
    assert np.allclose(pieces.mean, numbers.astype(np.float64).mean(0), atol=1e-9 * scale)
    assert np.allclose(pieces.variance, whole.variance, atol=1e-9 * scale**2)


@pytest.mark.parametrize("make", [Range, ChannelRange, Histogram, Moments, BatchRanges])
@given(numbers=NUMBERS, cut=st.integers(1, 12))
@settings(max_examples=15, deadline=None)
def test_a_state_is_gone_on_from(make, numbers, cut):
    first, second = seen(make, [numbers[:cut]]), make()
    second.restore({key: np.array(value) for key, value in first.state().items()})
    for batch in (numbers[cut:], numbers):
        if batch.size:
            first.add(batch)
            second.add(batch)
    assert same(first, second)


@given(numbers=NUMBERS)
@settings(max_examples=60, deadline=None)
def test_a_histogram_counts_what_lies_in_its_bins(numbers):
    histogram = seen(Histogram, [numbers])
    edges = np.arange(-Histogram.SIDE, Histogram.SIDE + 1).astype(np.float64) * histogram.width
    expected = np.histogram(numbers.astype(np.float64), edges)[0]
    assert np.array_equal(histogram.counts, expected)
    assert histogram.counts.sum() == numbers.size
    largest = np.abs(numbers).max()
    if largest > 1e-30:
        assert largest >= histogram.width * Histogram.SIDE / 2 or histogram.exponent == Histogram.FINEST


def test_batch_ranges_keep_their_order():
    batches = [np.array([float(one)]) for one in (3, 1, 2)]
    left = seen(BatchRanges, batches[:1])
    left.merge(seen(BatchRanges, batches[1:]))
    assert left.ranges == [(3, 3), (1, 1), (2, 2)]


@pytest.mark.parametrize("make", [Range, Histogram, ChannelRange, BatchRanges])
def test_what_is_not_finite_is_left_out(make):
    dirty = np.array([[1.0], [-np.inf], [np.nan], [2.0]], np.float32)
    assert same(seen(make, [dirty]), seen(make, [dirty[[0, 3]]]))


def test_moments_of_a_layer() -> None:
    """Sums of products of all rows, but for those with numbers that are not finite, whatever the split."""
    generator = np.random.default_rng(0)
    rows, targets = (generator.normal(1, 2, (9000, size)).astype(np.float32) for size in (5, 3))
    rows[4, 2], rows[17, 0], targets[8999, 1], targets[17, 1] = np.nan, np.inf, -np.inf, np.nan
    whole, pieces, saved = (LayerMoments(5, 3) for _ in range(3))
    whole.add(rows, targets)
    for x, y in zip(np.split(rows[::-1], [10, 5000]), np.split(targets[::-1], [10, 5000])):
        part = LayerMoments(5, 3)
        part.add(x, y)
        pieces.merge(part)
    saved.restore(pieces.state())
    kept = np.setdiff1d(np.arange(9000), [4, 17, 8999])
    x, y = (one[kept].astype(np.float64) for one in (rows, targets))
    wanted = {"gram": x.T @ x, "cross": x.T @ y, "sum_x": x.sum(0), "sum_y": y.sum(0), "square_y": (y * y).sum(0)}
    for found in (whole, pieces, saved):
        assert (found.count, found.left_out) == (8997, 3)
        for name, value in wanted.items():
            np.testing.assert_allclose(getattr(found, name), value, rtol=1e-5)
    saved.merge(whole)
    assert saved.count == 2 * 8997
    assert same(saved, saved)
    assert not same(saved, pieces)
