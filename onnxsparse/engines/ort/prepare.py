"""From any exported model to a graph that can be trained: a copy that is thrown away afterwards.

1. Functions are inlined, stored tensors lifted, everything is computed in float32 (`lift`, `precision`).
2. For the training batch: branches taken, shapes fixed, the operator set fitted, constants folded (`branches`,
   `shapes`, `versions`, `fold`).
3. Outputs and their taps are the signals (`taps`, `signals`).
4. The result is compared with the user's file, sample by sample (`batch`). Where it differs at the batch, a batch of 1
   is taken out of the constants; where it differs still, the batch is 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

from onnxsparse.engines.ort.batch import HALF_ROUNDING, ROUNDING, difference, widen
from onnxsparse.engines.ort.branches import take_branches
from onnxsparse.engines.ort.chance import settle_chance
from onnxsparse.engines.ort.division import guard_divisions
from onnxsparse.engines.ort.draft import Draft
from onnxsparse.engines.ort.endless import refuse_endless
from onnxsparse.engines.ort.fold import RANDOM, fold
from onnxsparse.engines.ort.lift import fix_numbers, inline_functions, lift
from onnxsparse.engines.ort.precision import OTHER, single
from onnxsparse.engines.ort.reach import downstream, part, reduce_to, upstream
from onnxsparse.engines.ort.rounding import without_rounding
from onnxsparse.engines.ort.runner import Runner
from onnxsparse.engines.ort.samples import Samples
from onnxsparse.engines.ort.scopes import Names, scopes
from onnxsparse.engines.ort.sequences import without_sequences
from onnxsparse.engines.ort.shapes import declare, fix_inputs, shapes_of
from onnxsparse.engines.ort.signals import Signal, choose, reached, stated
from onnxsparse.engines.ort.taps import taps
from onnxsparse.engines.ort.versions import FIRST_RUN, fit_version, lower
from onnxsparse.errors import ModelError
from onnxsparse.graph.class_axis import axis_in
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
    signals: list[Signal]
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


def prepare(model: ModelProto, tags: set[str], samples: Mapping[str, Array], batch: int) -> Prepared:
    """Prepare a complete model, which is changed. Stored tensors to train carry their tag as `doc_string`."""
    given = Samples(model.graph, samples)
    shown = stated(model)
    draft = Draft(inline_functions(model))
    lower(draft)
    refuse_endless(draft.graph)
    guard_divisions(draft)
    without_rounding(draft)
    runs = max(1, batch // given.unit)
    truth = _truth(draft.model, given, runs)
    _lift(draft, tags, given)
    if truth is None:
        if draft.opset < FIRST_RUN:
            fix_inputs(draft, given.one(0))  # the converter asks for sizes
            fit_version(draft)
            lift(draft, tags)
        draft.note("onnxruntime does not run the file itself; the copy was compared with what it was converted to")
        truth = _outputs(draft.model, given, runs)
    settle_chance(draft)
    problems: list[str] = []
    for size, way in _ways(runs):
        try:
            made = _at(draft.copy(), given, size, way, shown)
            problem = _differs(made, given, truth, draft) if made is not None else "no batch is stored in it"
        except ModelError as error:
            made, problem = None, str(error)
        if made is not None and not problem:
            made.batch *= given.unit
            return _finished(made, draft, tags, batch, problems)
        problems.append(f"at batch {size * given.unit}: {problem}")
    raise ModelError(f"no graph to train could be made that does what the model does ({problems[-1]})")


def _ways(batch: int) -> Iterator[tuple[int, str]]:
    if batch > 1:
        yield from ((batch, "as it is"), (batch, "widened"), (batch, "folded and widened"))
    yield 1, "as it is"


def _truth(model: ModelProto, samples: Samples, batch: int) -> _Truth | None:
    """None where only another form may run: the runtime lacks kernels of other precisions and of old operators."""
    try:
        return _outputs(model, samples, batch)
    except ModelError:
        if _kinds(model) & set(OTHER) or Draft(model).opset < FIRST_RUN:
            return None
        raise


def _outputs(model: ModelProto, samples: Samples, batch: int) -> _Truth:
    names = [value.name for value in model.graph.output]
    last = min(batch if batch > 1 else CHECKED, samples.count) - 1
    places = sorted({int(place) for place in np.linspace(0, last, CHECKED)})
    outputs: dict[str, dict[int, Array]] = {name: {} for name in names}
    _collect(Runner(model), samples, places, outputs)
    half = _kinds(model) & {TensorProto.FLOAT16, TensorProto.BFLOAT16}
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


def _lift(draft: Draft, tags: set[str], samples: Samples) -> None:
    lift(draft, tags)
    single(draft)
    fix_numbers(draft, samples)


def _at(draft: Draft, samples: Samples, batch: int, way: str, shown: Sequence[Signal]) -> Prepared | None:
    """The copy for a batch; None where there is nothing to widen."""
    widened = way != "as it is"
    step = 1 if widened else batch
    starts = _starts(step, samples.count)
    looked = min(len(starts) * step, samples.count) * samples.unit
    take_branches(draft, [samples.many(step, start) for start in starts], looked)
    lift(draft, set(draft.tags.values()))
    tapped = _tapped(draft, shown)
    outputs = [value.name for value in draft.graph.output]
    reduce_to(draft.model, [*outputs, *(name for names in tapped.values() for name in names)])
    if way == "folded and widened":
        _fit(draft, samples.many(1))
    if widened and not widen(draft, batch, {name for name in samples.arrays if samples.sampled(name)}):
        return None
    if widened:
        draft.note("a batch of 1 was stored in it and was taken out of the copy")
    _fit(draft, samples.many(batch))
    if without_sequences(draft):
        fold(draft)
    return _described(draft, samples, batch, outputs, tapped, shown)


def _fit(draft: Draft, feed: Mapping[str, Array]) -> None:
    fix_inputs(draft, feed)
    fit_version(draft)
    lift(draft, set(draft.tags.values()))
    fold(draft)


def _starts(batch: int, count: int) -> list[int]:
    """Where the first few batches begin; the last is the first turned round when there are too few samples."""
    whole = list(range(0, max(1, count - batch + 1), batch))[:8]
    return whole if len(whole) > 1 else [0, count // 2] if count > 1 else [0]


def _tapped(draft: Draft, shown: Sequence[Signal]) -> dict[str, list[str]]:
    """The taps of each output: those that the file shows, and what can be seen only in the copy."""
    graph = draft.graph
    moving = downstream(graph, [value.name for value in graph.input])
    stored = {tensor.name for tensor in graph.initializer}
    made = {name for node in graph.node for name in node.output if name}
    constants = frozenset((made | stored) - moving)
    found = {}
    for value in graph.output:
        own = [one.name for one in shown if one.kind == "tap" and one.original == value.name and one.name in made]
        found[value.name] = list(dict.fromkeys([*own, *taps(graph, value.name, constants)]))
    return found


def _described(
    draft: Draft,
    samples: Samples,
    batch: int,
    outputs: Sequence[str],
    tapped: Mapping[str, Sequence[str]],
    shown: Sequence[Signal],
) -> Prepared:
    feeds = [samples.many(batch, start) for start in _starts(batch, samples.count)[:MEASURED]]
    shapes = shapes_of(draft.model, feeds)
    signals = choose(draft.graph, outputs, tapped, draft.tags, shapes)
    signals = [_as_shown(signal, draft, shown) for signal in signals]
    found = reached(draft.graph, signals, draft.tags, shapes)
    weights = {name: tag for name, tag in draft.tags.items() if name in found}
    _name_nodes(draft)
    declare(draft, shapes)
    return Prepared(draft.model, weights, signals, batch, [], notes=draft.notes)


def _as_shown(signal: Signal, draft: Draft, shown: Sequence[Signal]) -> Signal:
    """With what the user's file says of it, where it is there."""
    known = next((one for one in shown if one.name == signal.name), None)
    if known is None:
        return replace(signal, axis=axis_in(draft.model, signal.name), stated=False)
    return replace(signal, axis=known.axis, stated=known.stated)


