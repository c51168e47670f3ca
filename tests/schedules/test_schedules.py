"""The schedules."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxsparse import schedules
from onnxsparse.errors import OptionError
from onnxsparse.schedules import Polynomial, Steps

RAMPS = ("linear", "cubic", "inverse-cubic", "polynomial", "cosine", "exponential")
AT_ONCE = ("constant", "one-shot")
TEXTS = (
    *RAMPS, *AT_ONCE, "steps", "steps:1", "steps:7", "steps:0,0.5,1", "polynomial:power=0.5", "polynomial:power=30",
    "exponential:rate=-20", "exponential:rate=100", "exponential:rate=1e-9",
)  # fmt: skip
numbers = st.floats(allow_nan=False)


@given(text=st.sampled_from(TEXTS), progress=numbers, later=st.one_of(numbers, st.floats(0, 1)))
def test_a_share_lies_between_0_and_1_and_never_falls(text, progress, later):
    schedule = schedules.parse(text)
    first, last = sorted((progress, later))
    assert 0.0 <= schedule.share(first) <= schedule.share(last) <= 1.0


@given(text=st.sampled_from(TEXTS), start=st.floats(0, 1), step=st.integers(1, 1000))
def test_neighbouring_progress_does_not_fall_by_rounding(text, start, step):
    schedule = schedules.parse(text)
    later = start
    for _ in range(step % 20):
        later = math.nextafter(later, 2.0) if hasattr(math, "nextafter") else later * (1 + 2**-52)
    assert schedule.share(later) >= schedule.share(start) - 1e-15  # powers and sines may err in the last bit


@pytest.mark.parametrize("text", TEXTS)
def test_the_goal_is_met_exactly(text):
    schedule = schedules.parse(text)
    assert schedule.share(1) == schedule.share(1.5) == schedule.share(math.inf) == 1.0
    assert schedule.level(0.05, 0.8, 1.0) == 0.8
    assert schedule.level(0.1, 0.7, 1.0) == 0.7


@pytest.mark.parametrize("name", RAMPS)
def test_ramps_start_at_0_and_others_are_there_at_once(name):
    ramp = schedules.parse(name)
    assert ramp.share(0) == ramp.share(-3) == 0.0
    assert ramp.level(0.05, 0.8, 0) == 0.05
    assert 0.0 < ramp.share(0.5) < 1.0
    assert [schedules.parse(word).share(at) for word in AT_ONCE for at in (-1, 0, 0.5)] == [1.0] * 6


@pytest.mark.parametrize("text", TEXTS)
def test_the_text_makes_the_same_schedule(text):
    schedule = schedules.parse(text)
    assert schedules.parse(schedule.text) == schedule
    assert schedules.parse(schedule.text).text == schedule.text


@given(power=st.floats(0.001, 100))
def test_the_text_keeps_every_digit_of_an_option(power):
    assert schedules.parse(Polynomial(power).text) == Polynomial(power)


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("linear", [0.05, 0.2, 0.35, 0.5, 0.65, 0.8]),
        ("cubic", [0.05, 0.416, 0.638, 0.752, 0.794, 0.8]),
        ("inverse-cubic", [0.05, 0.1038, 0.1674, 0.2474, 0.3614, 0.8]),
    ],
)
def test_the_known_table_of_levels(name, levels):
    """Five epochs from 5 % to 80 %."""
    schedule = schedules.parse(name)
    assert [schedule.level(0.05, 0.8, epoch / 5) for epoch in range(6)] == pytest.approx(levels, abs=5e-5)


@given(progress=st.floats(0, 1))
def test_the_formulas(progress):
    def share(text):
        return schedules.parse(text).share(progress)

    assert share("polynomial:power=1") == pytest.approx(progress, abs=1e-15)
    assert share("polynomial") == pytest.approx(share("cubic"), abs=1e-15)
    assert share("cosine") == pytest.approx((1 - math.cos(math.pi * progress)) / 2, abs=1e-15)
    assert share("exponential:rate=2") == pytest.approx((1 - math.exp(-2 * progress)) / (1 - math.exp(-2)), abs=1e-14)


def test_a_negative_rate_starts_slow():
    assert schedules.parse("exponential:rate=-5").share(0.5) < 0.1 < 0.9 < schedules.parse("exponential").share(0.5)


@given(count=st.integers(1, 200), total=st.integers(1, 5000), data=st.data())
def test_equal_steps_of_a_count(count, total, data):
    step = data.draw(st.integers(0, total - 1))
    assert Steps.read(f"steps:{count}").share(step / total) == (step * count // total + 1) / count


def test_steps_hold_their_shares():
    schedule = schedules.parse("steps:0,0.5,1")
    assert [schedule.share(at) for at in (-1, 0, 0.3, 0.34, 0.66, 0.67, 0.99, 1)] == [0, 0, 0, 0.5, 0.5, 1, 1, 1]
    assert schedules.parse("steps:4") == schedules.parse("steps") == schedules.parse("steps:0.25,0.5,0.75,1")


@pytest.mark.parametrize(
    "text",
    [
        "steps:0", "steps:", "steps:1001", "steps:999999999999", "steps:" + "9" * 5000, "steps:0.5", "steps:0.5,0.4,1",
        "steps:-0.1,1", "steps:1,nan", "steps:a,1", "steps:0.5,1,1.5", "polynomial:power=0", "polynomial:power=nan",
        "polynomial:power=inf", "exponential:rate=0", "exponential:rate=nan", "exponential:rate=1e9", "cubic:power=2",
        "quad", "cubc",
    ],
)  # fmt: skip
def test_a_wrong_text_is_one_clear_line(text):
    with pytest.raises(OptionError) as caught:
        schedules.parse(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_they_are_listed():
    entries = {entry.syntax: entry for entry in schedules.available()}
    assert set(entries) == {*RAMPS, *AT_ONCE, "steps:COUNT or steps:SHARE,...,1"}
    assert all(entry.description.endswith(".") for entry in entries.values())
