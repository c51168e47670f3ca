"""What a score is: how important every element of a weight is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from onnxsparse.plugins import Plugin
from onnxsparse.values import Array, Values


class Score(Plugin, ABC):
    """The importance of every element; the least important go first."""

    kind: ClassVar[str] = "scores"
    needs: ClassVar[tuple[str, ...]] = ()
    elementwise: ClassVar[bool] = False
    """True when the importance of an element depends on its value alone: pieces can then be ranked alone."""
    patterns_supported: ClassVar[tuple[str, ...]] = ()
    """Names of the patterns it says something about; empty means all."""

    @property
    def text(self) -> str:
        """The canonical text: `parse(score.text)` gives the same score."""
        return self.name

    def supports(self, pattern: str) -> bool:
        """Whether the units of a pattern, by its name, can be told apart by this score."""
        return not self.patterns_supported or pattern in self.patterns_supported

    def bind(self, tensor: str) -> Score:
        """The score of one named tensor."""
        return self

    def rank(self, values: Values) -> Array:
        """Numbers >= 0 that order the elements of one weight: the cheapest that do."""
        return self.value(values)

    @abstractmethod
    def value(self, values: Values) -> Array:
        """Importance as float32 or float64 >= 0, in the order of `rank`: can be summed and compared between weights."""
