"""Proving a training graph: scales of its distillation targets, and its gradients against finite differences."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

from onnxsparse.data.field import IGNORED
from onnxsparse.engines.distillation import LAYER, squashed
from onnxsparse.engines.ort.assemble import Assembled
from onnxsparse.engines.ort.library import Runner
from onnxsparse.engines.ort.numerics import draw_random, random_inputs
from onnxsparse.engines.ort.prepare import Prepared, inputs_of
from onnxsparse.engines.ort.session import Session
from onnxsparse.errors import ModelError
from onnxsparse.losses import Scale, heard, said_of, scale_along, scored, shaken, size_of
from onnxsparse.math.values import Array

# -- The samples of a trial as a graph takes them, and the dense model's values for them.
#
# 1. The scale of a target is what `onnxsparse.losses` makes of the dense model's values for all samples, and of those
#    that the graph to train gives with weights that are moved a little.
# 2. A target that is not finite there, or that the rewritten graph does not give again, cannot be matched: it is left
#    out, with a note. One that no weight moves has no gradient, and is left out, too.

PROVEN = 8
"""Batches at most that a proof is made with, where a batch is one sample."""
UNLIKE = 1e-3


@dataclass
class Measured:
    """The scales of the targets that can be matched, and a line for each that cannot."""

    scales: dict[str, Scale] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Feeds:
    """Batches of a trial's samples. `dense` gives the targets of the prepared graph."""

    def __init__(
        self,
        prepared: Prepared,
        samples: Mapping[str, Array],
        dense: ModelProto,
        together: int = 1,
        still: Collection[str] = (),
    ) -> None:
        """`together` samples say how weights move targets; those named in `still` are not moved for that."""
        self._prepared, self._samples, self._runner = prepared, samples, Runner(dense)
        self._together, self._still = together, still
        self._random = random_inputs({name: shape for name, _, shape in inputs_of(dense)})
        self._count = max((len(samples[name]) for name, _, shape in self._own() if shape), default=1)

    def _own(self) -> list[Any]:
        return [entry for entry in self._prepared.inputs if entry[0] not in self._prepared.fed]

    def _starts(self) -> range:
        return range(0, self._count, self._prepared.batch)

    def at(self, start: int) -> dict[str, Array]:
        """The inputs of the batch that starts at a sample; it turns round where there are too few."""
        rows = np.arange(start, start + self._prepared.batch)
        feed = {}
        for name, kind, shape in self._own():
            array = self._samples[name]
            whole = not shape or (array.shape == tuple(shape) and len(array) != self._count)
            taken = array if whole else np.take(array, rows, axis=0, mode="wrap")
            feed[name] = np.ascontiguousarray(taken.reshape(shape), np.dtype(kind))
        return feed

    def _dense(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        return self._runner({**feed, **draw_random(self._random, feed, 0)})

    def measure(self, scores: bool) -> Measured:
        """How much every target varies, and which of them can be matched; `scores` looks for those of classes."""
        feeds = [self.at(start) for start in self._starts()]
        answers = [self._dense(feed) for feed in feeds]
        for feed, answer in zip(feeds, answers):
            feed.update({name: answer[name] for name in self._prepared.fed})
        some = feeds[: -(-self._together // self._prepared.batch)]
        steady, moved = self._own_answers(some, False), self._own_answers(some, True)
        moving = {name for name, array in steady.items() if not np.array_equal(array, moved[name], equal_nan=True)}
        made, behind = Measured(), squashed(self._prepared.signals)
        for signal in self._prepared.signals:
            if signal.kind == LAYER:
                continue
            name, values = signal.name, np.stack([answer[signal.name] for answer in answers])
            problem = _problem(values, steady[name][0])
            if problem:
                made.notes.append(f"{signal.called} is not matched to the dense model's: {problem}")
            elif name in moving or not moving:
                plain = scale_along(values, values.ndim - 1, signal.axis, name in behind)
                scale = heard(plain, steady[name], moved[name])
                classes = scores and signal.kind == "output"
                made.scales[name] = scored(scale, values, values.ndim - 1) if classes else scale
                made.notes += said_of(signal.called, plain, scale)
        if not made.scales:
            raise ModelError(f"nothing that the model gives can be trained on: {made.notes[0]}")
        return made

    def _own_answers(self, feeds: Sequence[Mapping[str, Array]], move: bool) -> dict[str, Array]:
        """What the graph to train gives, as it is or with weights that were moved a little."""
        model, weights = self._prepared.model, self._prepared.weights
        if move:
            model = ModelProto()
            model.CopyFrom(self._prepared.model)
            for tensor in model.graph.initializer:
                if tensor.name in weights and tensor.name not in self._still:
                    other = shaken(numpy_helper.to_array(tensor), weights[tensor.name])
                    tensor.CopyFrom(numpy_helper.from_array(other, tensor.name))
        runner = Runner(model, [signal.name for signal in self._prepared.signals])
        answers = [runner(feed) for feed in feeds]
        return {name: np.stack([answer[name] for answer in answers]) for name in answers[0]}

    def batches(self, made: Assembled, most: int = PROVEN) -> list[dict[str, Array]]:
        """Whole feeds of the training graph."""
        return [self._whole(made, start) for start in list(self._starts())[:most]]

    def _whole(self, made: Assembled, start: int) -> dict[str, Array]:
        feed = self.at(start)
        dense = self._dense(feed)
        feed.update({name: dense[name] for name in self._prepared.fed})
        feed.update({name: dense[signal] for signal, name in made.teacher.items()})
        for taught in made.taught:
            known = dense.get(str(taught["value"])) if not taught["teacher"] else None
            feed[str(taught["input"])] = _some(str(taught["input"]), made) if known is None else known
        if made.labels:
            feed[made.labels] = _labels(made, self._samples, start)
        return feed


def _some(name: str, made: Assembled) -> Array:
    """Numbers to prove a graph with, whose teacher is a file that answers later."""
    value = next(value for value in made.model.graph.input if value.name == name)
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    return np.random.Generator(np.random.Philox(key=0)).standard_normal(shape).astype(np.float32)


def _problem(values: Array, again: Array) -> str:
    """Why a target cannot be matched; '' if it can."""
    if not np.isfinite(values).all():
        return "it holds numbers that are not finite"
    wide = np.abs(values).max() if values.size else 0.0
    if not np.isfinite(again).all() or _gap(values[0], again) > (UNLIKE * wide) ** 2:
        return "it does not come out the same when the graph is written in other operators"
    return ""


def _gap(one: Array, two: Array) -> float:
    """The mean square of the difference; none of what is not finite."""
    with np.errstate(all="ignore"):
        gaps = (one.astype(np.float64) - two.astype(np.float64)) ** 2
    return float(np.mean(np.where(np.isfinite(gaps), gaps, 0.0))) if gaps.size else 0.0


def _labels(made: Assembled, samples: Mapping[str, Array], start: int) -> Array:
    value = next(value for value in made.model.graph.input if value.name == made.labels)
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    rows: Sequence[int] = range(start, start + shape[0])
    taken = np.ascontiguousarray(np.take(samples["labels"], rows, axis=0, mode="wrap"), dtype)
    if made.classes:  # the engine reads beyond its arrays; what is no class is told of once the graph is there
        taken[(taken != IGNORED) & ((taken < 0) | (taken >= made.classes))] = 0
    return taken


# -- Proof before trust: a built training graph has to compute what the model does, and its gradients have to be right.
#
# 1. With the dense weights and open masks the loss is that of the dense model against itself: about zero, where nothing
#    but the dense model is matched.
# 2. At weights moved by some noise, the loss is lower a little way down each gradient and higher up it, by as much as
#    the gradient says: central differences along the gradient's own direction, with several step sizes, because kinks
#    and rounding make single ones look wrong.
# 3. Tensors are taken together in a few groups unless every one was asked for.

Feed = Mapping[str, Array]

GROUPS = 12
NOISES = (0.1, 0.01, 0.001)
"""How far the weights are moved, against their own scale; less where the loss then is no number."""
CHANGES = (0.1, 0.03, 0.01, 3e-3, 1e-3)
"""How much of the loss a step is to change."""
FARTHEST = (3e-2, 1e-2, 3e-3, 1e-3, 3e-4)
"""The longest step each, against the size of what is moved: shorter ones cross fewer kinks."""
AGREES, FAINT = 0.1, 1e-6


@dataclass
class Proof:
    """What was found: the loss of the dense model against itself, and the tensors whose gradients do not agree."""

    at_rest: float = 0.0
    moved: float = 0.0
    wrong: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)  # no gradient came, or only zeros
    checked: int = 0

    @property
    def still(self) -> list[str]:
        """The tensors that must not move by their gradients."""
        return [*self.wrong, *self.silent]


def prove(session: Session, feeds: Sequence[Feed], groups: int = GROUPS) -> Proof:
    """Prove a session with some batches. The weights are as they were afterwards."""
    kept = {key: array.copy() for key, array in session.weights.items()}
    proof = Proof(at_rest=_loss(session, feeds))
    gradients: dict[str, Array] = {}
    trained = {key: array for key, array in session.weights.items() if key not in session.statistics}
    session.of_the_batch = True
    for noise in NOISES:
        for key, array in trained.items():
            array[...] = shaken(kept[key], key, noise)
        proof.moved, gradients = _gradients(session, feeds)
        if np.isfinite(proof.moved) and all(np.isfinite(one).all() for one in gradients.values()):
            break
    proof.silent = [key for key in trained if key not in gradients or not gradients[key].any()]
    proof.wrong = [key for key, one in gradients.items() if not np.isfinite(one).all()]
    alive = [key for key in trained if key not in proof.still]
    start = {key: array.copy() for key, array in session.weights.items()}
    for group in _groups(alive, groups):
        if not _agree(session, feeds, gradients, start, group):
            proof.wrong += [key for key in group if not _agree(session, feeds, gradients, start, [key])]
    proof.checked, session.of_the_batch = len(alive), False
    for key, array in session.weights.items():
        array[...] = kept[key]
    return proof


def _gradients(session: Session, feeds: Sequence[Feed]) -> tuple[float, dict[str, Array]]:
    session.forget_gradients()
    loss = sum(session.step(feed) for feed in feeds)
    found = {key: grad.copy() for key, grad in session.gradients.items()}
    session.forget_gradients()
    return loss, found


def _loss(session: Session, feeds: Sequence[Feed]) -> float:
    return sum(session.evaluate(feed)[0] for feed in feeds)


def _groups(keys: Sequence[str], count: int) -> list[list[str]]:
    count = min(count, len(keys))
    return [list(keys[start::count]) for start in range(count)]


def _agree(
    session: Session,
    feeds: Sequence[Feed],
    gradients: Mapping[str, Array],
    start: Mapping[str, Array],
    keys: Sequence[str],
) -> bool:
    """Whether some step size shows the slope that the gradients of these tensors promise."""
    lengths = {key: float(np.linalg.norm(gradients[key].astype(np.float64))) for key in keys}
    sizes = {key: max(size_of(start[key]), 1e-3) * np.sqrt(start[key].size) for key in keys}
    ways = {key: gradients[key] * np.float32(sizes[key] / lengths[key]) for key in keys}
    promised = sum(lengths[key] * sizes[key] for key in keys)
    loss = max(abs(_loss(session, feeds)), FAINT)
    steps = _steps(promised, loss)
    agrees = any(abs(_slope(session, feeds, start, ways, step) - promised) <= AGREES * promised for step in steps)
    for key in keys:
        session.weights[key][...] = start[key]
    return agrees or not steps


def _steps(promised: float, loss: float) -> list[float]:
    """Longest first; none where what the gradient promises would drown in rounding."""
    steps = (min(far, change * loss / max(promised, FAINT * loss)) for change, far in zip(CHANGES, FARTHEST))
    return [step for step in steps if promised * step > FAINT * loss]


def _slope(
    session: Session, feeds: Sequence[Feed], start: Mapping[str, Array], ways: Mapping[str, Array], step: float
) -> float:
    up, down = (_loss_at(session, feeds, start, ways, way) for way in (step, -step))
    return (up - down) / (2 * step)


def _loss_at(
    session: Session, feeds: Sequence[Feed], start: Mapping[str, Array], ways: Mapping[str, Array], step: float
) -> float:
    for key, way in ways.items():
        session.weights[key][...] = start[key] + np.float32(step) * way
    return _loss(session, feeds)
