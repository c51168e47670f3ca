"""Calibrated pruning: from samples to masks and refitted weights, layer by layer, for what a plan prunes.

1. What the samples say of the outputs decides how much each output of a layer matters (its sensitivity), and with the
   allocation `sensitivity` how much of each layer goes.
2. A sweep in the order of the graph chooses masks and refits what is kept; what it cannot reach is pruned by the score
   of the plan, and its row says why.
3. Only stored numbers come out, by tensor; nothing is written here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto

from onnxsparse import progress, scores, solvers
from onnxsparse.allocations.curves import Curve
from onnxsparse.calibration.biases import RECURRENT
from onnxsparse.calibration.checkpointing import Saves, saves
from onnxsparse.calibration.curves import LayersOnSamples, costs_of, curves_of, tried, under, with_joint_parts
from onnxsparse.calibration.feed_pieces import in_pieces
from onnxsparse.calibration.feeding import Feeds
from onnxsparse.calibration.inlining import without_functions
from onnxsparse.calibration.layers import CalibratedLayer, Layers, layers_of
from onnxsparse.calibration.levels import shared_out
from onnxsparse.calibration.moments import Samples
from onnxsparse.calibration.moves import with_measured_rows
from onnxsparse.calibration.new_biases import NewBias
from onnxsparse.calibration.new_numbers import Read
from onnxsparse.calibration.output_gradients import output_gradients
from onnxsparse.calibration.sample_checks import doubts, sound
from onnxsparse.calibration.sensitivity import Sensitivity, nothing_known, sensitivity_of
from onnxsparse.calibration.streams import HELD as HELD_VALUES
from onnxsparse.calibration.streams import Cut, Store, activations, bytes_between, demand_space
from onnxsparse.calibration.sweep import RIDGE, Sweep, Swept
from onnxsparse.calibration.workers import working
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import PACKED_KINDS, StoredTensor
from onnxsparse.math.values import Array, from_bfloat16
from onnxsparse.passes.calibration_asked import GRADIENTS, Asked, by_curves, demand_runtime, samples_of
from onnxsparse.passes.prune import numbers_of
from onnxsparse.patterns.nm import NOfM
from onnxsparse.planning.model_inputs import SampleAxes
from onnxsparse.planning.plan import Plan, PlanRow
from onnxsparse.planning.stored_params import StoredParam, vector_param, weight_param
from onnxsparse.scores import Score
from onnxsparse.solvers import Solver

DRAWS = 2
"""Random projections of the outputs, for each sample."""
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
    swept: Mapping[str, Swept] = field(default_factory=dict)
    """What the sweep found of the layer of each weight that it reached."""
    biases: tuple[NewBias, ...] = ()
    """Those that the graph has not, and gets when it is delivered."""


class Numbered(NamedTuple):
    """New numbers of stored tensors, and what these are, by tag."""

    tags: Mapping[str, StoredParam]
    numbers: Mapping[str, Array]


LARGE = 1 << 31
"""Bytes of a file beyond which no gradients are taken."""
UNWEIGHED = (
    "the model is so large that no gradients are taken, which would hold all of it in memory: the outputs of a layer "
    "count by what they vary"
)
UNLIKE = ("data", "workers", "checkpoint", "resume", "joint_steps")
"""What of `Asked` may be another when a calibration goes on: the samples are compared as they are."""


def calibrated(model: Model, plan: Plan, asked: Asked, axes: SampleAxes, folder: str | None = None) -> Calibrated:
    """Masks and numbers for what a plan prunes, from samples; how much of each weight goes is decided here, too."""
    with calibrating(model, plan, asked, axes, folder) as calibration:
        return calibration.swept(calibration.leveled(asked))


@contextmanager
def calibrating(
    model: Model, plan: Plan, asked: Asked, axes: SampleAxes, folder: str | None = None
) -> Iterator[Calibration]:
    """The calibration of a model; what it finds of the samples serves all levels that are asked of it."""
    demand_runtime()
    data = samples_of(model, asked, axes)
    proto = model.copy_proto() if axes.states else model.proto
    feeds = Feeds(proto, data, asked.samples, axes.inputs, axes.states, parts=HELD)
    by_gradients = asked.sensitivity == GRADIENTS and not _too_large(model, plan, asked)
    checkpoint = None if asked.checkpoint is None else os.fspath(asked.checkpoint)
    with ExitStack() as stack:
        stack.enter_context(named_states(model))
        stack.enter_context(working(asked.workers))
        batches = batches_of(feeds, model.copy_proto() if by_gradients and not axes.states else None)
        known = stack.enter_context(saves(checkpoint, asked.resume, partial(_job, model, plan, asked), batches.feeds))
        batches = replace(batches, notes=(*batches.notes, *known.notes))
        folder = folder or stack.enter_context(activations(checkpoint))
        find = partial(_by_gradients, asked, axes) if by_gradients else partial(_without, asked)
        how = solvers.parse(asked.solver), scores.parse(asked.score)
        yield Calibration(model, plan, batches, find, folder, *how, known, asked.ridge)


def _too_large(model: Model, plan: Plan, asked: Asked) -> bool:
    """Whether gradients are left out of a calibration that needs none, since they would hold the whole model."""
    size = model.file_size
    if asked.sensitivity == GRADIENTS and size > LARGE and by_curves(plan, asked):
        raise OptionError(
            f"gradients hold the whole model: of {size / 1e9:.1f} GB they would take about {3 * size / 1e9:.0f} GB of "
            "memory; --sensitivity measured and --allocation uniform take one layer after the other"
        )
    return size > LARGE


def _without(asked: Asked, *_: object) -> Sensitivity:
    """Without gradients, and what is said of it where they were asked for."""
    return replace(nothing_known(), notes=(UNWEIGHED,)) if asked.sensitivity == GRADIENTS else nothing_known()


def _job(model: Model, plan: Plan, asked: Asked) -> list[str]:
    """What has to be the same for a calibration to go on, beside the samples."""
    options = [(one.name, getattr(asked, one.name)) for one in fields(asked) if one.name not in UNLIKE]
    rows = [(row.name, row.pattern.text if row.pattern else "", row.drop) for row in plan.rows]
    return [model.sha256(whole=True), plan.rule.score.name, *map(str, options), *map(str, rows)]


def batches_of(feeds: Feeds, whole: ModelProto | None = None) -> Samples:
    """All batches, and how many samples each has; the last eighth is held out, of several batches one at least.

    `whole` is the model with its weights where gradients are taken: batches are as small as these need.
    """
    found = list(feeds) if whole is None else list(in_pieces(whole, feeds, feeds.axes))
    own = [name for name in found[0] if np.ndim(found[0][name]) and name not in feeds.data.shared] if found else []
    first = own[0] if own else ""
    axis = feeds.axes.get(first, 0)
    sizes = [np.shape(feed[first])[axis] if first else 1 for feed in found]
    notes, left = feeds.notes, feeds.count % feeds.fixed if feeds.fixed and not feeds.states else 0
    if left and len(found) > 1:  # filled up, few of them would count many times over, and judge
        notes.append(f"{left} of {feeds.count} samples left out: the model takes {feeds.fixed} at a time")
        del found[-1], sizes[-1]
    held = max(1, len(found) // HELD) if len(found) > 1 else 0
    samples = Samples(found, sizes, held, tuple(notes), frozenset(feeds.data.shared))
    return samples if feeds.states else sound(samples, feeds.axes, feeds.data.shared)


def _by_gradients(asked: Asked, axes: SampleAxes, batches: Samples, layers: Layers) -> Sensitivity:
    names = [one.result for layer in layers.layers for one in layer.reductions if one.result]
    found = output_gradients(
        layers.model.copy_proto(), names, batches.feeds, asked.engine, DRAWS, asked.seed, axes.inputs or None
    )
    known = sensitivity_of(layers.layers, found, batches.sizes, DRAWS)
    return replace(known, unreached=found.unreached, engine=found.engine, notes=(*found.notes, *known.notes))


@contextmanager
def named_states(model: Model) -> Iterator[None]:
    """While it lasts the hidden states of all steps have a name in recurrent nodes that give their last ones alone."""
    nodes = _name_states(model)
    try:
        yield
    finally:
        for node in nodes:
            node.output[0] = ""


def _name_states(model: Model) -> list[NodeProto]:
    nodes = [node for node in model.proto.graph.node if node.op_type in RECURRENT and not node.output[0]]
    for number, node in enumerate(nodes):
        node.output[0] = f"onnxsparse states {number}"
    return nodes


class Calibration:
    """The calibration of one model: what is found of its layers once serves several levels."""

    def __init__(
        self,
        model: Model,
        plan: Plan,
        samples: Samples,
        find: Callable[[Samples, Layers], Sensitivity],
        folder: str | None = None,
        solver: Solver | None = None,
        score: Score | None = None,
        known: Saves | None = None,
        ridge: float = RIDGE,
    ) -> None:
        self._saves = known or Saves(None, "")
        self._file, self._inlined, self._folder = plan, without_functions(model, plan), folder
        self._solver, self._score, self._ridge = solver, score, ridge
        self.file, self.model, self.plan = model, model, plan
        if self._inlined is not None:
            self.model, self.plan = self._inlined.model, self._inlined.plan(plan)
            _name_states(self.model)
        self.cut = Cut(self.model)
        self.found: Layers = layers_of(self.model, self.plan, self.cut)
        self.samples = replace(samples, notes=(*samples.notes, *doubts(self.cut, samples)))
        self._find = find

    @property
    def asked_plan(self) -> Plan:
        """The plan of the file, as it came."""
        return self._file

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """How much each output of each layer matters; found once."""
        known = self._saves.sensitivity(self.found.layers)
        if known is None:
            layers, found = self.found.layers, self._find(self.samples, self.found)
            known = with_measured_rows(self.cut, layers, self.samples, found, Store(self._folder))
            self._saves.keep_sensitivity(self.found.layers, known)
        return known

    @cached_property
    def curves(self) -> list[Curve]:
        """What each layer costs, by how much of it is kept; made once."""
        layers = self.found.layers
        known, places = self._saves.curves(layers), {layer: number for number, layer in enumerate(layers)}
        self._demand_space(1)
        return curves_of(
            self._on_samples(layers), known,
            lambda layer, curve: self._saves.keep_curve(places[layer], curve),
        )  # fmt: skip

    def _on_samples(self, layers: Sequence[CalibratedLayer]) -> LayersOnSamples:
        return LayersOnSamples(self.cut, layers, self.samples, self.sensitivity, Store(self._folder))

    def _demand_space(self, nets: int) -> str:
        """Demand the disk space that the values between two layers of so many nets at a time take, and say how much."""
        if self._folder is None or len(self.samples.feeds) <= 1:
            return ""
        nbytes = nets * self._between - HELD_VALUES
        demand_space(self._folder, nbytes)
        return f", with {nbytes / 1e9:.1f} GB in {self._folder}" if nbytes > 0 else ""

    @cached_property
    def _between(self) -> int:
        return bytes_between(self.cut, self.samples.feeds, [place for one in self.found.layers for place in one.places])

    def leveled(self, asked: Asked, plan: Plan | None = None) -> Plan:
        """A plan with the levels that are asked for: those of its allocation, or those that cost the least."""
        plan = self._file if plan is None else plan
        sparsity = plan.rule.sparsity
        if sparsity is None or not by_curves(plan, asked):
            return plan
        own = plan if self._inlined is None else self._inlined.plan(plan)
        made = shared_out(self.model, own, self.found.layers, self.curves, sparsity, asked.budget)
        made = with_joint_parts(made, self._on_samples(self.found.layers))
        return made if self._inlined is None else self._inlined.rows(plan, made)

    def weights(self, layer: CalibratedLayer) -> list[str]:
        """The weights of a layer that are pruned, by their names in the file."""
        names = {} if self._inlined is None else self._inlined.names(self._file)
        return [names.get(one.weight.name, one.weight.name) for one in layer.parts if one.row]

    def costs(self) -> list[tuple[CalibratedLayer, float]]:
        """What each layer alone costs the outputs, pruned as the plan says."""
        layers = self.found.layers
        return list(zip(layers, costs_of(self._on_samples(layers))))

    def tried(self, shares: Sequence[float]) -> Iterator[tuple[CalibratedLayer, list[Numbered]]]:
        """Each layer alone at falling shares kept, refitted: new numbers by the tags of the file."""
        for layer, found in tried(self._on_samples(self.found.layers), shares):
            yield layer, [self._of_file(Numbered(*self._by_tag(numbers))) for numbers in found]

    def under(
        self, pattern: NOfM, layers: Sequence[CalibratedLayer]
    ) -> Iterator[tuple[CalibratedLayer, float, Numbered]]:
        """Some layers, each alone under N:M, refitted: what that costs the outputs, and new numbers by tag."""
        for layer, cost, numbers in under(self._on_samples(layers), pattern):
            yield layer, cost, self._of_file(Numbered(*self._by_tag(numbers)))

    def _of_file(self, found: Numbered) -> Numbered:
        """The same by the tags of the file, where the layers are those of a copy."""
        if self._inlined is None:
            return found
        return Numbered(self._inlined.tags, self._inlined.numbers(found.numbers, found.tags))

    def planned(self, plan: Plan) -> Plan:
        """A plan that says of each weight that cannot be calibrated why not; nothing is swept."""
        own = plan if self._inlined is None else self._inlined.plan(plan)
        made = replace(own, rows=tuple(self._row(row, None) for row in own.rows))
        return made if self._inlined is None else self._inlined.rows(plan, made)

    def swept(self, plan: Plan) -> Calibrated:
        """Masks and numbers for a plan."""
        if self._inlined is None:
            return self._swept(plan)
        bare = self._inlined
        found = self._swept(bare.plan(plan))
        numbers, names = bare.numbers(found.numbers, found.tags), bare.names(plan)
        swept = {names[name]: one for name, one in found.swept.items()}
        return replace(found, plan=bare.rows(plan, found.plan), numbers=numbers, tags=bare.tags, swept=swept)

    def _swept(self, plan: Plan) -> Calibrated:
        stage = f"refit layer by layer{self._demand_space(2)}"
        store = Store(self._folder)
        how = store, self._solver, self._score, self._ridge
        sweep = Sweep(self.cut, self.found.layers, self.samples, self.sensitivity, *how)
        progress.advance(stage, 0, len(self.found.layers))
        beside = self._beside(plan)
        for name, row in beside.items():
            sweep.numbers.known(name, partial(numbers_of, row, plan.rule.score))
        rows, done = {row.name: row for row in plan.rows}, dict[str, Swept]()
        wanted = hashlib.sha256(str([(row.name, row.drop) for row in plan.rows]).encode()).hexdigest()
        for number, layer in enumerate(self.found.layers):
            if not any(rows[one.weight.name].pattern for one in layer.parts):
                continue  # it stays dense after all
            drops = [rows[one.weight.name].drop if one.row else 0 for one in layer.parts]
            what = f"layer {number} {wanted}"
            swept = self._saves.swept(what, layer, sweep.numbers)
            if swept is None:
                swept = sweep.layer(layer, drops)
                self._saves.keep_swept(what, swept, sweep.numbers)
            else:
                sweep.skip(layer)
            swept = replace(swept, masks={name: sweep.numbers.aside(mask) for name, mask in swept.masks.items()})
            done.update({one.weight.name: swept for one in layer.parts if one.row})
            progress.advance(stage, number + 1, len(self.found.layers))
        sweep.normalise()
        for name in beside:
            del sweep.numbers[name]
        made = replace(plan, rows=tuple(self._row(row, done.get(row.name)) for row in plan.rows))
        tags, numbers = self._by_tag(sweep.numbers)
        return Calibrated(made, numbers, tags, notes=(*self.sensitivity.notes, *_thin(done.values())), swept=done)

    def _beside(self, plan: Plan) -> dict[str, PlanRow]:
        """The weights that are pruned by their score and that layers of the main graph see so, by their tensors."""
        homes = self.model.flow.stores.homes.items()
        known = {one.name for one, home in homes if not home.scope and one.kind not in PACKED_KINDS}
        rows = {row.weight.tensor.name: row for row in plan.planned if row.name in self.found.reasons}
        return {name: row for name, row in rows.items() if name in known}

    def _row(self, row: PlanRow, swept: Swept | None) -> PlanRow:
        if swept is None:
            why = self.found.reasons.get(row.name)
            return (
                row
                if why is None
                else replace(row, reason=f"not calibrated, pruned by {self.plan.rule.score.name}: {why}")
            )
        keep = swept.masks[row.name]
        return replace(row, keep=keep, cut=None, reason=said_of(swept))

    def _by_tag(self, numbers: Mapping[str, Array]) -> tuple[dict[str, StoredParam], Mapping[str, Array]]:
        homes = self.model.flow.stores.homes
        weights = {weight.tensor: weight for weight in self.model.weights}
        tags, found = dict[str, StoredParam](), dict[str, Callable[[], Array]]()
        for tensor, home in homes.items():
            if not home.scope and tensor.name in numbers:
                known = weights.get(tensor)
                tags[home.tag] = vector_param(tensor, home.tag) if known is None else weight_param(known)
                found[home.tag] = partial(_plain, numbers, tensor)
        return tags, Read(found)


def _plain(numbers: Mapping[str, Array], tensor: StoredTensor) -> Array:
    """Numbers as numpy has them."""
    array = numbers[tensor.name]
    return from_bfloat16(array) if tensor.kind == "bfloat16" else array


def _thin(found: Iterable[Swept]) -> list[str]:
    """What the samples do not say of layers."""
    layers = list({one.layer: one for one in found}.values())
    still = [f"{one.layer.called} {one.still} of {one.layer.shape[1]}" for one in layers if one.still]
    few = [f"{one.layer.called} {one.rows} for {one.layer.shape[1]}" for one in layers if one.rows]
    notes = [f"inputs that never vary, whose weights go first: {_first_of(still)}"] if still else []
    return [*notes, f"fewer rows of inputs than weights to fit; more samples help: {_first_of(few)}"] if few else notes


def _first_of(texts: Sequence[str], most: int = 5) -> str:
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def said_of(swept: Swept, together: bool = False) -> str:
    """What the row of a weight says; `together`: its numbers moved with those of all layers at the end."""
    if together:
        harm = "a refit by itself did harm on samples held out; " if swept.fell_back else ""
        return f"{harm}refitted together with all layers: error {swept.error:.2%} of its outputs before that"
    if swept.layer.held:
        return f"not refitted: {swept.layer.held}; error {swept.error:.2%} of its outputs"
    if swept.fell_back:
        return f"a refit did harm on samples held out, so its numbers stay; error {swept.error:.2%} of its outputs"
    if swept.done:
        return f"{swept.done}: error {swept.error:.2%} of its outputs, {swept.unfitted:.2%} without"
    return f"error {swept.error:.2%} of its outputs"


__all__ = ["Asked", "Calibrated", "Calibration", "batches_of", "calibrated", "said_of"]
