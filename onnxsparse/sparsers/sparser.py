"""The sparser interface: what the network sees in place of a trained weight, and the gradient of that.

A weight has arrays around it, by role. *Trained* ones are moved by the optimizer beside the weight (a threshold, the
scores). *Frozen* ones are written from outside, before a step, and have no gradient (the mask, the noise).

1. `effective` and `gradient` are functions of numbers alone, in the precision they are given. They are the definition
   that an engine's graph is held to.
2. Nothing random is drawn inside: noise is a frozen array, drawn by seed, step and name.
3. After training `keep` says which places stay, and `bake` gives the weight with +0.0 everywhere else.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxsparse.errors import OptionError, nearest
from onnxsparse.math.values import Array
from onnxsparse.plugins import Plugin
from onnxsparse.sparsers.mask_updates import Choice

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Moment:
    """Where the training of a named weight is: the step's number, and the share of all steps done (0 to 1)."""

    name: str = ""
    step: int = 0
    progress: float = 0.0
    seed: int = 0

    def uniform(self, shape: tuple[int, ...], stream: int = 0) -> Array:
        """Random numbers between 0 and 1, without the ends: the same whenever and in whatever order they are drawn."""
        name = np.frombuffer(hashlib.sha256(self.name.encode()).digest()[:8], dtype="<u8")
        counter = np.array([0, stream, self.step, int(name[0])], np.uint64)
        raw = np.random.Philox(key=self.seed, counter=counter).random_raw(math.prod(shape))
        numbers: Array = (raw >> np.uint64(12)).astype(np.float64).reshape(shape)
        numbers += 0.5
        numbers *= 2.0**-52
        return numbers


class Sparser(Plugin, ABC):
    """What stands in for a weight while it is trained."""

    kind: ClassVar[str] = "sparsers"
    feeds: ClassVar[bool] = False
    """What `feed` returns changes with every step."""
    chooses: ClassVar[bool] = True
    """`feed` looks at the mask it is given; where it does not, none has to be chosen for it."""

    @property
    def text(self) -> str:
        """The canonical text: `parse(sparser.text)` gives the same sparser."""
        return self.name

    def trained(self, weight: Array) -> dict[str, Array]:
        """What is trained beside the weight, with its start values."""
        return {}

    @abstractmethod
    def feed(self, weight: Array, trained: Arrays, mask: Array, moment: Moment) -> dict[str, Array]:
        """What the frozen arrays hold in this step; `mask` is not 0 where a place is kept."""

    def noise(self, shape: tuple[int, ...], moment: Moment) -> Array | None:
        """The random numbers of a step, as `feed` draws them; None where nothing is random."""
        return None

    def settle(self, trained: Arrays) -> None:
        """Put the trained arrays, in place, back where they make sense after the optimizer has moved them."""

    def settle_all(self, trained: Sequence[Arrays], kept: float) -> None:
        """The same for all weights of a network, of which `kept` elements may stay at this time."""
        for one in trained:
            self.settle(one)

    @abstractmethod
    def effective(self, weight: Array, trained: Arrays, frozen: Arrays) -> Array:
        """What the network sees."""

    @abstractmethod
    def gradient(
        self, weight: Array, trained: Arrays, frozen: Arrays, upstream: Array
    ) -> tuple[Array, dict[str, Array]]:
        """The gradient of the weight and of each trained array, from that of the effective weight."""

    @abstractmethod
    def keep(self, weight: Array, trained: Arrays, mask: Array, choice: Choice | None = None) -> Array:
        """True where a place stays, shaped like the weight: as many and where `choice` says, or what was learned."""

    def bake(self, weight: Array, trained: Arrays, mask: Array) -> Array:
        """The weight to be stored: what the network sees at the places that are kept, and +0.0 elsewhere."""
        return np.where(mask != 0, weight, weight.dtype.type(0))


def sigmoid(numbers: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow, in the precision of x."""
    small = np.exp(-np.abs(numbers))
    share: Array = np.where(numbers >= 0, 1 / (1 + small), small / (1 + small))
    return share


def chosen(choice: Choice, numbers: Array) -> Array:
    """The choice by these numbers, shaped like them."""
    return choice.keep(np.ascontiguousarray(numbers)).reshape(numbers.shape)


STORAGES = {"float": np.float32, "uint8": np.uint8, "bool": np.bool_}


@dataclass(frozen=True)
class MaskMultiply(Sparser):
    """The weight times its mask; pruned places get no gradient."""

    name: ClassVar[str] = "mask"
    storage: str = "float"

    def __post_init__(self) -> None:
        if self.storage not in STORAGES:
            hint = nearest(self.storage, list(STORAGES))
            raise OptionError(f"a mask is stored as {', '.join(STORAGES)}, not as {self.storage[:40]!r}{hint}")

    @property
    def text(self) -> str:
        return self.name if self.storage == "float" else f"{self.name}:storage={self.storage}"

    def feed(self, weight: Array, trained: Arrays, mask: Array, moment: Moment) -> dict[str, Array]:
        return {"mask": (mask != 0).astype(STORAGES[self.storage])}

    def effective(self, weight: Array, trained: Arrays, frozen: Arrays) -> Array:
        return np.where(frozen["mask"] != 0, weight, weight.dtype.type(0))

    def gradient(
        self, weight: Array, trained: Arrays, frozen: Arrays, upstream: Array
    ) -> tuple[Array, dict[str, Array]]:
        return self.effective(upstream, trained, frozen), {}

    def keep(self, weight: Array, trained: Arrays, mask: Array, choice: Choice | None = None) -> Array:
        return mask != 0 if choice is None else chosen(choice, self.bake(weight, trained, mask))


@dataclass(frozen=True)
class StraightThrough(Sparser):
    """The weight times a mask of the best trained scores; the mask's gradient goes to the scores as it is.

    The mask is a frozen array, chosen from the scores before a step (`keep`). The weight is multiplied with
    `mask + (score - anchor)`, the anchor fed as the score itself: the mask exactly, with its gradient at the score.
    """

    name: ClassVar[str] = "straight-through"
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
