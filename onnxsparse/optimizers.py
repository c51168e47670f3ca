"""Optimizers, their state and gradient clipping, in numpy. `parse` makes an optimizer of a word."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from onnxsparse import plugins
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.plugins import Plugin


class Optimizer(Plugin, ABC):
    """A rule that turns gradients into steps. It holds options alone; what it remembers is handed to it."""

    kind: ClassVar[str] = "optimizers"
    moments: ClassVar[tuple[str, ...]] = ()
    """Names of the arrays kept for each tensor, of its size; they start as zeros."""

    @abstractmethod
    def step(
        self,
        weight: Array,
        gradient: Array,
        moments: Mapping[str, Array],
        count: int,
        rate: float,
        decay: float,
        scale: float = 1.0,
    ) -> None:
        """Change weight and moments in place; all arrays are flat, contiguous and float32.

        `count` is the number of this step of the tensor, from 1. `scale` multiplies the gradient, which stays as it is:
        so clipping, and the average over several batches, cost nothing.
        """


def checked_share(name: str, value: float) -> None:
    """Moments are averages that forget: they keep a share from 0 to less than 1."""
    if not 0.0 <= value < 1.0:
        raise OptionError(f"{name} lies between 0 and less than 1, not {value}")


BUILT_IN = (
    "The AdamW inside onnxruntime-training (--engine ort): it decays biases too, and cannot forget pruned places."
)


def parse(text: str) -> Optimizer:
    """Return the optimizer that a text such as `adamw` or `sgd:momentum=0.8` stands for."""
    return cast(Optimizer, plugins.parse("optimizers", text))


def available() -> list[plugins.Entry]:
    """Describe every optimizer, and the one that an engine brings."""
    return [*plugins.available("optimizers"), plugins.Entry("ort-adamw", BUILT_IN, ())]


BLOCK = 1 << 15
"""Elements of a piece. Four arrays and the scratch of a piece fit into the second cache of every usual processor."""


def blocks(*arrays: Array, scratch: int = 0) -> Iterator[tuple[Array, ...]]:
    """The same piece of every array, and of `scratch` more that hold nothing and serve every piece again."""
    size = arrays[0].size
    spare = [np.empty(min(size, BLOCK), np.float32) for _ in range(scratch)]
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        yield (*(array[start:stop] for array in arrays), *(array[: stop - start] for array in spare))


def sum_of_squares(array: Array) -> float:
    """In float64, and in one order on every machine: pair by pair inside a piece, then piece after piece."""
    total, wide = 0.0, np.empty(min(array.size, BLOCK), np.float64)
    for (piece,) in blocks(array):
        squares = wide[: piece.size]
        np.copyto(squares, piece)
        np.multiply(squares, squares, squares)
        total += float(np.add.reduce(squares))
    return total


def count_non_zero(array: Array) -> int:
    """How many elements are not 0."""
    spare = np.empty(min(array.size, BLOCK), bool)
    return sum(int(np.count_nonzero(np.not_equal(piece, 0, spare[: piece.size]))) for (piece,) in blocks(array))


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent with momentum; decay is part of the gradient."""

    name: ClassVar[str] = "sgd"
    moments: ClassVar[tuple[str, ...]] = ("velocity",)
    momentum: float = 0.9

    def __post_init__(self) -> None:
        checked_share("momentum", self.momentum)

    def step(
        self,
        weight: Array,
        gradient: Array,
        moments: Mapping[str, Array],
        count: int,
        rate: float,
        decay: float,
        scale: float = 1.0,
    ) -> None:
        for w, g, velocity, pull, move in blocks(weight, gradient, moments["velocity"], scratch=2):
            np.multiply(g, np.float32(scale), pull)
            if decay:
                np.add(pull, np.multiply(w, np.float32(decay), move), pull)
            np.multiply(velocity, np.float32(self.momentum), velocity)
            np.add(velocity, pull, velocity)
            direction = self._direction(velocity, pull, move)
            np.subtract(w, np.multiply(direction, np.float32(rate), move), w)

    def _direction(self, velocity: Array, pull: Array, out: Array) -> Array:
        return velocity


@dataclass(frozen=True)
class Nesterov(SGD):
    """Gradient descent with Nesterov's momentum, which looks one step ahead; decay is part of the gradient."""

    name: ClassVar[str] = "nesterov"

    def _direction(self, velocity: Array, pull: Array, out: Array) -> Array:
        np.multiply(velocity, np.float32(self.momentum), out)
        return np.add(out, pull, out)


# What Adam and its kin share: means of the gradient and of its square, and the step made of both.
#
#     mean = beta1 * mean + (1 - beta1) * g        square = beta2 * square + (1 - beta2) * g^2
#     direction = mean / (1 - beta1^t) / (sqrt(square / (1 - beta2^t)) + eps)
#
# The corrections are numbers, so they are taken out of the arrays: with c = sqrt(1 - beta2^t) the direction is
# c / (1 - beta1^t) * mean / (sqrt(square) + c * eps).


