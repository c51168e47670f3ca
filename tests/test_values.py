"""How stored numbers are read."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.errors import OptionError
from onnxsparse.math.values import Reading, Values, blocks_of, storage_axes, stored_order


def bfloat16(numbers):
    bits = np.asarray(numbers, np.float32).view(np.uint32)
    return (bits >> np.uint32(16)).astype(np.uint16)


def view4(array):
    return array.reshape(1, 1, -1, 1)


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16"])
def test_floats_are_ordered_by_magnitude(kind):
    numbers = np.array([3.0, -0.0, -1.5, 0.5, 0.0, 2.0**-10])
    stored = bfloat16(numbers) if kind == "bfloat16" else numbers.astype(kind)
    values = Values(view4(stored), Reading(kind))
    assert values.real().ravel().tolist() == numbers.tolist()
    assert np.argsort(values.magnitude_keys().ravel(), kind="stable").tolist() == [1, 4, 5, 3, 2, 0]
    assert values.is_zero().ravel().tolist() == [False, True, False, False, True, False]
    assert values.all_finite()


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_found(kind, bad):
    numbers = np.array([1.0, bad, 2.0])
    stored = bfloat16(numbers) if kind == "bfloat16" else numbers.astype(kind)
    assert not Values(view4(stored), Reading(kind)).all_finite()


def test_the_real_type_is_float32_but_for_float64():
    assert Values(view4(np.zeros(2, np.float16)), Reading("float16")).real().dtype == np.float32
    assert Values(view4(np.zeros(2)), Reading("float64")).real().dtype == np.float64
    assert Values(view4(np.zeros(2, np.uint16)), Reading("bfloat16")).real().dtype == np.float32


def test_integers_are_read_through_scale_and_zero_point():
    stored = np.array([[0, 3, 10], [0, 3, 10]], np.uint8).reshape(1, 2, 3, 1)
    scale = np.array([0.5, 2.0], np.float32).reshape(1, 2, 1, 1)
    point = np.array([3, 10], np.uint8).reshape(1, 2, 1, 1)
    values = Values(stored, Reading("uint8", scale, point))
    assert values.real().reshape(2, 3).tolist() == [[-1.5, 0.0, 3.5], [-20.0, -14.0, 0.0]]
    assert values.is_zero().reshape(2, 3).tolist() == [[False, True, False], [False, False, True]]
    assert np.argsort(values.magnitude_keys().ravel(), kind="stable").tolist() == [1, 5, 0, 2, 4, 3]
    assert values.zero.ravel().tolist() == [3, 10]
    assert values.zero.dtype == np.uint8


def test_the_smallest_int8_has_the_largest_magnitude():
    values = Values(view4(np.array([127, -128, -1], np.int8)), Reading("int8"))
    assert np.argsort(values.magnitude_keys().ravel()).tolist() == [2, 0, 1]


def test_slicing_takes_scale_and_zero_point_along():
    stored = np.arange(12, dtype=np.int8).reshape(1, 4, 3, 1)
    scale = np.arange(1, 5, dtype=np.float32).reshape(4, 1, 1)
    values = Values(stored, Reading("int8", scale, np.zeros((), np.int8)))
    assert np.array_equal(values[:, 2:].real(), values.real()[:, 2:])
    assert values[:, 1:3, :2].shape == (1, 2, 2, 1)


def test_zero_of_floats_is_positive_zero():
    for kind in ("float32", "bfloat16"):
        zero = Values(np.ones((1, 1, 1, 1), np.uint16 if kind == "bfloat16" else kind), Reading(kind)).zero
        assert zero == 0
        assert not np.signbit(zero)


def test_stored_order_undoes_a_transpose():
    tensor = np.arange(24).reshape(2, 3, 4)
    view = tensor.transpose(2, 0, 1)[None]
    assert stored_order(view).ravel().tolist() == list(range(24))
    assert storage_axes(view)[1:] == (2, 3, 1)


@pytest.mark.parametrize("elements", [1, 2, 5, 7, 12, 1000])
def test_blocks_cover_a_view_once_and_in_stored_order(elements):
    view = np.arange(60).reshape(3, 4, 5).transpose(2, 0, 1)[None]
    seen = [
        stored_order(view)[...].dtype.type(x) for i in blocks_of(view, elements) for x in stored_order(view[i]).flat
    ]
    assert seen == list(range(60))
    assert all(view[index].size <= max(elements, 1) for index in blocks_of(view, elements))


def test_blocks_of_nothing_are_none():
    assert list(blocks_of(np.zeros((1, 0, 3, 1)))) == []
    assert Values(np.zeros((1, 0, 3, 1), np.float32), Reading("float32")).all_finite()


def test_kind_and_storage_must_fit():
    with pytest.raises(OptionError, match="float8"):
        Reading("float8")
    with pytest.raises(OptionError, match="cannot be stored"):
        Values(np.zeros((1, 1, 1, 1)), Reading("float32"))
