"""Calibrated pruning: from samples to masks and refitted weights, layer by layer, for what a plan prunes.

1. What the samples say of the outputs decides how much each output of a layer matters (its sensitivity), and with the
   allocation `sensitivity` how much of each layer goes.
2. A sweep in the order of the graph chooses masks and refits what is kept; what it cannot reach is pruned by the score
   of the plan, and its row says why.
3. Only stored numbers come out, by tensor; nothing is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from onnxsparse import progress
from onnxsparse.allocations.curves import Curve, allocate
from onnxsparse.calibration.curves import curves_of
from onnxsparse.calibration.feeding import Feeds
from onnxsparse.calibration.layers import RECURRENT, Layers, layers_of
from onnxsparse.calibration.moments import Samples
from onnxsparse.calibration.output_gradients import output_gradients
from onnxsparse.calibration.sensitivity import Sensitivity, nothing_known, sensitivity_of
from onnxsparse.calibration.streams import Cut, Store
from onnxsparse.calibration.sweep import Sweep, Swept
from onnxsparse.calibration.workers import working
from onnxsparse.data import open_data
from onnxsparse.graph.model import Model
from onnxsparse.math.values import Array
from onnxsparse.planning.model_inputs import SampleAxes, fields_of
from onnxsparse.planning.plan import Plan, PlanRow
from onnxsparse.planning.stored_params import StoredParam, vector_param, weight_param

SENSITIVITY = "sensitivity"
GRADIENTS, MEASURED = "gradients", "measured"
SAMPLES, DRAWS = 256, 2
HELD = 8
"""One batch in so many is held out, and judges."""


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A plan with masks, and the new numbers of stored tensors by tag."""

    plan: Plan
    numbers: Mapping[str, Array]
    tags: Mapping[str, StoredParam]
    details: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """What a calibration is asked for."""

    data: Any
    samples: int = SAMPLES
    seed: int = 0
    allocation: str | None = None
    sensitivity: str = GRADIENTS
    engine: str = "auto"
    workers: int | None = None


def calibrated(model: Model, plan: Plan, asked: Asked, axes: SampleAxes, folder: str | None = None) -> Calibrated:
    """Masks and numbers for what a plan prunes, from samples; how much of each weight goes is decided here, too."""
    data = open_data(asked.data, fields_of(model, axes), None, False, None)
    feeds = Feeds(model.copy_proto() if axes.states else model.proto, data, asked.samples, axes.inputs, axes.states)
    with named_states(model), working(asked.workers):
        find = partial(_by_gradients, model, asked, axes) if asked.sensitivity == GRADIENTS else nothing_known
        calibration = Calibration(model, plan, batches_of(feeds), find, folder)
        sparsity, pattern = plan.rule.sparsity, plan.rule.pattern
        by_curves = asked.allocation in (None, SENSITIVITY) and sparsity is not None and pattern is not None
        if by_curves and sparsity is not None:
            plan = calibration.allocated(sparsity)
        return calibration.swept(plan)


