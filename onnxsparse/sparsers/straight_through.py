"""A hard mask whose scores are trained as if it were they."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.sparsers.renewal import Choice
from onnxsparse.sparsers.sparser import Arrays, Moment, Sparser, chosen
from onnxsparse.values import Array


@dataclass(frozen=True)
class StraightThrough(Sparser):
    """The weight times a mask of the best trained scores; the mask's gradient goes to the scores as it is.

    The mask is a frozen array, chosen from the scores before a step (`keep`). The weight is multiplied with
    `mask + (score - anchor)`, the anchor fed as the score itself: the mask exactly, with its gradient at the score.
    """

    name: ClassVar[str] = "straight-through"
    hides: ClassVar[bool] = False
    feeds: ClassVar[bool] = True
    threshold: float = 0.0

    @property
    def text(self) -> str:
        return f"{self.name}:threshold={self.threshold}"

    def trained(self, weight: Array) -> dict[str, Array]:
        return {"score": np.abs(weight)}

    def feed(self, weight: Array, trained: Arrays, mask: Array, moment: Moment) -> dict[str, Array]:
        return {"mask": (mask != 0).astype(weight.dtype), "anchor": trained["score"]}

    def effective(self, weight: Array, trained: Arrays, frozen: Arrays) -> Array:
        mask: Array = frozen["mask"] + (trained["score"] - frozen["anchor"])
        return weight * mask

    def gradient(
        self, weight: Array, trained: Arrays, frozen: Arrays, upstream: Array
    ) -> tuple[Array, dict[str, Array]]:
        return self.effective(upstream, trained, frozen), {"score": upstream * weight}

    def keep(self, weight: Array, trained: Arrays, mask: Array, choice: Choice | None = None) -> Array:
        score = trained["score"]
        return score > self.threshold if choice is None else chosen(choice, _from_zero(score))


def _from_zero(score: Array) -> Array:
    """The order of the scores, from 0 on."""
    lowest = score.min(initial=0)
    return score if lowest >= 0 else score.astype(np.float64) - lowest
