"""Sampling: which anchors or proposals of an image a loss is computed on.

What is drawn belongs to an anchor by its place, and to a proposal by its box: proposals come in the order of their
scores, and two that are nearly equal change places with the rounding of another batch size. Were they drawn by their
place, all others would be drawn anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from models.detection.matching import BACKGROUND
from models.sections import Section

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class NaiveSampler:
    """So many of an image, of which at most a part finds an object; drawn by the image's seed."""

    batch_size: int
    positive_percent: float

    def sample(self, matches: Array, seed: int, stage: int, boxes: Array | None = None) -> Array:
        """The indices drawn, those that find an object first; `stage` sets the draws of a network's parts apart."""
        draws = np.random.default_rng([int(seed), stage])
        lots = draws.random(len(matches)) if boxes is None else lots_of(boxes, int(draws.integers(1 << 62)))
        positive = _some(lots, np.flatnonzero(matches >= 0), int(self.batch_size * self.positive_percent))
        negative = _some(lots, np.flatnonzero(matches == BACKGROUND), self.batch_size - len(positive))
        return np.concatenate([positive, negative])


def _some(lots: Array, indices: Array, count: int) -> Array:
    return indices if len(indices) <= count else np.sort(indices[np.argsort(lots[indices], kind="stable")[:count]])


def lots_of(boxes: Array, seed: int) -> Array:
    """A random number for each box, by its corners to a quarter of a pixel (the finalizer of splitmix64)."""
    found = np.full(len(boxes), seed, np.uint64)
    for corner in np.rint(boxes.T.astype(np.float64) * 4).astype(np.int64).astype(np.uint64):
        found = (found ^ corner) + np.uint64(0x9E3779B97F4A7C15)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found ^= found >> np.uint64(31)
    return found


def read_sampler(supervisor: Section) -> NaiveSampler:
    """The section `sampler` of a supervisor."""
    _, kwargs = supervisor.typed("sampler", ["naive"])
    found = NaiveSampler(kwargs.whole("batch_size"), kwargs.number("positive_percent", least=0, most=1))
    kwargs.end()
    return found
