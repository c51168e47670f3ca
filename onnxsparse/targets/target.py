"""The target interface: which zeros a device can use, for which weights, and whether they are likely to pay."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.graph.weights import Convolution, Use, Weight
from onnxsparse.plugins import Plugin


@dataclass(frozen=True)
class Verdict:
    """What a device makes of one use of a weight. `refusal` is empty when the device may use the zeros."""

    refusal: str = ""
    advice: str = ""
    pays: bool = True
    remark: str = ""


class Target(Plugin, ABC):
    """A device's rules."""

    kind: ClassVar[str] = "targets"
    allocation: ClassVar[str] = "uniform"
    """How a level is shared out where nobody says it."""
    allows: ClassVar[tuple[str, ...]] = ()
    """Words that hold no weight back here: see `passes.rule.WORDS`."""
    tolerance: ClassVar[float | None] = None
    """How far the network may be from its level, where the device knows levels."""

    @property
    def integer_sides(self) -> bool:
        """Whether sparse integer kernels want int8 around zero at a layer's input and at its output."""
        return False

    @property
    @abstractmethod
    def text(self) -> str:
        """The canonical text: `parse(target.text).text == target.text`."""

    @property
    @abstractmethod
    def pattern(self) -> str:
        """The pattern that the device demands."""

    @abstractmethod
    def judge(self, weight: Weight, use: Use) -> Verdict:
        """May the device use zeros of the pattern here, and are they likely to pay?"""

    def target_density(self, layer: Convolution) -> float | None:
        """The density of a convolution below which more zeros gain nothing; None where there is no such bound."""
        return None

    @abstractmethod
    def next_step(self, path: str, quantized: bool) -> str:
        """The command that takes the sparse file to the device; `quantized` when weights go through Q/DQ nodes."""

    def note(self, kinds: set[str]) -> str:
        """A remark on the element types of the checked weights."""
        return ""
