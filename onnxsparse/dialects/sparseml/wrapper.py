"""Optimizer and GradScaler wrapper: runs a recipe's hooks around their steps, and is otherwise what it wraps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxsparse.acts.act import TimedAct
    from onnxsparse.dialects.sparseml.recipe_manager import ScheduledModifierManager
    from onnxsparse.train.module_trainee import ModuleTrainee

OWN = "_wrapped"
ASKED_BY_SCALER = "_step_supports_amp_scaling"
"""What a GradScaler asks of an optimizer at the beginning of its step, and nobody else does."""


class RecipeManagerStepWrapper:
    """Everything is asked of, and set in, what is wrapped; `step` lets the modifiers act before and after it."""

    def __init__(
        self,
        wrap: Any,
        optimizer: Any,
        module: Any,
        manager: ScheduledModifierManager,
        epoch: float,
        steps_per_epoch: float,
    ) -> None:
        self._wrapped = wrap
        self._wrapped_optimizer, self._wrapped_module, self._wrapped_manager = optimizer, module, manager
        self._wrapped_epoch, self._wrapped_steps = epoch, math.floor(epoch * steps_per_epoch + 0.5)
        self._wrapped_steps_per_epoch = steps_per_epoch

    def __getattr__(self, name: str) -> Any:
        if name.startswith(OWN):
            raise AttributeError(name)
        if name == ASKED_BY_SCALER and hasattr(self._wrapped, "param_groups"):
            self._wrapped_manager.met_scaler()
        return getattr(self._wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith(OWN):
            object.__setattr__(self, name, value)
        else:
            setattr(self._wrapped, name, value)

    def __delattr__(self, name: str) -> None:
        if name.startswith(OWN):
            object.__delattr__(self, name)
        else:
            delattr(self._wrapped, name)

    @property
    def wrapped(self) -> Any:
        return self._wrapped

    @property
    def wrapped_manager(self) -> ScheduledModifierManager:
        return self._wrapped_manager

    @property
    def wrapped_optimizer(self) -> Any:
        return self._wrapped_optimizer

    @property
    def wrapped_module(self) -> Any:
        return self._wrapped_module

    @property
    def wrapped_steps(self) -> int:
        return self._wrapped_steps

    @property
    def wrapped_steps_per_epoch(self) -> float:
        return self._wrapped_steps_per_epoch

    @property
    def wrapped_epoch(self) -> float:
        """How many epochs are over: to the first step what the loop said, then whole steps."""
        return self._wrapped_epoch

    def step(self, *arguments: Any, **named: Any) -> Any:
        """A step of the optimizer with the recipe around it."""
        closure = next((one for one in (*arguments, *named.values()) if callable(one)), None)
        if closure is None:
            self._wrapped_manager.demand_taught()
        behind = self._before(closure)
        if closure is not None:
            arguments = tuple(behind if one is closure else one for one in arguments)
            named = {key: behind if one is closure else one for key, one in named.items()}
        with self._some_gradient():
            result = self._wrapped.step(*arguments, **named)
        if closure is not None:  # which calls backward
            self._wrapped_manager.demand_taught(closure=True)
        self._after()
        return result

    def emulated_step(self) -> None:
        """The recipe's part of a step, without one of the optimizer."""
        self._before()
        self._after()

    def loss_update(self, loss: Any, student_outputs: Any = None, student_inputs: Any = None) -> Any:
        """The loss with what the recipe adds to it; what went through the module last is known, unless it is passed."""
        around = self._wrapped_module, self._wrapped_optimizer, self.wrapped_epoch, self._wrapped_steps_per_epoch
        return self._wrapped_manager.loss_update(loss, *around, student_outputs, student_inputs)

    @contextmanager
    def _some_gradient(self) -> Iterator[None]:
        """A GradScaler fails where no parameter has one, as after gradients of samples: then one of ours has it."""
        optimizer = self._wrapped_optimizer
        params = [one for group in getattr(optimizer, "param_groups", ()) for one in group["params"]]
        if self._wrapped is optimizer or not params or any(one.grad is not None for one in params):
            yield
            return
        ours = params[0].new_zeros(1).detach().requires_grad_()
        ours.grad = ours.detach().clone()
        optimizer.param_groups[0]["params"].append(ours)
        try:
            yield
        finally:
            optimizer.param_groups[0]["params"].pop()
            optimizer.state.pop(ours, None)

    def _before(self, closure: Any = None) -> Any:
        """What stands for a closure, where the step calls one."""
        around = self._wrapped_module, self._wrapped_optimizer, self.wrapped_epoch, self._wrapped_steps_per_epoch
        behind = self._wrapped_manager.update(*around, closure=closure)
        if closure is None:
            self._wrapped_manager.optimizer_pre_step(*around)
        return behind

    def _after(self) -> None:
        around = self._wrapped_module, self._wrapped_optimizer, self.wrapped_epoch, self._wrapped_steps_per_epoch
        self._wrapped_manager.optimizer_post_step(*around)
        self._wrapped_steps += 1
        steps, per_epoch = self._wrapped_steps, self._wrapped_steps_per_epoch
        self._wrapped_epoch = float(steps // per_epoch + (steps % per_epoch) / per_epoch)


class Closure:
    """What stands for a closure of the user's in one step.

    The optimizer calls it for a loss and gradients, once or, as LBFGS does, several times. It computes with what the
    model computes with; behind it modifiers act that go by the gradients of the step, and what trains stands in the
    weights.
    """

    def __init__(
        self,
        closure: Callable[[], Any],
        trainee: ModuleTrainee,
        acts: Sequence[TimedAct],
        waiting: Sequence[TimedAct],
        epoch: float,
    ) -> None:
        self._closure, self._trainee, self._acts, self._epoch = closure, trainee, acts, epoch
        self._waiting = list(waiting)
        self._trains = False

    def __call__(self) -> Any:
        if self._trains:
            for act in reversed(self._acts):
                act.after_move(self._trainee)
            self._trainee.settle()
        found = self._closure()
        while self._waiting:
            act = self._waiting.pop(0)
            act.gather(self._trainee, self._epoch)
            act.before(self._trainee, self._epoch)
        for act in self._acts:
            act.before_move(self._trainee)
        self._trains = True
        return found
