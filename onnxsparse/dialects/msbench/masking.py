"""Inserting the masks that a configuration has at one step of its schedule into the graph of a model, untrained.

1. The scheduler does what it does in a training loop: it is prepared on the model, told the iteration, and asked for
   its masks. So they are those of a loop on equal weights, to the bit, and no engine is needed.
2. The moment is an iteration; a level, in per cent; or the end of the schedule. A level of Amba's table is its stage;
   other schedulers take it in the place of the share that they go to.
3. Of a file that is masked already the masks are where the schedule goes on from: what was masked counts as zero. The
   record of its moment, where it is there and of the same configuration, says what was decided before (the analysis,
   counts that are frozen).
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxsparse.api import Result, with_masks
from onnxsparse.dialects.msbench.configuration import Configuration, iteration_of
from onnxsparse.errors import OptionError, nearest
from onnxsparse.graph.model import Model, Source
from onnxsparse.math.values import Array
from onnxsparse.options import Path
from onnxsparse.passes.delivery import called, target_of
from onnxsparse.passes.fold_masks import MaskedBefore, hidden, open_without_masks
from onnxsparse.passes.soft_masks import DRAWN, SOFT, Form, form_of, given, why_not_soft
from onnxsparse.passes.sources import taken
from onnxsparse.patterns import parse as parse_pattern
from onnxsparse.planning.macs import set_sizes
from onnxsparse.planning.model_inputs import fields_of
from onnxsparse.planning.plan import Plan, PlanRow, eligible
from onnxsparse.planning.rule import WORDS, Rule
from onnxsparse.planning.trainable import send_back, trainables
from onnxsparse.train.layers import Promise, dropped
from onnxsparse.train.stepped_model import LoopOptions, SteppedModel

MASK = "mask"
OTHER = "the record in the file is of another configuration or --level: its masks count, and all else is decided anew"
STAND = "the thresholds that the file has go on as they are: --level says where new ones begin"
CORRECTED = "weight_correction: numbers that are kept were rescaled, so that each output keeps its mean and deviation"


@dataclass(frozen=True)
class When:
    """When of a schedule: an iteration or a level; the end where neither is said."""

    iteration: int | None = None
    level: float | None = None
    target: str | None = None
    expected: bool = False
    """Of masks that are drawn: what is kept most probably, in place of a draw."""

    @classmethod
    def of(cls, iteration: Any, level: Any, target: str | None = None, expected: bool = False) -> When:
        if iteration is not None and level is not None:
            raise OptionError("--iteration and --level each say the moment of the schedule; leave one out")
        return cls(None if iteration is None else iteration_of(iteration), _level(level), target, expected)


def _level(level: Any) -> float | None:
    if level is None:
        return None
    try:
        found = float(level)
    except (TypeError, ValueError):
        found = -1.0
    if isinstance(level, bool) or not 0 <= found < 100:
        raise OptionError(f"--level is a network sparsity in per cent, from 0 to below 100, not {level!r:.40}")
    return found


def insert_masks(
    scheduler: Any,
    source: Source,
    *,
    when: When,
    output: Path | None = None,
    dims: Mapping[str, int] | None = None,
    form: str = "mul",
    strict: bool = False,
    overwrite: bool = False,
) -> Result:
    """The model with the masks of a scheduler in its graph, as they are at a moment."""
    source = taken(source)
    path = target_of(output, source, overwrite)
    model, before = open_without_masks(source)
    set_sizes(model, dims)
    notes: list[str] = []
    scheduler.set_moment(when, _shapes(model, dims))
    network = SteppedModel(model, LoopOptions())
    for key, name in network.names().items():
        if name in before.masks:
            network.weight(key)[...] = hidden(network.weight(key), before.masks[name])
    scheduler.prepare_sparse_model(network)
    if before:
        notes += go_on(scheduler, network, before)
        if when.level is not None and _thresholds(network, before):
            notes.append(STAND)
    scheduler.go_to(when)
    return written(scheduler, network, model, called(source), path, notes, form, strict, overwrite)


def _thresholds(network: SteppedModel, before: MaskedBefore) -> bool:
    """Whether thresholds of the file are taken over."""
    keys = [key for key, name in network.names().items() if name in before.trained]
    return any(network.used.get(key, MASK).partition(":")[0] not in (MASK, DRAWN) for key in keys)


OPTIONS = ("iteration", "level", "target", "expected", "dims", "form", "strict", "overwrite")


def insert(scheduler: Any, model: Any, output: Path | None, options: Mapping[str, Any]) -> Result:
    """`scheduler.insert_masks`: of a model at a moment, or of what was prepared as it is now."""
    for name in options:
        if name not in OPTIONS:
            raise OptionError(f"insert_masks has no option {name!r:.40}{nearest(name, OPTIONS)}")
    network = scheduler.network
    now = model is None or model is network
    if not now and not isinstance(model, (str, os.PathLike, ModelProto)):
        raise OptionError(
            f"masks are put into the graph of an ONNX model, by its path or as a ModelProto, not of {model!r:.60}; "
            "onnxsparse.torch.attach puts them on a torch module"
        )
    iteration, level, target, expected = (options.get(name) for name in ("iteration", "level", "target", "expected"))
    when = When.of(iteration, level, target, bool(expected))
    finish: dict[str, Any] = {name: options.get(name, False) for name in ("strict", "overwrite")}
    form = options.get("form", "mul")
    if not now:
        fresh = type(scheduler)(scheduler.config)  # what is being trained with this one goes on as it was
        return insert_masks(fresh, model, when=when, output=output, dims=options.get("dims"), form=form, **finish)
    if not isinstance(network, SteppedModel):
        raise OptionError("insert_masks takes an ONNX model, or comes after prepare_sparse_model was given one")
    if replace(when, expected=False) != When():
        raise OptionError("what was prepared has the masks of its own iteration: leave iteration, level and target out")
    path = target_of(output, network.source, finish["overwrite"])
    live = network.with_live_weights()
    return written(scheduler, network, live, called(network.source), path, [], form, **finish)


def written(
    scheduler: Any,
    network: SteppedModel,
    model: Model,
    name: str,
    path: str | None,
    notes: list[str],
    form: str,
    strict: bool,
    overwrite: bool,
) -> Result:
    """The masks that a prepared scheduler has now, in the graph of a model of the same weights."""
    scheduler.promise_masks()
    if scheduler.generator.corrects:
        model = _sent(model, network)
        notes.append(CORRECTED)
    made = _plan(model, network, network.promise)
    forms, left = _forms(model, network)
    if forms or left:
        made = _with_forms(made, forms, left)
        notes += _said_of(forms, made) if forms else []
    known = moment_of(scheduler, network)
    remarks = [*notes, *dict.fromkeys(scheduler.notes), said(known)]
    return with_masks(
        model, made, remarks, name, path, form=form, strict=strict, overwrite=overwrite, moment=known, forms=forms
    )


def said(known: Mapping[str, Any]) -> str:
    """The moment in words."""
    level = f", level {known['level']:g}" if known.get("level") is not None else ""
    return f"masks of {known['scheduler']} at iteration {known['iteration']}{level}"


def _shapes(model: Model, dims: Mapping[str, int] | None) -> dict[str, list[int]] | None:
    """The shape of every input, with the sizes that were said."""
    if not dims:
        return None
    named = {
        f"{one.name}.{axis}": dim.dim_param
        for one in model.proto.graph.input
        for axis, dim in enumerate(one.type.tensor_type.shape.dim)
    }
    sizes = {name: dims.get(name, dims.get(param)) for name, param in named.items()}
    shapes = {
        one.name: [size or sizes.get(f"{one.name}.{at}") or int(at == 0) for at, size in enumerate(one.shape or ())]
        for one in fields_of(model)
    }
    return {name: shape for name, shape in shapes.items() if all(shape)} or None  # a size that nobody said is asked for


# -- from what the scheduler says to a plan


def _plan(model: Model, network: SteppedModel, promise: Promise) -> Plan:
    """The rows of a model's weights: a mask where the scheduler has one that drops something."""
    rule = Rule.make(target=promise.target, sparsity=promise.level)
    base = eligible(model, Rule.make("unstructured", allow=tuple(WORDS)))
    tags = {name: tag for tag, name in network.names().items()}
    masks = network.masks()
    rows = tuple(_row(row, tags.get(row.name, ""), masks, promise) for row in base.rows)
    return Plan(rows, rule)