@dataclass(frozen=True)
class Adaptive(Optimizer):
    """Steps by the mean of the gradient over the root of its mean square."""

    moments: ClassVar[tuple[str, ...]] = ("mean", "square")
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        checked_share("beta1", self.beta1)
        checked_share("beta2", self.beta2)
        if not 0.0 < self.eps < math.inf:
            raise OptionError(f"eps is a number above 0, not {self.eps}")

    def _update_moments(self, gradient: Array, mean: Array, square: Array, spare: Array, scale: float) -> None:
        """Take a gradient, times `scale`, into the means."""
        np.multiply(mean, np.float32(self.beta1), mean)
        np.add(mean, np.multiply(gradient, np.float32((1 - self.beta1) * scale), spare), mean)
        np.multiply(gradient, np.float32(math.sqrt(1 - self.beta2) * scale), spare)
        np.multiply(spare, spare, spare)
        np.multiply(square, np.float32(self.beta2), square)
        np.add(square, spare, square)

    def _corrections(self, count: int) -> tuple[float, float]:
        """What the direction is multiplied with, and what `eps` is."""
        root = math.sqrt(1 - self.beta2**count)
        return root / (1 - self.beta1**count), root

    def _move(self, weight: Array, mean: Array, square: Array, spare: Array, factor: float, floor: float) -> None:
        """weight -= factor * mean / (sqrt(square) + floor)"""
        np.add(np.sqrt(square, spare), np.float32(floor), spare)
        np.multiply(np.divide(mean, spare, spare), np.float32(factor), spare)
        np.subtract(weight, spare, weight)


@dataclass(frozen=True)
class Adam(Adaptive):
    """Steps of about one size for every element, whatever its gradient's; decay is part of the gradient."""

    name: ClassVar[str] = "adam"

    def step(
        self,
        weight: Array,
        gradient: Array,
        moments: Mapping[str, Array],
        count: int,
        rate: float,
        decay: float,
        scale: float = 1.0,
    ) -> None:
        factor, root = self._corrections(count)
        for w, g, mean, square, spare, pull in blocks(weight, gradient, moments["mean"], moments["square"], scratch=2):
            np.multiply(g, np.float32(scale), pull)
            if decay:
                np.add(pull, np.multiply(w, np.float32(decay), spare), pull)
            self._update_moments(pull, mean, square, spare, 1.0)
            self._move(w, mean, square, spare, rate * factor, root * self.eps)


@dataclass(frozen=True)
class AdamW(Adaptive):
    """Adam with decay of its own, which the gradient's size does not change."""

    name: ClassVar[str] = "adamw"

    def step(
        self,
        weight: Array,
        gradient: Array,
        moments: Mapping[str, Array],
        count: int,
        rate: float,
        decay: float,
        scale: float = 1.0,
    ) -> None:
        factor, root = self._corrections(count)
        for w, g, mean, square, spare in blocks(weight, gradient, moments["mean"], moments["square"], scratch=1):
            self._update_moments(g, mean, square, spare, scale)
            if decay:
                np.multiply(w, np.float32(1 - rate * decay), w)
            self._move(w, mean, square, spare, rate * factor, root * self.eps)


# Steps relative to the scale of each tensor.
#
#     W -= rate * rms(W) * m / (sqrt(v) + eps * max(sqrt(v)))
#
# 1. m and v are the corrected means of the gradient and of its square. The scales of the weights of one network span
#    several decades, so no absolute rate fits all; a rate of 0.01 here moves every tensor by about one per cent.
# 2. The maximum is over the tensor: elements whose gradient is far below it move little, instead of by noise.
# 3. rms is over the elements that are not 0, so zeros put there by a mask do not shrink it, and is at least `floor`, so
#    that a tensor of zeros can leave them.


@dataclass(frozen=True)
class Relative(Adaptive):
    """Adam's directions, with steps relative to the scale of each tensor; decay as in AdamW."""

    name: ClassVar[str] = "relative"
    beta2: float = 0.99
    eps: float = 1e-3
    floor: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.floor < math.inf:
            raise OptionError(f"floor is a number above 0, not {self.floor}")

    def step(
        self,
        weight: Array,
        gradient: Array,
        moments: Mapping[str, Array],
        count: int,
        rate: float,
        decay: float,
        scale: float = 1.0,
    ) -> None:
        mean, square, peak = moments["mean"], moments["square"], 0.0
        for g, m, v, spare in blocks(gradient, mean, square, scratch=1):
            self._update_moments(g, m, v, spare, scale)
            peak = max(peak, float(v.max()))
        factor = rate * self._scale(weight) * self._corrections(count)[0]
        for w, m, v, spare in blocks(weight, mean, square, scratch=1):
            if decay:
                np.multiply(w, np.float32(1 - rate * decay), w)
            if peak > 0.0:
                self._move(w, m, v, spare, factor, self.eps * math.sqrt(peak))

    def _scale(self, weight: Array) -> float:
        used = count_non_zero(weight)
        return max(math.sqrt(sum_of_squares(weight) / used), self.floor) if used else self.floor


