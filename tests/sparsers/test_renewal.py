"""Renewal of masks against a slow reference, for any layout, storage and pattern."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsparse import patterns, scores
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Reading, Values
from onnxsparse.sparsers import mask_updates as renewal
from onnxsparse.sparsers.mask_updates import exchange, hide, renew, write
from tests.messages import refusing
from tests.sparsers.layouts import Layout, layouts, numbers

TEXTS = ("unstructured", "2:4", "1:4", "3:4", "block:2x2", "filter", "channel")
DTYPES = (np.float32, np.bool_, np.uint8)
SEEDS = st.integers(0, 2**32 - 1)
TEXT = st.sampled_from(TEXTS)


def reference(layout, text, importance, drop):
    """The mask by sorting units (members, for N:M): the smallest go, among equals the earlier."""
    units = layout.units_of(text)
    keep = np.ones(units.size, bool)
    members = {unit: [place for place in range(units.size) if units[place] == unit] for unit in set(units) - {-1}}
    if text[0].isdigit():
        n, m = (int(part) for part in text.split(":"))
        for places in members.values():
            for place in sorted(places, key=lambda place: (importance[place], place))[: m - n]:
                keep[place] = False
        return keep
    ranked = sorted(members, key=lambda unit: (sum(float(importance[p]) for p in members[unit]), unit))
    for unit in ranked[:drop]:
        keep[members[unit]] = False
    return keep


def drop_of(text, layout, sparsity):
    return patterns.parse(text).drop_count(layout.shape4, sparsity)


def random_mask(seed, count, dtype):
    return (np.random.default_rng(seed + 1).random(count) < 0.6).astype(dtype)


@settings(max_examples=300, deadline=None)
@given(layouts(), TEXT, st.sampled_from(DTYPES), SEEDS, st.booleans(), st.floats(0, 1), st.sampled_from([3, 1 << 16]))
def test_renewal_is_what_sorting_gives(layout, text, dtype, seed, ties, sparsity, piece):
    weight = numbers(seed, int(np.prod(layout.sizes)), ties)
    mask, before = random_mask(seed, weight.size, dtype), weight.copy()
    was, drop = mask != 0, drop_of(text, layout, sparsity)
    with mock.patch.object(renewal, "PIECE", piece):
        done = renew(weight, mask, layout.choice(patterns.parse(text), drop))
    keep = reference(layout, text, np.where(was, np.abs(before), 0), drop)
    assert mask.dtype == dtype
    assert np.array_equal(mask, keep.astype(dtype))
    assert weight.tobytes() == np.where(keep & was, before, np.float32(0)).tobytes()
    assert done.grown.tolist() == np.flatnonzero(keep & ~was).tolist()
    assert (done.dropped, done.kept) == ((was & ~keep).sum(), keep.sum())
    assert done.changed == (keep != was).sum()


@settings(max_examples=100, deadline=None)
@given(layouts(), TEXT, SEEDS, st.booleans(), st.floats(0, 1))
def test_renewal_gives_the_masks_of_pruning(layout, text, seed, ties, sparsity):
    """Bit for bit what the pattern's own `prune` leaves of the masked weight."""
    weight = numbers(seed, int(np.prod(layout.sizes)), ties)
    mask = random_mask(seed, weight.size, np.float32)
    drop, pattern = drop_of(text, layout, sparsity), patterns.parse(text)
    view = layout.matrix(np.where(mask != 0, weight, np.float32(0)))
    pattern.prune(Values(view, Reading("float32")), scores.parse("magnitude"), drop, view)
    renew(weight, mask, layout.choice(pattern, drop))
    if text == "unstructured" and layout.copies:
        assert np.count_nonzero(mask) == weight.size - drop  # ties are those of the file, which the copy has lost
        return
    assert weight.tobytes() == layout.restore(view).tobytes()


@settings(max_examples=100, deadline=None)
@given(layouts(), st.sampled_from([text for text in TEXTS if not text[0].isdigit()]), SEEDS, st.data())
def test_pruned_places_stay_pruned_while_the_count_grows(layout, text, seed, data):
    generator = np.random.default_rng(seed)
    weight = numbers(seed, int(np.prod(layout.sizes)), ties=False)
    mask, pattern = np.ones(weight.size, np.float32), patterns.parse(text)
    most = drop_of(text, layout, 1.0)
    for drop in sorted(data.draw(st.lists(st.integers(0, most), max_size=5))):
        was = mask.copy()
        done = renew(weight, mask, layout.choice(pattern, drop))
        assert done.grown.size == 0
        assert (mask <= was).all()
        weight += generator.standard_normal(weight.size, dtype=np.float32)  # moves hidden numbers, too


