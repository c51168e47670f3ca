"""What is remembered of every tensor: saved, loaded and forgotten."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse import optimizers
from onnxsparse.errors import OptionError
from onnxsparse.optimizers import Moments
from tests.messages import refusing

NAMES = ("sgd", "nesterov", "adam", "adamw", "relative")
SHAPES = {"layer/weight": (6, 5), "bias": (6,), "scale": ()}


def tensors(seed):
    generator = np.random.Generator(np.random.Philox(key=seed))
    return {name: np.asarray(generator.standard_normal(shape), np.float32) for name, shape in SHAPES.items()}


def walk(store, weights, first, last):
    for step in range(first, last):
        for name, gradient in tensors(100 + step).items():
            store.step(name, weights[name], gradient, 1e-2, 0.01, 0.5)


def copied(arrays):
    return {name: array.copy() for name, array in arrays.items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_store_that_is_loaded_goes_on_bit_for_bit(name):
    whole, weights = Moments(optimizers.parse(name)), tensors(1)
    walk(whole, weights, 0, 130)
    half, halfway = Moments(optimizers.parse(name)), tensors(1)
    walk(half, halfway, 0, 70)
    saved, counts = copied(half.arrays()), dict(half.counts)
    walk(half, copied(halfway), 70, 75)  # the saved copies stay as they were
    again = Moments(optimizers.parse(name))
    again.load(saved, counts)
    walk(again, halfway, 70, 130)
    for tensor in SHAPES:
        assert np.array_equal(halfway[tensor], weights[tensor])
    assert again.counts == whole.counts == dict.fromkeys(SHAPES, 130)
    assert all(np.array_equal(array, again.arrays()[key]) for key, array in whole.arrays().items())


def test_moments_are_made_when_they_are_needed():
    store = Moments(optimizers.parse("adamw"))
    assert store.arrays() == {}
    walk(store, tensors(1), 0, 1)
    assert {key: array.shape for key, array in store.arrays().items()} == {
        f"{moment}/{name}": shape for moment in ("mean", "square") for name, shape in SHAPES.items()
    }


def test_loading_copies():
    store, other = Moments(optimizers.parse("sgd")), Moments(optimizers.parse("sgd"))
    walk(store, tensors(1), 0, 1)
    other.load(store.arrays(), store.counts)
    before = copied(store.arrays())
    walk(other, tensors(1), 1, 2)
    assert all(np.array_equal(before[key], array) for key, array in store.arrays().items())
    assert store.counts["bias"] == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_that_is_cleared_starts_anew(name):
    store, weights = Moments(optimizers.parse(name)), tensors(1)
    walk(store, weights, 0, 5)
    store.clear("bias")
    assert "bias" not in store.counts
    fresh, bias = Moments(optimizers.parse(name)), weights["bias"].copy()
    gradient = tensors(2)["bias"]
    store.step("bias", weights["bias"], gradient, 1e-2)
    fresh.step("bias", bias, gradient, 1e-2)
    assert np.array_equal(bias, weights["bias"])
    assert store.counts == {"layer/weight": 5, "scale": 5, "bias": 1}


def test_places_are_cleared_alone():
    store, weights = Moments(optimizers.parse("adam")), tensors(1)
    walk(store, weights, 0, 3)
    before = copied(store.arrays())
    where = weights["layer/weight"] > 0
    store.clear("layer/weight", where)
    for moment in ("mean", "square"):
        after = store.arrays()[f"{moment}/layer/weight"]
        assert not after[where].any()
        assert np.array_equal(after[~where], before[f"{moment}/layer/weight"][~where])
        assert np.array_equal(store.arrays()[f"{moment}/bias"], before[f"{moment}/bias"])
    assert store.counts["layer/weight"] == 3
    store.clear("never seen", where)


@pytest.mark.parametrize("name", NAMES)
def test_what_nothing_feeds_ends_as_zero_not_as_a_tiny_number(name):
    store, weight = Moments(optimizers.parse(name)), np.ones(3, np.float32)
    store.step("w", weight, np.array([1e-3, 1e-30, 0], np.float32), 1e-3)
    for _ in range(1300):
        store.step("w", weight, np.zeros(3, np.float32), 1e-3)
    kept = store.arrays()
    first = kept["mean/w" if "mean/w" in kept else "velocity/w"]
    assert np.all((first == 0) | (np.abs(first) > 1e-37))
    assert np.isfinite(weight).all()


def test_a_tensor_of_another_shape_is_refused():
    store = Moments(optimizers.parse("sgd"))
    store.step("w", np.ones(3, np.float32), np.ones(3, np.float32), 0.1)
    with refusing(OptionError):
        store.step("w", np.ones(4, np.float32), np.ones(4, np.float32), 0.1)


@pytest.mark.parametrize("weight", [np.ones(3), np.ones((4, 4), np.float32)[:, ::2]])
def test_what_cannot_be_changed_in_place_is_refused(weight):
    with pytest.raises(ValueError, match="contiguous float32"):
        Moments(optimizers.parse("sgd")).step("w", weight, np.ones(weight.shape, np.float32), 0.1)


@pytest.mark.parametrize(
    ("arrays", "counts"),
    [
        ({"mean/w": np.zeros(2)}, {"w": 1}),
        ({"mean/w": np.zeros(2), "square/w": np.zeros(2)}, {}),
        ({"mean/w": np.zeros(2), "square/w": np.zeros(2), "odd/w": np.zeros(2)}, {"w": 1}),
        ({"velocity/w": np.zeros(2)}, {"w": 3}),
        ({}, {"w": 1}),
    ],
)
def test_moments_of_another_optimizer_are_refused(arrays, counts):
    store = Moments(optimizers.parse("adamw"))
    store.step("a", np.ones(2, np.float32), np.ones(2, np.float32), 0.1)
    with refusing(OptionError):
        store.load(arrays, counts)
    assert store.counts == {"a": 1}
