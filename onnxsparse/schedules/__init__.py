"""How fast a level goes from start to goal. `parse` turns a word into a schedule, `available` lists them."""

from __future__ import annotations

from typing import cast

from onnxsparse import plugins
from onnxsparse.schedules.schedule import Schedule

__all__ = ["Schedule", "available", "parse"]


def parse(text: str) -> Schedule:
    """Return the schedule that a text such as `cubic` or `polynomial:power=2` stands for."""
    return cast(Schedule, plugins.parse("schedules", text))


def available() -> list[plugins.Entry]:
    """Describe every schedule."""
    return plugins.available("schedules")
