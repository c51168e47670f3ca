"""What a loss is: a number that says how far outputs are from their targets.

These are definitions, in float64, to measure with and to hold engines against; engines write the same in their own
operators. With several outputs a loss is the mean over the outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.plugins import Plugin
from onnxsparse.values import Array


class Loss(Plugin, ABC):
    """How far outputs are from their targets."""

    kind: ClassVar[str] = "losses"
    target: ClassVar[str]
    """What the targets are: `classes` (whole numbers), `numbers`, or `dense` (what the dense model puts out)."""

    def value(self, student: Sequence[Array], target: Sequence[Array]) -> float:
        """The loss of outputs, beside their targets."""
        pairs = self._pairs(student, target)
        return sum(self._value(one, other, place) for place, (one, other) in enumerate(pairs)) / len(pairs)

    def gradient(self, student: Sequence[Array], target: Sequence[Array]) -> list[Array]:
        """How the loss changes with every element of the outputs."""
        pairs = self._pairs(student, target)
        return [self._gradient(one, other, place) / len(pairs) for place, (one, other) in enumerate(pairs)]

    def check(self, shape: tuple[int, ...], target: Array) -> None:
        """Targets that do not fit outputs of a shape are an OptionError. No engine sees it: some go on with garbage."""
        if target.shape != shape:
            raise OptionError(
                f"{self.name} compares outputs of shape {shape} with targets of the same, not {target.shape}"
            )

    def _pairs(self, student: Sequence[Array], target: Sequence[Array]) -> list[tuple[Array, Array]]:
        if not student or len(student) != len(target):
            raise OptionError(
                f"{self.name} needs a target for each output: {len(student)} outputs, {len(target)} targets"
            )
        for one, other in zip(student, target):
            self.check(one.shape, other)
        return [(np.asarray(one, np.float64), other) for one, other in zip(student, target)]

    @abstractmethod
    def _value(self, student: Array, target: Array, place: int) -> float:
        """The loss of one output, the one at `place`."""

    @abstractmethod
    def _gradient(self, student: Array, target: Array, place: int) -> Array: ...


def labels_unlike(task: str, output: str, given: Sequence[int], wanted: Sequence[Sequence[int]], more: str = "") -> str:
    """What is said of labels whose shape, that of a sample, is none of the wanted ones."""
    taken = " or ".join(
        dict.fromkeys(str(list(shape)) if len(shape) else "one number for each sample" for shape in wanted)
    )
    had = f"have shape {list(given)}" if len(given) else "are one number"
    return (
        f"a sample's labels {had}, but --loss {task} on '{output}' takes {taken}; "
        f"{more or 'reshape them'}, or name another output with --loss-output"
    )


def log_softmax(logits: Array, axis: int) -> Array:
    """The logarithm of the softmax; the largest logit is taken off first, so that nothing overflows."""
    rest = logits - logits.max(axis=axis, keepdims=True)
    logs: Array = rest - np.log(np.exp(rest).sum(axis=axis, keepdims=True))
    return logs