def test_a_drop_count_that_shrinks_grows_places_that_start_at_zero():
    weight, mask = np.arange(1, 9, dtype=np.float32), np.ones(8, np.float32)
    layout = Layout((2, 4), ((), (0,), (1,), ()))
    pattern = patterns.parse("unstructured")
    renew(weight, mask, layout.choice(pattern, 6))
    weight[0] = 99  # hidden
    done = renew(weight, mask, layout.choice(pattern, 4))
    assert done.grown.tolist() == [4, 5]
    assert weight.tolist() == [0, 0, 0, 0, 0, 0, 7, 8]
    weight[0] = 99
    done = renew(weight, mask, layout.choice(pattern, 4), revive=True)
    assert (done.grown.tolist(), done.dropped, weight[0]) == ([0], 1, 99)


def test_scores_from_elsewhere_decide_and_may_be_negative():
    weight, mask = np.arange(1, 5, dtype=np.float32), np.array([1, 1, 1, 0], np.float32)
    layout = Layout((1, 4), ((), (0,), (1,), ()))
    done = renew(weight, mask, layout.choice(patterns.parse("unstructured"), 2), np.float32([-1, -3, -2, 5]))
    assert mask.tolist() == [1, 0, 0, 1]
    assert (done.grown.tolist(), weight.tolist()) == ([3], [1, 0, 0, 0])


def test_hidden_numbers_become_positive_zeros_whatever_they_were():
    weight = np.array([np.nan, -np.inf, -0.0, -1, -2], np.float32)
    hide(weight, np.array([0, 0, 0, 0, 1], np.float32))
    assert weight.tobytes() == np.array([0, 0, 0, 0, -2], np.float32).tobytes()


def test_arrays_of_any_shape_are_written_in_place_or_refused():
    weight, mask = np.ones((2, 3), np.float32), np.ones((2, 3), bool)
    done = write(weight, mask, np.array([True] * 5 + [False]))
    assert (weight[1, 2], mask[1, 2], done.dropped, done.kept) == (0, False, 1, 5)
    with pytest.raises(ValueError, match="in place"):
        hide(weight.T, mask.T)


@pytest.mark.parametrize("text", TEXTS)
def test_an_empty_weight_and_a_scalar(text):
    for sizes in ((0, 3), (1, 1)):
        layout = Layout(sizes, ((), (0,), (1,), ()))
        weight, mask = np.ones(sizes, np.float32), np.ones(sizes, np.float32)
        assert renew(weight, mask, layout.choice(patterns.parse(text), 0)).kept == mask.sum()


# -- exchange


@settings(max_examples=300, deadline=None)
@given(layouts(), TEXT, SEEDS, st.booleans(), st.floats(0, 1), st.floats(0, 1))
def test_exchange_swaps_exactly_so_many(layout, text, seed, ties, sparsity, share):
    weight = numbers(seed, int(np.prod(layout.sizes)), ties)
    mask, drop = np.ones(weight.size, np.float32), drop_of(text, layout, sparsity)
    choice = layout.choice(patterns.parse(text), drop)
    renew(weight, mask, choice)
    was, gains = mask != 0, numbers(seed + 1, weight.size, ties)
    before = weight.copy()
    done = exchange(weight, mask, gains, choice, share)
    units = layout.units_of(text)
    single = text == "unstructured" or text[0].isdigit()
    names = np.arange(units.size) if single else units
    inside, keep = units >= 0, mask != 0
    lost, won = set(names[inside & was & ~keep]), set(names[inside & ~was & keep])
    kept, pruned = len(set(names[inside & was])), len(set(names[inside & ~was]))
    wanted = min(int(np.floor(share * kept + 0.5)), pruned)
    assert len(lost) == len(won) == (wanted if text not in ("3:4",) else len(won))
    assert len(won) <= wanted
    assert keep[~inside].all()
    assert weight.tobytes() == np.where(was & keep, before, np.float32(0)).tobytes()
    assert set(done.grown.tolist()) == set(np.flatnonzero(keep & ~was).tolist())
    assert patterns.parse(text).check(Values(layout.matrix(weight), Reading("float32")), drop).count == 0
    if single and text != "3:4":
        _assert_smallest_go(np.abs(before), was, keep, inside)
    if text == "unstructured":
        _assert_smallest_go(-np.abs(gains), ~was, ~keep, inside)


