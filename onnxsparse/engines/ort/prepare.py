"""Preparing an exported model for training: a copy is rewritten until it can be differentiated, then thrown away.

1. Preparations are done to a copy one after another, each for a fault or a limit of onnxruntime-training 1.19.2: first
   what lets the file run (`TO_RUN`), then one form for all files (`ONE_FORM`), then what depends on the batch
   (`OF_FIXED_SIZES`); `OLD` is for files that are too old. `PREPARATIONS` names them all, for the test that holds them.
2. Outputs and their pre-activations are the distillation targets (`distillation`, `targets`).
3. The result is compared with the user's file, sample by sample (`batch`). Where it differs at the batch, a batch of 1
   is taken out of the constants; where it differs still, the batch is 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

from onnxsparse.engines.distillation import LAYER, DistillationTarget, pre_activations, stated, unmoved
from onnxsparse.engines.ort.batch import HALF_ROUNDING, ROUNDING, difference, widen
from onnxsparse.engines.ort.canonical import OTHER_FLOATS, fix_numbers, fold, inline_functions, lift, single_precision
from onnxsparse.engines.ort.control_flow import refuse_endless, take_branches, without_sequences
from onnxsparse.engines.ort.draft import Draft, Preparation, Samples
from onnxsparse.engines.ort.library import Runner
from onnxsparse.engines.ort.numerics import guard_divisions, settle_random, without_rounding
from onnxsparse.engines.ort.shapes import Shaped, declare, fix_inputs, shapes_of
from onnxsparse.engines.ort.targets import choose, fixed_float, reached
from onnxsparse.engines.ort.versions import FIRST_RUN, lower_opset, raise_opset
from onnxsparse.errors import ModelError
from onnxsparse.graph.class_axis import axis_in
from onnxsparse.graph.edit import RANDOM, FreshNames, downstream, extracted, reduce_to, scopes, upstream
from onnxsparse.math.values import Array

CHECKED, MEASURED = 6, 3
ALONE = "trained one sample at a time"

Input = tuple[str, np.dtype[Any], tuple[int, ...]]


@dataclass
class Prepared:
    """A graph to train. `weights` are its trained initializers and their tags, `signals` its outputs, `inputs` what has
    to be fed; `fed` are those among them that come from the dense model. `batch` may be 1. It is `partial` where some
    of what is fed would move with the weights."""

    model: ModelProto
    weights: dict[str, str]
    signals: list[DistillationTarget]
    batch: int
    inputs: list[Input]
    fed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unreached: dict[str, str] = field(default_factory=dict)
    partial: bool = False


@dataclass(frozen=True)
class _Truth:
    """What the user's file gives, sample by sample, and how exact a copy can be."""

    places: list[int]
    outputs: dict[str, dict[int, Array]]
    rounding: float


# What is done to the copy, in this order. Each says which fault or limit of the engine, or of the converter, it is for.
TO_RUN: tuple[Preparation, ...] = (inline_functions, lower_opset, refuse_endless, guard_divisions, without_rounding)
"""Before the file is run for the first time: what it gives then is the truth."""
ONE_FORM: tuple[Preparation, ...] = (lift, single_precision, fix_numbers)
"""The same for every batch."""
OLD: tuple[Preparation, ...] = (fix_inputs, raise_opset, lift)
"""For a file that is too old to be run as it is; the converter asks for sizes."""
OF_FIXED_SIZES: tuple[Preparation, ...] = (fix_inputs, raise_opset, lift, fold)
"""Once the batch is known."""
PREPARATIONS = (*TO_RUN, *ONE_FORM, settle_random, take_branches, *OF_FIXED_SIZES, widen, without_sequences)
"""Every one there is."""


