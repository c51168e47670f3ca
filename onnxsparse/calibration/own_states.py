"""Refits of recurrent layers to the hidden states that they give themselves, step by step, once they are pruned.

The sweep takes the states before each step from the dense net, so that steps do not depend on each other. In the pruned
net they come from the step before, with its errors, which the next steps carry on. So when the mask of a layer is known

1. the pruned net runs through the layer, and the weights are refitted under the mask: inputs are the states that come
   out, what is wanted are still the sums of the dense net;
2. that is repeated while the outputs of the model come closer to the dense ones, with all samples through the layers
   behind as they are. What came closest is kept: where errors grow from step to step, states tell so little that a
   refit trusts them less, and the layer forgets (a simple RNN over 28 steps, 80 % zeros: 10 points of accuracy lost).

What it does not do: choose the mask anew. That was no better than this, on three networks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from onnxsparse.calibration.layers import CalibratedLayer
from onnxsparse.calibration.moments import Moments, Samples
from onnxsparse.calibration.moves import squared_moves, targets
from onnxsparse.calibration.streams import Store, Stream
from onnxsparse.engines.random_projection import scales_of
from onnxsparse.errors import ModelError
from onnxsparse.math.values import Array
from onnxsparse.solvers.rounds import Fitted, Layer
from onnxsparse.solvers.solver import refitted

REPEATS = 3
"""Refits at most. The first one gains most, on four networks."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A layer with new numbers, and the problem that they solve."""

    problem: Layer
    fitted: Fitted
    moments: Moments


@dataclass(frozen=True, eq=False)
class OwnStates:
    """Both nets, before a recurrent layer."""

    dense: Stream
    pruned: Stream
    samples: Samples
    store: Store

    def better(
        self,
        layer: CalibratedLayer,
        first: Candidate,
        problem: Callable[[Moments], Layer],
        replaced: Mapping[str, Array],
    ) -> Candidate:
        """The first of a layer's candidates, or what it becomes on its own states, if the outputs come closer."""
        best, least = first, self._distance(layer, first, replaced)
        for _ in range(REPEATS):
            moments = self._moments(layer, _numbers(layer, best, replaced))
            posed = problem(moments)
            found = Candidate(posed, refitted(posed, best.fitted.mask), moments)
            distance = self._distance(layer, found, replaced)
            if not distance < least:
                break
            best, least = found, distance
        return best

    def _moments(self, layer: CalibratedLayer, numbers: Mapping[str, Array]) -> Moments:
        """The moments of a layer, with the states that it gives with these numbers."""
        (reduction,), moments = layer.reductions, Moments(layer)
        names = [*reduction.inputs, *reduction.dense_inputs]
        given = self.pruned.fork(numbers).values([reduction.fed_back])
        values = zip(self.pruned.values(reduction.inputs), self.dense.values(names), given)
        for batch, (own, dense, states) in enumerate(values):
            moments.add(0, batch, own, dense, self.samples, {**dense, **states})
        return moments

    def _distance(self, layer: CalibratedLayer, one: Candidate, replaced: Mapping[str, Array]) -> float:
        """How far the outputs of the model are from the dense ones, squared; nothing where that cannot be said."""
        dense, scales = self._outputs
        names = [name for name in scales if self.dense.cut.place[name] >= self.pruned.done]
        found = self.pruned.fork(_numbers(layer, one, replaced)).values(names) if names else ()
        return sum(squared_moves(scales[name], a[name], b[name]) for a, b in zip(dense, found) for name in names)

    @cached_property
    def _outputs(self) -> tuple[list[dict[str, Array]], Mapping[str, float]]:
        """Those of the dense net, and their scales; none where they do not vary."""
        cut = self.dense.cut
        names = [name for name in targets(cut.model) if name in cut.place]
        dense = list(Stream(cut, self.samples.feeds, self.store).values(names))
        try:
            return dense, scales_of(dense, self.samples.count)[0]
        except ModelError:
            return dense, {}


def _numbers(layer: CalibratedLayer, one: Candidate, replaced: Mapping[str, Array]) -> dict[str, Array]:
    return layer.numbers(one.fitted.rows, one.fitted.bias, replaced)


def feeds_itself(layer: CalibratedLayer) -> bool:
    """Whether a layer is one recurrent node whose numbers can change."""
    return len(layer.reductions) == 1 and bool(layer.reductions[0].fed_back) and not layer.held


__all__ = ["Candidate", "OwnStates", "feeds_itself"]
