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
from onnx import FunctionProto, GraphProto

from onnxsparse.graph.crossings import mask_of
from onnxsparse.graph.flow import MaskSite
from onnxsparse.graph.model import Model
from onnxsparse.graph.rewire import Container, bodies, is_output, producer, reads, remove_node, rename_reads
from onnxsparse.graph.storage import FLOAT_KINDS, StoredTensor
from onnxsparse.graph.weights import Weight
from onnxsparse.passes.matrices import SLAB
from onnxsparse.values import Array


@dataclass(frozen=True, eq=False)
class Folded:
    """One masked tensor: folded, or left with the reason."""

    weight: Weight
    reason: str = ""
    zeros: int = 0


class FoldMasks:
    """Folds, or discards, every mask in a model's graph."""

    def __init__(self, model: Model, discard: bool = False) -> None:
        self._model, self._discard = model, discard

    def __call__(self) -> list[Folded]:
        by_tensor: dict[StoredTensor, list[MaskSite]] = {}
        for site in self._model.flow.mask_sites:
            by_tensor.setdefault(site.weight.tensor, []).append(site)
        return [self._fold(tensor, sites) for tensor, sites in by_tensor.items()]

    def _fold(self, tensor: StoredTensor, sites: list[MaskSite]) -> Folded:
        weight = self._model.flow.consumers(tensor)
        reason = self._obstacle(tensor, sites, weight)
        if reason:
            return Folded(weight, reason)
        keep = self._keep(weight, sites)
        if not self._discard:
            tensor.edit = _Masked(tensor, keep)
        for site in {id(site.node): site for site in sites}.values():
            self._remove(site)
        return Folded(weight, "", int(keep.size - np.count_nonzero(keep)))

    def _obstacle(self, tensor: StoredTensor, sites: list[MaskSite], weight: Weight) -> str:
        if tensor.kind not in FLOAT_KINDS:
            return f"it is stored as {tensor.kind}; only masks on floats are folded"
        if any(is_output(site.container, site.node.output[0]) for site in sites):
            return "the masked weight is itself an output of the graph"
        if self._shared(sites):
            return "the mask stands in a function that is called with several weights"
        if self._discard:
            return ""
        if weight.bare or any(not use.masks for use in weight.uses):
            reader = (weight.bare or [f"{use.op} '{use.node}'" for use in weight.uses if not use.masks])[0]
            return f"{reader} reads the weight without the mask, and would change"
        if any(not np.array_equal(self._keep(weight, sites), keep) for keep in _seen(weight)):
            return "different readers see different masks of it"
        return ""

    def _keep(self, weight: Weight, sites: list[MaskSite]) -> Array:
        """The masks that the first reader sees, together; of a weight that no layer reads, all of them."""
        seen = _seen(weight)
        masks = [mask_of(site.mask, site.weight).stored() for site in sites]
        return seen[0] if seen else np.logical_and.reduce(masks)

    def _shared(self, sites: list[MaskSite]) -> bool:
        nodes = {id(site.node) for site in sites}
        return any(
            id(other.node) in nodes and other.weight.tensor is not sites[0].weight.tensor
            for other in self._model.flow.mask_sites
        )

    def _remove(self, site: MaskSite) -> None:
        source = site.node.input[site.weight_input]
        rename_reads(site.container.node, site.node.output[0], source)
        others = [name for index, name in enumerate(site.node.input) if index != site.weight_input]
        remove_node(site.container, site.node)
        for name in others:
            _remove_unread(self._chain(site.container), name)

    def _chain(self, container: Container) -> list[Container]:
        """The container and those around it, inside out."""
        roots: list[Container] = [self._model.proto.graph, *self._model.proto.functions]
        for root in roots:
            path = _path(root, container)
            if path:
                return path[::-1]
        return [container]


def _path(root: Container, wanted: Container) -> list[Container]:
    if root is wanted:
        return [root]
    for node in root.node:
        for graph in bodies(node):
            below = _path(graph, wanted)
            if below:
                return [root, *below]
    return []


def _remove_unread(chain: list[Container], name: str) -> None:
    """Remove what makes `name` where nobody reads it, and then what only that node read."""
    for depth, container in enumerate(chain):
        node = producer(container, name)
        if node is None and not _is_initializer(container, name):
            continue
        if reads(container.node, name) or is_output(container, name):
            return
        if node is None:
            _remove_initializer(container, name)
        elif len(node.output) == 1 and not list(bodies(node)):
            inputs = [entry for entry in node.input if entry]
            remove_node(container, node)
            for entry in dict.fromkeys(inputs):
                _remove_unread(chain[depth:], entry)
        return


def _is_initializer(container: Container, name: str) -> bool:
    return not isinstance(container, FunctionProto) and any(entry.name == name for entry in container.initializer)


def _remove_initializer(container: Container, name: str) -> None:
    """One that is listed as an input too belongs to the model's interface and stays."""
    assert isinstance(container, GraphProto)
    if any(entry.name == name for entry in container.input):
        return
    del container.initializer[next(i for i, entry in enumerate(container.initializer) if entry.name == name)]


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