def _assert_smallest_go(sizes, was, keep, inside):
    lost, left = inside & was & ~keep, inside & was & keep
    if lost.any() and left.any():
        assert sizes[lost].max() <= sizes[left].min()


def test_exchange_in_groups_grows_the_largest_gain_of_the_group():
    weight = np.array([[5, 4, 0, 0], [1, 6, 0, 0]], np.float32)
    mask = (weight != 0).astype(np.float32)
    layout = Layout((2, 4), ((), (0,), (1,), ()))
    choice = layout.choice(patterns.parse("2:4"), 4)
    done = exchange(weight, mask, np.float32([[9, 9, 8, 9], [9, 9, 3, -4]]), choice, 0.25)
    assert mask.tolist() == [[1, 1, 0, 0], [0, 1, 0, 1]]
    assert done.grown.tolist() == [7]


@settings(max_examples=150, deadline=None)
@given(layouts(), st.sampled_from(["1:2:transposable", "2:4:transposable"]), SEEDS, st.booleans(), st.floats(0, 1))
def test_exchange_in_blocks_keeps_the_largest_and_both_axes(layout, text, seed, ties, share):
    weight, pattern = numbers(seed, int(np.prod(layout.sizes)), ties), patterns.parse(text)
    drop = pattern.drop_count(layout.shape4, None)
    mask, choice = np.ones(weight.size, np.float32), layout.choice(pattern, drop)
    renew(weight, mask, choice)
    was, before = mask != 0, np.abs(weight)
    done = exchange(weight, mask, numbers(seed + 1, weight.size, ties) * np.float32(1e-12), choice, share)
    keep, most = mask != 0, int(np.floor(share * (weight.size - pattern.ragged(layout.shape4) - drop) + 0.5))
    assert np.count_nonzero(keep) == np.count_nonzero(was) == weight.size - drop
    assert done.dropped == len(done.grown) <= most
    assert pattern.violations(layout.matrix(~keep), drop).count == 0
    inside = layout.restore(_in_blocks(layout.shape4, pattern.m))
    smallest = np.sort(before[inside & was])[:most]
    assert (before[was & ~keep] <= smallest.max(initial=-1)).all()
    assert keep[~inside].all()


def _in_blocks(shape4, m):
    """Where whole blocks lie."""
    _, out, inputs, _ = np.indices(shape4)
    return (out < shape4[1] // m * m) & (inputs < shape4[2] // m * m)


@pytest.mark.parametrize(("gains", "row"), [([0, 0, 3e-9, 2e-9], [1, 0, 1, 0]), ([0, 0, 1e-9, 4e-9], [1, 0, 0, 1])])
def test_exchange_in_blocks_grows_the_largest_gain_that_fits(gains, row):
    """However small gains are beside the weights."""
    weight = np.float32([[9, 1, 0, 0], [7, 6, 0, 0], [0, 0, 5, 4], [0, 0, 2, 3]])
    mask, all_gains = (weight != 0).astype(np.float32), np.full((4, 4), 1e-9, np.float32)
    all_gains[0] = gains
    choice = Layout((4, 4), ((), (0,), (1,), ())).choice(patterns.parse("2:4:transposable"), 8)
    exchange(weight, mask, all_gains, choice, 1 / 2)
    assert mask[0].tolist() == row
    assert mask[[0, 1, 1, 2], [0, 0, 1, 2]].all()


def test_exchange_survives_gains_without_end():
    weight, mask = np.float32([1, 2, 0, 0]), np.float32([1, 1, 0, 0])
    choice = Layout((1, 4), ((), (0,), (1,), ())).choice(patterns.parse("unstructured"), 2)
    exchange(weight, mask, np.float32([np.inf, 1, np.nan, 0]), choice, 0.5)
    assert mask.tolist() == [0, 1, 1, 0]


def test_a_share_is_a_share():
    with refusing(OptionError):
        exchange(np.ones(4, np.float32), np.ones(4, np.float32), np.ones(4), None, 1.5)