def prepare(
    model: ModelProto, tags: set[str], samples: Mapping[str, Array], batch: int, layers: Sequence[str] = ()
) -> Prepared:
    """Prepare a complete model, which is changed. Stored tensors to train carry their tag as `doc_string`; `layers` are
    values that have to be there to learn from."""
    given = Samples(model.graph, samples)
    shown = stated(model)
    draft = Draft(model, given, frozenset(tags))
    _do(TO_RUN, draft)
    runs = max(1, batch // given.unit)
    truth = _truth(draft, runs)
    _do(ONE_FORM, draft)
    if truth is None:
        if draft.opset < FIRST_RUN:
            _do(OLD, draft)
        draft.note("onnxruntime does not run the file itself; the copy was compared with what it was converted to")
        truth = _outputs(draft, runs)
    settle_random(draft)
    problems: list[str] = []
    for size, way in _ways(runs):
        try:
            made = _at(draft.copy(size, size if way == "as it is" else 1), way, shown, layers)
            problem = _differs(made, truth, draft) if made is not None else "no batch is stored in it"
        except ModelError as error:
            made, problem = None, error.as_flags  # it is said in one that is spelled anew
        if made is not None and not problem:
            made.batch *= given.unit
            return _finished(made, draft, tags, batch, problems)
        problems.append(f"at batch {size * given.unit}: {problem}")
    raise ModelError(f"no graph to train could be made that does what the model does ({problems[-1]})")


def _do(preparations: Sequence[Preparation], draft: Draft) -> None:
    for preparation in preparations:
        preparation(draft)


def _ways(batch: int) -> Iterator[tuple[int, str]]:
    if batch > 1:
        yield from ((batch, "as it is"), (batch, "widened"), (batch, "folded and widened"))
    yield 1, "as it is"


def _truth(draft: Draft, batch: int) -> _Truth | None:
    """None where only another form may run: the runtime lacks kernels of other precisions and of old operators."""
    try:
        return _outputs(draft, batch)
    except ModelError:
        if _kinds(draft.model) & set(OTHER_FLOATS) or draft.opset < FIRST_RUN:
            return None
        raise


def _outputs(draft: Draft, batch: int) -> _Truth:
    names = [value.name for value in draft.graph.output]
    last = min(batch if batch > 1 else CHECKED, draft.samples.count) - 1
    places = sorted({int(place) for place in np.linspace(0, last, CHECKED)})
    outputs: dict[str, dict[int, Array]] = {name: {} for name in names}
    _collect(Runner(draft.model), draft.samples, places, outputs)
    half = _kinds(draft.model) & {TensorProto.FLOAT16, TensorProto.BFLOAT16}
    return _Truth(places, outputs, HALF_ROUNDING if half else ROUNDING)


def _collect(runner: Runner, samples: Samples, places: Sequence[int], outputs: dict[str, dict[int, Array]]) -> None:
    for place in places:
        for name, value in runner(samples.one(place)).items():
            if isinstance(value, np.ndarray):
                outputs.setdefault(name, {})[place] = value


def _kinds(model: ModelProto) -> set[int]:
    """The types of all stored tensors, inputs and outputs."""
    kinds = {tensor.data_type for graph in scopes(model.graph) for tensor in graph.initializer}
    kinds |= {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    constants = (one for graph in scopes(model.graph) for node in graph.node for one in node.attribute)
    kinds |= {one.t.data_type for one in constants if one.type == AttributeProto.TENSOR}
    return kinds


def _at(draft: Draft, way: str, shown: Sequence[DistillationTarget], layers: Sequence[str]) -> Prepared | None:
    """The copy for a batch; None where there is nothing to widen."""
    take_branches(draft)
    lift(draft)
    inner = _inner_of(draft, shown)
    outputs = [value.name for value in draft.graph.output]
    reduce_to(
        draft.model, list(dict.fromkeys([*outputs, *(name for names in inner.values() for name in names), *layers]))
    )
    if way == "folded and widened":
        _do(OF_FIXED_SIZES, draft)
    if way != "as it is":
        widen(draft)
        if draft.width < draft.batch:
            return None
    _do(OF_FIXED_SIZES, draft)
    without_sequences(draft)
    return _described(draft, outputs, inner, shown, layers)


def _inner_of(draft: Draft, shown: Sequence[DistillationTarget]) -> dict[str, list[str]]:
    """The pre-activations of each output: those that the file shows, and what can be seen only in the copy."""
    graph = draft.graph
    made = {name for node in graph.node for name in node.output if name}
    constants = unmoved(graph)
    found = {}
    for value in graph.output:
        own = [one.name for one in shown if one.kind == "tap" and one.original == value.name and one.name in made]
        found[value.name] = list(dict.fromkeys([*own, *pre_activations(graph, value.name, constants)]))
    return found


def _described(
    draft: Draft,
    outputs: Sequence[str],
    inner: Mapping[str, Sequence[str]],
    shown: Sequence[DistillationTarget],
    layers: Sequence[str],
) -> Prepared:
    shapes = shapes_of(draft.model, draft.feeds()[:MEASURED])
    signals = choose(draft.graph, outputs, inner, draft.tags, shapes)
    signals = [_as_shown(signal, draft, shown) for signal in signals]
    signals += _layers(layers, signals, shapes)
    found = reached(draft.graph, signals, draft.tags, shapes)
    weights = {name: tag for name, tag in draft.tags.items() if name in found}
    _name_nodes(draft)
    declare(draft, shapes)
    return Prepared(draft.model, weights, signals, draft.batch, [], notes=draft.notes)


def _layers(
    names: Sequence[str], signals: Sequence[DistillationTarget], shapes: Mapping[str, Shaped]
) -> list[DistillationTarget]:
    """What layers give, where it is no target already."""
    known = {signal.name for signal in signals}
    lost = next((name for name in names if not fixed_float(name, shapes)), None)
    if lost is not None:
        raise ModelError(f"what the layer '{lost}' gives has no fixed shape; try --engine torch")
    return [DistillationTarget(name, name, LAYER, stated=False) for name in dict.fromkeys(names) if name not in known]


def _as_shown(signal: DistillationTarget, draft: Draft, shown: Sequence[DistillationTarget]) -> DistillationTarget:
    """With what the user's file says of it, where it is there."""
    known = next((one for one in shown if one.name == signal.name), None)
    if known is None:
        return replace(signal, axis=axis_in(draft.model, signal.name), stated=False)
    return replace(signal, axis=known.axis, stated=known.stated)


def _name_nodes(draft: Draft) -> None:
    names, seen = FreshNames.of(draft.graph), set()
    for node in draft.graph.node:
        if not node.name or node.name in seen:
            node.name = names(node.name or f"{node.op_type}_{node.output[0]}")
        seen.add(node.name)


def _differs(made: Prepared, truth: _Truth, draft: Draft) -> str:
    """How the copy differs from the user's file, in words. What hangs on random numbers is not compared."""
    graph, samples = made.model.graph, draft.samples
    _learn_inner(made, truth, draft)
    chance = downstream(graph, [node.output[0] for node in graph.node if node.op_type in RANDOM])
    given = {name for node in graph.node for name in node.output}
    names = [name for name in truth.outputs if name in given and name not in chance]
    if not names:
        return ""
    runner = Runner(made.model, names, fold=False)
    if made.batch > 1:
        batched = runner(samples.many(made.batch))
        return _first_difference(batched, truth, made.batch, truth.places)
    for place in truth.places:
        problem = _first_difference(runner(samples.one(place)), truth, 1, [place])
        if problem:
            return problem
    return ""


def _learn_inner(made: Prepared, truth: _Truth, draft: Draft) -> None:
    """The values of inner targets in the lifted file, which may be all there is to compare: outputs may be integers."""
    known = {name for node in draft.graph.node for name in node.output}
    names = [signal.name for signal in made.signals if signal.name not in truth.outputs and signal.name in known]
    if names:
        _collect(Runner(extracted(draft.model, names)), draft.samples, truth.places, truth.outputs)


def _first_difference(outputs: Mapping[str, Any], truth: _Truth, batch: int, places: Sequence[int]) -> str:
    for name, value in outputs.items():
        singles = {place: truth.outputs[name][place] for place in places if place in truth.outputs[name]}
        # outputs of as many elements as the data decides cannot be compared over a batch
        if isinstance(value, np.ndarray) and len({single.shape for single in singles.values()}) == 1:
            problem = difference(name, value, singles, batch, truth.rounding)
            if problem:
                return problem
    return ""


def _finished(made: Prepared, draft: Draft, tags: set[str], batch: int, problems: Sequence[str]) -> Prepared:
    """Only the distillation targets are outputs; every tag is a weight or has a reason."""
    if made.batch != batch:
        size = ALONE if made.batch == 1 else f"trained {made.batch} samples at a time"
        reason = f", because {problems[0]:.160}" if problems else ": so the file takes them"
        made.notes.append(size + reason)
    reduce_to(made.model, [signal.name for signal in made.signals])
    made.inputs = inputs_of(made.model)
    trained = set(made.weights.values())
    used = upstream(draft.graph, [value.name for value in draft.graph.output])
    named = {tag: name for name, tag in draft.tags.items()}
    for tag in sorted(tags - trained):
        made.unreached[tag] = _reason(named.get(tag), used)
    return made


def _reason(name: str | None, used: set[str]) -> str:
    if name is None:
        return "it is not stored as a tensor of its own"
    if name not in used:
        return "no output depends on it"
    return (
        "nothing that can be matched depends on it: it is in a branch that none of the samples looked at takes, "
        "or only whole numbers come from it"
    )


def inputs_of(model: ModelProto) -> list[Input]:
    """Name, type and sizes of what a graph of fixed shapes is fed."""
    found = []
    for value in model.graph.input:
        kind = value.type.tensor_type
        sizes = tuple(dim.dim_value for dim in kind.shape.dim)
        found.append((value.name, np.dtype(tensor_dtype_to_np_dtype(kind.elem_type)), sizes))
    return found
