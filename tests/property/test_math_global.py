"""The global allocation is one stable sort of everything, but for the largest unit of every weight."""

from __future__ import annotations

from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsparse import allocations, patterns, scores
from onnxsparse.math import rank
from onnxsparse.math.values import Reading, Values

MAGNITUDE = scores.parse("magnitude")


class Weight:
    """A weight with its values, as a pass would hand it over."""

    def __init__(self, name, values, pattern):
        self.name, self.values, self.pattern = name, values, pattern
        self.shape4 = values.shape

    def sample_scores(self):
        return None

    def unit_scores(self):
        return self.pattern.unit_chunks(self.values, MAGNITUDE)


@st.composite
def models(draw):
    pattern = patterns.parse(draw(st.sampled_from(["unstructured", "block:2x1", "block:1x3"])))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    weights = []
    for place in range(draw(st.integers(1, 5))):
        shape = (1, draw(st.integers(1, 8)), draw(st.integers(1, 8)), draw(st.sampled_from([1, 4])))
        kind = draw(st.sampled_from(["float32", "float16", "float64", "int8"]))
        scale = draw(st.sampled_from([0, 1, 2]))
        numbers = (
            generator.integers(-3, 4, shape) * scale if draw(st.booleans()) else generator.integers(-90, 91, shape)
        )
        weights.append(Weight(f"w{place}", Values(numbers.astype(kind), Reading(kind)), pattern))
    return pattern, weights


def oracle(weights, pattern, sparsity):
    candidates = []
    for place, weight in enumerate(weights):
        keys = [float(key) for key in pattern.unit_scores(weight.values, MAGNITUDE)]
        if keys:
            keys.pop(keys.index(max(keys)))
        candidates += [(key, place) for key in keys]
    total = sum(pattern.units(weight.shape4) for weight in weights)
    dropped = [place for _, place in sorted(candidates)[: int(sparsity * total + 0.5)]]
    return {weight.name: dropped.count(place) for place, weight in enumerate(weights)}


@given(models(), st.floats(0, 1), st.sampled_from([4, 1 << 16]))
@settings(max_examples=300, deadline=None)
def test_global(model, sparsity, sample):
    pattern, weights = model
    allocation = allocations.parse("global")
    with mock.patch.object(rank, "SAMPLE", sample):
        counts = allocation.allocate(weights, sparsity, pattern)
    assert counts == oracle(weights, pattern, sparsity)
    assert all(counts[w.name] < max(1, pattern.units(w.shape4)) for w in weights)
    again = [Weight(w.name, _pruned(w, counts[w.name]), pattern) for w in weights]
    assert allocation.allocate(again, sparsity, pattern) == counts
    for before, after in zip(again, weights):
        assert np.array_equal(_pruned(before, counts[before.name]).stored, _pruned(after, counts[after.name]).stored)


def _pruned(weight, drop):
    out = np.empty_like(weight.values.stored)
    weight.pattern.prune(weight.values, MAGNITUDE, drop, out)
    return Values(out, weight.values.reading)
