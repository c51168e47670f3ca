"""Inserting masks into the graph: by a rule, by MSBench's configuration at a step, or by a recipe at an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onnxsparse.api import Result, load, with_masks
from onnxsparse.dialects.msbench import build_sparse_scheduler
from onnxsparse.dialects.msbench.configuration import Source as Config
from onnxsparse.dialects.msbench.masking import When
from onnxsparse.dialects.msbench.masking import insert_masks as insert_by_config
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model, Source
from onnxsparse.options import Axes, CalibrationOptions, MaskOptions, Masks, Names, Path, SparsityOptions, options_of
from onnxsparse.passes.calibrated_pruning import demand_refit, masked, pruned, requested
from onnxsparse.passes.delivery import called, target_of
from onnxsparse.passes.fold_masks import MaskedBefore, open_without_masks
from onnxsparse.passes.sources import taken
from onnxsparse.planning.macs import set_sizes
from onnxsparse.planning.plan import Plan, PlanRow, eligible
from onnxsparse.planning.request import path_of, planned
from onnxsparse.planning.rule import WORDS, Rule
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.modifiers.modifier import Scheduled
from onnxsparse.recipes.modifiers.pruning import Pruning
from onnxsparse.recipes.modifiers.training import Training
from onnxsparse.train.masks_at_epoch import at_epoch, held_by
from onnxsparse.train.task import sparsity_options

BY_CONFIG, BY_RECIPE = ("iteration", "expected"), ("epoch", "steps_per_epoch")
UNMASKED = "nothing of it is masked at this moment"
SMALL = "has masks at this epoch, and none in the graph: it is no weight"


def insert_masks(
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
    config: Config | None = None,
    iteration: int | None = None,
    expected: bool = False,
    recipe: Recipe | Path | None = None,
    epoch: float | None = None,
    steps_per_epoch: int | None = None,
    form: str = "mul",
    strict: bool = False,
    overwrite: bool = False,
) -> Result:
    """Put a mask-multiply before every weight that the same options would prune; the weights stay as they are.

    With `config`, a configuration of MSBench, the masks are those of its scheduler at an `iteration` or a `level`, or
    at the end; with `recipe` those at an `epoch`, or at the end. Of a masked file they are the next masks.

    Arguments:
        source: the model: a path, its bytes, a ModelProto, or another model in memory; it is never changed.
        output: the masked model to write; without it `Result.model` has it in memory. Default: None. Example:
            output="masked.onnx"
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
        config: a configuration of MSBench, with mask_generator, fake_sparse and scheduler: the masks that it has at
            a moment; a path or a mapping. Default: None. Example: config="sparsity.yaml"
        iteration: before which iteration of config=; without it and without level=, at the end of the schedule.
            Default: None. Example: iteration=500
        expected: of masks that are drawn: the most probable numbers, in place of a draw. Default: False. Example:
            expected=True
        recipe: what a recipe of SparseML has masked at a moment; a path or a Recipe. Default: None. Example:
            recipe="recipe.md"
        epoch: before the step at which epoch of recipe=; without it, at the end of the recipe. Default: None.
            Example: epoch=1.5
        steps_per_epoch: the steps by which the recipe's clock goes; without it, its times are met exactly. Default:
            None. Example: steps_per_epoch=100
        form: mul (default): a mask of the weight's type. bool or uint8: a small mask and a Cast. where: Where(mask,
            weight, 0). Example: form="where"
        strict: write nothing, with exit code 1, when a weight, or a part of one, stays dense that you did not
            exclude, or when there is nothing to prune. Default: False. Example: strict=True
        overwrite: replace the output if it exists. Default: False. Example: overwrite=True
    """
    given = dict(locals())
    demand_refit("mask", add_bias, joint_steps)
    source = taken(source)
    finish: dict[str, Any] = {"output": output, "form": form, "strict": strict, "overwrite": overwrite}
    zeros = [name for name in options_of(SparsityOptions) if name not in ("target", "level")] + ["plan", "masks"]
    if config is not None:
        _refuse("config", given, [*zeros, *BY_RECIPE, "recipe"])
        when = When.of(iteration, level, target, expected)
        return insert_by_config(build_sparse_scheduler(config), source, when=when, dims=dims, **finish)
    _demand("config", given, BY_CONFIG)
    if recipe is not None:
        _refuse("recipe", given, [*zeros, "level", "target"])
        return _by_recipe(source, recipe, _epoch(epoch), _steps(steps_per_epoch), dims, **finish)
    _demand("recipe", given, BY_RECIPE)
    path = target_of(output, source, overwrite)
    request = requested(SparsityOptions.among(given), CalibrationOptions.given(given), plan, masks)
    model = load(source)
    set_sizes(model, dims)
    made, notes = planned(model, plan, masks, request.zeros)
    made, request = request.with_plan(made, plan)
    if request.asked is None:
        return with_masks(model, made, notes, called(source), path, form=form, strict=strict, overwrite=overwrite)
    outcome = pruned(model, made, request, refitted=False)
    assert outcome.calibrated is not None
    made, said, name = masked(outcome.calibrated), [*notes, *outcome.notes], called(source)
    finish["details"] = outcome.details
    finish.pop("output")
    return with_masks(model, made, said, name, path, **finish)


def _refuse(source: str, given: Mapping[str, Any], names: Sequence[str]) -> None:
    said = [_flag(name) for name in names if given[name] not in (None, (), [])]
    if said:
        raise OptionError(f"{_flag(source)} says what is masked; leave {', '.join(said)} out")


def _demand(source: str, given: Mapping[str, Any], names: Sequence[str]) -> None:
    said = [_flag(name) for name in names if given[name] is not None and given[name] is not False]
    if said:
        raise OptionError(f"{', '.join(said)} goes with {_flag(source)}; pass that too")


def _flag(name: str) -> str:
    return options_of(MaskOptions)[name].flags[-1]


def _epoch(epoch: Any) -> float | None:
    if epoch is None:
        return None
    try:
        found = -1.0 if isinstance(epoch, bool) else float(epoch)
    except (TypeError, ValueError):
        found = -1.0
    if not 0 <= found < math.inf:
        raise OptionError(f"--epoch is a number from 0, not {epoch!r:.40}")
    return found


def _steps(steps: Any) -> int | None:
    if steps is None or (isinstance(steps, int) and not isinstance(steps, bool) and steps > 0):
        return steps
    raise OptionError(f"--steps-per-epoch is a whole number from 1, not {steps!r:.40}")


# -- by a recipe


def _by_recipe(
    source: Source,
    recipe: Recipe | Path,
    epoch: float | None,
    per_epoch: int | None,
    dims: Mapping[str, int] | None,
    output: Path | None,
    form: str,
    strict: bool,
    overwrite: bool,
) -> Result:
    path = target_of(output, source, overwrite)
    loaded = recipe if isinstance(recipe, Recipe) else Recipe.load(path_of(recipe, "recipe"))
    model, before = open_without_masks(source)
    set_sizes(model, dims)
    driven = loaded.driven()
    timed = [one for one in driven.modifiers if isinstance(one, Scheduled)]
    made, notes = _timed(model, timed, epoch, per_epoch, before) if timed else _at_the_end(model, driven, epoch)
    moment: dict[str, Any] = {"recipe": loaded.to_yaml(), **({} if epoch is None else {"epoch": epoch})}
    at = "at its end" if epoch is None else f"at epoch {epoch:g}"
    said = [*driven.notes, *notes, f"masks of the recipe {at}"]
    return with_masks(
        model, made, said, called(source), path, form=form, strict=strict, overwrite=overwrite, moment=moment
    )


def _at_the_end(model: Model, recipe: Recipe, epoch: float | None) -> tuple[Plan, list[str]]:
    """A recipe that goes by the share of a run: what it comes to."""
    if epoch is not None:
        raise OptionError("the recipe prunes by the share of a run, not by epochs: leave --epoch out")
    pruning = recipe.only(Pruning)
    if pruning.pattern is None and pruning.target is None:
        raise OptionError("the recipe prunes nothing: it has no modifier with masks")
    asked = sparsity_options(pruning, None, None, recipe.only(Training))
    return planned(model, None, None, asked)


def _timed(
    model: Model, modifiers: Sequence[Scheduled], epoch: float | None, per_epoch: int | None, before: MaskedBefore
) -> tuple[Plan, list[str]]:
    found = at_epoch(model, modifiers, epoch, per_epoch, before.masks)
    rule = Rule.make()
    base = eligible(model, Rule.make("unstructured", allow=tuple(WORDS)))
    rows = []
    for row in base.rows:
        tag = row.weight.tag
        keep = found.masks.get(tag)
        if keep is None:
            reason = row.reason if row.weight.refusal else UNMASKED
            rows.append(PlanRow(row.weight, reason=reason, chosen=not row.weight.refusal))
        else:
            pattern, drop = held_by(found.patterns[tag], row.weight.uses[0].matrix(~keep))
            rows.append(PlanRow(row.weight, pattern, drop, keep=np.ascontiguousarray(keep)))
    weights = {row.weight.tag for row in base.rows}
    small = [param.name for param in found.params if param.tag in found.masks and param.tag not in weights]
    return Plan(tuple(rows), replace(rule)), [f"'{name}' {SMALL}" for name in small]
