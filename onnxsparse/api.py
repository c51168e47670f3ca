"""The commands as functions: a model in, a `Result` out. The command line is a thin layer over these.

A model is a path, a ModelProto, or what else holds one in memory: see `passes.sources`. The argument is never changed.
With `output` the model is written there, all or nothing; without, `Result.model` holds it in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
from onnx import ModelProto

from onnxsparse.data.images import Images, as_images
from onnxsparse.engines.working_dirs import temporary
from onnxsparse.errors import OptionError, brief
from onnxsparse.files import check_target, write_text
from onnxsparse.graph.model import Model, Source
from onnxsparse.graph.weights import Weight
from onnxsparse.options import Axes, CalibrationOptions, Masks, Names, Path, SparsityOptions
from onnxsparse.passes import delivery, permuting
from onnxsparse.passes.analyze import LEVEL, analysis_request, analyzed, patterns_of
from onnxsparse.passes.calibrated_pruning import Request, demand_refit, leveled, pruned, requested
from onnxsparse.passes.compare import Compare
from onnxsparse.passes.delivery import called, demand_unread, target_of
from onnxsparse.passes.fold_masks import FoldMasks
from onnxsparse.passes.given_permutation import files_of
from onnxsparse.passes.insert_masks import InsertMasks, maskable
from onnxsparse.passes.inspect import Inspect
from onnxsparse.passes.permutation_report import channels_report, order_facts, permuted_report
from onnxsparse.passes.proof import DISCARD, FOLD, MASK, PRUNE, SOFT, Before
from onnxsparse.passes.prune import Prune
from onnxsparse.passes.quantization.after_training import Samples, quantized
from onnxsparse.passes.quantization.figures import MaxLoss
from onnxsparse.passes.quantization.quantizing import Asked
from onnxsparse.passes.soft_masks import FoldSoft, Form, InsertSoft, as_folded, demand_written, soft_sites, zeros_made
from onnxsparse.passes.sources import graph_of, taken
from onnxsparse.passes.verify import MASKED_STILL, CheckFold, Verify
from onnxsparse.planning.macs import set_sizes
from onnxsparse.planning.model_inputs import fields_of, sample_axes
from onnxsparse.planning.plan import Plan
from onnxsparse.planning.plan_file import write_plan
from onnxsparse.planning.record import record, record_moment, recount, settle
from onnxsparse.planning.recorded import MASKED, MOMENT, readable
from onnxsparse.planning.request import demand_whole, path_of, planned
from onnxsparse.planning.rows import plain_row, planned_report, totals_of
from onnxsparse.planning.rule import Rule
from onnxsparse.report.analysis_table import page
from onnxsparse.report.rows import Report, Row

WITH_A_MODEL = ("permute", "prune", "mask", "fold", "finetune", "quantize")
"""Commands whose output is a model: `levels` leaves a folder, `plan` a text."""


@dataclass
class Result:
    """The report of a command, and the model it made. `print(result)` shows the table."""

    report: Report
    path: str | None = None
    proto: ModelProto | None = None
    made: Any = None

    def __repr__(self) -> str:
        where = f", {self.path!r}" if self.path else ", a model in memory" if self.proto is not None else ""
        return f"Result({self.report!r}{where})"

    def __str__(self) -> str:
        return str(self.report)

    @property
    def model(self) -> ModelProto | None:
        """The model as a ModelProto; read from the output file the first time when there is one."""
        if self.proto is None and self.path is not None and self.report.command in WITH_A_MODEL:
            self.proto = onnx.load(self.path)
        return self.proto

    @property
    def graph(self) -> Any:
        """The model as an `onnx_graphsurgeon.Graph`, made the first time; None where there is no model."""
        if self.made is None and self.model is not None:
            self.made = graph_of(self.model)
        return self.made


def load(source: Source) -> Model:
    """Open a model and find its weights, without reading them; `source` is a path, its bytes, or a model in memory."""
    return _found(Model.open(taken(source)))


def _look(source: Source) -> Model:
    """The same to read only: a ModelProto of the caller's is not copied."""
    return _found(Model.over(source) if isinstance(source, ModelProto) else Model.open(source))


def _found(model: Model) -> Model:
    _ = model.weights
    return model


def inspect(source: Source, *, dims: Mapping[str, int] | None = None) -> Result:
    """Every weight of a model: where it is, how each use reads it, how many zeros it has, and what holds it back.

    Arguments:
        source: the model: a path, its bytes, a ModelProto, or another model in memory; it is never changed.
        dims: the size of a dynamic dimension, such as dims={"height": 224}, or dims={"x.2": 224} for one without a
            name, for multiply-accumulates. Default: None. Example: dims={"height": 224}
    """
    source = taken(source)
    model = _look(source)
    set_sizes(model, dims)
    return Result(Inspect(called(source))(model))


