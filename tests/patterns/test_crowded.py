"""Violations of N:M are counted and placed alike, whatever lies between the members of a group."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse import patterns
from onnxsparse.math.values import Reading, Values


def crowded(used, n, m):
    """Where groups with too many used elements start, in stored order (out is the fastest axis), slowly."""
    _, outs, inputs, _ = used.shape
    starts = range(0, inputs - inputs % m, m)
    return [(0, out, at, 0) for at in starts for out in range(outs) if used[0, out, at : at + m, 0].sum() > n]


@pytest.mark.parametrize("outs", [1, 3, 31, 32, 33, 70])
@pytest.mark.parametrize("pattern", ["2:4", "1:3", "4:8", "200:255"])
@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_members_far_apart(outs, pattern, kind):
    n, m = map(int, pattern.split(":"))
    generator = np.random.default_rng(outs)
    numbers = generator.standard_normal((2 * m + 1, outs)).astype("float16" if kind == "float16" else "float32")
    numbers[generator.random(numbers.shape) < 0.4] = 0
    numbers[generator.random(numbers.shape) < 0.1] = -0.0
    stored = (numbers.view(np.uint32) >> 16).astype(np.uint16) if kind == "bfloat16" else numbers
    view = stored.reshape(1, 2 * m + 1, outs, 1).transpose(0, 2, 1, 3)
    values = Values(view, Reading(kind))
    places = crowded(values.real() != 0, n, m)
    for found in (patterns.parse(pattern).check(values, 0), patterns.parse(pattern).violations(values.is_zero(), 0)):
        assert (found.count, list(found.places)) == (len(places), places[:5])


def test_signed_zeros_are_zeros_before_and_after_the_first_violation():
    numbers = np.zeros((1, 1, 1 << 19, 1), np.float16)
    numbers[0, 0, ::2] = 1
    numbers[0, 0, 1::2] = -0.0
    pattern = patterns.parse("2:4")
    assert pattern.check(Values(numbers, Reading("float16")), 0).count == 0
    numbers[0, 0, (1 << 18) + 1] = 5
    found = pattern.check(Values(numbers, Reading("float16")), 0)
    assert (found.count, found.places) == (1, ((0, 0, 1 << 18, 0),))
