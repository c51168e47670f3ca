"""Folding masks into the weights they are multiplied with, and taking masks out so that others take their place.

1. A mask is a constant of zeros and ones in `Mul(w, mask)`, `Where(mask, w, 0)`, whatever stands before it, on a
   stored float tensor seen through any of the plain views of `graph/flow.py`.
2. It is folded where every reader of the numbers, under whatever name and in every call of a function, sees the same
   masks, and where a stored zero is a zero before the mask: `w = where(mask, w, +0.0)`.
3. Readers of the product read the weight again; mask tensors and Casts that nobody reads any more go.
4. With `discard` the weights stay as they are and only the nodes go.
What it does not do: fold a mask that only some readers of a tensor see, or a factor that is not 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxsparse.errors import ModelError
from onnxsparse.graph.attributes import IdentityKey
from onnxsparse.graph.edit import Outputs, Unread, remove_nodes, rename_reads
from onnxsparse.graph.elementwise import Mask, arrives
from onnxsparse.graph.flow import MaskSite
from onnxsparse.graph.model import Model, Source
from onnxsparse.graph.storage import FLOAT_KINDS, StoredTensor
from onnxsparse.graph.view_operators import mask_of
from onnxsparse.graph.weights import Weight
from onnxsparse.math.values import Array, Reading, Values
from onnxsparse.passes.model_pass import Changed, Pass
from onnxsparse.passes.soft_masks import FoldSoft, soft_sites
from onnxsparse.planning.given_masks import graph_mask
from onnxsparse.planning.recorded import MASKED, ORIGINS, PREFIX, recorded_moment
from onnxsparse.planning.stored_params import SLAB


class FoldMasks(Pass):
    """Folds, or discards, every mask in a model's graph."""

    def __init__(self, discard: bool = False) -> None:
        self._discard = discard

    def call(self, model: Model) -> Changed:
        return _Folding(model, self._discard).fold()


class _Folding:
    """The masks of a model, by node and by weight."""

    def __init__(self, model: Model, discard: bool) -> None:
        self._model, self._discard, self._outputs = model, discard, Outputs()
        self._sites_at: dict[IdentityKey, list[MaskSite]] = {}
        self._sites_of: dict[StoredTensor, list[MaskSite]] = {}
        for site in model.flow.mask_sites:
            self._sites_at.setdefault(IdentityKey(site.node), []).append(site)
            self._sites_of.setdefault(site.weight.tensor, []).append(site)

    def fold(self) -> Changed:
        weights = map(self._model.flow.consumers, self._sites_of)
        changed = Changed({one: self._obstacle(one.tensor, self._sites_of[one.tensor], one) for one in weights})
        if not self._discard:
            for one in changed.weights:
                self._edit(one)
        gone = [site for one in changed.weights for site in self._sites_of[one.tensor]]
        self._remove([*{IdentityKey(site.node): site for site in gone}.values()])
        return changed

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
            here = self._sites_at[IdentityKey(site.node)]
            if any(one.weight.tensor is not site.weight.tensor for one in here):
                return "the mask stands in a function that is called with several weights"
            if len(here) < self._model.flow.calls_of(site.node):
                return "the mask stands in a function that is also called with something else in its place"
        return ""

    def _remove(self, sites: Sequence[MaskSite]) -> None:
        """Take the nodes out: whoever read a product reads the weight again."""
        by_container: dict[IdentityKey, list[MaskSite]] = {}
        for site in sites:
            by_container.setdefault(IdentityKey(site.container), []).append(site)
        for group in by_container.values():
            container = group[0].container
            names = {site.node.output[0]: site.node.input[site.weight_input] for site in group}
            rename_reads(container.node, {old: _source(old, names) for old in names})
            remove_nodes(container, [site.node for site in group])
        Unread(self._model.proto).remove(name for site in sites for name in _mask_inputs(site))


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


# -- The masks that stand in a graph already: read, and taken out, so that others may take their place.
#
# 1. What a weight is multiplied with now is known by its name; all readers have to see the same.
# 2. The nodes go, as with `fold --discard`: the weights keep every number that somebody trained, hidden ones, too.
# 3. Whoever chooses the next masks counts what was masked as zero.


@dataclass(frozen=True)
class MaskedBefore:
    """The masks of a file by weight, in its shape (True = keep), and where their schedule stands as it is recorded."""

    masks: Mapping[str, Array] = field(default_factory=dict)
    moment: Mapping[str, Any] = field(default_factory=dict)
    trained: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)
    """Of weights behind a threshold or a soft mask: what is trained beside them, by role."""

    def __bool__(self) -> bool:
        return bool(self.masks or self.trained)


def open_without_masks(source: Source) -> tuple[Model, MaskedBefore]:
    """A model whose masks were taken out of its graph, and what they were."""
    model = Model.open(source)
    masked = [one for one in model.weights if any(use.masks for use in one.uses)]
    sites = soft_sites(model)
    if not masked and not sites:
        return model, MaskedBefore()
    masks = {one.name: graph_mask(one).reshape(one.shape) for one in masked}
    trained = {site.weight.name: site.parameters() for site in sites}
    before = MaskedBefore(masks, recorded_moment(model), trained)
    discarded = FoldMasks(discard=True)(model) | FoldSoft(sites, discard=True)(model)
    for weight, reason in discarded.left.items():
        raise ModelError(f"the mask of '{weight.name}' cannot be replaced: {reason}")
    origins = {MASKED + key: model.metadata[MASKED + key] for key in ORIGINS if MASKED + key in model.metadata}
    model.drop_metadata(MASKED)
    if not any(PREFIX + key in model.metadata for key in ORIGINS):
        model.set_metadata(origins)  # the dense file is still the one that the first masks were for
    model.forget()
    _ = model.weights
    return model, before


def hidden(numbers: Array, keep: Array | None) -> Array:
    """Numbers with +0.0 where they were masked."""
    return numbers if keep is None else np.where(keep, numbers, numbers.dtype.type(0))
