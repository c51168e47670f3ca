"""SparseML's manager: a recipe around a training loop in torch.

    manager = ScheduledModifierManager.from_yaml("recipe.md")
    optimizer = manager.modify(model, optimizer, steps_per_epoch=len(loader))
    for epoch in range(manager.max_epochs): ...       # the loop as it was
    manager.finalize(model)

1. `update` comes before a step and `optimizer_post_step` behind it; the wrapper that `modify` returns calls both.
2. At `finalize` every modifier comes to its end: the last level is there even if no step came behind the end.
3. A loop that contradicts its recipe is warned: see `warnings`.
"""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from onnxsparse.acts.act import TimedAct
from onnxsparse.acts.params import ALL_PRUNABLE, Param
from onnxsparse.dialects.sparseml.arguments import (
    calibration_of,
    demand_accumulation,
    demand_optimizer,
    demand_steps,
    demand_teacher,
    epoch_of,
)
from onnxsparse.dialects.sparseml.backward_teaching import BackwardTeaching
from onnxsparse.dialects.sparseml.contents import Contents, Given, recipe_of, timed
from onnxsparse.dialects.sparseml.distillation import OutputTeacher, Recorder, Teacher
from onnxsparse.dialects.sparseml.layer_teaching import PROJECTIONS, LayerTeacher, add_group
from onnxsparse.dialects.sparseml.warnings import Watch
from onnxsparse.dialects.sparseml.wrapper import Closure, RecipeManagerStepWrapper
from onnxsparse.engines.torch.attach import bare_module
from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.recipes import Recipe, compose_staged
from onnxsparse.recipes.modifiers.distillation import DISABLE, Distilling
from onnxsparse.recipes.modifiers.layer_distillation import LayerDistilling
from onnxsparse.recipes.modifiers.layer_pruning import LayerPruningModifier, SkipLayers
from onnxsparse.recipes.modifiers.layer_thinning import LayerThinningModifier
from onnxsparse.recipes.modifiers.masked import Masked
from onnxsparse.recipes.modifiers.modifier import Scheduled
from onnxsparse.recipes.modifiers.quantization import QuantizeAct
from onnxsparse.recipes.modifiers.rates import RateFunction, RateSchedule, SetDecay, SetRate
from onnxsparse.recipes.writing import identifier
from onnxsparse.train.grad_sampler import GradSampler
from onnxsparse.train.module_trainee import ModuleTrainee
from onnxsparse.train.quantized_layers import quantizable

DISTILLING = (Distilling, LayerDistilling)
PACE = (SetRate, SetDecay, RateSchedule, RateFunction)


