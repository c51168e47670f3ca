"""The sparsers as functions of numbers: gradients against differences, what is kept and baked, and what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsparse import patterns, sparsers
from onnxsparse.errors import OptionError
from onnxsparse.sparsers import Moment
from onnxsparse.sparsers.probabilistic import Probabilistic, project
from onnxsparse.sparsers.thresholds import HardThreshold
from tests.sparsers.layouts import Layout

TEXTS = (
    "mask", "mask:storage=uint8", "mask:storage=bool", "soft-threshold:start=-1.5", "hard-threshold:start=-1.5",
    "straight-through:threshold=0.4", "probabilistic:start=0.7,temperature=2", "probabilistic:start=0.4,anneal=true",
)  # fmt: skip
SEEDS = st.integers(0, 2**32 - 1)
MOMENT = Moment("layer.weight", 3, 0.5, 7)
FLAT = Layout((6, 8), ((), (0,), (1,), ()))
STEP = 1e-6


def arrays(sparser, seed, dtype=np.float64):
    """A weight with all that is around it, in the middle of training, no number near a kink."""
    generator = np.random.default_rng(seed)
    weight = generator.choice([-1, 1], (6, 8)) * (generator.integers(0, 20, (6, 8)) * 0.1 + 0.005)
    weight = weight.astype(dtype)
    trained = sparser.trained(weight)
    if "score" in trained:
        trained["score"] = generator.uniform(0.05, 0.95, weight.shape).astype(dtype)
    mask = generator.random(weight.shape) < 0.5
    return weight, trained, mask, sparser.feed(weight, trained, mask, MOMENT), generator


def surrogate(sparser, weight, trained, frozen):
    """What the gradient is that of; where a step counts as a slope, that slope around the present numbers."""
    if not isinstance(sparser, HardThreshold):
        return sparser.effective
    hard = sparser.effective(weight, trained, frozen) != 0

    def ramp(weight, trained):
        return 0.5 * np.clip(np.abs(weight) - 1 / (1 + np.exp(-trained["threshold"])), -1, 1)

    here = ramp(weight, trained)
    return lambda moved, extra, frozen: moved * (hard + ramp(moved, extra) - here)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(TEXTS), SEEDS)
def test_gradients_are_those_of_central_differences(text, seed):
    sparser = sparsers.parse(text)
    weight, trained, _, frozen, generator = arrays(sparser, seed)
    upstream = generator.standard_normal(weight.shape)
    seen = surrogate(sparser, weight, trained, frozen)
    moved, extras = sparser.gradient(weight, trained, frozen, upstream)
    assert set(extras) == set(trained)
    for role, gradient in {"weight": moved, **extras}.items():
        start = weight if role == "weight" else trained[role]
        assert gradient.shape == start.shape
        for place in np.ndindex(start.shape):
            found = 0.0
            for sign in (1, -1):
                other = start.copy()
                other[place] += sign * STEP
                at = (other, trained) if role == "weight" else (weight, {**trained, role: other})
                found += sign * float(np.sum(seen(*at, frozen) * upstream)) / (2 * STEP)
            assert gradient[place] == pytest.approx(found, rel=1e-5, abs=1e-6), (role, place)


@pytest.mark.parametrize("text", TEXTS)
def test_everything_stays_in_the_precision_of_the_weight(text):
    sparser = sparsers.parse(text)
    weight, trained, mask, frozen, _ = arrays(sparser, 1, np.float32)
    moved, extras = sparser.gradient(weight, trained, frozen, np.ones_like(weight))
    for array in (sparser.effective(weight, trained, frozen), moved, *extras.values(), *trained.values()):
        assert array.dtype == np.float32
    assert sparser.bake(weight, trained, mask).dtype == np.float32


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_says_it_all(text):
    sparser = sparsers.parse(text)
    assert sparsers.parse(sparser.text) == sparser


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mask:storage=int4", "float, uint8, bool"),
        ("soft-threshold:start=nan", "finite"),
        ("hard-threshold:start=inf", "finite"),
        ("probabilistic:start=2", "between 0 and 1"),
        ("probabilistic:temperature=0", "positive"),
        ("masks", "did you mean mask"),
    ],
)
def test_wrong_options_are_named(text, words):
    with pytest.raises(OptionError, match=words):
        sparsers.parse(text)


def test_all_are_listed_with_a_description():
    listed = {entry.syntax: entry.description for entry in sparsers.available()}
    assert set(listed) >= {text.partition(":")[0] for text in TEXTS}
    assert all(description.endswith(".") for description in listed.values())


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(TEXTS), SEEDS, st.sampled_from(["unstructured", "2:4", "filter"]), st.integers(1, 5))
def test_what_is_kept_fits_the_pattern_and_what_is_baked_the_mask(text, seed, pattern_text, drop):
    sparser, pattern = sparsers.parse(text), patterns.parse(pattern_text)
    weight, trained, _, _, _ = arrays(sparser, seed, np.float32)
    keep = sparser.keep(weight, trained, np.ones_like(weight), FLAT.choice(pattern, drop))
    assert (keep.shape, keep.dtype) == (weight.shape, np.dtype(bool))
    units = {"unstructured": drop, "2:4": 24, "filter": 8 * drop}
    assert np.count_nonzero(~keep) == units[pattern_text]
    baked = sparser.bake(weight, trained, keep)
    assert baked[~keep].tobytes() == bytes(4 * int(np.count_nonzero(~keep)))
    assert not pattern.violations(FLAT.matrix(baked) == 0, drop)


@pytest.mark.parametrize("text", TEXTS)
def test_what_was_learned_is_kept_without_a_choice(text):
    sparser = sparsers.parse(text)
    weight, trained, mask, frozen, _ = arrays(sparser, 3, np.float32)
    keep = sparser.keep(weight, trained, mask)
    assert keep.dtype == bool
    assert 0 < keep.sum() < keep.size
    if text.startswith(("mask", "soft", "hard")):
        seen = sparser.effective(weight, trained, frozen)
        assert np.array_equal(sparser.bake(weight, trained, keep), seen)


def test_soft_thresholds_are_exact_and_leave_positive_zeros():
    sparser = sparsers.parse("soft-threshold:start=0")
    weight = np.float32([-2, -0.5, -0.25, -0.0, 0.25, 0.5, 2])
    seen = sparser.effective(weight, sparser.trained(weight), {})
    assert seen.tobytes() == np.float32([-1.5, 0, 0, 0, 0, 0, 1.5]).tobytes()
    off = sparsers.parse("soft-threshold:start=-200")
    assert off.effective(weight, off.trained(weight), {}).tolist() == weight.tolist()


def test_the_straight_through_mask_is_exact_for_scores_of_any_size():
    sparser = sparsers.parse("straight-through")
    weight = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    trained = {"score": (weight * 10 ** np.linspace(-30, 30, 1000)).astype(np.float32)}
    mask = sparser.keep(weight, trained, np.ones_like(weight))
    assert np.array_equal(mask, trained["score"] > 0)
    frozen = sparser.feed(weight, trained, mask, MOMENT)
    assert np.array_equal(sparser.effective(weight, trained, frozen), np.where(mask, weight, 0))
    _, extras = sparser.gradient(weight, trained, frozen, np.ones_like(weight))
    assert np.array_equal(extras["score"], weight)  # of dropped places, too


def test_straight_through_chooses_by_signed_scores():
    sparser = sparsers.parse("straight-through")
    weight, trained = np.ones((1, 4), np.float32), {"score": np.float32([[-5, 2, -1, 4]])}
    choice = Layout((1, 4), ((), (0,), (1,), ())).choice(patterns.parse("unstructured"), 2)
    assert sparser.keep(weight, trained, np.ones_like(weight), choice).tolist() == [[False, True, False, True]]


# -- what is drawn


def test_noise_depends_on_seed_step_and_name_alone():
    sparser = Probabilistic()
    first = sparser.noise((50, 3), MOMENT)
    others = [Moment("layer.bias", 3, 0.5, 7), Moment("layer.weight", 4, 0.5, 7), Moment("layer.weight", 3, 0.5, 8)]
    for other in others:
        assert not np.array_equal(sparser.noise((50, 3), other), first)
    assert sparser.noise((50, 3), Moment("layer.weight", 3, 0.9, 7)).tobytes() == first.tobytes()
    assert first.dtype == np.float32
    assert sparsers.parse("mask").noise((3,), MOMENT) is None


def test_noise_is_the_difference_of_two_gumbel_draws():
    noise = Probabilistic().noise((200_000,), MOMENT)
    assert np.isfinite(noise).all()
    for quantile in (0.05, 0.5, 0.8):
        assert np.quantile(noise, quantile) == pytest.approx(np.log(quantile / (1 - quantile)), abs=0.03)


def test_the_mask_hardens_to_the_probabilities():
    sparser, shape = Probabilistic(anneal=True), (100_000,)
    weight, trained = np.ones(shape, np.float32), {"score": np.full(shape, 0.3, np.float32)}
    late = sparser.feed(weight, trained, weight, Moment("w", progress=1.0))
    assert np.mean(sparser.effective(weight, trained, late) > 0.5) == pytest.approx(0.3, abs=0.01)
    assert (sparser.sharpness(0), sparser.sharpness(1)) == pytest.approx((1, 1 / 0.03))
    assert sparser.draw(trained["score"], MOMENT).mean() == pytest.approx(0.3, abs=0.01)
    assert Probabilistic(temperature=5).sharpness(0.7) == 5


def test_certain_places_are_certain():
    sparser, weight = Probabilistic(), np.ones(1000, np.float32)
    for score in (0, 1):
        trained = {"score": np.full(1000, score, np.float32)}
        frozen = sparser.feed(weight, trained, weight, MOMENT)
        assert np.array_equal(sparser.effective(weight, trained, frozen).round(6), trained["score"])
        _, extras = sparser.gradient(weight, trained, frozen, weight)
        assert np.isfinite(extras["score"]).all()
        assert np.array_equal(sparser.draw(trained["score"], MOMENT), trained["score"] == 1)


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.floats(0, 1))
def test_projection_meets_the_sum(seed, share):
    generator = np.random.default_rng(seed)
    scores = [generator.uniform(-0.2, 1.3, size).astype(np.float32) for size in ((7, 5), (0,), (40,))]
    before, kept = [score.copy() for score in scores], 75 * share
    lowered = project(scores, kept)
    total = sum(float(score.sum(dtype=np.float64)) for score in scores)
    whole = sum(float(np.clip(score, 0, 1).sum(dtype=np.float64)) for score in before)
    assert total == pytest.approx(min(kept, whole), abs=1e-4)
    assert (lowered == 0) == (whole <= kept + 1e-6)
    for score, old in zip(scores, before):
        np.testing.assert_allclose(score, np.clip(old - lowered, 0, 1), atol=1e-6)


def test_settling_brings_probabilities_back():
    trained = {"score": np.float32([-1, 0.5, 2])}
    Probabilistic().settle(trained)
    assert trained["score"].tolist() == [0, 0.5, 1]
