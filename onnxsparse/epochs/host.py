"""What a modifier acts on: the parameters of a model in training, and the optimizer that moves them.

A run on an engine is one, a torch module with its optimizer another: both do the same by the same verbs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Optional

import numpy as np

from onnxsparse.epochs.params import Param
from onnxsparse.values import Array

Groups = Optional[Sequence[int]]
"""Some of the optimizer's groups of parameters, by number; all where there is none."""


class Host(ABC):
    """A model in training."""

    params: Sequence[Param]
    per_epoch: int

    def __init__(self) -> None:
        self.renewals: Counter[str] = Counter()
        """By tag, how often its mask was put or let go."""

    @abstractmethod
    def numbers(self, param: Param) -> Array:
        """What a parameter is now: float32, flat in stored order, +0.0 where it is masked."""

    def count(self, param: Param) -> int:
        """How many numbers of a parameter are not zero; hidden ones may count."""
        return int(np.count_nonzero(self.numbers(param)))

    @abstractmethod
    def mask(self, param: Param) -> Array | None:
        """True where a parameter is kept, flat; None without a mask."""

    @abstractmethod
    def put(self, param: Param, keep: Array) -> None:
        """The mask of a parameter from now on; what is masked is zero, and forgotten by the optimizer."""

    @abstractmethod
    def release(self, param: Param) -> None:
        """No mask any more; the zeros are free to go."""

    @abstractmethod
    def fill(self, param: Param, value: float | Sequence[float]) -> None:
        """Set all numbers of a parameter."""

    @abstractmethod
    def forget(self, param: Param) -> None:
        """The optimizer forgets where a parameter was going."""

    @abstractmethod
    def held(self, param: Param) -> bool:
        """Whether a parameter stands still."""

    @abstractmethod
    def hold(self, param: Param, still: bool) -> None:
        """Let it stand still, or train."""

    @abstractmethod
    def rates(self, groups: Groups) -> list[float]:
        """The learning rates at this time."""

    @abstractmethod
    def set_rates(self, rates: Sequence[float], groups: Groups) -> None:
        """One for each group, or one for all."""

    @abstractmethod
    def set_decay(self, decay: float, groups: Groups) -> None:
        """The weight decay of the optimizer."""

    @abstractmethod
    def tell(self, epoch: float) -> None:
        """Say how sparse the model is."""
