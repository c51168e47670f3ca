"""Sparsify Create's `initialize`: a recipe made for a torch module, and put around the steps of its training loop.

    manager, optimizer = create.initialize(model, optimizer, len(loader), pruning="acdc")
    for epoch in range(manager.max_epochs): ...       # the loop as it was

1. The recipe is one of `recipe_text`, for the weights that `for_layers` chooses; `print(manager)` shows it.
2. What comes back is the manager, and the scaler or optimizer with the recipe around its steps.
3. With `distillation` the teacher is a copy of the module as it is now, unless another one is given; it counts in the
   loop as it stands, through the gradients at the outputs of the module, and is silent where `loss_update` is called.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace
from typing import Any

from onnxsparse.acts.params import WEIGHT, Param
from onnxsparse.dialects.create.recipe_text import CONSTANT, GROUP, Wanted, mask_of, method_of, text_of, truth
from onnxsparse.dialects.create.schemas import Given, variables_of
from onnxsparse.dialects.sparseml import RecipeManagerStepWrapper, ScheduledModifierManager
from onnxsparse.dialects.sparseml.arguments import demand_accumulation, demand_steps
from onnxsparse.dialects.sparseml.recipe_manager import held_inside
from onnxsparse.engines.torch.attach import bare_module, demand_free
from onnxsparse.errors import OptionError, brief
from onnxsparse.recipes.modifiers.distillation import DISABLE, SELF
from onnxsparse.recipes.modifiers.masked import UNSTRUCTURED, no_unit
from onnxsparse.train.module_trainee import params_of

LOG = logging.getLogger("onnxsparse")
STAYS = "Create does not prune"
ENDS = ("input", "output")
"""Layers with such a word in their own name stay dense."""


def initialize(
    model: Any,
    optimizer: Any,
    steps_per_epoch: float,
    pruning: bool | str | None = True,
    quantization: bool | str = True,
    lr: str = "linear",
    distillation: bool = False,
    distillation_teacher: Any = None,
    scaler: Any = None,
    recipe_variables: Given = None,
    *,
    accumulation: int = 1,
    grad_sampler: Any = None,
    loggers: Any = None,
    calibration_dataloader: Any = None,
    calibration_function: Any = None,
) -> tuple[ScheduledModifierManager, RecipeManagerStepWrapper]:
    """Make a recipe for a module, and put it around the steps of its optimizer, or of the scaler of its gradients.

    Arguments:
        model: the torch module that is trained, before DistributedDataParallel or wrapped.
        optimizer: its optimizer.
        steps_per_epoch: how often the optimizer steps in an epoch: `len(loader)`, by the batches of one step.
        pruning: True, False, "acdc", "mfac", "movement", "obs", or "constant", which "transfer" and "sparse-transfer"
            mean, too: it keeps the zeros that the model has.
        quantization: whether the last epochs train with weights and values rounded to 8 bits.
        lr: how the learning rate goes: "linear", "cosine" or "cyclic_linear".
        distillation: whether a teacher is learned from beside the loss of the script.
        distillation_teacher: the teacher, a module or an ONNX file; without it the module as it is now.
        scaler: the GradScaler whose `step` stands for that of the optimizer; then it is what comes back.
        recipe_variables: a `RecipeVariables`, or a mapping of its names to values.
        accumulation: over how many batches a step averages its loss; the teacher counts in each of them.
        grad_sampler: for "obs" and "mfac", how gradients of samples are made: a dict with `data_loader_builder` and
            `loss_function`; without it they take those of the script's own steps.
        loggers: who is told of rates and sparsities, as `ScheduledModifierManager.modify` takes them.
        calibration_dataloader: batches that give the first ranges of what is rounded.
        calibration_function: what runs one of them, called with a batch and `module=`.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        demand_steps(steps_per_epoch)
        demand_accumulation(accumulation)
        if scaler is not None and not callable(getattr(scaler, "step", None)):
            raise OptionError(
                f"scaler is a GradScaler, whose step stands for that of the optimizer, not {brief(scaler)}"
            )
        taught, quantized = truth(distillation, "distillation"), truth(quantization, "quantization")
        wanted = Wanted(
            method_of(pruning, quantized), quantized, lr, taught, variables_of(recipe_variables),
            steps_per_epoch=steps_per_epoch, sampled=grad_sampler is not None,
        )  # fmt: skip
        text = text_of(for_layers(model, wanted))
        if method_of(pruning, False) == CONSTANT and not _has_zeros(model):
            LOG.warning("pruning %r keeps the zeros that the model has, and it has none", pruning)
        LOG.info("created recipe:\n%s", text)
        manager = ScheduledModifierManager.from_yaml(text)
        manager.counts_in_backward, manager.accumulation = taught, accumulation
        if distillation_teacher is not None and not taught:
            warnings.warn("distillation_teacher is not used: distillation is False", stacklevel=1)
        teacher = (SELF if distillation_teacher is None else distillation_teacher) if taught else DISABLE
        wrapped = manager.modify(
            model, optimizer, steps_per_epoch, wrap_optim=scaler, epoch=0.0, loggers=loggers,
            distillation_teacher=teacher, grad_sampler=grad_sampler,
            calibration_dataloader=calibration_dataloader, calibration_function=calibration_function,
        )  # fmt: skip
    for one in caught:  # at the line of the script, whatever stands between
        warnings.warn(str(one.message), one.category, stacklevel=2)
    return manager, wrapped


def _has_zeros(module: Any) -> bool:
    return any(bool((tensor == 0).any()) for param, tensor, _ in params_of(bare_module(module)) if param.prunable)


def for_layers(module: Any, wanted: Wanted) -> Wanted:
    """The same for the layers of a module that can hold its masks, by their names; what stays dense is noted."""
    if not wanted.prunes:
        return wanted
    if not hasattr(module, "named_modules"):
        raise OptionError(f"model is a torch module, not {brief(module)}")
    found = params_of(demand_free(module))
    reasons = {param.name: _why_dense(param, wanted) for param, _, _ in found if param.prunable and not param.refusal}
    names = [name for name, reason in reasons.items() if not reason]
    held = held_inside(param.name for param, _, _ in found if not param.prunable)
    if not names:
        first = next((f", such as {name}: {reason}" for name, reason in reasons.items()), "")
        first = first or (f"; {STAYS} {held}" if held else ": none is linear, a convolution or a look-up table")
        raise OptionError(f"the model has no layer that can be pruned as {wanted.mask_type}{first}")
    if held:
        LOG.warning("%s %s; the params of a recipe may name it", STAYS, held)
    notes = [f"{name} stays dense: {reason}" for name, reason in reasons.items() if reason]
    return replace(wanted, params=names, notes=(*wanted.notes, *notes))


def _why_dense(param: Param, wanted: Wanted) -> str:
    """Nothing where it can be pruned."""
    layer = param.name[: -len(WEIGHT)] if param.name.endswith(WEIGHT) else param.name
    end = next((word for word in ENDS if word in layer.rpartition(".")[2].lower()), "")
    if end:
        return f"its name says that it is an {end} layer"
    _, _, inputs, _ = param.shape4
    if mask_of(wanted.variables.target) not in (None, UNSTRUCTURED) and inputs % GROUP:
        return f"it has {inputs} inputs for each output, no multiple of {GROUP} as {wanted.variables.target} takes them"
    return no_unit(wanted.mask_type, param)