def _row(row: PlanRow, tag: str, masks: Mapping[str, Array], promise: Promise) -> PlanRow:
    text = promise.patterns.get(tag, "")
    if tag not in masks or not text:
        reason = promise.dense.get(tag, "")
        return PlanRow(row.weight, reason=reason or row.reason or "left dense", chosen=bool(reason))
    keep = masks[tag]
    if keep.all():
        return PlanRow(row.weight, reason="nothing of it is masked at this moment", chosen=True)
    pattern, flat = parse_pattern(text), np.ascontiguousarray(keep).reshape(-1)
    return PlanRow(row.weight, pattern, dropped(pattern, row.use.matrix(~flat)), keep=flat)


def _forms(model: Model, network: SteppedModel) -> tuple[list[Form], dict[str, str]]:
    """What stands in for weights that have no mask of zeros and ones; and by name, why a weight has nothing."""
    by_name = {weight.name: weight for weight in model.weights}
    found, left = [], {}
    for key, name in network.names().items():
        kind = network.used.get(key, MASK).partition(":")[0]
        if kind == MASK:
            continue
        reason = why_not_soft(model, by_name[name])
        if reason:
            left[name] = reason
        else:
            found.append(form_of(by_name[name].tensor, kind, {**network.trained(key), **network.frozen(key)}))
    return found, left


