"""The masks that stand in a graph already: read, and taken out, so that others may take their place.

1. What a weight is multiplied with now is known by its name; all readers have to see the same.
2. The nodes go, as with `fold --discard`: the weights keep every number that somebody trained, hidden ones, too.
3. Whoever chooses the next masks counts what was masked as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxsparse.errors import ModelError
from onnxsparse.graph.model import Model, Source
from onnxsparse.math.values import Array
from onnxsparse.passes.fold_masks import FoldMasks
from onnxsparse.passes.given_masks import graph_mask
from onnxsparse.passes.plan import names_of
from onnxsparse.passes.recorded import MASKED, PREFIX, recorded_moment
from onnxsparse.passes.soft_masks import FoldSoft, soft_sites

ORIGIN = "input_sha256"


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
    names = names_of(model.weights)
    masked = [one for one in model.weights if any(use.masks for use in one.uses)]
    sites = soft_sites(model)
    if not masked and not sites:
        return model, MaskedBefore()
    masks = {names[id(one)]: graph_mask(one, names[id(one)]).reshape(one.shape) for one in masked}
    trained = {names.get(id(site.weight), site.weight.name): site.parameters() for site in sites}
    before = MaskedBefore(masks, recorded_moment(model), trained)
    left = [(one.weight, one.reason) for one in FoldMasks(model, discard=True)()]
    left += [(site.weight, reason) for site, reason in FoldSoft(model, sites, discard=True)()]
    for weight, reason in left:
        if reason:
            raise ModelError(f"the mask of '{weight.name}' cannot be replaced: {reason}")
    origin = model.metadata.get(MASKED + ORIGIN)
    model.drop_metadata(MASKED)
    if origin and PREFIX + ORIGIN not in model.metadata:
        model.set_metadata({MASKED + ORIGIN: origin})  # the dense file is still the one that the first masks were for
    model.forget()
    _ = model.weights
    return model, before


def plain_source(source: Source, before: MaskedBefore) -> Source:
    """What can be opened again to look at the network without masks: the source itself where it has none."""
    return open_without_masks(source)[0].take_proto() if before else source


def hidden(numbers: Array, keep: Array | None) -> Array:
    """Numbers with +0.0 where they were masked."""
    return numbers if keep is None else np.where(keep, numbers, numbers.dtype.type(0))
