"""Learning from a teacher besides the labels: from when to when, and how much.

The loss itself is its host's: in a run the training graph has it, in a user's loop `loss_update` adds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from onnxsparse.epochs.act import Act
from onnxsparse.schedules import NEVER, Span

SELF, DISABLE = "self", "disable"
Keys = Union[Sequence[Union[int, str]], None]


def meant(key: int | str, names: Sequence[str]) -> str | None:
    """The output that a key means, by its name or its place."""
    if isinstance(key, int):
        return names[key] if -len(names) <= key < len(names) else None
    return key if key in names else None


class Distilling(Act):
    def __init__(
        self,
        where: str,
        span: Span,
        hardness: float,
        temperature: float,
        teacher: str,
        outputs: Keys = None,
        inputs: Sequence[str] | None = None,
    ) -> None:
        super().__init__(where, Span(span.start, span.end, NEVER))
        self.hardness, self.temperature, self.teacher, self.outputs = hardness, temperature, teacher, outputs
        self.inputs = inputs
