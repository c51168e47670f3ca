"""Sampling: which anchors or proposals of an image a loss is computed on."""

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

    def sample(self, matches: Array, seed: int, stage: int) -> Array:
        """The indices drawn, those that find an object first; `stage` sets the draws of a network's parts apart."""
        draws = np.random.default_rng([int(seed), stage])
        positive = _some(draws, np.flatnonzero(matches >= 0), int(self.batch_size * self.positive_percent))
        negative = _some(draws, np.flatnonzero(matches == BACKGROUND), self.batch_size - len(positive))
        return np.concatenate([positive, negative])


def _some(draws: np.random.Generator, indices: Array, count: int) -> Array:
    return indices if len(indices) <= count else np.sort(draws.choice(indices, count, replace=False))


def read_sampler(supervisor: Section) -> NaiveSampler:
    """The section `sampler` of a supervisor."""
    _, kwargs = supervisor.typed("sampler", ["naive"])
    found = NaiveSampler(kwargs.whole("batch_size"), kwargs.number("positive_percent", least=0, most=1))
    kwargs.end()
    return found
