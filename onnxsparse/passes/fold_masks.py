"""Folding masks into the weights they are multiplied with, and taking the nodes out again.

1. A mask is a constant of zeros and ones in `Mul(w, mask)`, `Where(mask, w, 0)`, with Cast or Identity before it, on a
   stored float tensor seen through any of the plain views of `flow`.
2. It is folded where every reader of the tensor sees the same mask: `w = where(mask, w, +0.0)`.
3. Readers of the product read the weight again; mask tensors and Casts that nobody reads any more go.
4. With `discard` the weights stay as they are and only the nodes go.
What it does not do: fold a mask that only some readers of a tensor see, or a factor that is not 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from onnxsparse.graph.crossings import mask_of
from onnxsparse.graph.flow import MaskSite
from onnxsparse.graph.model import Model
from onnxsparse.graph.rewire import Outputs, Unread, remove_nodes, rename_reads
from onnxsparse.graph.storage import FLOAT_KINDS, StoredTensor
from onnxsparse.graph.weights import Weight
from onnxsparse.passes.matrices import SLAB
from onnxsparse.values import Array


@dataclass(frozen=True, eq=False)
class Folded:
    """One masked tensor: folded, or left with the reason."""

    weight: Weight
    reason: str = ""


class FoldMasks:
    """Folds, or discards, every mask in a model's graph."""

    def __init__(self, model: Model, discard: bool = False) -> None:
        self._model, self._discard, self._outputs = model, discard, Outputs()
        self._tensors_at: dict[int, set[int]] = {}
        for site in model.flow.mask_sites:
            self._tensors_at.setdefault(id(site.node), set()).add(id(site.weight.tensor))

    def __call__(self) -> list[Folded]:
        by_tensor: dict[StoredTensor, list[MaskSite]] = {}
        for site in self._model.flow.mask_sites:
            by_tensor.setdefault(site.weight.tensor, []).append(site)
        folded = [self._fold(tensor, sites) for tensor, sites in by_tensor.items()]
        self._remove(
            {
                id(site.node): site
                for done, sites in zip(folded, by_tensor.values())
                if not done.reason
                for site in sites
            }
        )
        return folded

    def _fold(self, tensor: StoredTensor, sites: list[MaskSite]) -> Folded:
        weight = self._model.flow.consumers(tensor)
        reason = self._obstacle(tensor, sites, weight)
        if not reason and not self._discard:
            tensor.edit = _Masked(tensor, self._keep(weight, sites))
        return Folded(weight, reason)

    def _obstacle(self, tensor: StoredTensor, sites: list[MaskSite], weight: Weight) -> str:
        if tensor.kind not in FLOAT_KINDS:
            return f"it is stored as {tensor.kind}; only masks on floats are folded"
        if any(self._outputs.has(site.container, site.node.output[0]) for site in sites):
            return "the masked weight is itself an output of the graph"
        if self._shared(sites):
            return "the mask stands in a function that is called with several weights"
        if self._discard:
            return ""
        if weight.bare or any(not use.masks for use in weight.uses):
            reader = (weight.bare or [f"{use.op} '{use.node}'" for use in weight.uses if not use.masks])[0]
            return f"{reader} reads the weight without the mask, and would change"
        first = self._keep(weight, sites)
        if any(not np.array_equal(first, keep) for keep in _seen(weight)):
            return "different readers see different masks of it"
        return ""

    def _keep(self, weight: Weight, sites: list[MaskSite]) -> Array:
        """The masks that the first reader sees, together; of a weight that no layer reads, all of them."""
        seen = _seen(weight)
        masks = [mask_of(site.mask, site.weight).stored() for site in sites]
        return seen[0] if seen else np.logical_and.reduce(masks)

    def _shared(self, sites: list[MaskSite]) -> bool:
        return any(len(self._tensors_at[id(site.node)]) > 1 for site in sites)

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


def _seen(weight: Weight) -> list[Array]:
    """For each use the masks on its way, as one."""
    return [np.logical_and.reduce([mask.stored() for mask in use.masks]) for use in weight.uses]


class _Masked:
    """The numbers of a tensor with a mask applied, in consecutive pieces."""

    def __init__(self, tensor: StoredTensor, keep: Array) -> None:
        self._tensor, self._keep = tensor, keep

    def __call__(self) -> Iterator[Array]:
        for start in range(0, self._tensor.size, SLAB):
            stop = min(start + SLAB, self._tensor.size)
            numbers = self._tensor.read(start, stop)
            numbers[~self._keep[start:stop]] = 0
            yield numbers
