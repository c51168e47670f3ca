"""The global allocation."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse import allocations, patterns
from onnxsparse.errors import OptionError
from tests.messages import refusing

UNSTRUCTURED = patterns.parse("unstructured")
GLOBAL = allocations.parse("global")


class Weight:
    """A weight that streams its scores in small pieces."""

    def __init__(self, name, scores, dtype=np.float32):
        self.name, self.scores = name, np.asarray(scores, dtype)
        self.shape4 = (1, 1, self.scores.size, 1)

    def sample_scores(self):
        return None

    def unit_scores(self):
        return (self.scores[start : start + 2] for start in range(0, self.scores.size, 2))


def counts(weights, sparsity):
    return list(GLOBAL.allocate(weights, sparsity, UNSTRUCTURED).values())


def test_the_smallest_of_all_go():
    assert counts([Weight("a", [1, 2, 3, 4]), Weight("b", [10, 20, 30, 2.5])], 0.5) == [3, 1]


def test_every_weight_keeps_its_largest():
    assert counts([Weight("a", [1, 2, 3, 4]), Weight("b", [10, 20, 30, 40])], 0.5) == [3, 1]
    assert counts([Weight("a", [1, 2, 3, 4]), Weight("b", [10, 20])], 1.0) == [3, 1]


def test_of_equals_the_earlier_weight_loses_first():
    assert counts([Weight("a", [1, 1, 1, 9]), Weight("b", [1, 1, 1, 9])], 0.5) == [3, 1]
    assert counts([Weight("a", [0, 0]), Weight("b", [0, 0])], 0.5) == [1, 1]


def test_float32_and_float64_are_compared_as_numbers():
    assert counts([Weight("a", [1, 3, 5]), Weight("b", [2, 4, 6], np.float64)], 0.5) == [2, 1]
    assert counts([Weight("a", [1, 3, 5], np.float64), Weight("b", [2, 4, 6])], 0.5) == [2, 1]


def test_empty_weights_and_no_weights():
    assert counts([Weight("a", []), Weight("b", [1, 2])], 0.5) == [0, 1]
    assert counts([Weight("a", [])], 0.5) == [0]
    assert counts([], 0.5) == []


@pytest.mark.parametrize("name", ["global", "erk"])
def test_patterns_with_no_free_units_are_refused(name):
    for text in ("2:4", "filter", "channel"):
        with pytest.raises(OptionError, match=f"{name} works with unstructured and block"):
            allocations.parse(name).allocate([], 0.5, patterns.parse(text))
    assert allocations.parse(name).supports(patterns.parse("block:4x1"))
    assert allocations.parse("uniform").supports(patterns.parse("2:4"))


def test_a_sparsity_is_needed():
    with refusing(OptionError):
        counts([Weight("a", [1])], None)