def _with_forms(made: Plan, forms: Sequence[Form], left: Mapping[str, str]) -> Plan:
    """The rows of weights behind a form: as many single numbers as are zero there now."""
    by_tensor = {form.tensor: form for form in forms}
    rows = []
    for row in made.rows:
        form = by_tensor.get(row.weight.tensor)
        if form is None:
            reason = left.get(row.name, "")
            rows.append(PlanRow(row.weight, reason=reason) if reason else row)
            continue
        numbers = given(form, form.tensor.read().reshape(form.tensor.shape))
        zeros = int(numbers.size - np.count_nonzero(numbers))
        rows.append(PlanRow(row.weight, parse_pattern("unstructured"), zeros))
    return Plan(tuple(rows), made.rule)


def _said_of(forms: Sequence[Form], made: Plan) -> list[str]:
    zeros, size = sum(row.drop for row in made.planned), sum(row.weight.tensor.size for row in made.planned)
    kind = forms[0].kind
    share = f"{100 * zeros / max(size, 1):.1f} % are zero now"
    if kind == DRAWN:
        return [
            f"soft masks of probabilities that train, with noise: {share}; the subnet is drawn when they are trained"
        ]
    few = "; hardly any before a training has raised them" if zeros < size / 100 else ""
    learns = "" if kind == SOFT else ", which a trainer without straight-through gradients leaves where they are"
    return [f"thresholds that train beside the weights{learns}: {share}{few}"]


def _sent(model: Model, network: SteppedModel) -> Model:
    """The model with the numbers that the scheduler changed; what is masked stays as it is there."""
    base = eligible(model, Rule.make("unstructured", allow=tuple(WORDS)))
    tags, masks = trainables(model, base), network.masks()
    by_name = {weight.name: weight.tag for weight in model.weights if weight.tag in tags}
    sent = {}
    for key, name in network.names().items():
        if key in masks and name in by_name:
            stored = tags[by_name[name]].numbers()
            sent[by_name[name]] = np.where(masks[key], network.weight(key), stored)
    send_back(sent, tags)
    return Model.open(model.take_proto())


# -- what the record says, and how the next masks go on from it


def moment_of(scheduler: Any, network: SteppedModel) -> dict[str, Any]:
    """What the record in the file says of the moment."""
    level = scheduler.level_of_moment()
    known = {
        "scheduler": scheduler.config.scheduler.type,
        "iteration": scheduler.iteration,
        "level": level,
        "target": network.promise.target,
        **scheduler.drawn_by(),
        "settings": settings(scheduler.config),
        "facts": named(scheduler.facts(), network.names()),
    }
    return {key: value for key, value in known.items() if value is not None}


def go_on(scheduler: Any, network: SteppedModel, before: MaskedBefore) -> list[str]:
    """Have a prepared scheduler stand where the masks of a file do; remarks on that."""
    tags = {name: tag for tag, name in network.names().items()}
    known = before.moment
    if before.masks:
        scheduler.take_masks({tags[name]: keep for name, keep in before.masks.items() if name in tags})
    for name, arrays in before.trained.items():
        if name in tags and tags[name] in network.used:
            network.sent(tags[name], arrays)
    if known.get("settings") == settings(scheduler.config) and isinstance(known.get("facts"), Mapping):
        facts = named(known["facts"], tags)
        if scheduler.fits(facts):
            scheduler.resume(facts)
            scheduler.notes.clear()  # what an analysis of the masked network had to say
            return []
    return [OTHER] if known else []


def settings(config: Configuration) -> str:
    """A short digest of all that decides masks; where results are written does not."""
    kwargs = {key: one for key, one in config.scheduler.kwargs.items() if key not in ("output_dir", "save_dir")}
    parts = [replace(config.scheduler, kwargs=kwargs), config.mask_generator, config.fake_sparse]
    said = [[one.type, {key: repr(value) for key, value in one.kwargs.items()}] for one in parts]
    text = json.dumps([*said, config.leaf_module, config.target_sparsity, config.uniform], sort_keys=True)
    return f"{zlib.crc32(text.encode('utf-8')):08x}"


def named(facts: Any, names: Mapping[str, str]) -> Any:
    """Facts with the keys of layers spelled otherwise; a key that has no other spelling stays."""
    if isinstance(facts, Mapping):
        return {names.get(key, key): named(one, names) for key, one in facts.items()}
    return [named(one, names) for one in facts] if isinstance(facts, list) else facts