def batches_of(feeds: Feeds) -> Samples:
    """All batches, and how many samples each has; the last eighth is held out, of several batches one at least."""
    found = list(feeds)
    first = next((name for name in found[0] if np.ndim(found[0][name])), "") if found else ""
    axis = feeds.axes.get(first, 0)
    sizes = [np.shape(feed[first])[axis] if first else 1 for feed in found]
    return Samples(found, sizes, max(1, len(found) // HELD) if len(found) > 1 else 0)


def _by_gradients(model: Model, asked: Asked, axes: SampleAxes, batches: Samples, layers: Layers) -> Sensitivity:
    names = [one.result for layer in layers.layers for one in layer.reductions if one.result]
    found = output_gradients(
        model.copy_proto(), names, batches.feeds, asked.engine, DRAWS, asked.seed, axes.inputs or None
    )
    known = sensitivity_of(layers.layers, found, batches.sizes, DRAWS)
    return replace(known, unreached=found.unreached, engine=found.engine, notes=tuple(found.notes))


@contextmanager
def named_states(model: Model) -> Iterator[None]:
    """While it lasts the hidden states of all steps have a name in recurrent nodes that give their last ones alone."""
    nodes = [node for node in model.proto.graph.node if node.op_type in RECURRENT and not node.output[0]]
    for number, node in enumerate(nodes):
        node.output[0] = f"onnxsparse states {number}"
    try:
        yield
    finally:
        for node in nodes:
            node.output[0] = ""


class Calibration:
    """The calibration of one model: what is found of its layers once serves several levels."""

    def __init__(
        self,
        model: Model,
        plan: Plan,
        samples: Samples,
        find: Callable[[Samples, Layers], Sensitivity],
        folder: str | None = None,
    ) -> None:
        self.model, self.plan, self.samples, self._folder = model, plan, samples, folder
        self.cut = Cut(model)
        self.found: Layers = layers_of(model, plan, self.cut)
        self.sensitivity = find(samples, self.found)
        self._curves: list[Curve] | None = None

    @property
    def curves(self) -> list[Curve]:
        """What each layer costs, by how much of it is kept; made once."""
        if self._curves is None:
            self._curves = curves_of(self.cut, self.found.layers, self.samples, self.sensitivity, Store(self._folder))
        return self._curves

    def allocated(self, sparsity: float) -> Plan:
        """The plan with as much of each layer dropped as costs the least together."""
        shares = allocate(self.curves, 1 - sparsity)
        kept = {one.weight.name: share for layer, share in zip(self.found.layers, shares) for one in layer.parts}
        return replace(self.plan, rows=tuple(_with_share(row, kept) for row in self.plan.rows))

    def swept(self, plan: Plan) -> Calibrated:
        """Masks and numbers for a plan."""
        sweep = Sweep(self.cut, self.found.layers, self.samples, self.sensitivity, Store(self._folder))
        rows, done = {row.name: row for row in plan.rows}, dict[str, Swept]()
        for number, layer in enumerate(self.found.layers):
            drops = [rows[one.weight.name].drop if one.row else 0 for one in layer.parts]
            swept = sweep.layer(layer, drops)
            done.update({one.weight.name: swept for one in layer.parts if one.row})
            progress.advance("calibrate", number + 1, len(self.found.layers))
        made = replace(plan, rows=tuple(self._row(row, done.get(row.name)) for row in plan.rows))
        tags, numbers = self._by_tag(sweep.numbers)
        return Calibrated(made, numbers, tags)

    def _row(self, row: PlanRow, swept: Swept | None) -> PlanRow:
        if swept is None:
            why = self.found.reasons.get(row.name)
            return (
                row
                if why is None
                else replace(row, reason=f"not calibrated, pruned by {self.plan.rule.score.name}: {why}")
            )
        keep = swept.masks[row.name]
        return replace(row, keep=keep, cut=None, reason=_said(swept))

    def _by_tag(self, numbers: Mapping[str, Array]) -> tuple[dict[str, StoredParam], dict[str, Array]]:
        homes = self.model.flow.stores.homes
        weights = {weight.tensor: weight for weight in self.model.weights}
        tags, found = dict[str, StoredParam](), dict[str, Array]()
        for tensor, home in homes.items():
            if not home.scope and tensor.name in numbers:
                known = weights.get(tensor)
                tags[home.tag] = vector_param(tensor, home.tag) if known is None else weight_param(known)
                found[home.tag] = (
                    numbers[tensor.name].astype(np.float32) if tensor.kind != "bfloat16" else numbers[tensor.name]
                )
        return tags, found


def _with_share(row: PlanRow, kept: Mapping[str, float]) -> PlanRow:
    if row.pattern is None or row.name not in kept:
        return row
    units = row.pattern.units(row.use.shape4)
    return replace(row, drop=min(units, max(0, round(units * (1 - kept[row.name])))), cut=None)


def _said(swept: Swept) -> str:
    if swept.fell_back:
        return f"a refit did harm on samples held out, so its numbers stay; error {swept.error:.2%} of its outputs"
    return f"refitted: error {swept.error:.2%} of its outputs, {swept.unfitted:.2%} without"


__all__ = ["Asked", "Calibrated", "Calibration", "batches_of", "calibrated"]
