"""The learning rates."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxsparse import rates
from onnxsparse.errors import OptionError
from tests.cases import for_each
from tests.messages import refusing

NAMES = ("constant", "step", "multi-step", "exponential", "cosine", "linear")
TEXTS = (*NAMES, "cosine:end=0.1,cycles=3", "linear:cycles=2", "step:every=0.3,by=0.5", "multi-step:at=0+1.5,by=0.5")


def factors(text, total, per_epoch):
    return [rates.parse(text).factor(step, total, per_epoch) for step in range(total)]


def test_every_few_epochs():
    assert factors("step:every=2,by=0.5", 10, 2) == [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]
    assert factors("step:every=0.5,by=0.5", 4, 4) == [1, 1, 0.5, 0.5]
    assert factors("step:every=0.001,by=0.5", 3, 4) == [1, 0.5, 0.25]


def test_at_some_epochs():
    assert factors("multi-step:at=1+2.5,by=0.5", 12, 4) == [1] * 4 + [0.5] * 6 + [0.25] * 2


def test_after_every_epoch():
    assert factors("exponential:by=0.5", 12, 4) == [1] * 4 + [0.5] * 4 + [0.25] * 4


def test_in_a_straight_line():
    assert factors("linear", 4, 1) == [1, 0.75, 0.5, 0.25]
    assert factors("linear:start=0.5,end=1.5", 4, 1) == [0.5, 0.75, 1.0, 1.25]
    assert factors("linear:cycles=2", 8, 1) == [1, 0.75, 0.5, 0.25] * 2
    assert rates.parse("linear:end=0.25").factor(4, 4, 1) == 0.25


def test_by_a_cosine_with_restarts():
    """The known sequence of a cycle of eight steps from 0.1 to 0.001."""
    known = [0.1, 0.09623, 0.0855, 0.06944, 0.0505, 0.03156, 0.0155, 0.00477]
    assert [0.1 * factor for factor in factors("cosine:end=0.01,cycles=2", 16, 4)] == pytest.approx(known * 2, abs=1e-5)
    assert rates.parse("cosine").factor(100, 100, 1) == 0.0


@given(text=st.sampled_from(TEXTS), total=st.integers(1, 300), per_epoch=st.integers(1, 40), step=st.integers(-2, 400))
def test_factors_lie_between_0_and_1_and_start_there(text, total, per_epoch, step):
    rate = rates.parse(text)
    assert 0.0 <= rate.factor(step, total, per_epoch) <= 1.0
    assert rate.factor(0, total, per_epoch) == (0.5 if ":at=0+" in text else 1.0)


@given(total=st.integers(1, 500), share=st.one_of(st.floats(0, 0.999), st.integers(0, 700)))
def test_a_warm_up_rises_and_ends(total, share):
    ramp = [rates.warm_up(step, total, share) for step in range(total + 1)]
    steps = rates.warm_up_steps(total, share)
    assert ramp == sorted(ramp)
    assert 0.0 < ramp[0] <= 1.0
    assert ramp[-1] == 1.0
    assert sum(factor < 1.0 for factor in ramp) == steps
    assert steps == min(total, math.floor((share if share >= 1 else share * total) + 0.5))


def test_the_rate_starts_behind_the_warm_up():
    rate = rates.parse("linear")
    found = [rates.factor_at(rate, step, 6, 1, 2) for step in range(6)]
    assert found == pytest.approx([1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25])
    assert [rates.factor_at(rate, step, 4, 1) for step in range(4)] == [1, 0.75, 0.5, 0.25]
    assert [rates.factor_at(rate, step, 3, 1, 9) for step in range(3)] == [0.25, 0.5, 0.75]
    assert rates.factor_at(rates.parse("cosine"), 0, 1, 1, 0.05) == 1.0


@pytest.mark.parametrize("share", [-0.1, math.nan, math.inf])
def test_a_wrong_warm_up_is_refused(share):
    with refusing(OptionError):
        rates.warm_up(0, 10, share)


@pytest.mark.parametrize("text", TEXTS)
def test_the_text_makes_the_same_rate(text):
    assert rates.parse(rates.parse(text).text) == rates.parse(text)


@for_each(
    "text",
    [
        "step:every=0", "step:every=nan", "step:by=0", "step:by=2", "exponential:by=-1", "multi-step:at=", "cosin",
        "multi-step:at=a+b", "multi-step:at=1++2", "multi-step:at=-1", "cosine:cycles=0", "cosine:end=-1",
        "linear:end=nan", "linear:start=inf", "cosine:cycles=99999999",
    ],
)  # fmt: skip
def test_a_wrong_text_is_one_clear_line(text):
    with pytest.raises(OptionError) as caught:
        rates.parse(text)
    assert "\n" not in str(caught.value)


def test_they_are_listed():
    assert {entry.syntax for entry in rates.available()} == set(NAMES)
    assert all(entry.description.endswith(".") for entry in rates.available())
