"""The scores."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse import scores
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Reading, Values
from onnxsparse.scores import Random


def values_of(numbers, shape):
    return Values(np.asarray(numbers, np.float32).reshape(shape), Reading("float32"))


def test_magnitude_is_the_absolute_value():
    values = values_of([1, -2, 0, 0.5], (1, 2, 2, 1))
    score = scores.parse("magnitude")
    assert score.value(values).ravel().tolist() == [1, 2, 0, 0.5]
    assert np.array_equal(np.argsort(score.rank(values).ravel()), [2, 3, 0, 1])


def test_random_depends_on_seed_and_tensor_alone():
    values = values_of(np.arange(1, 25), (1, 4, 6, 1))
    first = Random(1).bind("a").rank(values)
    assert np.array_equal(first, Random(1).bind("a").rank(values))
    assert not np.array_equal(first, Random(2).bind("a").rank(values))
    assert not np.array_equal(first, Random(1).bind("b").rank(values))


def test_random_follows_the_stored_order():
    tensor = np.arange(1, 25, dtype=np.float32).reshape(6, 4)
    plain = Values(tensor.reshape(1, 6, 4, 1), Reading("float32"))
    turned = Values(tensor.T.reshape(1, 4, 6, 1), Reading("float32"))
    score = Random(3).bind("w")
    assert np.array_equal(score.rank(plain)[0, :, :, 0], score.rank(turned)[0, :, :, 0].T)


def test_random_lets_existing_zeros_go_first_and_orders_as_it_values():
    values = values_of([0, 1, -0.0, 2, 3, 4], (1, 2, 3, 1))
    score = Random(5).bind("w")
    assert (score.rank(values).ravel() == 0).tolist() == [True, False, True, False, False, False]
    assert np.array_equal(np.argsort(score.rank(values).ravel()), np.argsort(score.value(values).ravel()))
    assert score.value(values).max() <= 1


def test_random_numbers_are_the_same_everywhere():
    values = values_of(np.ones(4), (1, 1, 4, 1))
    assert Random(0).bind("weight").rank(values).ravel().tolist() == [2175146263, 3945808759, 3722179539, 4045187205]


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_a_seed_is_a_small_whole_number(seed):
    with pytest.raises(OptionError, match="seed"):
        Random(seed)
