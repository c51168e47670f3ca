"""Subprocess that builds and proves a training graph: onnxruntime-training may crash on odd graphs.

    python -m onnxsparse.engines.ort.worker trial FOLDER

reads `job.json`, `model.onnx` and `samples.npz` in the folder and leaves `training_model.onnx`, `eval_model.onnx`,
`checkpoint`, `teacher.onnx` and, last, `manifest.json`; or `error.json` with one line. `stage` says where it is, so
that whoever started it can tell what it died of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from onnxsparse import sparsers
from onnxsparse.engines.engine import Spec
from onnxsparse.engines.ort import gradients, rewrites
from onnxsparse.engines.ort.assemble import Assembled, assemble, generate
from onnxsparse.engines.ort.building import ASIDE_FEED, ASIDE_MODEL, ASIDE_NAMES
from onnxsparse.engines.ort.fake_quantization import as_products, taken_out
from onnxsparse.engines.ort.gradients import cut, teacher
from onnxsparse.engines.ort.jobs import Job, carry_out
from onnxsparse.engines.ort.numerics import random_inputs
from onnxsparse.engines.ort.prepare import ALONE, Prepared, inputs_of, prepare
from onnxsparse.engines.ort.prove import GROUPS, Feeds, Proof, prove
from onnxsparse.engines.ort.rewrites.norms import Statistics, train_statistics
from onnxsparse.engines.ort.rewrites.rewrite import View
from onnxsparse.engines.ort.session import Session
from onnxsparse.engines.ort.shapes import infer_shapes
from onnxsparse.errors import ModelError
from onnxsparse.graph.edit import bypass, called, copied, downstream

ROUNDS, LOST = 8, 50
MASK = "mask"
AT_REST = 1e-2
"""The largest loss of the dense model against itself."""
WRONG = "the engine's gradients of this model are wrong: nothing can be trained; try --engine torch"
SILENT = "no weight gets a gradient from these samples: are they what the model is made for?"
PRUNE = "`onnxsparse prune` prunes it without training"
LEAST_GROUPS, NAMED, REASONS = 3, 8, 2
PROVEN = 1 << 29
"""Elements of all values of a graph, up to which a proof tells tensors apart in several groups."""


class Trial(Job):
    """One job, step by step."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.spec = Spec.from_json(json.dumps(self.job["spec"]))

    def run(self) -> None:
        self.stage("preparing the graph")
        model = onnx.load(self.at("model.onnx"))
        samples, fake = self.samples(), as_products(model)
        prepared = prepare(model, {*self.spec.trained, *fake}, samples, self.spec.batch, _values(self.spec))
        self._fake = taken_out(prepared, fake)
        plain = _plain(prepared)
        statistics = train_statistics(prepared.model, set(prepared.weights)) if self.spec.train_bn else Statistics()
        self._statistics = set(statistics.follows)
        dense, prepared = self._differentiable(plain, prepared)
        onnx.save(dense, self.at("teacher.onnx"))
        self._demand_weights(prepared)
        feeds = Feeds(prepared, samples, dense, self.spec.batch, self._statistics)
        measured = feeds.measure(self.spec.objective.scores)
        if self.spec.skipped:
            _skip(prepared, self.spec)
        prepared.notes += [*measured.notes, *_behind(plain, prepared)]
        apart = _plain(prepared)
        made = assemble(prepared, _provable(self.spec), measured.scales, statistics)
        self.stage("building the gradients")
        self._set_aside(made, feeds)
        self._generate(prepared, made)
        self.stage("taking the first step")
        proof = prove(Session(self.folder, made.names()), feeds.batches(made), self._groups(made))
        self._judge(prepared, made, proof)
        if _provable(self.spec) != self.spec:
            other = assemble(apart, self.spec, measured.scales, statistics, self._fake)
            made = self._in_place(apart, made.still, other, feeds)
        self._manifest(prepared, made, proof)

    def _in_place(self, prepared: Prepared, still: Sequence[str], made: Assembled, feeds: Feeds) -> Assembled:
        """The graph with what learns in place of masks, and with rounding, without which it was proven: its gradients
        are not meant to be those of what it computes, and it need not begin as the dense model."""
        self.stage("building the gradients of what learns or is rounded")
        self._set_aside(made, feeds)
        self._generate(prepared, made)
        made.still = [key for key in made.trained if key.partition("/")[0] in still]
        self.stage("taking the first step of what learns or is rounded")
        if not np.isfinite(Session(self.folder, made.names()).step(feeds.batches(made, 1)[0])):
            raise ModelError("the loss of what learns the masks is no number; try --sparser mask")
        return made

    def _differentiable(self, plain: Prepared, prepared: Prepared) -> tuple[ModelProto, Prepared]:
        """Rewrite what the engine cannot differentiate, and cut the graph where that is not possible."""
        start = _plain(prepared)
        deadly: list[str] = []
        prepared = cut(prepared)
        for _ in range(ROUNDS):
            self.stage("rewriting operators")
            trained = set(prepared.weights) - self._statistics
            prepared.notes += rewrites.apply(prepared.model, trained)
            blocked = gradients.blocked(prepared.model, trained)
            if blocked:
                prepared = cut(prepared, [node.name for node, _ in blocked])
                for reason in dict.fromkeys(reason for _, reason in blocked):
                    first, *others = (called(node) for node, other in blocked if other == reason)
                    which = f"{first}{f' and {len(others)} more' if others else ''}"
                    prepared.notes.append(f"{which}: {reason}; matched to the dense model before and after it")
                continue
            fatal = [name for name in self._deadly(start.model, prepared.model) if name not in deadly]
            if not fatal:
                dense = teacher(plain, prepared)
                return dense, _with_inputs(prepared, dense)
            deadly += fatal
            prepared = cut(_plain(start), deadly)
        raise ModelError(f"no gradient gets past operator {blocked[0][0].op_type} of this model; try --engine torch")

    def _deadly(self, plain: ModelProto, rewritten: ModelProto) -> list[str]:
        """The nodes, by their names before rewriting, that earlier trials died of."""
        makers = {name: node.name for node in plain.graph.node for name in node.output if name}
        found = []
        for node in rewritten.graph.node:
            if node.name in self.job["deadly"]:
                after = downstream(rewritten.graph, node.output)
                known = [name for other in rewritten.graph.node for name in other.output if name in after & set(makers)]
                found += [makers[name] for name in known[:1]]
        return found

    def _demand_weights(self, prepared: Prepared) -> None:
        if prepared.weights and prepared.signals:
            return
        if not self.spec.trained:
            raise ModelError(f"nothing in this model trains: it stores no weights as floats of their own; {PRUNE}")
        tags: dict[str, list[str]] = {}
        for tag, reason in prepared.unreached.items():
            tags.setdefault(reason, []).append(tag)
        reasons = [f"{self._listed(same)}: {reason}" for reason, same in list(tags.items())[:REASONS]]
        why = "; ".join(reasons) or "no output depends on any"
        raise ModelError(f"no weight of this model can be trained ({why}); {PRUNE}, or try --engine torch")

    def _set_aside(self, made: Assembled, feeds: Feeds) -> None:
        """What is needed to find out which operator the engine dies of, should it."""
        onnx.save(made.model, self.at(ASIDE_MODEL))
        feed = feeds.batches(made, 1)[0]
        arrays: dict[str, Any] = {f"a{place}": array for place, array in enumerate(feed.values())}
        np.savez(self.at(ASIDE_FEED), **arrays)
        self.write(ASIDE_NAMES, {**made.names(), "fed": list(feed)})

    def _generate(self, prepared: Prepared, made: Assembled) -> None:
        """Build the gradients. Tensors that the engine finds no way to are left out."""
        _keep_reachable(prepared, made)
        for _ in range(LOST):
            try:
                outputs = [*made.outputs, *made.extra]
                return generate(
                    made.model, [*made.moving, *made.anchors], made.frozen_names, outputs, self.folder, self.spec.decay
                )
            except RuntimeError as error:
                lost = re.search("partial derivative for '(.*)' as it's unreachable", str(error))
                if lost is None or lost[1] not in made.trained.values():
                    raise
                _leave_out(prepared, made, [lost[1]])
        raise ModelError("no gradient comes to many of the weights of this model; try --engine torch")

    def _groups(self, made: Assembled) -> int:
        if self.job["check"]:
            return len(made.trained)
        sizes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in made.model.graph.value_info]
        return int(np.clip(PROVEN // max(1, sum(int(np.prod(size)) for size in sizes)), LEAST_GROUPS, GROUPS))

    def _judge(self, prepared: Prepared, made: Assembled, proof: Proof) -> None:
        """What is wrong stays as it is and is pruned with the others; the graph has to be right."""
        objective = self.spec.objective
        alone = objective.hardness == 1 and not objective.terms
        at_rest = alone and not self.spec.skipped  # without a layer it is another function
        if at_rest and not proof.at_rest <= AT_REST:
            raise ModelError(
                f"the training graph does not do what the model does (it is off by {proof.at_rest:.3g}, "
                "where its outputs vary by 1); try --engine torch"
            )
        made.still = proof.still
        if len(proof.still) == len(made.trained):
            raise ModelError(WRONG if proof.wrong else SILENT + self._alone(prepared))
        for keys, why in ((proof.wrong, "the engine's gradient of it is wrong"), (proof.silent, "it gets no gradient")):
            if keys:
                prepared.notes.append(f"not trained, only pruned where that was planned: {self._listed(keys)} ({why})")

    def _alone(self, prepared: Prepared) -> str:
        """Where samples are trained one at a time, why: a model may need others beside them."""
        note = next((one for one in prepared.notes if one.startswith(ALONE)), "")
        return f" Or do its samples depend on each other? They were {note}" if note else ""

    def _listed(self, keys: Sequence[str]) -> str:
        pairs = (key.partition("/") for key in keys)
        names = [f"'{self.spec.trained.get(tag, tag)}'{' as to its ' * bool(role)}{role}" for tag, _, role in pairs]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return ", ".join(names[:NAMED]) + more

    def _manifest(self, prepared: Prepared, made: Assembled, proof: Proof) -> None:
        self.write(
            "manifest.json",
            {
                **made.names(),
                "batch": prepared.batch,
                "inputs": [(name, np.dtype(kind).name, list(shape)) for name, kind, shape in prepared.inputs],
                "fed": prepared.fed,
                "signals": [vars(signal) for signal in prepared.signals],
                "notes": prepared.notes,
                "unreached": prepared.unreached,
                "partial": prepared.partial,
                "proof": vars(proof),
            },
        )


def _values(spec: Spec) -> list[str]:
    """What layers give that learn, or are learned from."""
    terms = spec.objective.terms
    return [name for one in terms for name in (one.student, *(() if one.teacher else (one.taught,)))]


def _keep_reachable(prepared: Prepared, made: Assembled) -> None:
    """Only tensors that the loss depends on by way of floats, and what recurrent layers must have."""
    infer_shapes(made.model)
    view = View.of(made.model, {*made.moving, *gradients.must_train(made.model)})
    statistics = {made.trained[key] for key in made.follows}
    lost = [name for name in prepared.weights if name not in view.gradients and name not in statistics]
    _leave_out(prepared, made, lost)
    known = set(made.trained.values())
    made.anchors = sorted((gradients.must_train(made.model) & view.gradients) - known)


def _leave_out(prepared: Prepared, made: Assembled, names: Sequence[str]) -> None:
    for name in names:
        prepared.unreached[made.drop(name)] = "what the loss measures hangs on it by whole numbers or steps only"
    if not made.trained:
        raise ModelError("no gradient comes to any weight: between them and the outputs are whole numbers or steps")


def _behind(plain: Prepared, prepared: Prepared) -> list[str]:
    """What the file shows and the graph to train does not compute, because it was cut."""
    kept = {signal.name for signal in prepared.signals}
    lost = [signal.called for signal in plain.signals if signal.stated and signal.name not in kept]
    return [f"the loss is without {' and '.join(lost)}: the graph is cut before"] if lost else []


def _skip(prepared: Prepared, spec: Spec) -> None:
    """Bypass layers of a graph that its targets were measured with."""
    graph = prepared.model.graph
    made = {name for node in graph.node for name in node.output} | {value.name for value in graph.input}
    lost = [name for pair in spec.bypasses.items() for name in pair if name not in made]
    if lost:
        raise ModelError(
            f"the layer at '{lost[0]}' cannot be skipped here: it has other operators here; try --engine torch"
        )
    bypass(prepared.model, spec.bypasses)
    stored = {tensor.name for tensor in graph.initializer}
    for name in [name for name in prepared.weights if name not in stored]:
        prepared.unreached[prepared.weights.pop(name)] = "its layer is skipped"


def _with_inputs(prepared: Prepared, dense: ModelProto) -> Prepared:
    """The same, fed also with what the dense model alone reads: an input behind a cut."""
    known = {name for name, _, _ in prepared.inputs}
    others = [one for one in inputs_of(dense) if one[0] not in known and not random_inputs({one[0]: one[2]})]
    return replace(prepared, inputs=[*prepared.inputs, *others])


def _plain(prepared: Prepared) -> Prepared:
    """The same again, with a graph of its own."""
    return Prepared(**{**vars(prepared), "model": copied(prepared.model), "notes": list(prepared.notes)})


def _provable(spec: Spec) -> Spec:
    """The same graph, with a mask for everything that learns what stays, and nothing rounded."""
    learned = {tag: text for tag, text in spec.sparsers.items() if sparsers.parse(text).name != MASK}
    masked = spec.with_sparsers({**spec.sparsers, **dict.fromkeys(learned, MASK)})
    return replace(masked, quantization="", learned_scales=False)


def main(folder: str) -> int:
    return carry_out(Trial(folder))
