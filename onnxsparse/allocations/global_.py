"""The global allocation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse import rank
from onnxsparse.allocations.allocation import Allocation, Candidate, Shares
from onnxsparse.patterns.pattern import Pattern, checked_sparsity
from onnxsparse.values import Array

RUN = 256
"""How many neighbours in a row a sample of scores is taken to have, at most."""


@dataclass(frozen=True)
class Global(Allocation):
    """The least important units of all weights together, wherever they are; every weight keeps its largest unit."""

    name: ClassVar[str] = "global"
    patterns_supported: ClassVar[tuple[str, ...]] = ("unstructured", "block")

    def _counts(self, weights: Sequence[Candidate], sparsity: float | None, pattern: Pattern) -> dict[str, int]:
        units = [pattern.units(weight.shape4) for weight in weights]
        drop = math.floor(checked_sparsity(sparsity, pattern.text) * sum(units) + 0.5)
        streams = [weight.unit_scores for weight in weights]
        names = [weight.name for weight in weights]
        cut = rank.cut(streams, drop, _sampled(weights, sum(units)))
        if all(count < size for count, size in zip(cut.counts, units)):
            return Shares(dict(zip(names, cut.counts)), {name: (cut.key, ties) for name, ties in zip(names, cut.ties)})
        # Only here it matters that a weight's largest unit is no candidate.
        return Shares(dict(zip(names, rank.cut([_but_the_largest(stream) for stream in streams], drop).counts)))


def _sampled(weights: Sequence[Candidate], units: int) -> rank.Sample | None:
    """A sample of all scores, where the weights can be sampled without being read."""
    parts = [weight.sample_scores() for weight in weights]
    given = [part for part in parts if part is not None]
    return rank.Sample(np.concatenate(given), units, RUN) if given and len(given) == len(parts) else None


def _but_the_largest(stream: rank.Stream) -> rank.Stream:
    """A stream without one key: its largest, which is no candidate."""
    largest = max((chunk.max() for chunk in stream() if chunk.size), default=np.uint32(0))

    def rest() -> Iterator[Array]:
        found = False
        for chunk in stream():
            if found or chunk.size == 0 or chunk.max() != largest:
                yield chunk
                continue
            found, place = True, int(np.argmax(chunk))
            yield chunk[:place]
            yield chunk[place + 1 :]

    return rest