def _name_nodes(draft: Draft) -> None:
    names, seen = Names(draft.graph), set()
    for node in draft.graph.node:
        if not node.name or node.name in seen:
            node.name = names.fresh(node.name or f"{node.op_type}_{node.output[0]}")
        seen.add(node.name)


def _differs(made: Prepared, samples: Samples, truth: _Truth, draft: Draft) -> str:
    """How the copy differs from the user's file, in words. What hangs on chance is not compared."""
    graph = made.model.graph
    _learn_taps(made, samples, truth, draft)
    chance = downstream(graph, [node.output[0] for node in graph.node if node.op_type in RANDOM])
    names = [name for name in truth.outputs if _made(made.model, name) and name not in chance]
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


def _learn_taps(made: Prepared, samples: Samples, truth: _Truth, draft: Draft) -> None:
    """The taps' values in the lifted file, which may be all there is to compare: outputs can be whole numbers."""
    known = {name for node in draft.graph.node for name in node.output}
    names = [signal.name for signal in made.signals if signal.name not in truth.outputs and signal.name in known]
    if names:
        _collect(Runner(part(draft.model, names)), samples, truth.places, truth.outputs)


def _first_difference(outputs: Mapping[str, Any], truth: _Truth, batch: int, places: Sequence[int]) -> str:
    for name, value in outputs.items():
        singles = {place: truth.outputs[name][place] for place in places if place in truth.outputs[name]}
        if singles and isinstance(value, np.ndarray) and _alike(singles):
            problem = difference(name, value, singles, batch, truth.rounding)
            if problem:
                return problem
    return ""


def _alike(singles: Mapping[int, Array]) -> bool:
    """Outputs of as many elements as the data decides cannot be compared over a batch."""
    return len({single.shape for single in singles.values()}) == 1


def _made(model: ModelProto, name: str) -> bool:
    return any(name in node.output for node in model.graph.node)


def _finished(made: Prepared, draft: Draft, tags: set[str], batch: int, problems: Sequence[str]) -> Prepared:
    """Only the signals are outputs; every tag is a weight or has a reason."""
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