def plan(
    source: Source,
    *,
    output: Path | None = None,
    pattern: str | None = None,
    target: str | None = None,
    sparsity: float | str | None = None,
    allocation: str | None = None,
    score: str | None = None,
    include: Names = (),
    exclude: Names = (),
    allow: Names = (),
    tie_equal: bool | None = None,
    seed: int | None = None,
    level: float | str | None = None,
    dims: Mapping[str, int] | None = None,
    plan: Path | None = None,
    masks: Masks | None = None,
    data: Any = None,
    samples: int | None = None,
    solver: str | None = None,
    sensitivity: str | None = None,
    engine: str = "auto",
    budget: str | None = None,
    max_loss: float | str | None = None,
    add_bias: bool = False,
    joint_steps: int | None = None,
    labels: str | None = None,
    eval_data: Any = None,
    metrics: Sequence[str | Callable[..., Any]] = (),
    batch_axis: Axes = None,
    state: Axes = None,
    resize: str | Sequence[int] | None = None,
    mean: str | float | Sequence[float] | None = None,
    std: str | float | Sequence[float] | None = None,
    layout: str | None = None,
    workers: int | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> Result:
    """What `prune` with the same options would do; with `output` written as YAML to read, edit and pass to `plan=`.

    Arguments:
        source: the model: a path, its bytes, a ModelProto, or another model in memory; it is never changed.
        output: the YAML file to write; without it nothing is written. Default: None. Example: output="plan.yaml"
        pattern: the layout of the zeros: 2:4, any N:M, N:M:transposable, unstructured, alive, block:RxC, tile:RxC,
            filter or channel. Default: None. Example: pattern="2:4"
        target: a device instead of a pattern: ampere or ampere:PROFILE; amba or amba:CHIP; vnni. Default: None.
            Example: target="ampere"
        sparsity: the share that goes, such as 0.8 or 80%; N:M fixes its own. Default: None. Example: sparsity=0.8
        allocation: how the share is spread over the weights: uniform (default), global, erk or energy; with samples
            sensitivity (default then). Example: allocation="erk"
        score: what goes first: magnitude (default), random, squared, fpgm or nuclear; with samples obs (default
            then), wanda or ria, too. Example: score="magnitude"
        include: only these: tensor or layer names, globs, re:PATTERN, operator kinds. Default: (). Example:
            include="head"
        exclude: all but these, in the same forms. Default: (). Example: exclude="stem"
        allow: prune what stays dense by default: embedding, tied-embedding, stem, depthwise, small, basis, output.
            Default: (). Example: allow="stem,output"
        tie_equal: weights that are equal, or equal up to a scale for each output, are one: the same zeros, counted
            once. Default: None. Example: tie_equal=True
        seed: for scores that draw numbers, and for which samples are taken (default 0). Example: seed=1
        level: the network sparsity in per cent, such as 70, of a target that knows levels: amba. Default: None.
            Example: level=70
        dims: the size of a dynamic dimension, such as dims={"height": 224}, or dims={"x.2": 224} for one without a
            name; multiply-accumulates need it, and the allocation energy asks for it. Default: None. Example:
            dims={"height": 224}
        plan: a plan written by onnxsparse plan, perhaps edited. Default: None. Example: plan="plan.yaml"
        masks: masks of your own: an .npz with one array for each tensor name, non-zero = keep; or a mapping of such
            arrays. Default: None. Example: masks="masks.npz"
        data: samples without labels, a few hundred: masks by what comes into each layer, and kept weights refitted
            to what the dense model gives. An .npz with one array for each input, first axis = samples; a folder of
            such files, or of images; an .npy for each input; or module:function, a function that yields
            dictionaries of arrays; or a mapping of arrays, such a function, a loader of batches, or a
            CalibrationDataReader of onnxruntime or polygraphy. Default: None. Example: data="samples.npz"
        samples: how many samples (default 256): of more, those that seed= draws. Example: samples=512
        solver: with samples, what the kept weights become: least-squares (default), obs, bias or zero. Example:
            solver="zero"
        sensitivity: with samples, how it is told what matters to the outputs: gradients (default) or measured.
            Example: sensitivity="measured"
        engine: what takes gradients: ort, torch, or auto (default): the first that is installed and takes the
            model. Example: engine="torch"
        budget: what the share is of, with the allocation sensitivity: params (default), bytes or macs. Example:
            budget="macs"
        max_loss: find the sparsity: the most zeros, or with N:M the fewest dense layers, by which no more than this
            is lost: points of the metric, 0.5, or a share of the dense model's, 1%. Default: None. Example:
            max_loss="1%"
        add_bias: a layer without a bias may get one, which is a new tensor in the file; the report lists each.
            Default: False. Example: add_bias=True
        joint_steps: how many steps all refitted layers move together at the end, towards the outputs of the dense
            model (default: 1500 for small networks, fewer or none for large ones; 0: none). Example:
            joint_steps=300
        labels: the array of the labels, where anything is measured (default: labels, label, targets, target or y).
            Example: labels="classes"
        eval_data: arrays to measure the dense model and the sparse one on. Default: None. Example:
            eval_data="held_out.npz"
        metrics: what is measured, the first for max_loss=: accuracy, top-5, r2, mae, mse, agreement, distance, or
            module:function, called as f(outputs, batch) for each batch (default: by the data); or such a function.
            Example: metrics=["accuracy"]
        batch_axis: INPUT=AXIS: the axis of the samples where it is not the first (default: the one named as such).
            Example: batch_axis={"state": 1}
        state: INPUT=OUTPUT: an input that is the output of the step before, in sequences of samples. Default: None.
            Example: state={"state": "stateN"}
        resize: HxW, to which images are scaled; what is too long on one side is cut off evenly (default: the size
            that the model declares). Example: resize="224x224"
        mean: what is taken from pixels between 0 and 1, a number or one for each channel. Default: None. Example:
            mean="0.485,0.456,0.406"
        std: what they are divided by then, in the same form. Default: None. Example: std="0.229,0.224,0.225"
        layout: NCHW or NHWC (default: by the model). Example: layout=NHWC
        workers: how many processes work side by side (default: one for each core); the bytes do not depend on it.
            Example: workers=2
        checkpoint: save what is found of the samples in this folder, layer by layer. Default: None. Example:
            checkpoint="run"
        resume: go on with the calibration in checkpoint=, to the same result. Default: False. Example: resume=True
        overwrite: replace the output if it exists. Default: False. Example: overwrite=True
    """
    given = dict(locals())
    demand_refit("plan", add_bias, joint_steps)
    request = requested(SparsityOptions.among(given), CalibrationOptions.given(given), plan, masks)
    source = taken(source)
    model = _look(source) if request.asked is None else load(source)
    set_sizes(model, dims)
    made, notes = planned(model, plan, masks, request.zeros)
    made, request = request.with_plan(made, plan)
    outcome = leveled(model, made, request) if request.asked is not None else None
    made, notes = (outcome.plan, [*notes, *outcome.notes]) if outcome else (made, notes)
    report = planned_report(
        "plan", called(source), made, model, notes, None if output is None else path_of(output, "output")
    )
    report = replace(report, details=outcome.details if outcome else {})
    if output is None:
        return Result(report)
    if os.path.realpath(os.fspath(output)) in map(os.path.realpath, model.inputs):
        raise OptionError(f"{os.fspath(output)} is a file of the model itself; choose another name")
    write_text(os.fspath(output), write_plan(made, model), overwrite)
    return Result(report, os.fspath(output))


def analyze(
    source: Source,
    *,
    data: Any,
    samples: int | None = None,
    html: Path | None = None,
    pattern: str | None = None,
    include: Names = (),
    exclude: Names = (),
    allow: Names = (),
    seed: int | None = None,
    sensitivity: str | None = None,
    engine: str = "auto",
    labels: str | None = None,
    eval_data: Any = None,
    metrics: Sequence[str | Callable[..., Any]] = (),
    batch_axis: Axes = None,
    state: Axes = None,
    dims: Mapping[str, int] | None = None,
    resize: str | Sequence[int] | None = None,
    mean: str | float | Sequence[float] | None = None,
    std: str | float | Sequence[float] | None = None,
    layout: str | None = None,
    overwrite: bool = False,
) -> Result:
    """What zeros cost the outputs, weight by weight and level by level, and where to spend them; nothing is pruned.

    Arguments:
        source: the model: a path, its bytes, a ModelProto, or another model in memory; it is never changed.
        data: samples, a few hundred, with or without labels, as prune takes them; or a mapping of arrays, such a
            function, a loader of batches, or a CalibrationDataReader of onnxruntime or polygraphy. Example:
            data="samples.npz"
        samples: how many samples (default 256): of more, those that seed= draws. Example: samples=512
        html: write the report as a page that needs no other file. Default: None. Example: html="report.html"
        pattern: the pattern of the zeros: unstructured (default), or another that takes a sparsity; or an N:M to be
            looked at beside the levels, in the place of 2:4. Example: pattern="block:1x4"
        include: only these: tensor or layer names, globs, re:PATTERN, operator kinds. Default: (). Example:
            include="head"
        exclude: all but these, in the same forms. Default: (). Example: exclude="stem"
        allow: prune what stays dense by default: embedding, tied-embedding, stem, depthwise, small, basis, output.
            Default: (). Example: allow="stem,output"
        seed: for which samples are taken (default 0). Example: seed=1
        sensitivity: how it is told what matters to the outputs: gradients (default) or measured. Example:
            sensitivity="measured"
        engine: what takes gradients: ort, torch, or auto (default): the first that is installed and takes the
            model. Example: engine="torch"
        labels: the array of the labels, where anything is measured (default: labels, label, targets, target or y).
            Example: labels="classes"
        eval_data: arrays to measure on what each weight loses at each level (default: an eighth of the samples,
            where they have labels). Example: eval_data="held_out.npz"
        metrics: what is measured: accuracy, top-5, r2, mae, mse, agreement, distance, or module:function, called as
            f(outputs, batch) for each batch (default: by the data); or such a function. Example:
            metrics=["accuracy"]
        batch_axis: INPUT=AXIS: the axis of the samples where it is not the first (default: the one named as such).
            Example: batch_axis={"state": 1}
        state: INPUT=OUTPUT: an input that is the output of the step before, in sequences of samples. Default: None.
            Example: state={"state": "stateN"}
        dims: the size of a dynamic dimension, such as dims={"height": 224}, or dims={"x.2": 224} for one without a
            name, for multiply-accumulates. Default: None. Example: dims={"height": 224}
        resize: HxW, to which images are scaled; what is too long on one side is cut off evenly (default: the size
            that the model declares). Example: resize="224x224"
        mean: what is taken from pixels between 0 and 1, a number or one for each channel. Default: None. Example:
            mean="0.485,0.456,0.406"
        std: what they are divided by then, in the same form. Default: None. Example: std="0.229,0.224,0.225"
        layout: NCHW or NHWC (default: by the model). Example: layout=NHWC
        overwrite: replace the page of html= if it exists. Default: False. Example: overwrite=True
    """
    given = dict(locals())
    page_path = None if html is None else path_of(html, "html")
    levels_of, beside = patterns_of(pattern)
    zeros = SparsityOptions(levels_of, None, LEVEL, None, None, include, exclude, allow, seed=seed)
    request = analysis_request(zeros, given)
    source = taken(source)
    if page_path is not None:
        check_target(page_path, overwrite)
    model = load(source)
    demand_unread(page_path, model, data, eval_data)
    set_sizes(model, dims)
    made, _ = planned(model, None, None, request.zeros)
    report = analyzed(model, made, request, called(source), beside)
    if page_path is None:
        return Result(report)
    write_text(page_path, page(report), overwrite)
    return Result(replace(report, output=page_path), page_path)


def channels(source: Source, *, dims: Mapping[str, int] | None = None) -> Result:
    """Which channels of the weights may change places, everywhere in the graph, and what blocks the others.

    Arguments:
        source: the model: a path, its bytes, a ModelProto, or another model in memory; it is never changed.
        dims: the size of a dynamic dimension, such as dims={"height": 224}, or dims={"x.2": 224} for one without a
            name (default: chosen by what the model needs). Example: dims={"height": 224}
    """
    source = taken(source)
    model = load(source)
    set_sizes(model, dims)
    return Result(channels_report(model, called(source), permuting.channels_of(model)))


def permute(
    source: Source,
    *,
    output: Path | None = None,
    pattern: str | None = None,
    target: str | None = None,
    scores: Masks | None = None,
    effort: str = "quick",
    seed: int = 0,
    apply: Any = None,
    include: Names = (),
    exclude: Names = (),
    allow: Names = (),
    dims: Mapping[str, int] | None = None,
    save_permutation: Path | None = None,
    unproven: bool = False,
    overwrite: bool = False,
) -> Result:
    """Put channels in an order in which N:M pruning costs less, and prove in the runtime that the outputs stay.

    Arguments:
        source: the model: a path, its bytes, a ModelProto, or another model in memory; it is never changed.
        output: the permuted model to write; without it `Result.model` has it in memory. Default: None. Example:
            output="permuted.onnx"
        pattern: the pattern that is to cost less: 2:4 (default) or any N:M. Example: pattern="2:4"
        target: a device instead of a pattern: ampere or ampere:PROFILE. Default: None. Example: target="ampere"
        scores: scores of your own for the search: an .npz with one array for each weight that is pruned, by its
            name, of its shape, not negative (default: magnitudes); or a mapping of such arrays. Example:
            scores="scores.npz"
        effort: how long is searched: quick (default) or thorough. Example: effort="thorough"
        seed: of the search, and of the inputs of the proof (default 0). Example: seed=1
        apply: the order of another model, in place of a search: a file that save_permutation= wrote, or a permuted
            model. Default: None. Example: apply="permutation.json"
        include: only these: tensor or layer names, globs, re:PATTERN, operator kinds. Default: (). Example:
            include="head"
        exclude: all but these, in the same forms. Default: (). Example: exclude="stem"
        allow: prune what stays dense by default: embedding, tied-embedding, stem, depthwise, small, basis, output.
            Default: (). Example: allow="stem,output"
        dims: the size of a dynamic dimension, such as dims={"height": 224}, or dims={"x.2": 224} for one without a
            name, for the analysis and the proof (default: chosen by what the model needs). Example: dims={"height":
            224}
        save_permutation: also write what moved as JSON, from the original order to the present one. Default: None.
            Example: save_permutation="permutation.json"
        unproven: go on without the proof in the runtime; the record says so. Default: False. Example: unproven=True
        overwrite: replace the output if it exists. Default: False. Example: overwrite=True
    """
    source = taken(source)
    path = target_of(output, source, overwrite)
    text = None if save_permutation is None else path_of(save_permutation, "save_permutation")
    asked = permuting.Asked(pattern, target, include, exclude, allow, scores, effort, seed, apply, unproven)
    model = load(source)
    if text is not None:
        _demand_own_file(text, [*model.inputs, path, path and f"{path}.data", scores, *files_of(apply)])
        check_target(text, overwrite)
    set_sizes(model, dims)
    found = permuting.asked_for(model, asked)
    report = permuted_report(model, called(source), found, path)
    whole = permuting.plant(model, found)
    beside = {text: whole.to_json() + "\n"} if text is not None and path is not None else {}
    done = delivery.finish(model, report, path, overwrite, beside=beside)
    if text is not None and path is None:
        write_text(text, whole.to_json() + "\n", overwrite)
    return Result(*done)


def _demand_own_file(text: str, others: Sequence[Any]) -> None:
    """The record of a permutation takes the place of nothing that the same call reads or writes."""
    if text == "-":
        raise OptionError("--save-permutation cannot be standard output; name a file")
    taken = [os.path.realpath(one) for one in others if isinstance(one, (str, os.PathLike))]
    if os.path.realpath(text) in taken:
        raise OptionError(f"--save-permutation {text} is another file of this command; choose another name")


def prune(
    source: Source,
    *,
    output: Path | None = None,
    pattern: str | None = None,
    target: str | None = None,
    sparsity: float | str | None = None,
    allocation: str | None = None,
    score: str | None = None,
    include: Names = (),
    exclude: Names = (),
    allow: Names = (),
    tie_equal: bool | None = None,
    seed: int | None = None,
    level: float | str | None = None,
    dims: Mapping[str, int] | None = None,
    plan: Path | None = None,
    masks: Masks | None = None,
    data: Any = None,
    samples: int | None = None,
    solver: str | None = None,
    sensitivity: str | None = None,
    engine: str = "auto",
    budget: str | None = None,
    max_loss: float | str | None = None,
    add_bias: bool = False,
    joint_steps: int | None = None,
    labels: str | None = None,
    eval_data: Any = None,
    metrics: Sequence[str | Callable[..., Any]] = (),
    batch_axis: Axes = None,
    state: Axes = None,
    resize: str | Sequence[int] | None = None,
    mean: str | float | Sequence[float] | None = None,
    std: str | float | Sequence[float] | None = None,
    layout: str | None = None,
    workers: int | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    permute: bool = False,
    scores: Masks | None = None,
    effort: str = "quick",
    unproven: bool = False,
    strict: bool = False,
    overwrite: bool = False,
) -> Result:
    """Write zeros into the weights by a pattern or for a target, and prove them before the file gets its name.

    Arguments:
        source: the model: a path, its bytes, a ModelProto, or another model in memory; it is never changed.
        output: the sparse model to write; without it `Result.model` has it in memory. Default: None. Example:
            output="sparse.onnx"
        pattern: the layout of the zeros: 2:4, any N:M, N:M:transposable, unstructured, alive, block:RxC, tile:RxC,
            filter or channel. Default: None. Example: pattern="2:4"
        target: a device instead of a pattern: ampere or ampere:PROFILE; amba or amba:CHIP; vnni. Default: None.
            Example: target="ampere"
        sparsity: the share that goes, such as 0.8 or 80%; N:M fixes its own. Default: None. Example: sparsity=0.8
        allocation: how the share is spread over the weights: uniform (default), global, erk or energy; with samples
            sensitivity (default then). Example: allocation="erk"
        score: what goes first: magnitude (default), random, squared, fpgm or nuclear; with samples obs (default
            then), wanda or ria, too. Example: score="magnitude"
        include: only these: tensor or layer names, globs, re:PATTERN, operator kinds. Default: (). Example:
            include="head"
        exclude: all but these, in the same forms. Default: (). Example: exclude="stem"
        allow: prune what stays dense by default: embedding, tied-embedding, stem, depthwise, small, basis, output.
            Default: (). Example: allow="stem,output"
        tie_equal: weights that are equal, or equal up to a scale for each output, are one: the same zeros, counted
            once. Default: None. Example: tie_equal=True
        seed: for scores that draw numbers, and for which samples are taken (default 0). Example: seed=1
        level: the network sparsity in per cent, such as 70, of a target that knows levels: amba. Default: None.
            Example: level=70
        dims: the size of a dynamic dimension, such as dims={"height": 224}, or dims={"x.2": 224} for one without a
            name; multiply-accumulates need it, and the allocation energy asks for it. Default: None. Example:
            dims={"height": 224}
        plan: a plan written by onnxsparse plan, perhaps edited. Default: None. Example: plan="plan.yaml"
        masks: masks of your own: an .npz with one array for each tensor name, non-zero = keep; or a mapping of such
            arrays. Default: None. Example: masks="masks.npz"
        data: samples without labels, a few hundred: masks by what comes into each layer, and kept weights refitted
            to what the dense model gives. An .npz with one array for each input, first axis = samples; a folder of
            such files, or of images; an .npy for each input; or module:function, a function that yields
            dictionaries of arrays; or a mapping of arrays, such a function, a loader of batches, or a
            CalibrationDataReader of onnxruntime or polygraphy. Default: None. Example: data="samples.npz"
        samples: how many samples (default 256): of more, those that seed= draws. Example: samples=512
        solver: with samples, what the kept weights become: least-squares (default), obs, bias or zero. Example:
            solver="zero"
        sensitivity: with samples, how it is told what matters to the outputs: gradients (default) or measured.
            Example: sensitivity="measured"
        engine: what takes gradients: ort, torch, or auto (default): the first that is installed and takes the
            model. Example: engine="torch"
        budget: what the share is of, with the allocation sensitivity: params (default), bytes or macs. Example:
            budget="macs"
        max_loss: find the sparsity: the most zeros, or with N:M the fewest dense layers, by which no more than this
            is lost: points of the metric, 0.5, or a share of the dense model's, 1%. Default: None. Example:
            max_loss="1%"
        add_bias: a layer without a bias may get one, which is a new tensor in the file; the report lists each.
            Default: False. Example: add_bias=True
        joint_steps: how many steps all refitted layers move together at the end, towards the outputs of the dense
            model (default: 1500 for small networks, fewer or none for large ones; 0: none). Example:
            joint_steps=300
        labels: the array of the labels, where anything is measured (default: labels, label, targets, target or y).
            Example: labels="classes"
        eval_data: arrays to measure the dense model and the sparse one on. Default: None. Example:
            eval_data="held_out.npz"
        metrics: what is measured, the first for max_loss=: accuracy, top-5, r2, mae, mse, agreement, distance, or
            module:function, called as f(outputs, batch) for each batch (default: by the data); or such a function.
            Example: metrics=["accuracy"]
        batch_axis: INPUT=AXIS: the axis of the samples where it is not the first (default: the one named as such).
            Example: batch_axis={"state": 1}
        state: INPUT=OUTPUT: an input that is the output of the step before, in sequences of samples. Default: None.
            Example: state={"state": "stateN"}
        resize: HxW, to which images are scaled; what is too long on one side is cut off evenly (default: the size
            that the model declares). Example: resize="224x224"
        mean: what is taken from pixels between 0 and 1, a number or one for each channel. Default: None. Example:
            mean="0.485,0.456,0.406"
        std: what they are divided by then, in the same form. Default: None. Example: std="0.229,0.224,0.225"
        layout: NCHW or NHWC (default: by the model). Example: layout=NHWC
        workers: how many processes work side by side (default: one for each core); the bytes do not depend on it.
            Example: workers=2
        checkpoint: save what is found of the samples in this folder, layer by layer. Default: None. Example:
            checkpoint="run"
        resume: go on with the calibration in checkpoint=, to the same result. Default: False. Example: resume=True
        permute: put the channels in a better order first, so that the pattern N:M costs less. Default: False.
            Example: permute=True
        scores: scores of your own, for the order of the channels and for the masks: an .npz with one array for each
            weight that is pruned, by its name, of its shape, not negative; or a mapping of such arrays. Default:
            None. Example: scores="scores.npz"
        effort: how long is searched: quick (default) or thorough. Example: effort="thorough"
        unproven: go on without the proof in the runtime; the record says so. Default: False. Example: unproven=True
        strict: write nothing, with exit code 1, when a weight, or a part of one, stays dense that you did not
            exclude, or when there is nothing to prune. Default: False. Example: strict=True
        overwrite: replace the output if it exists. Default: False. Example: overwrite=True
    """
    given = dict(locals())
    request = requested(SparsityOptions.among(given), CalibrationOptions.given(given), plan, masks)
    source = taken(source)
    path = target_of(output, source, overwrite)
    order = permuting.Asked(
        pattern, target, include, exclude, allow, scores, effort, 0 if seed is None else seed, None, unproven
    )
    permuting.demand_alone(permute, order, {"--plan": plan, "--masks": masks})
    if scores is not None and data is not None:
        raise OptionError("--scores decides the masks, and so does --data; leave one of the two out")
    wanted = request, plan, masks, strict
    if not permute:
        return _pruned(_sized(source, dims), source, path, overwrite, wanted)
    dense = _sized(source, dims)
    demand_whole(planned(dense, plan, masks, request.zeros)[0], strict)  # before the search, which may take long
    found = permuting.asked_for(dense, order)
    facts = order_facts(found)
    with temporary() as folder:
        permuting.plant(dense, found)
        moved = _sized(permuting.write(dense, folder, "permuted"), dims)
        return _pruned(moved, source, path, overwrite, wanted, found, facts)


def _sized(source: Source, dims: Mapping[str, int] | None) -> Model:
    model = load(source)
    set_sizes(model, dims)
    return model


def _pruned(
    model: Model,
    source: Source,
    path: str | None,
    overwrite: bool,
    wanted: tuple[Request, Path | None, Masks | None, bool],
    found: permuting.Permuted | None = None,
    facts: tuple[dict[str, Any], tuple[str, ...]] = ({}, ()),
) -> Result:
    """A model with zeros; `found` is the order that its channels were put in before, `facts` what is said of it."""
    request, plan, masks, strict = wanted
    made, notes = planned(model, plan, masks, request.zeros)
    made, request = request.with_plan(made, plan)
    made = made if found is None else permuting.masked(made, found)
    demand_whole(made, strict)
    details: dict[str, Any] = {"permutation": facts[0]} if facts[0] else {}
    if request.asked is not None:
        demand_unread(path, model, request.options.data, request.options.eval_data)
        return _calibrated(model, called(source), path, overwrite, (made, request), [*notes, *facts[1]], details)
    report = planned_report("prune", called(source), made, model, (*notes, *facts[1]), path)
    report = replace(report, details=details)
    before = Before.of(model, PRUNE, [row.weight.tensor for row in made.planned])
    Prune(made)(model)
    record(model, made)
    return Result(*delivery.finish(model, report, path, overwrite, made, before=before))


def _calibrated(
    model: Model,
    name: str,
    path: str | None,
    overwrite: bool,
    wanted: tuple[Plan, Request],
    notes: Sequence[str],
    details: Mapping[str, Any],
) -> Result:
    """A model with zeros and refitted numbers by samples."""
    from onnxsparse.train.joint_refit import refitted_together  # what trains is loaded where there are samples

    made, request = wanted
    outcome = pruned(model, made, replace(request, together=refitted_together))
    found, remarks = outcome.calibrated, [*notes, *outcome.notes]
    assert found is not None
    done = delivery.deliver(
        model, found.plan, found.numbers, found.tags, path, overwrite,
        name=name, notes=remarks, details={**details, **outcome.details}, command="prune", biases=found.biases,
    )  # fmt: skip
    return Result(*done)


def with_masks(
    model: Model,
    made: Plan,
    notes: Sequence[str],
    name: str,
    path: str | None,
    *,
    form: str = "mul",
    strict: bool = False,
    overwrite: bool = False,
    moment: Mapping[str, Any] | None = None,
    forms: Sequence[Form] = (),
    details: Mapping[str, Any] | None = None,
) -> Result:
    """A model with the masks of a plan in its graph; `moment` is what is known of the schedule that they come from.

    `forms`: thresholds and soft masks in the place of masks, for all weights of the plan. `details` are what a report
    says beside its rows.
    """
    made = maskable(model, made)
    demand_whole(made, strict)
    report = planned_report("mask", name, made, model, notes, path)
    tensors = [row.weight.tensor for row in made.planned]
    report = replace(report, details=dict(details or {}))
    before = Before.of(model, SOFT, tensors, tensors) if forms else Before.of(model, MASK, tensors)
    record(model, made, MASKED)
    if moment:
        record_moment(model, moment)
        report = replace(
            report, details={**report.details, "moment": {key: moment[key] for key in MOMENT if key in moment}}
        )
    if forms:
        InsertSoft(forms)(model)
        demand_written(model, forms)
    else:
        InsertMasks(made, form)(model)
    return Result(*delivery.finish(model, report, path, overwrite, made, before=before))


def fold_masks(
    source: Source,
    *,
    output: Path | None = None,
    discard: bool = False,
    pattern: str | None = None,
    target: str | None = None,
    sparsity: float | str | None = None,
    plan: Path | None = None,
    include: Names = (),
    exclude: Names = (),
    allow: Names = (),
    level: float | str | None = None,
    dims: Mapping[str, int] | None = None,
    strict: bool = False,
    full: bool = False,
    overwrite: bool = False,
) -> Result:
    """Fold every mask in the graph into its weight and remove the nodes; with `discard` the masks are dropped.

    The result is held against the rule or the plan, else against the plan that the file records. Where it does not
    hold, `report.ok` is False, nothing is written, and there is no model.

    Arguments:
        source: the model: a path, its bytes, a ModelProto, or another model in memory; it is never changed.
        output: the model without masks to write; without it `Result.model` has it in memory. Default: None.
            Example: output="folded.onnx"
        discard: take the masks out and leave the weights as they are. Default: False. Example: discard=True
        pattern: every weight that this pattern (2:4, any N:M, unstructured, block:RxC, filter, channel, ...) would
            prune has to hold it. Default: None. Example: pattern="2:4"
        target: the same for the pattern of a device: ampere or ampere:PROFILE; amba or amba:CHIP; vnni. Default:
            None. Example: target="ampere"
        sparsity: the level, where the pattern takes one; without it each weight is held to the level that is
            recorded for it. Default: None. Example: sparsity=0.8
        plan: each weight has to have what this plan, written by onnxsparse plan, promised. Default: None. Example:
            plan="plan.yaml"
        include: only these: tensor or layer names, globs, re:PATTERN, operator kinds. Default: (). Example:
            include="head"
        exclude: all but these, in the same forms. Default: (). Example: exclude="stem"
        allow: prune what stays dense by default: embedding, tied-embedding, stem, depthwise, small, basis, output.
            Default: (). Example: allow="stem,output"
        level: the network sparsity in per cent that a target such as amba is held to (default: the recorded one).
            Example: level=70
        dims: the size of a dynamic dimension, such as dims={"height": 224}, or dims={"x.2": 224} for one without a
            name. Default: None. Example: dims={"height": 224}
        strict: it holds only if every weight, and every part of one, was checked that you did not exclude, no mask
            stays in the graph, and there is something to check against. Default: False. Example: strict=True
        full: evaluate all numbers of values over 64 MB that come to their node through arithmetic, not samples.
            Default: False. Example: full=True
        overwrite: replace the output if it exists. Default: False. Example: overwrite=True
    """
    source = taken(source)
    path = target_of(output, source, overwrite)
    rule = Rule.make(pattern, target, sparsity, include=include, exclude=exclude, allow=allow, level=level)
    named = None if plan is None else path_of(plan, "plan")
    check = CheckFold(rule, named, strict, full, dims or {}).demand(discard)
    model = load(source)
    set_sizes(model, dims)
    before = model.weights
    soft = soft_sites(model)
    tensors = [*(site.weight.tensor for site in model.flow.mask_sites), *(site.tensor for site in soft)]
    evaluated = Before.of(model, DISCARD if discard else FOLD, tensors, [site.tensor for site in soft])
    folded = FoldMasks(discard)(model) | FoldSoft(soft, discard)(model)
    beside = {leaf for site in soft for leaf in site.leaves.values()}
    listed = [weight for weight in before if weight.tensor not in beside]
    listed += [weight for weight in folded.outcome if weight not in set(before)]
    rows = [_folded(weight, folded.outcome.get(weight), discard) for weight in listed]
    if discard:
        model.drop_metadata(MASKED)
    elif not _left_of_record(model, [weight.name for weight in folded.left]):
        recount(model, {site.weight.name: zeros_made(site.tensor) for site in soft})
        settle(model)
    notes = () if folded.outcome else ("the graph holds no masks; the file is a copy",)
    totals = totals_of(rows, model, {"folded", "discarded"})
    title = "discard" if discard else "fold"
    report = Report("fold", called(source), title, tuple(rows), totals, True, path or "", notes)
    after = None if discard else check.after
    return Result(*delivery.finish(model, report, path, overwrite, before=evaluated, check=after))


def _left_of_record(model: Model, left: Sequence[str]) -> bool:
    """Whether a mask that the record in the file speaks of stays in the graph; those of others are none of its."""
    known = readable(model)
    return any(known is None or name in known.pruned for name in left)


def _folded(weight: Weight, reason: str | None, discard: bool) -> Row:
    if reason is None:
        return replace(plain_row(weight, "left"), reason="no mask is applied to it")
    if reason:
        return replace(plain_row(weight, "left"), reason=reason, advice="make every reader see one mask")
    return plain_row(weight, "discarded" if discard else "folded")


def verify(
    source: Source,
    *,
    pattern: str | None = None,
    target: str | None = None,
    sparsity: float | str | None = None,
    plan: Path | None = None,
    include: Names = (),
    exclude: Names = (),
    allow: Names = (),
    level: float | str | None = None,
    dims: Mapping[str, int] | None = None,
    strict: bool = False,
    full: bool = False,
) -> Result:
    """Check the zeros against a plan file, a pattern, a device, or what the model's metadata records.

    What holds in a tensor has to hold in the numbers that its nodes get, too; of very large ones behind arithmetic
    samples are looked at, with `full` all.

    Arguments:
        source: the model: a path, its bytes, a ModelProto, or another model in memory; it is never changed.
        pattern: every weight that this pattern (2:4, any N:M, unstructured, block:RxC, filter, channel, ...) would
            prune has to hold it. Default: None. Example: pattern="2:4"
        target: the same for the pattern of a device: ampere or ampere:PROFILE; amba or amba:CHIP; vnni. Default:
            None. Example: target="ampere"
        sparsity: the level, where the pattern takes one; without it each weight is held to the level that is
            recorded for it. Default: None. Example: sparsity=0.8
        plan: each weight has to have what this plan, written by onnxsparse plan, promised. Default: None. Example:
            plan="plan.yaml"
        include: only these: tensor or layer names, globs, re:PATTERN, operator kinds. Default: (). Example:
            include="head"
        exclude: all but these, in the same forms. Default: (). Example: exclude="stem"
        allow: prune what stays dense by default: embedding, tied-embedding, stem, depthwise, small, basis, output.
            Default: (). Example: allow="stem,output"
        level: the network sparsity in per cent that a target such as amba is held to (default: the recorded one).
            Example: level=70
        dims: the size of a dynamic dimension, such as dims={"height": 224}, or dims={"x.2": 224} for one without a
            name. Default: None. Example: dims={"height": 224}
        strict: it holds only if every weight, and every part of one, was checked that you did not exclude. Default:
            False. Example: strict=True
        full: evaluate all numbers of values over 64 MB that come to their node through arithmetic, not samples.
            Default: False. Example: full=True
    """
    source = taken(source)
    model = _look(source)
    if isinstance(source, ModelProto) and soft_sites(model):
        model = load(source)  # folding changes a model, and this one is the caller's
    folded = as_folded(model)  # what arrives is what is to be checked
    model = folded or model
    set_sizes(model, dims)
    rule = Rule.make(pattern, target, sparsity, include=include, exclude=exclude, allow=allow, level=level)
    report = Verify(called(source), rule, None if plan is None else path_of(plan, "plan"), strict, full)(model)
    if folded is not None:
        report = replace(report, notes=(*dict.fromkeys((*report.notes, MASKED_STILL)),))
    return Result(report)


def quantize(
    source: Source,
    *,
    data: Any = None,
    output: Path | None = None,
    samples: int | None = None,
    scheme: str = "int8",
    target: str | None = None,
    dynamic: bool = False,
    block: int | None = None,
    asymmetric: bool = False,
    per_tensor: bool = False,
    observer: str = "minmax",
    reduce_range: bool = False,
    refine: str | None = None,
    scales: Path | None = None,
    max_loss: float | str | None = None,
    include: Names = (),
    exclude: Names = (),
    labels: str | None = None,
    eval_data: Any = None,
    metrics: Sequence[str | Callable[..., Any]] = (),
    batch_axis: Axes = None,
    state: Axes = None,
    dims: Mapping[str, int] | None = None,
    resize: str | Sequence[int] | None = None,
    mean: str | float | Sequence[float] | None = None,
    std: str | float | Sequence[float] | None = None,
    layout: str | None = None,
    overwrite: bool = False,
) -> Result:
    """Make weights and values integers, with scales from samples; every zero of a weight stays exactly zero.

    Arguments:
        source: the model: a path, its bytes, a ModelProto, or another model in memory; it is never changed.
        data: samples, as the model is fed: an .npz with one array for each input, first axis = samples; a folder of
            such files, or of images; an .npy for each input; or module:function, a function that yields
            dictionaries of arrays; or a mapping of arrays, such a function, or a CalibrationDataReader of
            onnxruntime. Default: None. Example: data="samples.npz"
        output: the quantized model to write; without it `Result.model` has it in memory. Default: None. Example:
            output="int8.onnx"
        samples: how many samples (default: all). Example: samples=256
        scheme: int8 (default): weights and what flows between layers; w8 or w4: weights alone, in 8 or 4 bits.
            Example: scheme="w4"
        target: a device whose rules hold: ampere (TensorRT: symmetric values) or vnni (CPUs). Default: None.
            Example: target="ampere"
        dynamic: round what goes into products by the range that it has in each run, without samples: for
            transformers on CPUs. Default: False. Example: dynamic=True
        block: of w4 and w8: so many neighbours along the inputs have a scale of their own (default: 32 for w4, none
            for w8). Example: block=64
        asymmetric: of w4 and w8: unsigned integers, with a zero point beside each scale. Default: False. Example:
            asymmetric=True
        per_tensor: one scale for each weight, in place of one for each of its outputs. Default: False. Example:
            per_tensor=True
        observer: how the range of a value is found: minmax (default), mse, moving-average, percentile or entropy.
            Example: observer="mse"
        reduce_range: weights of 7 bits, for CPUs without VNNI, where sums of products of 8 bits saturate. Default:
            False. Example: reduce_range=True
        refine: what keeps the result near the float model, of equalize, rounding and bias, or none (default:
            equalize,bias; for weights alone rounding,bias, if there are samples). Example: refine="rounding,bias"
        scales: scales that exist already: of a file with QuantizeLinear and DequantizeLinear, a calibration cache
            of TensorRT, or JSON. Default: None. Example: scales="calibration.cache"
        max_loss: leave the most sensitive layers in float until no more than this is lost: points of the metric,
            0.5, or a share of the float model's, 1%. Default: None. Example: max_loss=0.5
        include: only these: tensor or layer names, globs, re:PATTERN, operator kinds. Default: (). Example:
            include="head"
        exclude: all but these, in the same forms: they stay in float. Default: (). Example: exclude="stem"
        labels: the array of the labels (default: labels, label, targets, target or y). Example: labels="classes"
        eval_data: arrays to measure the float model and the quantized one on. Default: None. Example:
            eval_data="held_out.npz"
        metrics: what is measured: accuracy, top-5, r2, mae, mse, agreement, distance, or module:function, called as
            f(outputs, batch) for each batch (default: by the data); or such a function. Example:
            metrics=["accuracy"]
        batch_axis: INPUT=AXIS: the axis of the samples where it is not the first (default: the one named as such).
            Example: batch_axis={"state": 1}
        state: INPUT=OUTPUT: an input that is the output of the step before, in sequences of samples. Default: None.
            Example: state={"state": "stateN"}
        dims: the size of a dynamic dimension, such as dims={"height": 224}, or dims={"x.2": 224} for one without a
            name, for multiply-accumulates. Default: None. Example: dims={"height": 224}
        resize: HxW, to which images are scaled; what is too long on one side is cut off evenly (default: the size
            that the model declares). Example: resize="224x224"
        mean: what is taken from pixels between 0 and 1, a number or one for each channel. Default: None. Example:
            mean="0.485,0.456,0.406"
        std: what they are divided by then, in the same form. Default: None. Example: std="0.229,0.224,0.225"
        layout: NCHW or NHWC (default: by the model). Example: layout=NHWC
        overwrite: replace the output if it exists. Default: False. Example: overwrite=True
    """
    source = taken(source)
    path = target_of(output, source, overwrite)
    asked = Asked(
        scheme,
        target or "",
        dynamic,
        block,
        asymmetric,
        per_tensor,
        observer,
        reduce_range,
        scales,
        refine,
        include,
        exclude,
    )
    limit = None if max_loss is None else MaxLoss.parse(max_loss)
    chosen = [metrics] if isinstance(metrics, str) or callable(metrics) else list(metrics or ())
    model = load(source)
    demand_unread(path, model, data, eval_data, scales)
    data, eval_data = as_images([data, eval_data], resize, mean, std, layout)
    given = Samples(data, samples, labels, eval_data, chosen, limit)
    set_sizes(model, dims)
    axes = sample_axes(model, batch_axis, state)
    return Result(*quantized(model, called(source), asked, given, axes, path, overwrite))


def compare(
    dense: Source,
    sparse: Source,
    *,
    data: Path | Mapping[str, Any] | None = None,
    samples: int | None = None,
    resize: str | Sequence[int] | None = None,
    mean: str | float | Sequence[float] | None = None,
    std: str | float | Sequence[float] | None = None,
    layout: str | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | Names | None = None,
    axis: int | str | Mapping[str, int] | None = None,
    batch_axis: Mapping[str, int] | Names | None = None,
    state: Mapping[str, str] | Names | None = None,
) -> Result:
    """Run both models on the same inputs (random ones when there is no data) and measure how far all outputs are.

    `axis` is that of the classes, of all outputs or by output; `batch_axis` that of the samples by input, and `state`
    the output that is an input's next value in a sequence. The models run in a process of their own.

    Arguments:
        dense: the model to compare with: a path, its bytes, a ModelProto, or another model in memory.
        sparse: the model that is compared, in the same forms.
        data: an .npz with arrays named as the inputs, or an .npy for the only one, first axis = samples; or a
            folder of images (default: random inputs); or a mapping of arrays. Example: data="samples.npz"
        samples: how many samples (default: all of the data, or 8 random ones). Example: samples=64
        resize: HxW, to which images are scaled; what is too long on one side is cut off evenly (default: the size
            that the model declares). Example: resize="224x224"
        mean: what is taken from pixels between 0 and 1, a number or one for each channel. Default: None. Example:
            mean="0.485,0.456,0.406"
        std: what they are divided by then, in the same form. Default: None. Example: std="0.229,0.224,0.225"
        layout: NCHW or NHWC (default: by the model). Example: layout=NHWC
        seed: for random inputs (default 0). Example: seed=1
        dims: the size of a dynamic dimension for random inputs, such as dims={"height": 224}, by its name or as
            INPUT.AXIS (default: chosen by what the model needs, and said). Example: dims={"height": 224}
        axis: the axis of the classes: of all outputs, axis=1, or of one, axis={"logits": -1} (default: the one that
            the graph says). Example: axis={"logits": -1}
        batch_axis: INPUT=AXIS: the axis of the samples where it is not the first (default: the one named as such).
            Example: batch_axis={"state": 1}
        state: INPUT=OUTPUT: an input that is the output of the step before, in sequences of samples. Default: None.
            Example: state={"state": "stateN"}
    """
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 1):
        raise OptionError(f"samples is a number from 1, not {brief(samples)}")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise OptionError(f"a seed is a whole number from 0 to 2**64 - 1, not {str(seed)[:40]}")
    if data is not None and dims:
        raise OptionError("--dim gives random inputs their sizes; arrays have theirs, so leave one of the two out")
    dense, sparse = taken(dense), taken(sparse)
    model = Model.open(dense)
    for one in (model, Model.open(sparse)):  # a file that is not a model is said in our own words
        one.demand_checksums()
    set_sizes(model, dims)
    axes = sample_axes(model, batch_axis, state)
    (found,) = as_images([data], resize, mean, std, layout)
    if isinstance(found, Images):
        found = found.arrays(fields_of(model, axes), samples)
    return Result(Compare(called(dense), sparse, called(sparse), axes, axis, found, samples, seed)(model))


__all__ = ["Result", "analyze", "compare", "fold_masks", "inspect", "load", "plan", "prune", "quantize", "verify"]
