"""The optimizers, against the formulas of the papers in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsparse import optimizers
from onnxsparse import optimizers as blocks_module
from onnxsparse.errors import OptionError
from onnxsparse.optimizers import Relative

NAMES = ("sgd", "nesterov", "adam", "adamw", "relative")
shapes = st.lists(st.integers(0, 7), min_size=0, max_size=4).map(tuple)


def textbook(name, weight, gradients, rate, decay, o):
    """One weight after a gradient each, written as in the papers, in float64."""
    w = weight.astype(np.float64)
    velocity, m, v = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    for t, gradient in enumerate(gradients, 1):
        g = gradient.astype(np.float64)
        if name in ("sgd", "nesterov"):
            g = g + decay * w
            velocity = o.momentum * velocity + g
            w = w - rate * (g + o.momentum * velocity if name == "nesterov" else velocity)
            continue
        if name == "adam":
            g = g + decay * w
        m = o.beta1 * m + (1 - o.beta1) * g
        v = o.beta2 * v + (1 - o.beta2) * g**2
        m_hat, v_hat = m / (1 - o.beta1**t), v / (1 - o.beta2**t)
        if name == "relative":
            rms = max(np.sqrt(np.mean(w[w != 0] ** 2)), o.floor) if (w != 0).any() else o.floor
            w = w - rate * decay * w
            top = np.sqrt(v_hat).max() if w.size else 0
            if top:
                w = w - rate * rms * m_hat / (np.sqrt(v_hat) + o.eps * top)
            continue
        if name == "adamw":
            w = w - rate * decay * w
        w = w - rate * m_hat / (np.sqrt(v_hat) + o.eps)
    return w


def walk(store, weight, gradients, rate=1e-2, decay=0.0, scale=1.0):
    for gradient in gradients:
        store.step("w", weight, gradient, rate, decay, scale)
    return weight


def numbers(seed, shape, steps, size=1.0):
    generator = np.random.Generator(np.random.Philox(key=seed))
    weight = generator.standard_normal(shape).astype(np.float32)
    return weight, [(generator.standard_normal(shape) * size).astype(np.float32) for _ in range(steps)]


@settings(deadline=None)
@given(
    name=st.sampled_from(NAMES),
    shape=shapes,
    seed=st.integers(0, 1000),
    steps=st.integers(1, 12),
    decay=st.sampled_from([0.0, 0.01, 0.3]),
    size=st.sampled_from([1e-3, 1.0, 30.0]),
)
def test_they_follow_the_textbook(name, shape, seed, steps, decay, size):
    weight, gradients = numbers(seed, shape, steps, size)
    optimizer = optimizers.parse(name)
    wanted = textbook(name, weight, gradients, 1e-2, decay, optimizer)
    found = walk(optimizers.Moments(optimizer), weight.copy(), gradients, 1e-2, decay)
    moved = np.abs(wanted - weight).max(initial=1e-12)
    np.testing.assert_allclose(found, wanted, rtol=3e-7 * steps, atol=moved * 3e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_long_walk_stays_on_the_textbook(name):
    weight, gradients = numbers(5, (300,), 500)
    optimizer = optimizers.parse(name)
    wanted = textbook(name, weight, gradients, 1e-3, 1e-2, optimizer)
    found = walk(optimizers.Moments(optimizer), weight.copy(), gradients, 1e-3, 1e-2)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("text", ["sgd:momentum=0", "nesterov:momentum=0.5", "adamw:beta1=0,beta2=0.5,eps=0.1"])
def test_options_are_in_the_formula(text):
    weight, gradients = numbers(6, (40,), 5)
    optimizer = optimizers.parse(text)
    wanted = textbook(text.partition(":")[0], weight, gradients, 1e-2, 0.1, optimizer)
    np.testing.assert_allclose(walk(optimizers.Moments(optimizer), weight, gradients, decay=0.1), wanted, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_scale_multiplies_the_gradient_and_leaves_it_as_it_is(name):
    weight, gradients = numbers(7, (1000,), 4)
    kept = [gradient.copy() for gradient in gradients]
    scaled = walk(optimizers.Moments(optimizers.parse(name)), weight.copy(), gradients, 1e-2, 0.1, 0.25)
    quarter = walk(optimizers.Moments(optimizers.parse(name)), weight.copy(), [g / 4 for g in gradients], 1e-2, 0.1)
    np.testing.assert_allclose(scaled, quarter, rtol=1e-5, atol=1e-7)
    assert all(np.array_equal(one, other) for one, other in zip(gradients, kept))


@pytest.mark.parametrize("name", NAMES)
def test_the_size_of_a_block_changes_no_bit_of_what_is_elementwise(name, monkeypatch):
    weight, gradients = numbers(8, (1000,), 3)
    whole = walk(optimizers.Moments(optimizers.parse(name)), weight.copy(), gradients, 1e-2, 0.1)
    monkeypatch.setattr(blocks_module, "BLOCK", 64)
    pieces = walk(optimizers.Moments(optimizers.parse(name)), weight.copy(), gradients, 1e-2, 0.1)
    if name == "relative":  # the scale of the tensor is a sum
        np.testing.assert_allclose(whole, pieces, rtol=1e-6, atol=1e-8)
    else:
        assert np.array_equal(whole, pieces)


@pytest.mark.parametrize("name", NAMES)
def test_many_blocks_and_a_rest(name):
    weight, gradients = numbers(9, (2 * blocks_module.BLOCK + 17,), 2)
    optimizer = optimizers.parse(name)
    wanted = textbook(name, weight, gradients, 1e-2, 0.0, optimizer)
    np.testing.assert_allclose(walk(optimizers.Moments(optimizer), weight, gradients), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_no_gradient_and_no_decay_move_nothing(name):
    weight, _ = numbers(10, (50,), 0)
    moved = walk(optimizers.Moments(optimizers.parse(name)), weight.copy(), [np.zeros(50, np.float32)] * 3)
    assert np.array_equal(moved, weight)


def test_relative_steps_follow_the_scale_of_the_weights_not_of_the_gradient():
    weight, gradients = numbers(11, (500,), 6)
    plain = walk(optimizers.Moments(Relative()), weight.copy(), gradients)
    large = walk(optimizers.Moments(Relative()), weight * 64, [g * np.float32(1e-6) for g in gradients])
    np.testing.assert_allclose(large / 64, plain, rtol=1e-5)


def test_zeros_of_a_mask_do_not_shrink_relative_steps():
    weight, gradients = numbers(12, (500,), 1)
    padded = np.concatenate([weight, np.zeros(4500, np.float32)])
    with_zeros = walk(
        optimizers.Moments(Relative()), padded, [np.concatenate([g, np.zeros(4500, np.float32)]) for g in gradients]
    )
    np.testing.assert_allclose(with_zeros[:500], walk(optimizers.Moments(Relative()), weight, gradients), rtol=1e-6)
    assert not with_zeros[500:].any()


def test_relative_steps_leave_a_tensor_of_zeros():
    bias, gradients = np.zeros(4, np.float32), [np.array([1, -1, 1, 0], np.float32)]
    walk(optimizers.Moments(Relative()), bias, gradients, rate=0.5)
    np.testing.assert_allclose(bias, [-0.5e-3 / 1.001, 0.5e-3 / 1.001, -0.5e-3 / 1.001, 0], rtol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "sgd:momentum=1", "nesterov:momentum=-0.1", "adam:beta1=1", "adamw:beta2=nan", "adamw:eps=0",
        "relative:eps=inf", "relative:floor=0", "adamax", "adamw:betas=0.9",
    ],
)  # fmt: skip
def test_a_wrong_text_is_one_clear_line(text):
    with pytest.raises(OptionError) as caught:
        optimizers.parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [*NAMES, "sgd:momentum=0.25", "adamw:beta2=0.95,eps=1e-06"])
def test_the_text_makes_the_same_optimizer(text):
    optimizer = optimizers.parse(text)
    assert optimizers.parse(optimizer.text) == optimizer
    assert optimizers.parse("adamw").text == "adamw:beta1=0.9,beta2=0.999,eps=1e-08"


def test_they_are_listed():
    entries = optimizers.available()
    assert {entry.syntax for entry in entries} == {*NAMES, "ort-adamw"}
    assert all(entry.description.endswith(".") and (entry.options or entry.syntax == "ort-adamw") for entry in entries)


# -- the size of gradients


@settings(deadline=None)
@given(seed=st.integers(0, 99), sizes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=4))
def test_the_norm_is_that_of_all_elements(seed, sizes):
    gradients = [numbers(seed + place, shape, 0)[0] for place, shape in enumerate(sizes)]
    wanted = math.sqrt(math.fsum(float(x) ** 2 for gradient in gradients for x in gradient.ravel()))
    assert optimizers.norm(gradients) == pytest.approx(wanted, rel=1e-14)


def test_the_norm_of_large_and_small_numbers_and_of_many():
    assert optimizers.norm([np.full(9, 1e30, np.float32)]) == pytest.approx(3e30, rel=1e-6)
    assert optimizers.norm([np.full(16, 1e-30, np.float32)]) == pytest.approx(4e-30, rel=1e-6)
    assert optimizers.norm([np.ones((3, 50_000), np.float32)]) == math.sqrt(150_000)


def test_the_factor_limits_the_norm():
    gradients = [np.array([3.0], np.float32), np.array([[4.0]], np.float32)]
    assert optimizers.clip_factor(gradients, 10) == 1.0
    assert optimizers.clip_factor(gradients, 5) == 1.0
    assert optimizers.clip_factor(gradients, 1) == pytest.approx(0.2)
    assert optimizers.clip_factor([], 1) == 1.0
    assert optimizers.clip_factor([np.zeros(3, np.float32)], 1) == 1.0
    assert math.isnan(optimizers.clip_factor([np.array([np.inf], np.float32)], 1))
    for limit in (0.0, -1.0, math.nan):
        with pytest.raises(OptionError, match="above 0"):
            optimizers.clip_factor(gradients, limit)


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_one_element_that_is_no_number_is_found_among_many(odd):
    gradients = [np.ones((3, 50_000), np.float32), np.full(40_000, 1e37, np.float32)]
    assert optimizers.finite(gradients)
    gradients[0][1, 77] = odd
    assert not optimizers.finite(gradients)
    assert not optimizers.finite([np.array([np.inf, -np.inf], np.float32)])
