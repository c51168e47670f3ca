"""`create_recipe`: the recipe that fits a stored model, its data and a target, or a torch module.

    osp.create_recipe("model.onnx", data="samples.npz", target="ampere", output="recipe.yaml")
    osp.finetune("model.onnx", data="samples.npz", recipe="recipe.yaml", output="sparse.onnx")

1. Weights are those that `plan` would prune for the target: what its hardware cannot use stays dense, and so does what
   stays dense by default. The head of the text says which these are, and why.
2. A target of levels gives every layer its own, by the energy that goes with its smallest numbers.
3. With samples every layer has the level that costs the outputs of the model least together with the others, by their
   sensitivity (see `calibration/sensitivity`); where no engine can tell it, all have one, and the text says so.
4. Few samples are gone through more often: about 3000 steps, from 4 epochs to 40. The learning rate begins at 0.01, and
   lower where there are few steps in all, too few for the masks to settle after large ones.
5. It is read back and held against the model before it is handed out.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from onnxsparse.api import load
from onnxsparse.data import Samples, Stream, open_data
from onnxsparse.data.images import as_images
from onnxsparse.data.samples import held_out
from onnxsparse.dialects.create.loop import for_layers
from onnxsparse.dialects.create.recipe_text import (
    CONSTANT,
    MAGNITUDE,
    Params,
    Wanted,
    mask_of,
    method_of,
    text_of,
    truth,
)
from onnxsparse.dialects.create.schemas import TENSORRT, Given, RecipeVariables, variables_of
from onnxsparse.errors import MissingExtraError, ModelError, OptionError, nearest
from onnxsparse.files import check_target, write_text
from onnxsparse.graph.model import Model
from onnxsparse.options import Names, Path
from onnxsparse.passes.calibrate import calibrating
from onnxsparse.passes.calibration_asked import SAMPLES, Asked
from onnxsparse.passes.delivery import called
from onnxsparse.passes.sources import taken
from onnxsparse.planning.model_inputs import fields_of, sample_axes
from onnxsparse.planning.plan import Plan, PlanRow, make_plan
from onnxsparse.planning.request import path_of
from onnxsparse.planning.rule import Rule, read_sparsity
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.modifiers.modifier import Scheduled
from onnxsparse.recipes.modifiers.training import Training
from onnxsparse.recipes.plan_by_epochs import by_epochs, params_of

STEPS, FEWEST, MOST = 3000, 4, 40
"""How many steps a recipe is to have, and from how many epochs to how many that may make."""
RATE, SLOWEST = 0.01, 1e-3
PATTERNS = {"block4": "tile:1x4"}
"""The patterns of mask types that are called otherwise in SparseML."""
STDOUT = "-"


@dataclass(frozen=True)
class Size:
    """How many samples there are, as far as it is known, and what a step takes of them."""

    samples: int | None = None
    batch: int = Training.batch

    @property
    def steps(self) -> float | None:
        """Of an epoch, without the samples that are held out."""
        if self.samples is None:
            return None
        return float(max(1, (self.samples - held_out(self.samples)) // self.batch))


def create_recipe(
    source: Any,
    *,
    output: Path | None = None,
    data: Any = None,
    pruning: bool | str = True,
    quantization: bool | str = False,
    distillation: bool | str = False,
    target: str | None = None,
    sparsity: float | str | None = None,
    epochs: float | None = None,
    lr: float | None = None,
    lr_schedule: str | None = None,
    include: Names = (),
    exclude: Names = (),
    allow: Names = (),
    variables: Given = None,
    data_size: int | None = None,
    batch_size: int | None = None,
    overwrite: bool = False,
) -> Recipe:
    """Make the recipe that fits a model, its data and a target; `finetune` runs it, and so does SparseML's manager.

    Arguments:
        source: the model: a path, its bytes, a ModelProto, or another model in memory; or a torch module.
        output: the recipe to write, as text with its variables; without it nothing is written. Example:
            output="recipe.yaml"
        data: the samples that it is to be trained on, as finetune takes them: their number says how long, and 256
            of them how much of each layer goes. Example: data="samples.npz"
        pruning: True, False, "acdc", "mfac", "movement", "obs", or "constant", which keeps the zeros that the model
            has. Example: pruning="acdc"
        quantization: whether the last epochs train in 8 bits. Example: quantization=True
        distillation: whether the dense model teaches beside the labels. Example: distillation=True
        target: ampere or ampere:PROFILE (tensorrt is ampere), amba or amba:CHIP, vnni. Example: target="ampere"
        sparsity: the share that goes, 0.8 by default; 2:4 fixes its own. Example: sparsity=0.9
        epochs: how long it lasts (default: by the number of samples). Example: epochs=10
        lr: the learning rate at the start (default: by the number of steps). Example: lr=0.01
        lr_schedule: linear (default), cosine or cyclic_linear. Example: lr_schedule="cosine"
        include: only these weights, as in finetune. Example: include="head"
        exclude: all but these, in the same forms. Example: exclude="stem"
        allow: prune what stays dense by default. Example: allow="stem"
        variables: further values of create.RecipeVariables, as a mapping. Example: variables={"hardness": 0.8}
        data_size: the number of samples, in place of the data. Example: data_size=50000
        batch_size: samples of one step (default 32). Example: batch_size=64
        overwrite: replace the output if it exists. Example: overwrite=True
    """
    quantized, taught = truth(quantization, "quantization"), truth(distillation, "distillation")
    given = {"sparsity": read_sparsity(sparsity), "num_epochs": epochs, "init_lr": lr, "target": target}
    told = _joined(variables, {name: value for name, value in given.items() if value is not None})
    to_file = None if output is None else path_of(output, "output")
    if to_file is not None and to_file != STDOUT:
        check_target(to_file, overwrite)
    module = hasattr(source, "named_modules")
    model = None if module else load(taken(source))
    if to_file is not None and model is not None and os.path.realpath(to_file) in map(os.path.realpath, model.inputs):
        raise OptionError(f"{to_file} is a file of the model itself; choose another name")
    samples = None if model is None or data is None else _opened(model, data)
    size = Size(_counted(model, data, samples, data_size), batch_size or Training.batch)
    _settle(told, size)
    wanted = Wanted(
        method_of(pruning, quantized), quantized, lr_schedule or "linear", taught, told, steps_per_epoch=size.steps
    )
    filters = Rule.make(include=include, exclude=exclude, allow=allow)
    wanted = for_layers(source, wanted) if model is None else _for_weights(model, wanted, filters, samples)
    name = type(source).__name__ if model is None else os.path.basename(called(taken(source)))
    text = text_of(replace(wanted, notes=(f"made by onnxsparse for {name}", *wanted.notes)))
    recipe = Recipe.from_yaml(text, "the recipe that was made")
    if model is not None and not recipe.not_applied:
        by_epochs(model, [one for one in recipe.modifiers if isinstance(one, Scheduled)])
    if to_file == STDOUT:
        sys.stdout.write(text)
    elif to_file is not None:
        write_text(to_file, text, overwrite)
    return recipe


def _joined(variables: Given, given: Mapping[str, Any]) -> RecipeVariables:
    """The variables of a call, with what its own arguments say; neither object is the caller's."""
    known = RecipeVariables().dict()
    unknown = next((str(name) for name in variables if name not in known), "") if isinstance(variables, Mapping) else ""
    if unknown:
        hint = nearest(unknown, known) or f" (known: {', '.join(known)})"
        raise OptionError(f"--variables: {unknown:.40} is none of those that a recipe is created with{hint}")
    first = variables_of(variables)
    twice = next((name for name in given if name in first.fields_set), None)
    if twice is not None:
        raise OptionError(f"{twice} is said twice, by the variables and by an option; leave one of them out")
    return variables_of({**{name: getattr(first, name) for name in first.fields_set}, **given})


