"""Units of all layers in one order, whatever their size: how many of each layer go until enough elements are gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from onnxsparse.patterns.pattern import checked_sparsity
from onnxsparse.values import Array


def pooled(scores: Mapping[str, Array], sizes: Mapping[str, int], sparsity: float) -> dict[str, int]:
    """How many of the smallest units each layer drops; `sizes` are the elements of a unit. No layer loses its largest.

    As many go as come nearest to the sparsity. Among equals those of earlier layers go first.
    """
    names = [name for name, units in scores.items() if units.size]
    ordered = [np.sort(scores[name], kind="stable")[:-1] for name in names]
    layer, size = _repeated(range(len(names)), ordered), _repeated([sizes[name] for name in names], ordered)
    order = np.argsort(np.concatenate([*ordered, np.zeros(0)]), kind="stable")
    total = sum(sizes[name] * scores[name].size for name in names)
    goal = np.floor(checked_sparsity(sparsity, "a network") * total + 0.5)
    middle = np.cumsum(size[order]) - size[order] / 2
    counts = np.bincount(layer[order[middle <= goal]], minlength=len(names))
    return {**dict.fromkeys(scores, 0), **{name: int(count) for name, count in zip(names, counts)}}


def _repeated(values: Sequence[int], units: Sequence[Array]) -> Array:
    return np.repeat(np.asarray(values, np.int64), [len(one) for one in units])
