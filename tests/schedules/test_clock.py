"""The clock of epochs against tables of when things happen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxsparse import schedules
from onnxsparse.schedules import Clock, Span, epoch_at


def times(span: Span, steps: int, per_epoch: int, begin: int = 0) -> list[float]:
    clock = Clock(span)
    epochs = (epoch_at(step, per_epoch) for step in range(begin, steps))
    return [epoch for epoch in epochs if clock.tick(epoch)]


@pytest.mark.parametrize(
    ("span", "per_epoch", "wanted"),
    [
        (Span(0, -1, 0.3), 4, [0, 0.5, 1.0, 1.5, 2.0]),  # a step is a quarter: 0.3 drifts to 0.5
        (Span(0.3, 1.9, 0.5), 10, [0.3, 0.8, 1.3, 1.8, 1.9]),
        (Span(0, 2, 1.0), 4, [0, 1, 2]),
        (Span(-1, -1, -1), 2, [0, 0.5, 1.0, 1.5, 2.0]),
        (Span(1, 1.5, -1), 2, [1.0, 1.5]),
        (Span(0.7, -1, 5.0), 2, [1.0]),
        (Span(1.0, 1.0, 1.0), 2, [1.0]),
    ],
)
def test_tables(span: Span, per_epoch: int, wanted: list[float]) -> None:
    assert times(span, int(2 * per_epoch) + 1, per_epoch) == pytest.approx(wanted)


def test_levels_at_those_times() -> None:
    span = Span(0.3, 1.9, 0.5)
    levels = [schedules.parse("cubic").level(0.05, 0.8, span.progress(epoch)) for epoch in times(span, 21, 10)]
    assert levels == pytest.approx([0.05, 0.5563, 0.7604, 0.7998, 0.8], abs=5e-5)


@pytest.mark.parametrize(
    ("rise", "wanted"),
    [
        ("cubic", [0.05, 0.416, 0.638, 0.752, 0.794, 0.8]),
        ("linear", [0.05, 0.2, 0.35, 0.5, 0.65, 0.8]),
        ("inverse-cubic", [0.05, 0.1038, 0.1674, 0.2474, 0.3614, 0.8]),
    ],
)
def test_the_anchor_schedule(rise: str, wanted: list[float]) -> None:
    span = Span(0, 5, 1)
    levels = [schedules.parse(rise).level(0.05, 0.8, span.progress(epoch)) for epoch in times(span, 21, 4)]
    assert levels == pytest.approx(wanted, abs=5e-5)


def test_a_late_start_begins_where_it_is() -> None:
    span = Span(0, 5, 1)
    found = times(span, 24, 4, begin=10)
    assert found == [2.5, 3.5, 4.5, 5.0]
    levels = [schedules.parse("cubic").level(0.05, 0.8, span.progress(epoch)) for epoch in found]
    assert levels[:2] == pytest.approx([0.7063, 0.7798], abs=5e-5)
    assert times(span, 40, 4, begin=24) == [6.0]
    assert schedules.parse("inverse-cubic").level(0.05, 0.8, span.progress(6.0)) == 0.8


def test_a_start_before_everything_counts() -> None:
    assert Span(-1, 3).progress(0.0) == 0.25


@given(st.floats(0, 3), st.floats(0, 3), st.floats(0.01, 2), st.integers(1, 50))
def test_first_and_last_are_always_there(start: float, length: float, frequency: float, per_epoch: int) -> None:
    span = Span(start, start + length, frequency)
    found = times(span, 7 * per_epoch, per_epoch)
    assert found[0] == min(e for e in (epoch_at(s, per_epoch) for s in range(7 * per_epoch)) if e >= span.start)
    assert found[-1] == min(e for e in (epoch_at(s, per_epoch) for s in range(7 * per_epoch)) if e >= span.end)
    assert found == sorted(set(found))


@given(st.integers(0, 40))
def test_a_state_goes_on(cut: int) -> None:
    span, first, second = Span(0.3, 1.9, 0.5), Clock(Span(0.3, 1.9, 0.5)), Clock(Span(0.3, 1.9, 0.5))
    epochs = [epoch_at(step, 10) for step in range(41)]
    found = [epoch for epoch in epochs[:cut] if first.tick(epoch)]
    second.restore(first.state())
    assert found + [epoch for epoch in epochs[cut:] if second.tick(epoch)] == times(span, 41, 10)
