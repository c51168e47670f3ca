"""Absolute rates against tables, step by step."""

from __future__ import annotations

import pytest

from onnxsparse.errors import OptionError
from onnxsparse.rates import Way, drops, on_the_way
from tests.messages import refusing

PER_EPOCH = 4


def sequence(kind: str, options: dict, steps: int, start: float = 0.0) -> list[float]:
    made = drops(kind, options, start)
    return [made.rate(0.1, step, PER_EPOCH) for step in range(steps)]


def test_exponential() -> None:
    wanted = [0.1] * 4 + [0.05] * 4 + [0.025] * 4
    assert sequence("ExponentialLR", {"gamma": 0.5}, 12) == pytest.approx(wanted)


def test_step() -> None:
    wanted = [0.1] * 6 + [0.05] * 6 + [0.025]
    assert sequence("StepLR", {"gamma": 0.5, "step_size": 1.5}, 13) == pytest.approx(wanted)


def test_multi_step() -> None:
    wanted = [0.1] * 4 + [0.05] * 6 + [0.025] * 2
    assert sequence("MultiStepLR", {"gamma": 0.5, "milestones": [1.0, 2.5]}, 12) == pytest.approx(wanted)
    late = sequence("MultiStepLR", {"gamma": 0.5, "milestones": [2.0]}, 8, start=1.0)
    assert late == pytest.approx([0.1] * 4 + [0.05] * 4)


def test_cosine_with_restarts() -> None:
    found = sequence("CosineAnnealingWarmRestarts", {"cycle_epochs": 2, "lr_min": 0.001}, 10)
    assert found[:3] == pytest.approx([0.1, 0.09623, 0.0855], abs=1e-5)
    assert found[8:] == pytest.approx(found[:2])


@pytest.mark.parametrize("milestone", [1.0, 0.5, 3.0])
def test_milestones_lie_inside(milestone: float) -> None:
    made = drops("MultiStepLR", {"milestones": [milestone]}, 1.0)
    with refusing(OptionError):
        made.check(1.0, 3.0)
    drops("MultiStepLR", {"milestones": [2.0]}, 1.0).check(1.0, 3.0)


@pytest.mark.parametrize(
    ("kind", "options", "what"),
    [
        ("StepLR", {"gamma": 0.1, "step_size": 0}, "above 0"),
        ("MultiStepLR", {"gamma": "x", "milestones": [1]}, "gamma is a number"),
    ],
)
def test_wrong_options(kind: str, options: dict, what: str) -> None:
    with pytest.raises(OptionError, match=what):
        drops(kind, options, 0.0)


def along(function: str, way: Way, steps: int) -> list[float]:
    return [on_the_way(function, way, step / PER_EPOCH, PER_EPOCH) for step in range(steps)]


def test_linear_goes_straight() -> None:
    assert along("linear", Way(0.1, 0.0, 0, 2), 10) == pytest.approx(
        [0.1, 0.0875, 0.075, 0.0625, 0.05, 0.0375, 0.025, 0.0125, 0.0, 0.0]
    )


@pytest.mark.parametrize(("first", "last"), [(0.1, 0.0), (0.0, 0.1)])
def test_cosine_goes_both_ways(first: float, last: float) -> None:
    found = along("cosine", Way(first, last, 0, 2), 9)
    assert (found[0], found[4], found[8]) == pytest.approx((first, 0.05, last))
    assert found == sorted(found, reverse=first > last)


def test_cyclic_linear_is_a_saw() -> None:
    found = along("cyclic_linear", Way(0.1, 0.0, 0, 4, 1.5), 17)
    saw = [0.1, 0.08, 0.06, 0.04, 0.02, 0.0]
    assert found == pytest.approx([*saw, *saw, 0.1, 0.1 * 2 / 3, 0.1 / 3, 0.0, 0.1])


def test_a_last_cycle_of_one_step() -> None:
    assert along("cyclic_linear", Way(0.1, 0.0, 0, 1.25, 1.0), 5)[4] == 0.1
