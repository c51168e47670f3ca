"""What an allocation is: how many units each weight loses so that all together reach a sparsity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Protocol

from onnxsparse.errors import OptionError
from onnxsparse.patterns.pattern import Pattern, Shape4
from onnxsparse.plugins import Plugin
from onnxsparse.values import Array


class Candidate(Protocol):
    """A weight as an allocation sees it. `unit_scores` may be called several times; `Pattern.unit_chunks` makes it."""

    @property
    def name(self) -> str: ...

    @property
    def shape4(self) -> Shape4: ...

    def unit_scores(self) -> Iterator[Array]: ...

    def sample_scores(self) -> Array | None:
        """Scores of some units from all over the weight, in proportion to its size; None when that saves nothing."""
        ...


class Shares(dict[str, int]):
    """The units to drop from each weight, by name; and where that is known, at which score that is.

    `cuts` has the bits of the score at which the dropped end, and how many of those equal to it go. They save another
    look at the numbers and never change the result.
    """

    def __init__(self, counts: Mapping[str, int], cuts: Mapping[str, tuple[int, int]] | None = None) -> None:
        super().__init__(counts)
        self.cuts = dict(cuts or {})


class Allocation(Plugin, ABC):
    """How many units of each weight go."""

    kind: ClassVar[str] = "allocations"
    patterns_supported: ClassVar[tuple[str, ...]] = ()
    """Names of the patterns it works with; empty means all."""
    needs_places: ClassVar[bool] = False
    """Whether it asks where a layer is: candidates then have a `place`, and dense layers are among them."""

    def allocate(self, weights: Sequence[Candidate], sparsity: float | None, pattern: Pattern) -> Shares:
        """The units to drop from each weight, by name."""
        if not self.supports(pattern):
            known = " and ".join(self.patterns_supported)
            raise OptionError(f"allocation {self.name} works with {known}, not with {pattern.text}")
        counts = self._counts(weights, sparsity, pattern)
        return counts if isinstance(counts, Shares) else Shares(counts)

    def supports(self, pattern: Pattern) -> bool:
        """Whether this allocation can distribute the units of a pattern."""
        return not self.patterns_supported or pattern.name in self.patterns_supported

    @abstractmethod
    def _counts(self, weights: Sequence[Candidate], sparsity: float | None, pattern: Pattern) -> dict[str, int]: ...
