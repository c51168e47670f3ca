"""Moments of what comes into the layers of a model, collected batch by batch, dense or from a pruned net beside it.

A recurrent layer takes its inputs from the pruned net and its hidden states from the dense one, or where `own_states`
says so from the pruned one. A tensor that several nodes read has the moments of all: of its first node with the inputs
of the pruned net, of the others with those of the dense one, since those nodes have not run in the pruned net when the
tensor is changed.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from onnxsparse.calibration.layers import CalibratedLayer
from onnxsparse.calibration.pooling import drawn_together
from onnxsparse.calibration.reductions import Reduction
from onnxsparse.calibration.sensitivity import Probe, Sensitivity, nothing_known
from onnxsparse.calibration.statistics import LayerMoments
from onnxsparse.calibration.streams import Cut, Store, Stream
from onnxsparse.math.values import Array
from onnxsparse.solvers.quadratic import Factored, Quadratic

Feed = Mapping[str, Array]
_Rows = tuple[Array, Array, Optional[Array]]
"""Inputs, what is wanted of them, and the 1 of a bias: see `LayerMoments.add`."""
WIDE, FEW = 512, 0.5
"""Of so many inputs and more the rows are kept while there are at most so many positions for each input."""


@dataclass(frozen=True)
class Samples:
    """The batches of a calibration; the last `held` of them judge what the others fit."""

    feeds: Sequence[Feed]
    sizes: Sequence[int] = ()
    """How many samples each batch has."""
    held: int = 0
    notes: Sequence[str] = ()
    """What was said of the data when it was opened."""
    shared: frozenset[str] = frozenset()
    """The inputs that all samples have in common."""

    @property
    def count(self) -> int:
        return sum(self.sizes)

    @property
    def fitted(self) -> int:
        """How many samples are not held out."""
        return sum(size for number, size in enumerate(self.sizes) if not self.is_held(number))

    def is_held(self, number: int) -> bool:
        return number >= len(self.feeds) - self.held


class BlockMoments:
    """The moments of one block. Where its inputs are many and positions few, the rows themselves are kept: their Gram
    matrix would be larger, and take longer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self._shape, self.count = (inputs, outputs), 0
        self._rows: list[_Rows] = []
        self._sums = None if inputs >= WIDE else LayerMoments(inputs, outputs)

    def add(self, rows: Array, targets: Array, ones: Array | None = None) -> None:
        """See `LayerMoments.add`."""
        self.count += len(rows) if ones is None else int(np.count_nonzero(ones))
        if self._sums is None and self.count > self._shape[0] * FEW:
            self._sums = self.summed()
        if self._sums is None:
            self._rows.append((rows.astype(np.float32), targets.astype(np.float32), ones))
        else:
            self._sums.add(rows, targets, ones)

    def summed(self) -> LayerMoments:
        """As sums, whatever is kept."""
        if self._sums is not None:
            return self._sums
        found = LayerMoments(*self._shape)
        for rows, targets, ones in self._rows:
            found.add(rows, targets, ones)
        self._rows.clear()
        return found

    def merge(self, other: BlockMoments) -> None:
        self._sums, more = self.summed(), other.summed()
        self._sums.merge(more)
        self.count = self._sums.count

    def quadratic(self, outputs: Array, biased: bool) -> Quadratic:
        if self._sums is not None:
            return Quadratic.of(outputs, self._sums, biased)
        x, y = (
            np.concatenate([np.empty((0, size), np.float32), *(one[which] for one in self._rows)])
            for which, size in enumerate(self._shape)
        )
        ones = np.concatenate([np.empty(0), *(np.ones(len(x)) if one is None else one for x, _, one in self._rows)])
        finite = np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1)
        return Factored(outputs, x[finite], y[finite], biased, ones[finite])


