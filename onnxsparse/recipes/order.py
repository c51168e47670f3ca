"""The order in which modifiers act, the epochs they cover, and what tells them apart.

1. Sorted by the end, with those that never end last, then by the start, then by the identifier. What ends later acts
   later in a step, and so has the last word.
2. Those of our own come first, in the order in which they are written: they are the frame of a run.
3. Every start and end counts for how long a run is, not only those of an EpochRangeModifier.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any

from onnxsparse.modifiers.modifier import Modifier
from onnxsparse.recipes.writing import options_of, tag_of, value_text

NONE = -1


def epochs_of(modifier: Modifier) -> tuple[float, float]:
    """Start and end of a modifier; -1 where it has none."""
    found = (getattr(modifier, "start_epoch", -1.0), getattr(modifier, "end_epoch", -1.0))
    return found[0], found[1]


def has_epochs(modifier: Modifier) -> bool:
    return hasattr(modifier, "start_epoch")


def in_order(modifiers: Iterable[Modifier]) -> tuple[Modifier, ...]:
    """Modifiers as they act."""
    modifiers = tuple(modifiers)
    own = [one for one in modifiers if not has_epochs(one)]
    return (*own, *sorted((one for one in modifiers if has_epochs(one)), key=_place))


def _place(modifier: Modifier) -> tuple[float, float, str]:
    start, end = epochs_of(modifier)
    return (math.inf if end < 0 else end), start, identifier(modifier)


def stage_place(modifiers: Iterable[Modifier]) -> tuple[float, float, str]:
    """By the latest end, the earliest start, and the last identifier."""
    places = [_place(one) for one in modifiers if has_epochs(one)] or [(math.inf, -1.0, "")]
    return max(one[0] for one in places), min(one[1] for one in places), max(one[2] for one in places)


def identifier(modifier: Modifier) -> str:
    """Tag and digest of all options: another value makes another identifier."""
    texts = sorted(f"{name}:{value_text(value)}" for name, value in options_of(modifier).items())
    digest = hashlib.md5(str(texts).encode("utf-8", "surrogatepass"), usedforsecurity=False)
    return f"{tag_of(modifier)}-{digest.hexdigest()}"


def first_epoch(modifiers: Iterable[Modifier]) -> int:
    """The epoch in which anything begins; -1 where nothing has a beginning."""
    return min((math.floor(start) for start in _starts(modifiers) if start > NONE), default=NONE)


def last_epoch(modifiers: Iterable[Modifier]) -> int:
    """The epoch by which everything has begun and ended; -1 where nothing says it."""
    ends: list[Any] = [end for one in modifiers for end in epochs_of(one) if end > NONE]
    return max(map(math.ceil, ends), default=NONE)


def _starts(modifiers: Iterable[Modifier]) -> list[float]:
    return [epochs_of(one)[0] for one in modifiers]
