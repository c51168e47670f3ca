"""Measured sensitivity: how far the outputs of a model move when stored numbers change, by forward runs.

1. `Outputs` says it for any numbers: of whole layers, for the points of their curves.
2. `with_measured_rows` says it of single outputs of recurrent layers, which no gradient reaches: one after the other is
   shifted by a part of what it varies, by its bias. What is known of other layers stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from onnxsparse.calibration.layers import CalibratedLayer
from onnxsparse.calibration.moments import Samples, dense_moments
from onnxsparse.calibration.sensitivity import Sensitivity, first_batches
from onnxsparse.calibration.streams import Cut, Store, Stream
from onnxsparse.engines.inference import Session
from onnxsparse.engines.light_model import LightModel
from onnxsparse.engines.random_projection import float_targets, scales_of, targets_of
from onnxsparse.errors import ModelError
from onnxsparse.graph.model import Model
from onnxsparse.math.values import Array

SHIFT = 0.3
"""By which part of its deviation an output is shifted."""
TRIED, MOST = 32, 4096
"""Samples that every output is tried on, and the outputs of a layer beyond which that takes too long."""


def with_measured_rows(
    cut: Cut, layers: Sequence[CalibratedLayer], samples: Samples, known: Sensitivity, store: Store
) -> Sensitivity:
    """What is known, and how much the outputs of recurrent layers matter where that is not."""
    wanted = [one for one in layers if one not in known.rows and _by_bias(one)]
    if not wanted:
        return known
    outputs, found = Outputs(cut, samples, store), dict[CalibratedLayer, Array]()
    for layer, moments in dense_moments(cut, wanted, samples, store):
        energy = np.zeros(layer.shape[0])
        for block in moments.fit():
            energy[block.outputs] += block.energy
        rows = _rows(outputs, layer, energy)
        if np.isfinite(rows).all() and rows.any():
            found[layer] = rows
    return replace(known, rows={**known.rows, **found})


def _by_bias(layer: CalibratedLayer) -> bool:
    """Whether its outputs can be shifted one by one, by a stored vector."""
    return layer.bias is not None and bool(layer.reductions[0].dense_inputs) and layer.shape[0] <= MOST


def _rows(outputs: Outputs, layer: CalibratedLayer, energy: Array) -> Array:
    """By how much the outputs of the model move for each unit of square error in every output of a layer."""
    assert layer.bias is not None
    shifts, count = SHIFT * np.sqrt(energy), layer.shape[0]
    (name,) = layer.bias.moved(np.zeros(count), {})
    alive = np.flatnonzero(shifts > 0)
    arrays = (layer.bias.moved(np.where(np.arange(count) == row, shifts, 0.0), {})[name] for row in alive)
    found = np.zeros(count)
    for row, moved in zip(alive, outputs.moves(layer.place, name, arrays)):
        found[row] = moved / shifts[row] ** 2
    return found


class Outputs:
    """The outputs of the dense net for the first samples, and how far other numbers move them:

        mean over outputs of  (mean square of the move / variance of the output)

    What comes before a layer runs once, and what follows it for each set of numbers.
    """

    def __init__(self, cut: Cut, samples: Samples, store: Store) -> None:
        self._cut, self._store = cut, store
        self.feeds = samples.feeds[: first_batches(samples.sizes)]
        self._sizes = samples.sizes[: len(self.feeds)]
        self._count = max(sum(samples.sizes[: len(self.feeds)]), 1)
        names = [name for name in targets(cut.model) if name in cut.place]
        self._dense = list(Stream(cut, self.feeds, store).values(names))
        self._ahead = Stream(cut, self.feeds, store)
        self._scales, self.notes = scales_of(self._dense, self._count)

    def before(self, place: int) -> Stream:
        """The samples in the dense net, before a node. Going forward, every node runs once."""
        if self._ahead.done > place:
            self._ahead = Stream(self._cut, self.feeds, self._store)
        self._ahead.run_to(place)
        return self._ahead

    def moved(self, place: int, numbers: Mapping[str, Array]) -> float:
        """By how much the outputs move when stored tensors that no node before `place` reads get these numbers,
        squared."""
        fork = self.before(place).fork(numbers)
        names = [name for name in self._scales if self._cut.place[name] >= fork.done]
        if not names:
            return 0.0
        pairs = zip(self._dense, fork.values(names))
        total = sum(self._squares(name, dense[name], moved[name]) for dense, moved in pairs for name in names)
        return total / self._count

    def moves(self, place: int, name: str, arrays: Iterable[Array]) -> Iterator[float]:
        """The same for one tensor that gets one array after the other, on the first batches; the rest of the model is
        loaded once."""
        before, session = self.before(place), None
        names = [one for one in self._scales if self._cut.place[one] >= before.done]
        stop = max((self._cut.place[one] + 1 for one in names), default=place)
        batches = list(zip(before.given(stop), self._dense))[: max(1, self._tried)]
        count = max(sum(self._sizes[: len(batches)]), 1)
        for array in arrays:
            total = 0.0
            for given, dense in batches:
                feed = {**given, name: array}
                piece = self._cut.piece(before.done, stop, feed, names, {name: array}) if session is None else None
                session = session or Session(piece, optimized=False)
                found = session.run(feed)
                total += sum(self._squares(one, dense[one], found[one]) for one in names)
            yield total / count

    @property
    def _tried(self) -> int:
        """How many batches hold the samples that rows are tried on."""
        return int((np.cumsum(self._sizes) <= TRIED).sum())

    def _squares(self, name: str, dense: Array, moved: Array) -> float:
        return squared_moves(self._scales[name], dense, moved)


def squared_moves(scale: float, dense: Array, moved: Array) -> float:
    """The sum of the squares of what an output moved, in units of its scale; what was not finite does not count.

    What has another size than before (detections that were selected, say) moved by all that it varies.
    """
    if moved.shape != dense.shape:
        finite = dense[np.isfinite(dense)]
        moved = np.full(dense.shape, finite.mean(dtype=np.float64) if finite.size else 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        squares = np.square((moved.astype(np.float64) - dense) * scale)
    return float(np.where(np.isfinite(dense), np.nan_to_num(squares, nan=np.inf), 0.0).sum())


def targets(model: Model) -> list[str]:
    """Those of the projections that gradients are taken of."""
    floats = float_targets(model.proto)
    try:
        return floats or targets_of(LightModel(model.copy_proto()))
    except ModelError:  # whole numbers all the way: they move, too
        return [value.name for value in model.proto.graph.output]


__all__ = ["Outputs", "squared_moves", "targets", "with_measured_rows"]