def _settle(told: RecipeVariables, size: Size) -> None:
    """How long and how fast, where nobody says it."""
    steps = size.steps
    if steps is None:
        return
    if "num_epochs" not in told.fields_set:
        told.num_epochs = float(min(MOST, max(FEWEST, math.ceil(STEPS / steps))))
    if "init_lr" not in told.fields_set:
        rate = max(SLOWEST, min(RATE, RATE * told.num_epochs * steps / STEPS))
        told.init_lr = float(f"{rate:.1g}")


def _opened(model: Model, data: Any) -> Samples | Stream:
    (source,) = as_images([data])
    return open_data(source, fields_of(model, sample_axes(model, None, None)))


def _counted(model: Model | None, data: Any, found: Samples | Stream | None, data_size: int | None) -> int | None:
    """How many samples there are; of a function that gives batches nobody knows."""
    if data_size is not None:
        if data_size < 1:
            raise OptionError(f"--data-size is a whole number from 1, not {data_size}")
        return data_size
    if data is None:
        return None
    if model is None:
        raise OptionError("the data of a torch module is its script's: pass --data-size")
    return found.count if isinstance(found, Samples) else None


def _for_weights(model: Model, wanted: Wanted, filters: Rule, samples: Samples | Stream | None = None) -> Wanted:
    """The same for the weights that a target can use and that nothing holds back."""
    if not wanted.prunes:
        known = params_of(model)
        if wanted.method == CONSTANT and not any(param.prunable and not param.refusal for param in known):
            first = next((f", such as {param.name}: {param.refusal}" for param in known if param.refusal), "")
            raise OptionError(f"the model has no weight whose zeros could be kept{first}")
        return wanted
    target = wanted.variables.target
    device = None if target is None else target.replace(TENSORRT, "ampere", 1)
    leveled = device is not None and mask_of(device) == "unstructured"
    plan = make_plan(model, _rule(wanted, device, filters))
    cannot = {param.tag: param.refusal for param in params_of(model) if param.refusal}
    planned = [row for row in plan.planned if row.weight.tag not in cannot]
    if not planned:
        reasons = [(row.name, _why(row, cannot)) for row in plan.rows]
        first = next((f", such as {name}: {reason}" for name, reason in reasons if reason), "")
        raise OptionError(f"the model has no weight that can be pruned so{first}")
    notes = [f"{row.name} stays dense: {_why(row, cannot)}" for row in plan.rows if row not in planned]
    params: Params = [row.name for row in planned]
    free = wanted.method == MAGNITUDE and "global_sparsity" not in wanted.variables.fields_set
    if isinstance(samples, Samples) and free and not leveled and _is_spread(plan):
        planned, said = _by_sensitivity(model, replace(plan, rows=tuple(planned)), samples)
        leveled, notes = not said, [*notes, *said]
    if leveled and wanted.method != "acdc":
        params = _levels(planned)
    return replace(wanted, params=params, notes=(*wanted.notes, *notes))


