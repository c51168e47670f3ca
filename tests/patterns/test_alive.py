"""The pattern that leaves no output empty, against a slow oracle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from onnxsparse import patterns, scores
from onnxsparse.math.values import Reading, Values, stored_order
from onnxsparse.patterns.unstructured import empty_outputs

ALIVE, MAGNITUDE = patterns.parse("alive"), scores.parse("magnitude")


def oracle(numbers, drop):
    """Drop the smallest that are not the last largest of their output, in the order of memory."""
    stored, view = np.abs(numbers), np.arange(numbers.size)
    places = np.empty_like(numbers, int)
    stored_order(places)[...] = view.reshape(stored_order(places).shape)
    safe = set()
    for group in range(numbers.shape[0]):
        for out in range(numbers.shape[1]):
            own = [(float(stored[group, out, i, t]), int(places[group, out, i, t]))
                   for i in range(numbers.shape[2]) for t in range(numbers.shape[3])]  # fmt: skip
            safe.add(max(own)[1])
    flat = stored_order(stored).reshape(-1)
    free = sorted((float(flat[at]), at) for at in range(flat.size) if at not in safe)
    return {at for _, at in free[:drop]}


arrays = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=4, max_dims=4, max_side=5), elements=st.integers(-3, 3).map(float)
)


@given(arrays, st.floats(0, 1), st.permutations([0, 1, 2, 3]))
def test_it_drops_what_the_oracle_drops(numbers, sparsity, axes):
    view = np.ascontiguousarray(numbers).transpose(axes)
    drop = ALIVE.drop_count(view.shape, sparsity)
    keep = ALIVE.select(Values(view, Reading("float32")), MAGNITUDE, drop)
    dropped = np.flatnonzero(~stored_order_like(keep, view))
    assert set(dropped.tolist()) == oracle(view, drop)
    assert not (~keep).all(axis=(2, 3)).any()


def stored_order_like(keep, view):
    order = sorted(range(4), key=lambda axis: (view.shape[axis] > 1, -view.strides[axis]))
    return keep.transpose(order).reshape(-1)


def test_where_no_output_would_be_empty_it_is_unstructured():
    numbers = np.random.Generator(np.random.Philox(key=1)).standard_normal((1, 8, 16, 9)).astype(np.float32)
    values = Values(numbers, Reading("float32"))
    keep = ALIVE.select(values, MAGNITUDE, 700)
    np.testing.assert_array_equal(keep, patterns.parse("unstructured").select(values, MAGNITUDE, 700))


@pytest.mark.parametrize(
    ("shape", "sparsity", "drop"), [((1, 4, 5, 1), 0.5, 10), ((2, 4, 1, 3), 0.99, 16), ((1, 0, 3, 1), 0.5, 0)]
)
def test_as_many_go_as_may(shape, sparsity, drop):
    assert ALIVE.drop_count(shape, sparsity) == drop


def test_it_checks_what_it_makes():
    zero = np.array([[1, 1, 0], [0, 1, 1]], bool).reshape(1, 2, 3, 1)
    assert ALIVE.violations(zero, 4).count == 0
    assert ALIVE.violations(zero, 5).count == 1
    assert empty_outputs(zero) == []
    zero[0, 1] = True
    assert empty_outputs(zero) == [(0, 1)]
