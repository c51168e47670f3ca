"""The allocation by energy, held against the rule as it is written down, with a search by halving."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsparse import allocations, patterns
from onnxsparse.allocations.energy import Place, energies, factors, stride_groups
from onnxsparse.errors import OptionError
from tests.cases import for_each
from tests.messages import refusing

UNSTRUCTURED, ALIVE = patterns.parse("unstructured"), patterns.parse("alive")


def random(seed, *shape):
    return np.random.Generator(np.random.Philox(key=seed)).standard_normal(shape).astype(np.float32)


def weight(name, numbers, group=0, depthwise=False, cap=1.0):
    place = Place(group, depthwise, cap)
    return SimpleNamespace(
        name=name, shape4=(1, *numbers.shape, 1), unit_scores=lambda: iter([np.abs(numbers).reshape(-1)]), place=place,
        numbers=numbers,
    )  # fmt: skip


# -- the rule, word for word


def share_by_rule(numbers, energy):
    """The largest share of weights whose cumulated energy stays within so many per cent, rounded to 1 %."""
    ordered = sorted(float(x) ** 2 for x in numbers.reshape(-1))
    total, gone, count = sum(ordered), 0.0, 0
    for one in ordered:
        gone += one
        if gone > energy / 100 * total:
            break
        count += 1
    return min(99, math.floor(100 * count / len(ordered) + 0.5))


def levels_by_rule(weights, energy, tuning):
    last = max(w.place.group for w in weights)
    found = []
    for w in weights:
        own = energy * (1 - tuning) ** ((last - w.place.group) / max(last, 1))
        own = own / 2 if w.place.depthwise else own
        found.append(min(share_by_rule(w.numbers, own), math.floor(100 * w.place.cap + 1e-9)))
    return found


def network(weights, found):
    gone = sum(math.floor(share / 100 * w.numbers.size + 0.5) for w, share in zip(weights, found))
    return gone / sum(w.numbers.size for w in weights)


def searched(weights, level, tuning):
    """One E for the whole network, by halving."""
    low, high = 0.0, 400.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if network(weights, levels_by_rule(weights, middle, tuning)) < level else (low, middle)
        )
    return [levels_by_rule(weights, low, tuning), levels_by_rule(weights, high, tuning)]


def some_network(seed=0):
    return [
        weight("first", random(seed, 8, 27), 0),
        weight("deep", random(seed + 1, 16, 9), 1, depthwise=True),
        weight("wide", random(seed + 2, 32, 64) * 0.1, 1),
        weight("last", random(seed + 3, 40, 60), 2),
    ]


def shares_of(weights, counts):
    return [round(100 * counts[w.name] / w.numbers.size) for w in weights]


@for_each("level", [0.3, 0.5, 0.7, 0.9])
@for_each("tuning", [0.0, 0.5, 0.9])
def test_one_energy_for_the_network_is_found_as_by_halving(level, tuning):
    weights = some_network()
    counts = allocations.parse(f"energy:tuning={tuning}").allocate(weights, level, UNSTRUCTURED)
    below, above = searched(weights, level, tuning)
    nearest = min([below, above], key=lambda found: abs(network(weights, found) - level))
    assert shares_of(weights, counts) == nearest


@pytest.mark.parametrize("level", [0.3, 0.6, 0.9])
def test_networks_come_close_to_their_level(level):
    weights = [weight(str(number), random(number, 64, 50 + number), number // 4) for number in range(12)]
    counts = allocations.parse("energy").allocate(weights, level, UNSTRUCTURED)
    total = sum(w.numbers.size for w in weights)
    assert abs(sum(counts.values()) / total - level) <= 0.015 / 2


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 100, width=32), min_size=1, max_size=300), st.floats(0, 100))
def test_a_curve_is_the_rule_at_every_energy(numbers, energy):
    array = np.array(numbers, np.float32)
    if not array.any():
        assert (energies([array]) == 0).all()
        return
    found = int(np.count_nonzero(energies([array]) <= energy))
    # sums in another order may fall on the other side of the energy by a rounding error
    assert share_by_rule(array, energy * (1 - 1e-9)) <= found <= share_by_rule(array, energy * (1 + 1e-9) + 1e-12)


def test_early_layers_lose_less_and_depthwise_ones_half():
    found = factors([Place(0), Place(1), Place(2), Place(2, True)], 0.5)
    assert found == pytest.approx([0.5, 0.5**0.5, 1.0, 0.5])
    assert factors([Place(0), Place(0, True)], 0.5) == pytest.approx([1.0, 0.5])


def test_stride_groups_are_halvings_without_gaps():
    assert stride_groups([224, 112, 56, 56, 7, None]) == [0, 1, 2, 2, 3, 3]
    assert stride_groups([28, 14, 7, 4, None]) == [0, 1, 2, 3, 3]
    assert stride_groups([16, 32, 8]) == [0, 0, 1]
    assert stride_groups([None, None]) == [0, 0]
    assert stride_groups([]) == []


def test_caps_hold_and_the_others_make_up_for_it():
    weights = [weight("capped", random(0, 40, 50), 0, cap=0.42), weight("free", random(1, 40, 50), 0)]
    counts = allocations.parse("energy").allocate(weights, 0.6, UNSTRUCTURED)
    assert counts["capped"] == 840
    assert abs(sum(counts.values()) / 4000 - 0.6) <= 0.015
    dense = [weight("dense", random(0, 40, 50), 0, cap=0.0), weight("free", random(1, 40, 50), 0)]
    assert allocations.parse("energy").allocate(dense, 0.4, UNSTRUCTURED) == {"dense": 0, "free": 1600}


def test_what_is_out_of_reach_goes_as_far_as_it_can():
    weights = [weight("capped", random(0, 40, 50), 0, cap=0.5), weight("dense", random(1, 40, 50), 0, cap=0.0)]
    assert allocations.parse("energy").allocate(weights, 0.9, UNSTRUCTURED) == {"capped": 1000, "dense": 0}


def test_limits_by_the_level():
    weights = [weight("a", random(0, 40, 50), 0), weight("b", random(1, 40, 50) * 0.01, 3)]
    free = allocations.parse("energy:tuning=0.9").allocate(weights, 0.5, UNSTRUCTURED)
    assert free["b"] > 1100
    most = allocations.parse("energy:tuning=0.9,most=1.1").allocate(weights, 0.5, UNSTRUCTURED)
    assert most["b"] == 1100
    least = allocations.parse("energy:tuning=0.9,least=0.8").allocate(weights, 0.5, UNSTRUCTURED)
    assert least["b"] == 1200  # 1 - (1 - 0.5) * 0.8


def test_depthwise_stays_dense_where_that_is_asked_for():
    counts = allocations.parse("energy:dense_depthwise=true").allocate(some_network(), 0.6, UNSTRUCTURED)
    assert counts["deep"] == 0


def test_even_levels_are_the_level_within_the_limits():
    weights = [weight("a", random(0, 40, 50), 0), weight("b", random(1, 40, 50), 0, cap=0.25)]
    assert allocations.parse("energy:even=true").allocate(weights, 0.5, UNSTRUCTURED) == {"a": 1000, "b": 500}


def test_no_layer_loses_all_and_none_more_than_its_pattern_allows():
    weights = [weight("a", random(0, 40, 50), 0), weight("narrow", random(1, 30, 2), 0)]
    counts = allocations.parse("energy").allocate(weights, 0.999, ALIVE)
    assert counts["a"] == 1960
    assert counts["narrow"] == 30


def test_several_levels_sort_each_weight_once():
    looks = []
    numbers = random(0, 40, 50)

    def scores():
        looks.append(1)
        return iter([np.abs(numbers).reshape(-1)])

    one = SimpleNamespace(name="a", shape4=(1, 40, 50, 1), unit_scores=scores)
    found = allocations.parse("energy").allocate_levels([one], [0.3, 0.5, 0.9], UNSTRUCTURED)
    assert [counts["a"] for counts in found] == [600, 1000, 1800]
    assert len(looks) == 1


def test_equal_numbers_fall_together():
    counts = allocations.parse("energy").allocate([weight("a", np.ones((10, 10), np.float32))], 0.37, UNSTRUCTURED)
    assert counts["a"] == 37


@pytest.mark.parametrize("text", ["energy:tuning=1", "energy:tuning=-0.1", "energy:most=-1", "energy:least=nan"])
def test_options_that_mean_nothing(text):
    with pytest.raises(OptionError):
        allocations.parse(text)


def test_other_patterns_are_refused():
    with refusing(OptionError):
        allocations.parse("energy").allocate([], 0.5, patterns.parse("filter"))
