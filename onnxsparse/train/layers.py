"""A network in training as layers that can be pruned: their live numbers, masks, and the sparsers that replace weights.

1. A layer (`Site`) is known by its key. `weight(key)` is live: what is written into it is what the next step sees.
2. `use` says what stands in for each weight: a sparser's text (see `sparsers`). What a sparser trains or holds beside a
   weight is live, too. A key that is not named is trained as it is.
3. Masks of the sparser `mask` are set as a whole, by key; numbers that are masked are +0.0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from onnxsparse import sparsers
from onnxsparse.allocations.energy import Place, stride_groups
from onnxsparse.graph.weights import Convolution
from onnxsparse.math.param import Param
from onnxsparse.math.values import Array
from onnxsparse.patterns import Pattern
from onnxsparse.patterns.nm import NOfM
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.planning.names import Named
from onnxsparse.planning.stored_params import Candidate
from onnxsparse.scores import Magnitude
from onnxsparse.sparsers.mask_updates import Choice
from onnxsparse.targets import Target

Shape4 = tuple[int, int, int, int]


@dataclass(frozen=True, eq=False)
class Site:
    """A layer that can be made sparse: how its weight lies, and the names it answers to."""

    key: str
    name: str
    names: tuple[str, ...]
    kind: str
    shape: tuple[int, ...]
    shape4: Shape4
    matrix: Callable[[Array], Array]
    restore: Callable[[Array], Array]
    convolution: Convolution | None = None
    refuses: Callable[[Pattern], str] = lambda _: ""
    within: tuple[str, ...] = ()
    """The kind of the layer and of all that it is inside of, and their names."""
    named: Named | None = None
    """What it answers to, where more is known than its names."""

    @property
    def answers(self) -> Named:
        return self.named or Named(self.name, self.names)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def choice(self, pattern: Pattern, drop: int) -> Choice:
        return Choice(pattern, Magnitude(), drop, self.matrix, self.restore)

    def keep(self, pattern: Pattern, numbers: Array, drop: int) -> Array:
        """The mask that leaves out so many of the smallest, in the shape of the weight."""
        flat = self.choice(pattern, drop).keep(np.ascontiguousarray(numbers).reshape(-1))
        return flat.reshape(self.shape)


@dataclass(frozen=True)
class Measured:
    """What a run of the network showed of a layer: the longest side of its input in space, and its MACs."""

    size: float | None
    macs: int


@dataclass(frozen=True)
class Promise:
    """What the zeros of a network are: their pattern by layer, the target, the level, and why layers are dense."""

    patterns: Mapping[str, str] = field(default_factory=dict)  # by the key of the layer
    target: str | None = None
    level: float | None = None
    dense: Mapping[str, str] = field(default_factory=dict)
    """Layers that were left out on purpose."""


def dropped(pattern: Pattern, zero: Array) -> int:
    """How many units are zero in a weight of which that is said by element; of N:M how many elements have to be."""
    if isinstance(pattern, NOfM):
        return pattern.drop_count(zero.shape, None)
    units = pattern.units(zero.shape)
    return units - pattern.violations(zero, units).count


class Network(ABC):
    """A network in somebody's training loop."""

    sites: list[Site]
    is_torch: ClassVar[bool] = False
    promise: Promise
    notes: list[str]
    kept: dict[str, Array]
    """What somebody wants to be part of the network's state."""
    scheduler: Any = None
    """Who prepared it."""
    parts: Mapping[str, str] = {}
    """The part that a layer is in, by key, where the network is exported in several files: each has every level."""

    @property
    def module_names(self) -> Collection[str]:
        """Paths and classes of all modules, those without a layer, too."""
        return ()

    @abstractmethod
    def weight(self, key: str) -> Array:
        """The numbers of a layer."""

    @abstractmethod
    def put(self, key: str, numbers: Array) -> None:
        """Other numbers for a layer: they are masked as it is."""

    @abstractmethod
    def trained(self, key: str) -> dict[str, Array]:
        """What a sparser trains beside a weight, by role."""

    @abstractmethod
    def frozen(self, key: str) -> dict[str, Array]:
        """What a sparser is fed with, by role."""

    @abstractmethod
    def sent(self, key: str, arrays: Mapping[str, Array]) -> None:
        """Make arrays beside a weight, by role, what the next step sees."""

    @abstractmethod
    def use(self, texts: Mapping[str, str]) -> None:
        """Have these sparsers stand in for weights from now on; numbers stay, masks are open."""

    @abstractmethod
    def set_masks(self, masks: Mapping[str, Array]) -> None:
        """Keep what is True, for all or some layers with the sparser `mask`."""

    @abstractmethod
    def masks(self) -> dict[str, Array]:
        """What is kept of the layers with the sparser `mask`."""

    @abstractmethod
    def anchor(self, anchors: Mapping[str, Array], strength: float) -> None:
        """Have layers drawn towards these numbers, by key: strength / 2 * sum of |weight - anchor|^2, until others."""

    @abstractmethod
    def pull(self) -> Any:
        """That term for the weights as they are now: a number, or a tensor that a loop of torch adds to its loss."""

    @abstractmethod
    def measure(self, shape: Sequence[int] | None, real: Any = None) -> dict[str, Measured]:
        """Sizes and multiply-accumulates, for inputs of a shape, or for real ones."""

    @abstractmethod
    def save(self, path: str, facts: Mapping[str, Any], suffix: str = "") -> str:
        """Write the network as it is now, zeros in the weights, and what is known of it; the path it wrote.

        With a suffix a checkpoint of torch has that in place of its own, and the facts beside the state alone.
        """

    @abstractmethod
    def finish(self) -> Any:
        """The network without anything of ours, zeros in the weights."""

    @abstractmethod
    def watch(self, stepped: Callable[[], bool]) -> None:
        """Call a method after each step of training that moves this network, until it returns True."""

    def effective(self, key: str) -> Array:
        """What the network multiplies with, sparse as it will be stored."""
        text = self.used.get(key)
        weight = self.weight(key)
        if text is None:
            return weight
        sparser = sparsers.parse(text)
        mask = self.masks().get(key)
        if mask is not None:
            return np.where(mask, weight, weight.dtype.type(0))
        trained = self.trained(key)
        keep = sparser.keep(weight, trained, np.broadcast_to(np.float32(1), weight.shape))
        return sparser.bake(weight, trained, keep)

    @property
    @abstractmethod
    def used(self) -> Mapping[str, str]:
        """The sparsers that stand in, by key."""

    @property
    def live(self) -> dict[str, Array]:
        """The numbers that are not masked, by key."""
        masks = self.masks()
        return {
            site.key: np.where(masks[site.key], self.weight(site.key), 0)
            if site.key in masks
            else self.weight(site.key)
            for site in self.sites
        }

    def candidates(
        self, found: Mapping[str, Measured], target: Target | None, dense: Callable[[Site], bool]
    ) -> list[Candidate]:
        """All layers, for an allocation that asks where they are."""
        groups = stride_groups([found[site.key].size for site in self.sites])
        live = self.live
        return [
            _candidate(site, live[site.key], _place(site, group, target, dense(site)))
            for site, group in zip(self.sites, groups)
        ]


def _candidate(site: Site, numbers: Array, place: Place) -> Candidate:
    param = Param(site.key, site.key, site.shape, site.matrix, site.restore, lambda: numbers)
    return Candidate(param, Unstructured(), Magnitude(), place)


def _place(site: Site, group: int, target: Target | None, dense: bool) -> Place:
    bound = target.target_density(site.convolution) if target and site.convolution else None
    cap = 0.0 if dense else 1.0 if bound is None else 1 - bound
    return Place(group, site.convolution is not None and site.convolution.depthwise, cap)