def norm(gradients: Iterable[Array]) -> float:
    """The 2-norm of all elements of all gradients, in the order given; not finite when one of them is not."""
    return math.sqrt(sum(sum_of_squares(np.reshape(gradient, -1)) for gradient in gradients))


def finite(gradients: Iterable[Array]) -> bool:
    """Whether all elements are numbers; a sum says so, unless large ones overflow in it."""
    with np.errstate(all="ignore"):
        return all(
            math.isfinite(np.add.reduce(np.reshape(gradient, -1))) or math.isfinite(norm((gradient,)))
            for gradient in gradients
        )


def clip_factor(gradients: Iterable[Array], limit: float) -> float:
    """What to multiply gradients with so that their norm is at most `limit`; nan when one of them is not finite."""
    if not limit > 0.0:
        raise OptionError(f"the limit of the gradients' norm is a number above 0, not {limit}")
    size = norm(gradients)
    if not math.isfinite(size):
        return math.nan
    return 1.0 if size <= limit else limit / size


# What an optimizer remembers of every tensor: the part of a run that has to be saved beside the weights.
#
# 1. Moments are made when a tensor takes its first step, in the tensor's shape, as zeros.
# 2. `arrays` and `counts` are all there is: a store that loads them goes on bit for bit.
# 3. Now and then moments that nothing feeds any more (a mask stops the gradient) are set to 0: they would end as
#    numbers too small for float32's full precision, which some processors add a hundred times slower than others.

SETTLE_EVERY, NOTHING = 64, 1e-36


class Moments:
    """The moments and step counts of named tensors."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.counts: dict[str, int] = {}
        self._kept: dict[str, dict[str, Array]] = {}

    def step(
        self, name: str, weight: Array, gradient: Array, rate: float, decay: float = 0.0, scale: float = 1.0
    ) -> None:
        """Change a weight in place by one gradient, times `scale`."""
        kept = self._moments(name, weight.shape)
        count = self.counts[name] = self.counts.get(name, 0) + 1
        flat = {moment: _flat(array) for moment, array in kept.items()}
        self.optimizer.step(_flat(weight), gradient.reshape(-1), flat, count, rate, decay, scale)
        if count % SETTLE_EVERY == 0:
            _settle(flat)

    def clear(self, name: str, where: Array | None = None) -> None:
        """Forget a tensor, or what is known of it at the True places of a mask of its shape."""
        if where is None:
            self._kept.pop(name, None)
            self.counts.pop(name, None)
            return
        for array in self._kept.get(name, {}).values():
            array[where] = 0

    def arrays(self) -> dict[str, Array]:
        """All moments as `moment/tensor`: the arrays themselves, which change with the next step."""
        return {f"{moment}/{name}": array for name, kept in self._kept.items() for moment, array in kept.items()}

    def load(self, arrays: Mapping[str, Array], counts: Mapping[str, int]) -> None:
        """Take over copies of what `arrays` and `counts` of another store were, in place of everything here."""
        kept: dict[str, dict[str, Array]] = {name: {} for name in counts}
        for key, array in arrays.items():
            moment, _, name = key.partition("/")
            kept.setdefault(name, {})[moment] = np.array(array, np.float32, order="C")
        for name, found in kept.items():
            self._check(name, found, counts.get(name, 0))
        self.counts = {name: int(count) for name, count in counts.items()}
        self._kept = {
            name: {moment: found[moment] for moment in self.optimizer.moments} for name, found in kept.items()
        }

    def _moments(self, name: str, shape: tuple[int, ...]) -> dict[str, Array]:
        if name not in self._kept:
            self._kept[name] = {moment: np.zeros(shape, np.float32) for moment in self.optimizer.moments}
        kept = self._kept[name]
        for array in kept.values():
            if array.shape != shape:
                raise OptionError(f"the moments of {name} have the shape {array.shape}, the tensor has {shape}")
        return kept

    def _check(self, name: str, found: Mapping[str, Array], count: int) -> None:
        if set(found) != set(self.optimizer.moments) or count < 1:
            wanted = " and ".join(self.optimizer.moments)
            raise OptionError(
                f"the saved moments of {name} ({' and '.join(sorted(found)) or 'none'}, after {count} steps) are not "
                f"those of {self.optimizer.text}: it keeps {wanted}"
            )


def _flat(array: Array) -> Array:
    """The same memory as one row."""
    if array.dtype != np.float32 or not array.flags.c_contiguous:
        raise ValueError(f"an optimizer changes contiguous float32 arrays in place, not {array.dtype}")
    return array.reshape(-1)


def _settle(moments: Mapping[str, Array]) -> None:
    for array in moments.values():
        for piece, size in blocks(array, scratch=1):
            piece[np.abs(piece, size) < NOTHING] = 0