def _is_spread(plan: Plan) -> bool:
    """Whether a level is to be shared out."""
    pattern = plan.rule.pattern
    return pattern is not None and pattern.name == "unstructured"


def _by_sensitivity(model: Model, plan: Plan, samples: Samples) -> tuple[list[PlanRow], list[str]]:
    """The planned weights with the levels that cost the outputs least; without an engine as they are, and why."""
    asked = Asked(samples.drawn(SAMPLES, 0))
    try:
        with calibrating(model, plan, asked, sample_axes(model, None, None)) as calibration:
            return calibration.leveled(asked).planned, []
    except (MissingExtraError, ModelError) as error:
        return plan.planned, [f"all layers have one level, because their sensitivity is not known: {error}"]


def _rule(wanted: Wanted, device: str | None, filters: Rule) -> Rule:
    share = None if wanted.level is not None else wanted.variables.sparsity
    mask = wanted.mask_type
    shape = f"block:{mask[0]}x{mask[1]}" if isinstance(mask, tuple) else PATTERNS.get(mask, mask)
    pattern = None if device is not None else shape.replace(TENSORRT, "2:4")
    made = Rule.make(pattern, device, share)
    return replace(made, names=filters.names, allow=made.allow | filters.allow).demand()


def _why(row: PlanRow, cannot: Mapping[str, str]) -> str:
    return " ".join((cannot.get(row.weight.tag) or row.reason).split())


def _levels(planned: list[PlanRow]) -> dict[float, list[str]]:
    """Names by level, in whole per cents; what keeps nearly all of its numbers is not among them."""
    found: dict[float, list[str]] = {}
    for row in planned:
        level = round(min(0.99, row.sparsity or 0.0), 2)
        if level > 0:
            found.setdefault(level, []).append(row.name)
    return dict(sorted(found.items()))
