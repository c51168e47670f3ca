"""Powerpropagation: powers of the weights train, so that small ones stay small (Schwarz et al., 2021).

The weight is w = sign(v) |v|^alpha, and v is what the optimizer moves: its gradient is alpha |v|^(alpha - 1) times that
of w.

1. At the start v is the root of the weight, so the model gives what it gave.
2. Between two steps the weights are w: what masks, states, measurements and files see are those of the plain model. v
   stands in their place while the optimizer moves it.
3. A number that something else has changed since, such as a mask, has its v from what it is now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from onnxsparse.acts.act import TimedAct
from onnxsparse.acts.params import Param, find, named
from onnxsparse.acts.trainee import Trainee
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.recipes.modifiers.modifier import REQUIRED, Scheduled, demand_params, demand_positive


@dataclass(frozen=True)
class PowerpropagationModifier(Scheduled):
    """Train powers of the weights, so that small ones stay small.

    - !PowerpropagationModifier
      start_epoch: 0.0
      end_epoch: 8.0
      params: __ALL_PRUNABLE__
      alpha: 2.0
    """

    name: ClassVar[str] = "PowerpropagationModifier"

    start_epoch: float = REQUIRED
    end_epoch: float = REQUIRED
    params: str | tuple[str, ...] = REQUIRED
    alpha: float = 1.0
    strict: bool = True

    def check(self) -> None:
        demand_params("params", self.params)
        demand_positive("alpha", self.alpha)

    def act(self) -> Powers:
        return Powers(self)


class Powers(TimedAct):
    """What trains in place of weights: roots of them."""

    def __init__(self, options: PowerpropagationModifier) -> None:
        super().__init__(options.called, options.span)
        self._options = options
        self._params: list[Param] = []
        self._roots: dict[str, Array] = {}

    def bind(self, params: Sequence[Param]) -> None:
        where, wanted = f"{self.where}: params", self._options.params
        entries = [wanted] if isinstance(wanted, str) else list(wanted)
        if not self._options.strict:
            entries = [entry for entry in entries if _is_there(params, entry, where)]
        found = find(params, entries, where) if entries or self._options.strict else []
        flat = {param.tag: param.name for param in found if len(param.shape) < 2}
        for tag in named(params, entries, where) if flat else ():
            if tag in flat:
                raise OptionError(f"{where}: {flat[tag]} has one axis; powers are those of matrices and convolutions")
        self._params = [param for param in found if param.tag not in flat]

    # -- around the optimizer

    def before_move(self, trainee: Trainee) -> None:
        for param in self._moving(trainee):
            seen = trainee.numbers(param)
            root = self._root(param, seen)
            trainee.scale_gradient(param, self._slope(root))
            trainee.fill(param, root)

    def after_move(self, trainee: Trainee) -> None:
        for param in self._moving(trainee):
            root = self._roots[param.tag] = np.array(trainee.hidden_numbers(param))
            trainee.fill(param, _power(root, self._options.alpha))

    def _moving(self, trainee: Trainee) -> list[Param]:
        return [param for param in self._params if not trainee.held(param)] if self.clock.active else []

    def _root(self, param: Param, seen: Array) -> Array:
        """What trains for these numbers: what it was, where it still gives them."""
        fresh, known = _power(seen, 1 / self._options.alpha), self._roots.get(param.tag)
        return fresh if known is None else np.where(_power(known, self._options.alpha) == seen, known, fresh)

    def _slope(self, root: Array) -> Array:
        """Of alpha below 1 there is none at zero, which stays what it is."""
        alpha = self._options.alpha
        sizes = np.abs(root)
        slope = np.where(sizes > 0, np.power(np.where(sizes > 0, sizes, 1), alpha - 1), alpha == 1)
        made: Array = (slope * alpha).astype(np.float32)
        return made

    def end(self, trainee: Trainee) -> None:
        self._roots = {}

    # -- what a checkpoint holds

    def arrays(self) -> Mapping[str, Array]:
        return {self._key(tag): array for tag, array in self._roots.items()}

    def load(self, arrays: Mapping[str, Array]) -> None:
        keys = {param.tag: self._key(param.tag) for param in self._params}
        self._roots = {tag: np.array(arrays[key]) for tag, key in keys.items() if key in arrays}

    def _key(self, tag: str) -> str:
        return f"powers {self.number}/root/{tag}"  # one part more than `moment/tag`, what an optimizer remembers

    def restore(self, state: dict[str, Any], trainee: Trainee) -> None:
        super().restore(state, trainee)
        if not self.clock.active:  # begun again
            self._roots = {}


def _is_there(params: Sequence[Param], entry: str, where: str) -> bool:
    try:
        return bool(find(params, [entry], where))
    except OptionError:
        return False


def _power(numbers: Array, exponent: float) -> Array:
    """Of the size; the sign stays."""
    made: Array = np.copysign(np.power(np.abs(numbers), np.float32(exponent)), numbers)
    return made
