"""Options out of bounds say what the bounds are, and those without an effect do so."""

from __future__ import annotations

from typing import Any

import pytest

from onnxsparse.errors import OptionError
from onnxsparse.recipes.modifiers.pruning import Pruning
from onnxsparse.recipes.modifiers.training import Objective, Training
from tests.messages import refusing


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rate": 1e30}, r"rate is a number above 0, up to 1e\+09, not 1e\+30"),
        ({"steps": 10**24}, r"steps is a number above 0, up to 1e\+09"),
        ({"batch": 10**12}, "batch is a whole number from 1 to 1000000000, not"),
        ({"accumulate": 0}, "accumulate is a whole number from 1 to 1000000000, not 0"),
    ],
)
def test_the_bounds_of_a_run(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        Training(**options)


def test_the_bounds_of_updates() -> None:
    with refusing(OptionError):
        Pruning(pattern="2:4", updates=10**10)


def test_a_temperature_without_kl() -> None:
    assert "--loss kl" in Objective(temperature=4.0).idle[0]
    assert "--distillation kl" in Objective(loss="cross-entropy", temperature=4.0).idle[0]
    assert not Objective(loss="kl", temperature=4.0).idle
    assert not Objective(loss="cross-entropy", distillation="kl", temperature=4.0).idle
