"""The Erdős–Rényi-kernel allocation."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxsparse import allocations, patterns

UNSTRUCTURED = patterns.parse("unstructured")


def weight(name, *shape4, **more):
    return SimpleNamespace(name=name, shape4=shape4, **more)


def counts(weights, sparsity, text="unstructured"):
    return allocations.parse("erk").allocate(weights, sparsity, patterns.parse(text))


def test_densities_by_hand():
    # 100 x 100: (100 + 100) / 10000; 100 x 25: (100 + 25) / 2500; keep 1250 = e * (200 + 125).
    found = counts([weight("a", 1, 100, 100, 1), weight("b", 1, 100, 25, 1)], 0.9)
    assert found == {"a": 10000 - 769, "b": 2500 - 481}


def test_the_kernel_counts_as_one_dimension_unless_told():
    weights = [weight("a", 1, 20, 20, 9), weight("b", 1, 60, 60, 1)]
    assert counts(weights, 0.5)["a"] == 3600 - round(3600 * (49 / (49 + 120)))
    told = [weight("a", 1, 20, 20, 9, kernel_shape=(3, 3)), weights[1]]
    assert counts(told, 0.5)["a"] == 3600 - round(3600 * (46 / (46 + 120)))


def test_what_would_be_more_than_dense_is_dense_and_the_rest_is_solved_again():
    found = counts([weight("small", 1, 4, 4, 1), weight("large", 1, 200, 200, 1)], 0.9)
    total = 16 + 40000
    assert found["small"] == 0
    assert found["large"] == int(0.9 * total + 0.5)


def test_groups_multiply_the_outputs():
    grouped = counts([weight("a", 4, 5, 10, 1), weight("b", 1, 50, 50, 1)], 0.5)
    plain = counts([weight("a", 1, 20, 10, 1), weight("b", 1, 50, 50, 1)], 0.5)
    assert grouped == plain


shapes = st.tuples(st.integers(1, 3), st.integers(0, 40), st.integers(1, 40), st.sampled_from([1, 3, 9]))


@given(st.lists(shapes, max_size=12), st.floats(0, 1), st.sampled_from(["unstructured", "block:2x2"]))
def test_counts_are_legal_and_add_up(found, sparsity, text):
    pattern = patterns.parse(text)
    weights = [weight(str(place), *shape) for place, shape in enumerate(found)]
    units = {w.name: pattern.units(w.shape4) for w in weights}
    drops = counts(weights, sparsity, text)
    assert all(0 <= drops[name] <= units[name] for name in units)
    assert sum(drops.values()) == int(sparsity * sum(units.values()) + 0.5)


@pytest.mark.parametrize("sparsity", [0.0, 1.0])
def test_the_ends(sparsity):
    assert counts([weight("a", 1, 3, 4, 1), weight("b", 1, 5, 6, 1)], sparsity) == {
        "a": 12 * sparsity,
        "b": 30 * sparsity,
    }
