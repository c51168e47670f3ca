"""What a modifier acts on: the parameters of a model in training, and the optimizer that moves them.

A run on an engine is one, a torch module with its optimizer another: both do the same by the same verbs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

import numpy as np

from onnxsparse.epochs.params import Param
from onnxsparse.epochs.together import Together
from onnxsparse.math.values import Array

if TYPE_CHECKING:
    from onnxsparse.epochs.act import Act

Groups = Optional[Sequence[int]]
"""Some of the optimizer's groups of parameters, by number; all where there is none."""


class Host(ABC):
    """A model in training."""

    params: Sequence[Param]
    per_epoch: int

    def __init__(self) -> None:
        self.renewals: Counter[str] = Counter()
        """By tag, how often its mask was put or let go."""
        self.together = Together()

    # -- masks of several acts

    def take_in(self, act: Act) -> None:
        """An act that is bound: where others mask the same parameters, each has a mask of its own."""
        act.number = self.together.add(param.tag for param in act.masked())

    def put_for(self, act: Act, param: Param, keep: Array) -> None:
        """What an act masks; what others hold stays masked."""
        self.put(param, self.together.put(param.tag, act.number, keep))

    def release_for(self, act: Act, param: Param) -> None:
        """An act masks nothing any more; what others hold stays masked."""
        keep = self.together.release(param.tag, act.number)
        if keep is None:
            self.release(param)
        else:
            self.numbers(param)  # what was hidden is zero before it shows
            self.put(param, keep)

    def own_mask(self, act: Act, param: Param) -> Array | None:
        """True where an act keeps a parameter; None without a mask."""
        if not self.together.is_shared(param.tag):
            return self.mask(param)
        keep = self.together.own(param.tag, act.number)
        return np.ones(param.size, bool) if keep is None else keep

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
