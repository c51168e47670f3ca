"""Sampled masks (ProbMask): every weight has a probability, and it is the probabilities that are trained.

1. The relaxed mask is sigmoid((logit(p) + noise) * temperature), where the noise is the difference of two Gumbel draws.
2. After each step all probabilities of a network are projected: lowered together until their sum is what may be kept.
   Until then, one that the optimizer has moved out of 0..1 counts as the nearer end, without a gradient.
3. To fix the subnet, draw it (`draw`) and go on with the sparser `mask`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.math.values import BLOCK, Array
from onnxsparse.sparsers.mask_updates import Choice
from onnxsparse.sparsers.sparser import Arrays, Moment, Sparser, chosen, sigmoid

TINY = 1e-20
LARGEST_EXPONENT = 60.0
DRAWN, NOISE = 1, 0
UNIT = 1 << 30
"""Probabilities are added up in whole units, so that no order of summing decides anything."""
TANGENTS = 16


@dataclass(frozen=True)
class Probabilistic(Sparser):
    """The weight times a relaxed random mask of trained probabilities, sharper with every step when it anneals."""

    name: ClassVar[str] = "probabilistic"
    feeds: ClassVar[bool] = True
    chooses: ClassVar[bool] = False
    start: float = 1.0
    temperature: float = 3.0
    anneal: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.start <= 1:
            raise OptionError(f"{self.name}: a probability starts between 0 and 1, not at {self.start}")
        if not 0 < self.temperature < np.inf:
            raise OptionError(f"{self.name}: a temperature is a positive number, not {self.temperature}")

    @property
    def text(self) -> str:
        sharper = "true" if self.anneal else "false"
        return f"{self.name}:start={self.start},temperature={self.temperature},anneal={sharper}"

    def trained(self, weight: Array) -> dict[str, Array]:
        return {"score": np.full(weight.shape, self.start, weight.dtype)}

    def feed(self, weight: Array, trained: Arrays, mask: Array, moment: Moment) -> dict[str, Array]:
        factor = self.sharpness(moment.progress)
        return {"noise": self.noise(weight.shape, moment), "temperature": np.full(1, factor, np.float32)}

    def sharpness(self, progress: float) -> float:
        """The factor before the sigmoid: constant, or from 1 to 33 while training goes on."""
        return 1 / (0.97 * (1 - min(max(progress, 0.0), 1.0)) + 0.03) if self.anneal else self.temperature

    def noise(self, shape: tuple[int, ...], moment: Moment) -> Array:
        """-log(log(u) / log(v)) of two uniform draws: Gumbel noise of keeping, less that of dropping."""
        logs = np.log(moment.uniform((2, *shape), NOISE))
        noise: Array = -np.log(logs[0] / logs[1])
        return noise.astype(np.float32)

    def effective(self, weight: Array, trained: Arrays, frozen: Arrays) -> Array:
        return weight * sigmoid(_exponent(trained, frozen))

    def gradient(
        self, weight: Array, trained: Arrays, frozen: Arrays, upstream: Array
    ) -> tuple[Array, dict[str, Array]]:
        given, exponent = trained["score"], _exponent(trained, frozen)
        score = np.clip(given, 0, 1)
        soft, rest = sigmoid(exponent), sigmoid(-exponent)
        inside = np.where((exponent > -LARGEST_EXPONENT) & (score == given), frozen["temperature"], 0)
        slope = soft * rest * (1 / (score + TINY) + 1 / (1 - score + TINY)) * inside
        return upstream * soft, {"score": (upstream * weight * slope).astype(weight.dtype)}

    def keep(self, weight: Array, trained: Arrays, mask: Array, choice: Choice | None = None) -> Array:
        return trained["score"] >= 0.5 if choice is None else chosen(choice, trained["score"])

    def settle(self, trained: Arrays) -> None:
        np.clip(trained["score"], 0, 1, out=trained["score"])

    def settle_all(self, trained: Sequence[Arrays], kept: float) -> None:
        project([one["score"] for one in trained], kept)

    def draw(self, score: Array, moment: Moment) -> Array:
        """The subnet: True with the probability of each place."""
        return moment.uniform(score.shape, DRAWN) < score


def project(scores: Sequence[Array], kept: float) -> float:
    """Lower all probabilities together, in place and within 0 and 1, until they add up to `kept`; returns by how much.

    Where their sum is not above it, only the ends are cut. Sums are in units: the least count of them that will do.
    """
    lowered = _lowered([_units(score) for score in scores], int(np.floor(kept * UNIT)))
    for score in scores:
        np.clip(score - score.dtype.type(lowered / UNIT), 0, 1, out=score)
    return lowered / UNIT


def _lowered(units: Sequence[Array], goal: int) -> int:
    """By how many units to lower: found by tangents, which come close from below, or by halving."""
    below, above, guess, tangents = -1, 2 * UNIT, 0, TANGENTS
    while above - below > 1:
        total, moving = _total(units, guess)
        if total > goal:
            below = guess
            tangents -= 1
            guess = below + max(-(-(total - goal) // max(moving, 1)), 1)
        else:
            above = guess
            guess = above - 1 if tangents > 0 else below
            tangents = 0
        if tangents < 0 or not below < guess < above:
            guess = (below + above) // 2
    return above


def _total(units: Sequence[Array], lowered: int) -> tuple[int, int]:
    """The sum of all probabilities, lowered by so many units, in units; and how many of them move."""
    total, moving, room = 0, 0, np.empty(BLOCK, np.int32)
    for one in units:
        for start in range(0, one.size, BLOCK):
            block = one[start : start + BLOCK]
            part = np.subtract(block, np.int32(lowered), out=room[: block.size])
            moving -= int(np.count_nonzero(part > UNIT))
            np.maximum(part, 0, out=part)
            moving += int(np.count_nonzero(part))
            total += int(np.minimum(part, UNIT, out=part).sum(dtype=np.int64))
    return total, moving


def _units(score: Array) -> Array:
    """Probabilities in units; an optimizer may have pushed them out of 0..1, but no further than 2 is followed."""
    wide: Array = np.multiply(score.reshape(-1), UNIT, dtype=np.float64)
    return np.clip(np.rint(wide, out=wide), 0, 2 * UNIT - 1, out=wide).astype(np.int32)


def _exponent(trained: Arrays, frozen: Arrays) -> Array:
    """(logit + noise) * temperature, from -60 on: the sigmoid of that is nothing, and its logarithm still a number.

    An optimizer may have pushed a probability out of 0..1, where there is no logarithm: the nearer end counts.
    """
    score = np.clip(trained["score"], 0, 1)
    logit = np.log(score + TINY) - np.log(1 - score + TINY)
    exponent: Array = np.maximum((logit + frozen["noise"]) * frozen["temperature"], -LARGEST_EXPONENT)
    return exponent.astype(score.dtype)