class ScheduledModifierManager(Contents):
    """The modifiers of a recipe, and what they do to one module."""

    learn_scales: bool = False
    """Whether the scales of quantization are trained (LSQ), by the settings of the weights that they belong to."""

    counts_in_backward: bool = False
    """Whether teachers count in a loop that does not call `loss_update` (see `backward_teaching`); set it before
    `modify`."""
    accumulation: int = 1
    """Over how many backward passes such a loop averages the loss of one step: what it divides each loss by."""

    def __init__(self, modifiers: Given, metadata: Mapping[str, Any] | None = None) -> None:
        super().__init__(modifiers, metadata)
        self._trainee: ModuleTrainee | None = None
        self._acts: list[tuple[Scheduled, TimedAct]] = []
        self._recorder: Recorder | None = None
        self._teachers: list[Teacher] = []
        self._teaching: BackwardTeaching | None = None
        self._waiting: Mapping[str, Any] | None = None
        self._fresh: dict[str, Any] = {}
        self._last = 0.0
        self._watch, self._done, self._modified = Watch(self), False, False

    @classmethod
    def from_yaml(
        cls,
        file_path: Any,
        add_modifiers: Sequence[Scheduled] | None = None,
        recipe_variables: Any = None,
        metadata: Mapping[str, Any] | None = None,
        strict: bool = True,
    ) -> ScheduledModifierManager:
        """The manager of a recipe: a file, the text itself, or what Recipe.load made of either.

        With `strict=False` what nothing runs is left out by `modify`, which warns of it.
        """
        recipe = recipe_of(file_path, recipe_variables, metadata, strict)
        if add_modifiers:
            recipe = recipe.holding((*recipe.modifiers, *add_modifiers))
        return cls(recipe)

    @staticmethod
    def compose_staged(
        base_recipe: Any, additional_recipe: Any, keep_original_epochs: bool = False, save_path: Any = None
    ) -> ScheduledModifierManager:
        """Two recipes as stages, one after the other."""
        first, second = _given(base_recipe), _given(additional_recipe)
        made = ScheduledModifierManager(compose_staged(first, second, keep_original_epochs))
        if save_path is not None:
            made.save(save_path)
        return made

    # -- around a loop

    @property
    def initialized(self) -> bool:
        return self._trainee is not None

    def initialize(
        self,
        module: Any,
        epoch: float = 0,
        loggers: Any = None,
        distillation_teacher: Any = None,
        grad_sampler: Any = None,
        calibration_dataloader: Any = None,
        calibration_function: Any = None,
    ) -> None:
        """Find the parameters and put open masks on them; what cannot be driven is refused."""
        samples = calibration_dataloader, calibration_function, grad_sampler
        self._initialize(module, epoch, loggers, distillation_teacher, None, samples)

    def _initialize(
        self, module: Any, epoch: float, loggers: Any, teacher: Any, optimizer: Any, samples: Samples, now: bool = True
    ) -> None:
        if self._trainee is not None:
            if bare_module(module) is not self._trainee.module and module is not self._trainee.module:
                raise OptionError("the manager has another module: finalize that first, or make another manager")
            if samples[2] is not None:
                self._trainee.sampler = GradSampler(samples[2])
            return
        driven = self.recipe.driven()
        trainee = ModuleTrainee(module, loggers, optimizer)
        trainee.sampler = None if samples[2] is None else GradSampler(samples[2])
        acts = [(one, one.act()) for one in timed(driven.modifiers)]
        for _, act in acts:
            act.bind(trainee.params)
            trainee.demand(act)
            if isinstance(act, DISTILLING):
                demand_teacher(act.options.teacher if teacher is None else teacher)
        quantizing = [act for _, act in acts if isinstance(act, QuantizeAct)]
        trainee.learn_scales = self.learn_scales
        modifiers = [act.modifier for act in quantizing]
        trainee.calibrate, short = calibration_of(modifiers, trainee.module, *samples[:2])
        short += [note for act in quantizing for note in _quantizable(act, trainee.module)]
        told = [f"{act.where}: {act.warning}" for _, act in acts if act.warning]
        for note in (*driven.notes, *_left(acts, trainee), *_passed_over(acts, trainee), *told, *short):
            warnings.warn(note, stacklevel=3)
        distilling = [act for _, act in acts if isinstance(act, DISTILLING)]
        self._teachers = [self._teacher(act, teacher, trainee) for act in distilling]
        for _, act in acts:
            trainee.admit(act)
        self._trainee, self._acts, self._last = trainee, acts, float(epoch)
        self._watch, self._done = Watch(self), False
        self._listen(trainee)
        self._fresh = {act.where: act.state() for act in quantizing}
        forming = [act for _, act in acts if isinstance(act, (QuantizeAct, SkipLayers))]
        for act in forming if now else ():  # so that the first step trains with it, as in SparseML
            act.before(trainee, float(epoch))
        if self._waiting is not None:
            self._take(self._waiting, True)

    def _listen(self, trainee: ModuleTrainee) -> None:
        """Record what goes through the module, where somebody teaches it."""
        if not self._teachers:
            return
        self._recorder = Recorder(trainee.module)
        if all(teacher.disabled for teacher in self._teachers):
            warnings.warn(f"the recipe distils, but its teacher is '{DISABLE}': nothing is distilled", stacklevel=4)

    def _teacher(self, act: Distilling | LayerDistilling, given: Any, trainee: ModuleTrainee) -> Teacher:
        if isinstance(act, Distilling):
            return OutputTeacher(act.options, given, trainee.module)
        return LayerTeacher(act.options, given, trainee.module, self._train_beside)

    def _train_beside(self, weights: Sequence[Any]) -> None:
        """Have the optimizer train what is no part of the module."""
        trainee = self._known()
        if trainee.optimizer is None:
            raise OptionError("projections of layers train in the optimizer: call modify before the first loss")
        add_group(trainee.optimizer, weights)
        if trainee.rates_set is not None:
            trainee.rates_set = trainee.rates(None)

    def modify(
        self,
        module: Any,
        optimizer: Any,
        steps_per_epoch: float,
        wrap_optim: Any = None,
        epoch: float | None = None,
        allow_parallel_module: bool = True,
        loggers: Any = None,
        distillation_teacher: Any = None,
        grad_sampler: Any = None,
        calibration_dataloader: Any = None,
        calibration_function: Any = None,
    ) -> RecipeManagerStepWrapper:
        """The optimizer, or what stands for it as a GradScaler does, with the recipe around its steps."""
        demand_steps(steps_per_epoch)
        if not allow_parallel_module and bare_module(module) is not module:
            raise OptionError("the module is wrapped for several devices, and allow_parallel_module is False")
        demand_optimizer(optimizer, module)
        asked = epoch_of(epoch)
        begin = float(max(self.max_epochs, 0)) if math.isinf(asked) else asked
        samples = calibration_dataloader, calibration_function, grad_sampler
        self._initialize(module, begin, loggers, distillation_teacher, optimizer, samples)
        if self._modified:
            raise OptionError("the manager is around this loop already: call modify once, or finalize first")
        trainee = self._known()
        trainee.meet(optimizer, steps_per_epoch)
        trainee.scaler = wrap_optim
        for _, act in self._acts:  # of a manager that was initialized before, without an optimizer
            trainee.demand(act)
        self._modified = True
        self._watch.is_over = math.isinf(asked)
        self._watch.meet(optimizer)
        wrap = wrap_optim or optimizer
        made = RecipeManagerStepWrapper(wrap, optimizer, module, self, begin, steps_per_epoch)
        if self._recorder is not None and self.counts_in_backward:
            demand_accumulation(self.accumulation)
            self._teaching = BackwardTeaching(self._teachers, lambda: made.wrapped_epoch, wrap, self.accumulation)
            self._recorder.put_behind(self._teaching.join)
        return made

    def demand_taught(self, closure: bool = False) -> None:
        """Refuse a step whose gradients no teacher could count in, where they count without `loss_update`."""
        if self._teaching is not None:
            self._watch.is_taught |= self._teaching.demand(closure)

    def met_scaler(self) -> None:
        """A GradScaler that `modify` was not given takes the step of the optimizer."""
        if self._teaching is not None:
            self._teaching.met_scaler()

    def initialize_loggers(self, loggers: Any) -> None:
        """Others are told from now on."""
        self._known().loggers = loggers

    def update(
        self,
        module: Any,
        optimizer: Any,
        epoch: float,
        steps_per_epoch: float,
        log_updates: bool = True,
        *,
        closure: Any = None,
    ) -> Any:
        """Before a step: what is due at its epoch is done.

        A step that calls a closure has its gradients later: it takes what is returned in the closure's place.
        """
        trainee = self._known()
        trainee.meet(optimizer, steps_per_epoch)
        self._watch.step(trainee, epoch)
        waiting = [act for _, act in self._acts if act.by_gradients and closure and not act.samples(trainee)]
        for act in (one for _, one in self._acts if one not in waiting):
            if act.by_gradients:
                act.gather(trainee, epoch)
            act.before(trainee, epoch)
        self._watch.taught_step(self._teachers, epoch)
        for teacher in self._teachers:
            teacher.step(epoch)
        self._last = epoch
        return closure and Closure(closure, trainee, [act for _, act in self._acts], waiting, epoch)

    def optimizer_pre_step(self, module: Any, optimizer: Any, epoch: float, steps_per_epoch: float) -> None:
        """Masks are part of the module, so its gradients need nothing; what trains in place of weights stands there."""
        trainee = self._known()
        for _, act in self._acts:
            act.before_move(trainee)

    def optimizer_post_step(self, module: Any, optimizer: Any, epoch: float, steps_per_epoch: float) -> None:
        """The weights have moved."""
        trainee = self._known()
        for _, act in reversed(self._acts):
            act.after_move(trainee)
        for _, act in self._acts:
            act.after(trainee)
        trainee.settle()
        trainee.agree()

    def loss_update(
        self,
        loss: Any,
        module: Any = None,
        optimizer: Any = None,
        epoch: float = 0.0,
        steps_per_epoch: float = 0.0,
        student_outputs: Any = None,
        student_inputs: Any = None,
    ) -> Any:
        """The loss with what teachers add; what went through the module last is known, where it is not passed."""
        self._known()
        self._watch.is_taught = True
        for teacher in self._teachers:
            if teacher.is_active(epoch):
                assert self._recorder is not None
                outputs = self._recorder.outputs if student_outputs is None else student_outputs
                inputs = self._recorder.inputs if student_inputs is None else student_inputs
                loss = teacher.loss(loss, outputs, inputs)
        if self._teaching is not None:
            self._teaching.passed_loss()
        if self._recorder is not None:
            self._recorder.clear()
        return loss

    def finalize(self, module: Any = None, reset_loggers: bool = True) -> None:
        """Everything comes to its end: the plain module again, with zeros where masks were.

        What is rounded by the recipe stays so, and is what `osp.torch.export_quantized` writes as integers.
        """
        trainee = self._known()
        self._watch.end(trainee, self._acts, self._last)
        self._watch.untaught(self._teachers, self._last)
        for _, act in self._acts:
            if not isinstance(act, PACE):
                act.finish(trainee)
        self._end(trainee)

    def _end(self, trainee: ModuleTrainee) -> None:
        trainee.detach()
        if self._recorder is not None:
            self._recorder.stop()
        for teacher in self._teachers:
            teacher.stop()
        self._trainee, self._acts, self._recorder, self._teachers, self._teaching = None, [], None, [], None
        self._done, self._modified = True, False

    def apply(
        self,
        module: Any,
        epoch: float = math.inf,
        loggers: Any = None,
        finalize: bool = True,
        distillation_teacher: Any = None,
        grad_sampler: Any = None,
        calibration_dataloader: Any = None,
        calibration_function: Any = None,
    ) -> None:
        """All at once, without training: what the module would have come to by an epoch."""
        samples = calibration_dataloader, calibration_function, grad_sampler
        self._initialize(module, epoch, loggers, distillation_teacher, None, samples, now=False)
        trainee = self._known()
        for _, act in self._acts:
            if act.by_gradients:
                act.gather(trainee, epoch)
            if not isinstance(act, PACE):
                act.before(trainee, epoch)
        self._last = epoch
        if finalize:
            self._end(trainee)

    def apply_structure(self, module: Any, epoch: float = 0) -> None:
        """What changes the form of a module by an epoch is done, so that a checkpoint fits. Masks change none."""
        trainee = ModuleTrainee(module)
        for one in self.structured_modifiers:
            if isinstance(one, LayerPruningModifier):
                act = one.act()
                trainee.demand(act)
                act.before(trainee, epoch)
            if isinstance(one, LayerThinningModifier):
                trainee.take_sizes(name for pair in one.dependents.items() for names in pair for name in names)

    # -- what a checkpoint holds

    def state_dict(self) -> dict[str, Any]:
        """The masks by modifier, the scales of quantization, and what modifiers have gathered; by stage, if any."""
        found = saved(self._known(), self.recipe, self._acts)
        for where, teacher in self._projecting(found):
            where.update({PROJECTIONS: teacher.state()} if teacher.state() else {})
        for one, act in self._acts:
            if act.arrays() or (act.by_gradients and act.clock.active):
                self._place(found, one)[GATHERED] = gathered(act)
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Take masks and scales over, now or when there is a module.

        Scales that are learned become the optimizer's here; load its state afterwards.
        """
        if self._trainee is None:
            self._waiting = state_dict
            return
        self._take(state_dict, strict)

    def _projecting(self, state: dict[str, Any]) -> Iterator[tuple[dict[str, Any], LayerTeacher]]:
        """The teachers that have projections, and where they stand in a state."""
        distilling = [one for one, act in self._acts if isinstance(act, DISTILLING)]
        for one, teacher in zip(distilling, self._teachers):
            if isinstance(teacher, LayerTeacher):
                yield self._place(state, one), teacher

    def _place(self, state: dict[str, Any], one: Scheduled) -> dict[str, Any]:
        """What a state has of a modifier."""
        stages = [stage.name for stage in self.recipe.stages if any(one is other for other in stage.modifiers)]
        where = state.setdefault(stages[0], {}) if stages else state
        found: dict[str, Any] = where.setdefault(identifier(one), {})
        return found

    def _take(self, state: Mapping[str, Any], strict: bool) -> None:
        kept: dict[str, Any] = {}
        if isinstance(state, Mapping):
            state = own = without_gathered(state, kept)
            for where, teacher in self._projecting(own):
                teacher.load(where.pop(PROJECTIONS, {}))
        trainee, (masks, scales) = self._known(), apart(state, self._acts)
        take(trainee, self._acts, apart(saved(trainee, self.recipe, self._acts), self._acts)[0], masks, strict)
        quantizing = [(one, act) for one, act in self._acts if isinstance(act, QuantizeAct)]
        for _, act in quantizing:
            act.restore(self._fresh[act.where], trainee)  # it goes on by what the module gets here
        schemes = [act.scheme for one, act in quantizing if identifier(one) in scales]
        trainee.take_scales({key: one for some in scales.values() for key, one in some.items()}, schemes)
        for one, timed_act in self._acts:
            if identifier(one) in kept:
                take_gathered(timed_act, kept[identifier(one)], trainee, self._last)
        self._waiting = None

    # -- inside

    def _known(self) -> ModuleTrainee:
        if self._trainee is None and self._done:
            raise OptionError("the manager is finalized: what it did is done, so step the optimizer itself")
        if self._trainee is None:
            raise OptionError("the manager has no module yet; call modify, initialize or apply first")
        return self._trainee


def _quantizable(act: QuantizeAct, module: Any) -> list[str]:
    """What has to be said of quantizing a module; where that cannot be, by its place in the recipe."""
    try:
        return [f"{act.where}: {note}" for note in quantizable(module, act.scheme)]
    except OptionError as error:
        raise OptionError(f"{act.where}: {error}") from None


def _left(acts: Sequence[tuple[Scheduled, TimedAct]], trainee: ModuleTrainee) -> list[str]:
    """What stays dense though a modifier means it among others."""
    names = {param.tag: param.name for param in trainee.params}
    return [
        f"{act.where} leaves {names[tag]} dense: {reason}"
        for _, act in acts
        for tag, reason in act.left_dense().items()
    ]


IN_ONE_PIECE = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "weight_ih", "weight_hh")


def _passed_over(acts: Sequence[tuple[Scheduled, TimedAct]], trainee: ModuleTrainee) -> list[str]:
    """Matrices inside of attention and recurrent layers, which the word for all does not mean."""
    if not any(isinstance(one, Masked) and _means_all(one) for one, _ in acts):
        return []
    reached = {param.tag for _, act in acts for param in act.masked()}
    names = held_inside(param.name for param in trainee.params if param.tag not in reached)
    if not names:
        return []
    said = f"{ALL_PRUNABLE} does not mean {names}, which no modifier prunes"
    return [f"{said}; params may name it, as `re:.*in_proj_weight` does"]


def held_inside(names: Iterable[str]) -> str:
    """What attention and recurrent layers hold themselves, in words; empty where there is none."""
    found = [name for name in names if name.rpartition(".")[2].startswith(IN_ONE_PIECE)]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"what attention and recurrent layers hold themselves: {found[0]}{more}" if found else ""


def _means_all(modifier: Masked) -> bool:
    params = modifier.params
    return ALL_PRUNABLE in ([params] if isinstance(params, str) else params or ())


def _given(recipe: Any) -> Any:
    if isinstance(recipe, ScheduledModifierManager):
        return recipe.recipe
    return os.fspath(recipe) if isinstance(recipe, os.PathLike) else recipe


# -- The masks and scales of a manager in a state: by modifier and parameter, and by stage where the recipe has some.


MASK = ".sparsity_mask"
GATHERED = "gathered"
"""What a modifier goes on by beside its masks: scores, gradients, numbers that are hidden. SparseML loses it."""
Samples = tuple[Any, Any, Any]  # the batches for calibration, what runs one, and what gives gradients of samples
Acts = Sequence[tuple[Scheduled, TimedAct]]


def saved(trainee: ModuleTrainee, recipe: Recipe, acts: Acts) -> dict[str, Any]:
    """Copies of all masks."""
    if not recipe.stages:
        return _masks(trainee, acts)
    found = {}
    for stage in recipe.stages:
        own = [pair for pair in acts if any(pair[0] is one for one in stage.modifiers)]  # equal ones may be of another
        found[stage.name] = _masks(trainee, own)
    return found


def _masks(trainee: ModuleTrainee, acts: Acts) -> dict[str, Any]:
    scales = trainee.scales()
    begun = [one for one, act in acts if isinstance(act, QuantizeAct) and act.clock.started]
    rounded = {identifier(one): scales for one in begun if scales}
    masks = {
        identifier(one): {param.name + MASK: trainee.mask_tensor(act, param) for param in act.masked()}
        for one, act in acts
        if act.masked()
    }
    return {**masks, **rounded}


def gathered(act: TimedAct) -> dict[str, Any]:
    """Copies, as tensors, and the rest of what a checkpoint of ours would hold."""
    arrays = {key: torch().from_numpy(array.copy()) for key, array in act.arrays().items()}
    return {"arrays": arrays, "state": copy.deepcopy(act.state())}


def take_gathered(act: TimedAct, given: Any, trainee: ModuleTrainee, epoch: float) -> None:
    """Go on by it; the clock stays that of the loop, which begins at an epoch, but what had ended chooses no more."""
    clock = act.clock.state()
    try:
        act.load({key: one.cpu().numpy() for key, one in given["arrays"].items()})
        act.restore(given["state"], trainee)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise OptionError(f"{act.where}: what the state has gathered is that of another recipe or module") from None
    finally:
        if not (act.by_gradients and act.clock.ended and 0 <= act.span.end <= epoch):
            act.clock.restore(clock)


def without_gathered(state: Mapping[str, Any], kept: dict[str, Any], name: str = "") -> dict[str, Any]:
    """A copy of the mappings of a state, without what modifiers have gathered, which goes into `kept` by modifier."""
    if GATHERED in state:
        kept[name] = state[GATHERED]
    rest = ((key, one) for key, one in state.items() if key != GATHERED)
    return {key: without_gathered(one, kept, key) if isinstance(one, Mapping) else one for key, one in rest}


def apart(state: Any, acts: Acts) -> tuple[Any, dict[str, Any]]:
    """The masks of a state, and the scales, by the modifiers that had begun to quantize."""
    if not isinstance(state, Mapping):
        raise OptionError(f"the state of a manager is a mapping, not a {type(state).__name__}")
    rounding = {identifier(one) for one, act in acts if isinstance(act, QuantizeAct)}
    masks, scales = {}, {}
    for key, value in state.items():
        if key in rounding:
            scales[key] = value
        elif isinstance(value, Mapping):
            masks[key], inner = apart(value, acts)
            scales.update(inner)
        else:
            masks[key] = value
    return masks, scales


def take(trainee: ModuleTrainee, acts: Acts, own: Mapping[str, Any], state: Mapping[str, Any], strict: bool) -> None:
    """Put the masks of a state on the module; `own` is the state that it has."""
    known, given = _flat(own), _flat(state)
    if strict and set(known) != set(given):
        other = sorted(set(known) ^ set(given))[0]
        raise OptionError(f"the state is that of another recipe or module: {'/'.join(other)} is in one of them only")
    by_name = {param.name: param for param in trainee.params}
    by_identifier = {identifier(one): act for one, act in acts}
    keys = {key: by_name[key[-1][: -len(MASK)]] for key in known if key in given}
    masks = {key: _mask(given[key], param) for key, param in keys.items()}
    for key, param in keys.items():
        trainee.put_for(by_identifier[key[-2]], param, masks[key])
        by_identifier[key[-2]].take_mask(param, masks[key])


def _mask(given: Any, param: Param) -> Array:
    if not torch().is_tensor(given) or tuple(given.shape) != param.shape:
        shape = list(given.shape) if torch().is_tensor(given) else type(given).__name__
        raise OptionError(f"the mask of {param.name} in the state is {shape}, and the parameter {list(param.shape)}")
    return cast(Array, given.bool().cpu().numpy().reshape(-1))


def _flat(state: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for key, value in state.items():
        if isinstance(value, Mapping):
            found.update(_flat(value, (*path, key)))
        else:
            found[(*path, key)] = value
    return found
