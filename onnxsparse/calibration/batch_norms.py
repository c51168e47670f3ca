"""Statistics of BatchNormalization that a file keeps, re-estimated for the net that is pruned.

What comes in has another mean and another variance than in the dense net. With x there and x' in the pruned net

    mean'           =  mean + E x' - E x                        the mean of the output is what it was
    variance' + eps =  (variance + eps) * Var x' / Var x        so is its variance

1. Stored numbers move by what the samples say of both nets; they are not replaced by what few samples say of one.
2. Batches that are held out judge: nothing, the mean, or both.
3. Left as they are: those that run as in training, and statistics that other nodes read, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxsparse.calibration.stored_numbers import Floats
from onnxsparse.calibration.streams import Cut
from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.storage import FLOAT_KINDS, StoredTensor
from onnxsparse.math.values import Array

EPSILON = 1e-5
"""What the operator adds to a variance, if it does not say."""
LARGEST = 4.0
"""Times by which a variance may grow or shrink: what is more says that there are too few samples."""
ENOUGH = 1e-9
"""An error that is less than such a part of what comes out is none."""


@dataclass(frozen=True, eq=False)
class BatchNorm:
    """One node, where it stands among the nodes that run, and its stored statistics."""

    node: NodeProto
    place: int
    mean: Floats
    variance: Floats

    @property
    def value(self) -> str:
        """What comes in."""
        return str(self.node.input[0])

    @property
    def epsilon(self) -> float:
        return Attributes(self.node, {}).number("epsilon", EPSILON)


def batch_norms(cut: Cut, tensors: Mapping[str, StoredTensor]) -> Iterator[BatchNorm]:
    """Those whose statistics can change, in the order of the graph."""
    for place, node in enumerate(cut.nodes):
        if (
            node.op_type != "BatchNormalization"
            or len(node.input) < 5
            or len([name for name in node.output if name]) > 1
        ):
            continue
        held = [tensors.get(name) for name in node.input[3:5]]
        mean, variance = (one if one is not None and one.kind in FLOAT_KINDS else None for one in held)
        alone = all(cut.readers[name] == 1 for name in node.input[3:5])
        training = Attributes(node, {}).integer("training_mode")
        if alone and mean is not None and variance is not None and not training:
            yield BatchNorm(node, place, Floats(mean), Floats(variance))


class PairMoments:
    """Means, squares and products of each channel of a value in both nets, over batches."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: Array = np.zeros(())

    def add(self, dense: Array, pruned: Array) -> None:
        axes = tuple(axis for axis in range(dense.ndim) if axis != 1)
        x, y = dense.astype(np.float64), pruned.astype(np.float64)
        found = np.stack([one.sum(axis=axes) for one in (x, y, x * x, y * y, x * y)])
        self._sums, self.count = self._sums + found, self.count + dense.size // max(dense.shape[1], 1)

    @property
    def _means(self) -> Array:
        found: Array = self._sums / max(self.count, 1)
        return found

    @property
    def shift(self) -> Array:
        """By how much the mean is larger in the pruned net."""
        return np.asarray(self._means[1] - self._means[0])

    @property
    def growth(self) -> Array:
        """How many times as large the variance is there."""
        x, y, xx, yy, _ = self._means
        dense, pruned = xx - x * x, yy - y * y
        known = (dense > 0) & (pruned > 0)
        found = np.divide(pruned, dense, out=np.ones_like(dense), where=known)
        return np.asarray(np.clip(found, 1 / LARGEST, LARGEST))

    def error(self, mean: Array, new_mean: Array, scale: Array) -> Array:
        """The mean square of (x - mean) - scale (x' - new_mean)."""
        x, y, xx, yy, xy = self._means
        dense = xx - 2 * mean * x + mean * mean
        pruned = yy - 2 * new_mean * y + new_mean * new_mean
        cross = xy - mean * y - new_mean * x + mean * new_mean
        found: Array = np.maximum(dense - 2 * scale * cross + scale * scale * pruned, 0.0)
        return found


def re_estimated(
    norm: BatchNorm, fit: PairMoments, judge: PairMoments, changed: Mapping[str, Array]
) -> dict[str, Array]:
    """New statistics, by the name of the tensor; nothing where the old ones are as good."""
    mean, variance = norm.mean.real({}), norm.variance.real({})
    held = norm.mean.real(changed)
    moved, wider = mean + fit.shift, (variance + norm.epsilon) * fit.growth - norm.epsilon
    wider = np.maximum(wider, 0.0)
    still, scale = np.ones_like(mean), np.sqrt((variance + norm.epsilon) / (wider + norm.epsilon))
    weights = 1.0 / (variance + norm.epsilon)
    choices = ((held, still), (moved, still), (moved, scale))
    costs = [float(weights @ judge.error(mean, *choice)) for choice in choices]
    if not np.isfinite(costs).all() or costs[0] <= ENOUGH * len(mean):
        return {}
    best = int(np.argmin(costs))
    found = norm.mean.written(moved, changed) if best else {}
    return {**found, **norm.variance.written(wider, changed)} if best == 2 else found


__all__ = ["BatchNorm", "PairMoments", "batch_norms", "re_estimated"]
