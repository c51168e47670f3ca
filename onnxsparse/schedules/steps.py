"""The schedule in steps."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from onnxsparse.errors import OptionError
from onnxsparse.schedules.schedule import Schedule

MOST = 1000
CLOSE = 1e-9
"""A stage begins this little early: progress is a quotient of counts, and may be rounded to just below."""


@dataclass(frozen=True)
class Steps(Schedule):
    """Equal stages, each at a share of its own: `steps:4` is `steps:0.25,0.5,0.75,1`; the last stage holds the goal."""

    name: ClassVar[str] = "steps"
    syntax: ClassVar[str] = "steps:COUNT or steps:SHARE,...,1"
    shares: tuple[float, ...] = field(default=(0.25, 0.5, 0.75, 1.0), metadata={"option": False})

    def __post_init__(self) -> None:
        rising = all(earlier <= later for earlier, later in zip(self.shares, self.shares[1:]))
        if not (0 < len(self.shares) <= MOST and self.shares[-1] == 1.0 and self.shares[0] >= 0.0 and rising):
            raise OptionError(
                f"the shares of a schedule in steps rise from 0 or more to exactly 1 (up to {MOST} of them)"
            )

    @classmethod
    def read(cls, text: str) -> Steps | None:
        word, colon, rest = text.partition(":")
        if word != cls.name:
            return None
        if not colon:
            return cls()
        return cls(equal(int(rest)) if re.fullmatch("[0-9]{1,9}", rest) else _numbers(rest))

    @property
    def text(self) -> str:
        return f"{self.name}:{','.join(map(repr, self.shares))}"

    def share(self, progress: float) -> float:
        if progress >= 1.0:
            return 1.0
        if not progress > 0.0:
            return self.shares[0]
        stage = int(progress * len(self.shares) + CLOSE)
        return self.shares[min(stage, len(self.shares) - 1)]


def equal(count: int) -> tuple[float, ...]:
    """The shares of `count` equal steps."""
    if not 1 <= count <= MOST:
        raise OptionError(f"a schedule has 1 to {MOST} steps, not {count}")
    return tuple((stage + 1) / count for stage in range(count))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"steps: {text[:60]!r} is neither a number of steps nor shares such as 0.5,0.8,1") from None
