"""The uniform allocation."""

from __future__ import annotations

from types import SimpleNamespace

from onnxsparse import allocations, patterns


def test_every_weight_loses_the_same_share():
    weights = [SimpleNamespace(name="a", shape4=(1, 4, 4, 1)), SimpleNamespace(name="b", shape4=(1, 1, 7, 1))]
    counts = allocations.parse("uniform").allocate(weights, 0.5, patterns.parse("unstructured"))
    assert counts == {"a": 8, "b": 4}
    assert allocations.parse("uniform").allocate(weights, None, patterns.parse("2:4")) == {"a": 8, "b": 2}
