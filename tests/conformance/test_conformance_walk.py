"""Every little model through every command, once: what is found, pruned, masked, folded, verified, and what stays.

The properties are in tests/graphs/properties.py, the stations they look at in tests/graphs/walk.py, what they come to
in tests/golden/properties.md. A failure names every property that does not hold of the model.
"""

from __future__ import annotations

from typing import Callable

import pytest
from graphs.builders import CASES
from graphs.properties import table, wrong_properties
from graphs.running import knows_every_opset, refusal


@pytest.mark.parametrize("name", CASES)
def test_every_property_holds(name: str, pytestconfig: pytest.Config) -> None:
    wrong = wrong_properties(name, only_runs=pytestconfig.getoption("--other-runtime"))
    assert not wrong, f"{len(wrong)} wrong of {name}:\n" + "\n".join(wrong)


def test_no_property_is_lost(golden: Callable[[str, str], None]) -> None:
    golden("properties.md", table())


def test_few_cases_are_excused() -> None:
    """An older runtime lacks a kernel or an opset here and there; what refuses more is broken, not old."""
    excused = [name for name, case in CASES.items() if case.build().runs and not case.build().files and refusal(name)]
    assert len(excused) <= 8
    assert not (excused and knows_every_opset())
