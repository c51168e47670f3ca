"""Folding masks into the weights they are multiplied with, and taking the nodes out again.

1. A mask is a constant of zeros and ones in `Mul(w, mask)`, `Where(mask, w, 0)`, whatever stands before it, on a
   stored float tensor seen through any of the plain views of `flow`.
2. It is folded where every reader of the numbers, under whatever name and in every call of a function, sees the same
   masks, and where a stored zero is a zero before the mask: `w = where(mask, w, +0.0)`.
3. Readers of the product read the weight again; mask tensors and Casts that nobody reads any more go.
4. With `discard` the weights stay as they are and only the nodes go.
What it does not do: fold a mask that only some readers of a tensor see, or a factor that is not 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from onnxsparse.errors import ModelError
from onnxsparse.graph.crossings import mask_of
from onnxsparse.graph.flow import MaskSite
from onnxsparse.graph.model import Model
from onnxsparse.graph.rewire import Outputs, Unread, remove_nodes, rename_reads
from onnxsparse.graph.steps import Mask, arrives
from onnxsparse.graph.storage import FLOAT_KINDS, StoredTensor
from onnxsparse.graph.weights import Weight
from onnxsparse.math.values import Array, Reading, Values
from onnxsparse.passes.matrices import SLAB


@dataclass(frozen=True, eq=False)
class Folded:
    """One masked tensor: folded, or left with the reason."""

    weight: Weight
    reason: str = ""


class FoldMasks:
    """Folds, or discards, every mask in a model's graph."""

    def __init__(self, model: Model, discard: bool = False) -> None:
        self._model, self._discard, self._outputs = model, discard, Outputs()
        self._sites_at: dict[int, list[MaskSite]] = {}
        self._sites_of: dict[StoredTensor, list[MaskSite]] = {}
        for site in model.flow.mask_sites:
            self._sites_at.setdefault(id(site.node), []).append(site)
            self._sites_of.setdefault(site.weight.tensor, []).append(site)

    def __call__(self) -> list[Folded]:
        folded = [self._judged(tensor) for tensor in self._sites_of]
        done = [one for one in folded if not one.reason]
        if not self._discard:
            for one in done:
                self._edit(one.weight)
        gone = [site for one in done for site in self._sites_of[one.weight.tensor]]
        self._remove({id(site.node): site for site in gone})
        return folded

    def _judged(self, tensor: StoredTensor) -> Folded:
        weight = self._model.flow.consumers(tensor)
        return Folded(weight, self._obstacle(tensor, self._sites_of[tensor], weight))

    def _edit(self, weight: Weight) -> None:
        if any(twin.tensor.edit for twin in weight.twins):
            return  # the same bytes under another name
        sites = [site for one in (weight, *weight.twins) for site in self._sites_of.get(one.tensor, ())]
        weight.tensor.edit = _Masked(weight, self._keep(weight, sites))

    def _obstacle(self, tensor: StoredTensor, sites: list[MaskSite], weight: Weight) -> str:
        if tensor.kind not in FLOAT_KINDS:
            return f"it is stored as {tensor.kind}; only masks on floats are folded"
        if any(self._outputs.has(site.container, site.node.output[0]) for site in sites):
            return "the masked weight is itself an output of the graph"
        shared = self._shared(sites)
        if shared or self._discard:
            return shared
        if weight.overlaps:
            return f"its bytes in the data file overlap those of '{weight.overlaps}'"
        bare = _bare(weight)
        if bare:
            return f"{bare} reads the weight without the mask, and would change"
        if any(not _zero_before(site) for site in sites):
            return "a zero that is stored in the weight is no zero where the mask is applied"
        keep = self._keep(weight, sites)
        if any(not np.array_equal(keep, other) for other in _seen(weight)):
            return "different readers see different masks of it"
        return ""

    def _keep(self, weight: Weight, sites: Sequence[MaskSite]) -> Array:
        """The masks that the first reader sees, together; of a weight that nobody reads, all of them."""
        seen = next(_seen(weight), None)
        return _joint([mask_of(site.mask, site.weight) for site in sites]) if seen is None else seen

    def _shared(self, sites: list[MaskSite]) -> str:
        """Why a node that other calls of a function share cannot go; '' where every call has the same mask in it."""
        for site in sites:
            here = self._sites_at[id(site.node)]
            if any(one.weight.tensor is not site.weight.tensor for one in here):
                return "the mask stands in a function that is called with several weights"
            if len(here) < self._model.flow.calls_of(site.node):
                return "the mask stands in a function that is also called with something else in its place"
        return ""

    def _remove(self, sites: dict[int, MaskSite]) -> None:
        """Take the nodes out: whoever read a product reads the weight again."""
        by_container: dict[int, list[MaskSite]] = {}
        for site in sites.values():
            by_container.setdefault(id(site.container), []).append(site)
        for group in by_container.values():
            container = group[0].container
            names = {site.node.output[0]: site.node.input[site.weight_input] for site in group}
            rename_reads(container.node, {old: _source(old, names) for old in names})
            remove_nodes(container, [site.node for site in group])
        Unread(self._model.proto).remove(name for site in sites.values() for name in _mask_inputs(site))


def _source(name: str, names: dict[str, str]) -> str:
    """What stands before a chain of masks."""
    while name in names:
        name = names[name]
    return name


def _mask_inputs(site: MaskSite) -> list[str]:
    return [name for index, name in enumerate(site.node.input) if index != site.weight_input]


def _all(weight: Weight) -> tuple[Weight, ...]:
    """The weight under all its names."""
    return (weight, *weight.twins)


def _bare(weight: Weight) -> str:
    """The first reader that sees the numbers without any mask."""
    for one in _all(weight):
        readers = one.bare or [f"{use.op} '{use.node}'" for use in one.uses if not use.masks]
        if readers:
            return readers[0]
    return ""


def _readers(weight: Weight) -> list[tuple[Mask, ...]]:
    """For each reader, as a weight or not, the masks that stand before it."""
    return [masks for one in _all(weight) for masks in (*(use.masks for use in one.uses), *one.masked_readers)]


def _seen(weight: Weight) -> Iterator[Array]:
    """What the readers see kept; the same masks are read once."""
    done = set()
    for masks in _readers(weight):
        key = tuple(mask.key for mask in masks)
        if key not in done:
            done.add(key)
            yield _joint(masks)


def _joint(masks: Sequence[Mask]) -> Array:
    return np.asarray(np.logical_and.reduce([mask.stored() for mask in masks]))


def _zero_before(site: MaskSite) -> bool:
    atoms = site.weight.layout.atoms
    zero = np.zeros((1,) * len(atoms), np.float32)
    return not np.asarray(arrives(site.weight.steps, zero, atoms) != 0).any()


class _Masked:
    """The numbers of a tensor with a mask applied, in consecutive pieces."""

    def __init__(self, weight: Weight, keep: Array) -> None:
        self._weight, self._keep = weight, keep

    def __call__(self) -> Iterator[Array]:
        tensor = self._weight.tensor
        for start in range(0, tensor.size, SLAB):
            stop = min(start + SLAB, tensor.size)
            numbers = tensor.read(start, stop)
            gone = ~self._keep[start:stop]
            if not Values(numbers[gone], Reading(tensor.kind)).all_finite():
                raise ModelError(
                    f"weight '{self._weight.name}' holds NaN or infinity under its mask, and times 0 that is NaN; "
                    "repair the model, or take the masks out with --discard"
                )
            numbers[gone] = 0
            yield numbers