class Moments:
    """The moments of each block of a layer: of the samples that fit, and of those that judge."""

    def __init__(self, layer: CalibratedLayer, known: Sensitivity | None = None, probe: Probe | None = None) -> None:
        self._layer, self.probe, self._known = layer, probe, known or nothing_known()
        self._share = self._known.shares.get(layer, 0.0)
        self._shared, width = list(_alike(layer.reductions)), layer.shape[1]
        self._fit = [BlockMoments(width, len(one.outputs)) for one in self._shared]
        self._held = [BlockMoments(width, len(one.outputs)) for one in self._shared]
        self.products = 0.0
        """Multiplications of the samples that fit, of those that count and of padding."""
        matrix, self._own = layer.whole()
        self._matrix = matrix.astype("float32")

    def add(
        self, which: int, batch: int, inputs: Feed, dense: Feed, samples: Samples, states: Feed | None = None
    ) -> None:
        """One batch of one of its nodes: the values before it in the net that is pruned, and in the dense one.

        `states`: what hidden states are taken from, where not from the dense net.
        """
        size, weights = samples.sizes[batch], self._known.position_weights(self._layer, which, batch)
        reduction = self._layer.reductions[which]
        wanted = reduction.rows(dense, dense)
        rows = wanted if inputs is dense else reduction.rows(inputs, dense if states is None else states)
        for one, found in zip(self._shared, self._held if samples.is_held(batch) else self._fit):
            block = one.blocks[which]
            if block is not None:
                if not samples.is_held(batch):
                    self.products += float(len(rows[block])) * len(one.outputs) * self._layer.shape[1]
                pair = self._asked(rows[block], wanted[block], self._matrix[one.outputs])
                found.add(*self._counted(*pair, weights[block] if weights else None, size))
        if self.probe is not None:
            self.probe.take(which, batch, [own if self._own.all() else own[:, self._own] for own in rows])

    def _counted(self, rows: Array, wanted: Array, weights: Array | None, size: int) -> _Rows:
        """Rows of a block as they count: by their position, and by the share of errors that their means over a sample
        have, see `pooling`."""
        if weights is None:
            return drawn_together(rows, size, self._share), drawn_together(wanted, size, self._share), None
        roots = np.sqrt(weights)[:, None]
        with np.errstate(invalid="ignore"):  # what is not finite is left out
            parts = rows * roots, wanted * roots, roots
        x, y, ones = (drawn_together(part, size, self._share) for part in parts)
        return x, y, ones[:, 0]

    def _asked(self, rows: Array, wanted: Array, matrix: Array) -> tuple[Array, Array]:
        """The inputs of the weights that are pruned, and what these are to make of them: less what those beside do."""
        if self._own.all():
            return rows, wanted @ matrix.T
        return rows[:, self._own], wanted @ matrix.T - rows[:, ~self._own] @ matrix[:, ~self._own].T

    def merge(self, other: Moments) -> None:
        for own, more in zip([*self._fit, *self._held], [*other._fit, *other._held]):
            own.merge(more)
        self.products += other.products

    def fit(self) -> list[Quadratic]:
        return self._quadratics(self._fit)

    def held(self) -> list[Quadratic]:
        """Those that judge; none where no samples are held out."""
        return self._quadratics(self._held) if any(one.count for one in self._held) else []

    def _quadratics(self, moments: Sequence[BlockMoments]) -> list[Quadratic]:
        return [one.quadratic(own.outputs, self._biased(own)) for own, one in zip(self._shared, moments)]

    def _biased(self, shared: _Shared) -> bool:
        """Whether these rows have a bias; a layer of several nodes has none."""
        block = shared.blocks[0]
        return self._layer.bias is not None and block is not None and self._layer.reductions[0].takes_bias[block]


@dataclass(frozen=True, eq=False)
class _Shared:
    """Rows of the matrix of a layer that the same nodes compute, each in one of its blocks."""

    outputs: Array
    blocks: Sequence[int | None]
    """For each node the number of its block, or nothing where it computes other rows."""


def _alike(reductions: Sequence[Reduction]) -> Iterator[_Shared]:
    """The rows that all nodes of a layer compute in the same blocks: nodes may read parts of a tensor that is split."""
    blocks: dict[int, list[int | None]] = {}
    for which, reduction in enumerate(reductions):
        for number, outputs in enumerate(reduction.outputs):
            for row in outputs.tolist():
                blocks.setdefault(row, [None] * len(reductions))[which] = number
    found: dict[tuple[int | None, ...], list[int]] = {}
    for row, own in blocks.items():
        found.setdefault(tuple(own), []).append(row)
    return (_Shared(np.array(rows), own) for own, rows in found.items())


def dense_moments(
    cut: Cut,
    layers: Sequence[CalibratedLayer],
    samples: Samples,
    store: Store,
    later: bool = False,
    sensitivity: Sensitivity | None = None,
    known: Container[CalibratedLayer] = (),
) -> Iterator[tuple[CalibratedLayer, Moments]]:
    """The moments of layers in the dense net, each as soon as its last node is met.

    `later`: of all nodes of a layer but the first alone, and of no other layers. With a sensitivity they have probes.
    Layers that are `known` are passed over.
    """
    stream, found = Stream(cut, samples.feeds, store), dict[CalibratedLayer, Moments]()
    events = [(place, number, which) for number, one in enumerate(layers) for which, place in enumerate(one.places)]
    first = {number: layer.places.index(layer.place) for number, layer in enumerate(layers)}
    for place, number, which in sorted(events):
        layer = layers[number]
        if later and which == first[number]:
            continue
        if layer in known:
            stream.run_to(place)  # piece by piece, as otherwise, so that no piece is larger
            continue
        if layer not in found:
            found[layer] = _moments(layer, samples, sensitivity)
        moments = found[layer]
        reduction = layer.reductions[which]
        for batch, values in enumerate(stream.values([*reduction.inputs, *reduction.dense_inputs])):
            moments.add(which, batch, values, values, samples)
        if place == max(layer.places):
            yield layer, found.pop(layer)


def _moments(layer: CalibratedLayer, samples: Samples, sensitivity: Sensitivity | None) -> Moments:
    if sensitivity is None:
        return Moments(layer)
    return Moments(layer, sensitivity, Probe(layer, sensitivity, samples.sizes))


def run_before(layer: CalibratedLayer, dense: Stream, pruned: Stream) -> None:
    """Run both nets to where the moments of a layer are taken."""
    reduction = layer.reductions[layer.places.index(layer.place)]
    pruned.ready(reduction.inputs)
    dense.ready([*reduction.inputs, *reduction.dense_inputs])


def swept_moments(
    layer: CalibratedLayer, dense: Stream, pruned: Stream, samples: Samples, known: Sensitivity | None = None
) -> Moments:
    """The moments of a layer at its first node: what the net pruned so far gives it, against the dense net."""
    which, moments = layer.places.index(layer.place), Moments(layer, known)
    reduction = layer.reductions[which]
    names = [*reduction.inputs, *reduction.dense_inputs]
    for batch, (own, other) in enumerate(zip(pruned.values(reduction.inputs), dense.values(names))):
        moments.add(which, batch, own, other, samples)
    return moments


__all__ = ["Moments", "Samples", "dense_moments", "run_before", "swept_moments"]
