"""Masks made by hand, for every pattern."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse import patterns, scores
from onnxsparse.math.values import Reading, Values
from tests.cases import for_each

MAGNITUDE = scores.parse("magnitude")


def matrix(rows):
    array = np.asarray(rows, np.float32)
    return Values(array.reshape(1, *array.shape, 1), Reading("float32"))


def kept(text, rows, drop=0):
    return patterns.parse(text).select(matrix(rows), MAGNITUDE, drop)[0, :, :, 0].astype(int).tolist()


def test_two_of_four_keeps_the_later_of_equals():
    assert kept("2:4", [[1, 1, 1, 1], [4, 3, 2, 1], [0, 5, 0, 0]]) == [[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]]


def test_a_ragged_tail_stays():
    assert kept("1:4", [[1, 2, 3, 4, 0, 1]]) == [[0, 0, 0, 1, 1, 1]]
    assert kept("1:4", [[1, 2, 3]]) == [[1, 1, 1]]


def test_unstructured_drops_the_earlier_of_equals():
    assert kept("unstructured", [[1, 2], [1, 1]], 2) == [[0, 1], [0, 1]]


def test_blocks_go_as_a_whole():
    rows = [[1, 1, 9], [1, 1, 9], [0, 5, 9], [0, 0, 9], [7, 7, 7]]
    assert kept("block:2x1", rows, 2) == [[0, 1, 1], [0, 1, 1], [0, 1, 1], [0, 1, 1], [1, 1, 1]]


def test_filters_and_channels():
    rows = [[1, 2, 3], [1, 1, 1]]
    assert kept("filter", rows, 1) == [[1, 1, 1], [0, 0, 0]]
    assert kept("channel", rows, 1) == [[0, 1, 1], [0, 1, 1]]


@pytest.mark.parametrize("text", ["2:4", "2:4:transposable", "unstructured", "block:2x2", "filter", "channel"])
def test_the_mask_lies_in_memory_like_the_weight(text):
    view = np.arange(1, 65, dtype=np.float32).reshape(8, 8).T.reshape(1, 8, 8, 1)
    mask = patterns.parse(text).select(Values(view, Reading("float32")), MAGNITUDE, 1)
    assert mask.shape == view.shape
    assert mask.strides[1:3] == tuple(stride // 4 for stride in view.strides[1:3])


@pytest.mark.parametrize("text", ["2:4", "2:4:transposable", "unstructured", "block:2x2", "filter", "channel"])
def test_prune_writes_positive_zeros_in_place_or_elsewhere(text):
    array = -np.arange(1, 65, dtype=np.float32).reshape(1, 8, 8, 1)
    values, out = Values(array, Reading("float32")), np.full_like(array, 9)
    pattern = patterns.parse(text)
    keep = pattern.select(values, MAGNITUDE, 3)
    pattern.prune(values, MAGNITUDE, 3, out)
    assert np.array_equal(out, np.where(keep, array, 0))
    assert not np.signbit(out[~keep]).any()
    pattern.prune(values, MAGNITUDE, 3, array)
    assert array.tobytes() == out.tobytes()


def test_prune_writes_the_zero_point():
    stored = np.array([[130, 128, 0, 255]], np.uint8).reshape(1, 1, 4, 1)
    reading = Reading("uint8", np.full((1, 1, 1, 1), 0.1, np.float32), np.full((1, 1, 1, 1), 128, np.uint8))
    out = np.empty_like(stored)
    patterns.parse("2:4").prune(Values(stored, reading), MAGNITUDE, 0, out)
    assert out.ravel().tolist() == [128, 128, 0, 255]


def test_violations_of_two_of_four_have_places():
    zero = np.ones((1, 3, 9, 2), bool)
    zero[0, 1, 4:7, 1] = False
    zero[0, 2, 8] = False
    found = patterns.parse("2:4").violations(zero, 0)
    assert (found.count, found.places, found.checked) == (1, ((0, 1, 4, 1),), 12)


def test_at_most_five_places_are_named():
    found = patterns.parse("2:4").violations(np.zeros((2, 4, 8, 1), bool), 0)
    assert (found.count, len(found.places), found.checked) == (16, 5, 16)


@pytest.mark.parametrize(("text", "checked"), [("unstructured", 8), ("block:1x2", 4), ("filter", 2), ("channel", 4)])
def test_missing_zero_units_are_counted(text, checked):
    zero = np.zeros((1, 2, 4, 1), bool)
    found = patterns.parse(text).violations(zero, 2)
    assert (found.count, found.places, found.checked) == (2, (), checked)
    assert not patterns.parse(text).violations(~zero, 2)


@for_each("text", ["2:4", "2:4:transposable", "unstructured", "block:2x2", "filter", "channel"])
@for_each("shape", [(1, 0, 4, 1), (1, 4, 0, 1), (0, 1, 1, 1), (1, 1, 1, 1), (1, 3, 5, 0)])
def test_small_and_empty_weights(text, shape):
    pattern, values = patterns.parse(text), Values(np.ones(shape, np.float32), Reading("float32"))
    drop = pattern.drop_count(shape, 0.5)
    keep = pattern.select(values, MAGNITUDE, drop)
    assert keep.shape == shape
    out = np.empty_like(values.stored)
    pattern.prune(values, MAGNITUDE, drop, out)
    assert not pattern.check(Values(out, Reading("float32")), drop)
    assert not pattern.violations(out == 0, drop)
    assert len(pattern.unit_scores(values, MAGNITUDE)) == pattern.units(shape)


@pytest.mark.parametrize("text", ["2:4", "2:4:transposable", "unstructured", "block:2x2", "filter", "channel"])
def test_unaligned_and_read_only_memory(text):
    numbers = np.arange(-32, 32, dtype=np.float32)
    raw = np.frombuffer(b"x" + numbers.tobytes(), np.float32, offset=1).reshape(1, 8, 8, 1)
    assert not raw.flags.aligned
    outs = []
    for stored in (raw, numbers.reshape(1, 8, 8, 1)):
        outs.append(np.empty_like(numbers.reshape(1, 8, 8, 1)))
        patterns.parse(text).prune(Values(stored, Reading("float32")), MAGNITUDE, 2, outs[-1])
        assert not patterns.parse(text).check(Values(outs[-1], Reading("float32")), 2)
        assert patterns.parse(text).check(Values(stored, Reading("float32")), 5)
    assert outs[0].tobytes() == outs[1].tobytes()


def test_negative_zeros_count_as_zeros_in_the_quick_check():
    array = np.array([1, -0.0, -0.0, 2, 1, -0.0, 3, 2], np.float32).reshape(1, 1, 8, 1)
    found = patterns.parse("2:4").check(Values(array, Reading("float32")), 0)
    assert (found.count, found.places) == (1, ((0, 0, 4, 0),))
