"""Which of several modifiers comes first, and how many epochs they last.

1. Those that end earlier come first, those without an end last; then those that start earlier, then by name. So where
   several say the same thing at one step, the one that ends last is heard.
2. The epochs of a recipe reach from the earliest start to the latest start or end of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

NONE = -1


class Timed(Protocol):
    """Whatever has a start and an end."""

    @property
    def start_epoch(self) -> float: ...

    @property
    def end_epoch(self) -> float: ...


Kind = TypeVar("Kind", bound=Timed)


def in_order(modifiers: Iterable[Kind]) -> list[Kind]:
    return sorted(modifiers, key=_place)


def _place(modifier: Timed) -> tuple[float, float, str]:
    end = modifier.end_epoch
    return (math.inf if end < 0 else end), modifier.start_epoch, repr(modifier)


def max_epochs(modifiers: Sequence[Timed]) -> int:
    """-1 where no modifier has a time."""
    times = [time for one in modifiers for time in (one.start_epoch, one.end_epoch)]
    return max((math.ceil(time) for time in times if time >= 0), default=NONE)


def min_epochs(modifiers: Sequence[Timed]) -> int:
    return min((math.floor(one.start_epoch) for one in modifiers if one.start_epoch >= 0), default=NONE)
