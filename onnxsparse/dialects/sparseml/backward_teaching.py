"""Teachers that count in a loop without `loss_update`: what they add comes in during the backward pass.

    rest * task + teaching, as where the loss is passed through `loss_update`; of one teacher rest is 1 - hardness

1. The module's outputs go through a function that changes no number. Behind it the gradient of the task is multiplied
   by `rest`, and `teaching` gets its own: what the loop multiplies its loss with, which is the scale of a GradScaler
   and 1 / accumulation.
2. Of each forward pass the teaching counts once, however many backward passes go through it; not at all where its loss
   went through `loss_update`.
3. A part of the task's loss that is not computed from the module's outputs, as a penalty on weights, counts whole.
4. Where nothing can count, the step is refused: outputs that were detached, parts of the module called by themselves, a
   module in evaluation mode, several forward passes for one backward pass, gradients of gradients, copies of the module
   on several devices (DataParallel).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from onnxsparse.dialects.sparseml.distillation import Teacher, fields_of
from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OptionError

OTHERWISE = "or pass the loss through loss_update before backward"
CONTAINERS = (Mapping, tuple, list, type(None))
AT_STEP = 5
"""How far the user's line lies above that of a warning."""


class BackwardTeaching:
    """The teachers of one loop; `epoch` says how many epochs are over, `scaler` is what stands for the optimizer."""

    def __init__(self, teachers: Sequence[Teacher], epoch: Callable[[], float], scaler: Any, accumulation: int) -> None:
        self._teachers, self._epoch, self._scaler, self._accumulation = teachers, epoch, scaler, accumulation
        self._passes: list[Pass] = []
        self._count, self._backward, self._by_loss = 0, -1, False
        self._other_scaler, self._told = False, False

    def join(self, inputs: Any, outputs: Any) -> Any:
        """The outputs of a forward pass, with the teachers behind them."""
        active = self._active()
        tensors = [one for one in _tensors(outputs) if one.requires_grad]
        if not active or not torch().is_grad_enabled():
            return outputs
        if not tensors and not torch().is_tensor(outputs) and not isinstance(fields_of(outputs), CONTAINERS):
            raise OptionError(
                f"the module gives a {type(outputs).__name__}, and a teacher is heard on tensors, lists, dicts and "
                "dataclasses of them"
            )
        if not tensors:
            return outputs
        rest = 1.0
        teaching: Any = 0.0
        for teacher in active:
            rest, teaching = rest * teacher.rest, teacher.loss(teaching, outputs, inputs)
        if not torch().is_tensor(teaching) or not teaching.requires_grad:
            raise OptionError("the outputs that the teacher is heard on have no gradient; it cannot count")
        made = Pass(self, rest)
        self._passes.append(made)
        handed_on = iter(_function().apply(made, teaching, *tensors))
        return _mapped(lambda one: next(handed_on) if one.requires_grad else one, outputs)

    def _active(self) -> list[Teacher]:
        epoch = self._epoch()
        return [teacher for teacher in self._teachers if teacher.is_active(epoch)]

    def scale(self) -> float:
        """What the loop multiplies its loss with."""
        get = getattr(self._scaler, "get_scale", None)
        return (1.0 if get is None else float(get())) / self._accumulation

    def count(self) -> None:
        """A backward pass came to the outputs of another forward pass."""
        backward = torch()._C._current_graph_task_id()
        if backward == self._backward:
            raise OptionError(
                "the module ran more than once for this backward pass, and what a teacher counts in each run is not "
                f"known: run it once on all samples, {OTHERWISE}"
            )
        self._backward, self._count = backward, self._count + 1

    def passed_loss(self) -> None:
        """The teachers are in the loss of these outputs already."""
        for one in self._passes:
            one.is_in_loss = True
        self._passes, self._by_loss = [], True

    def met_scaler(self) -> None:
        """A GradScaler takes the step of this optimizer."""
        self._other_scaler = True

    def demand(self, closure: bool) -> bool:
        """At a step: whether teachers counted since the last one; refused where they should have and could not."""
        count, taught = self._count, self._count > 0 or self._by_loss
        self._passes, self._count, self._by_loss = [], 0, False
        if not self._active():
            return taught
        if self._other_scaler:
            raise OptionError(
                "a GradScaler steps this optimizer, and a teacher has to know its scale: pass it as wrap_optim= (in "
                "Create as scaler=) and step what comes back"
            )
        if not taught:
            raise OptionError(
                "the teacher could not count: no gradient of this step came through what the module gave in training "
                f"mode; call the module itself and take the loss of what it gives, {OTHERWISE}"
            )
        if count > self._accumulation and not closure and not self._told:
            self._told = True
            self._tell(count)
        return taught

    def _tell(self, count: int) -> None:
        said = f"and accumulation is {self._accumulation}"
        warnings.warn(
            f"{count} backward passes came before one step, {said}: the teacher counts {count / self._accumulation:g} "
            f"times of what it should where the loop divides its loss by {count}; then say accumulation={count}",
            stacklevel=AT_STEP,
        )


class Pass:
    """One forward pass: what it has of the task's gradient, and whether its teaching counted."""

    def __init__(self, owner: BackwardTeaching, rest: float) -> None:
        self._owner, self.rest = owner, rest
        self.is_in_loss, self._is_counted = False, False

    def scale(self) -> float | None:
        """What the gradient of the teaching is; None where it counts elsewhere."""
        if torch().is_grad_enabled():
            raise OptionError(
                "a teacher cannot count in a backward pass with create_graph=True; compute those gradients from "
                f"outputs of model.eval(), {OTHERWISE}"
            )
        if self._is_counted:
            return None
        self._is_counted = True
        self._owner.count()
        return self._owner.scale()


@cache
def _function() -> Any:
    """The function with its gradient; made when torch is there."""

    class HandingOn(torch().autograd.Function):  # type: ignore[misc]
        """Copies, so that a loop may change in place what it got."""

        @staticmethod
        def forward(ctx: Any, made: Pass, teaching: Any, *outputs: Any) -> Any:
            ctx.made, ctx.one = made, teaching.new_ones(())
            ctx.set_materialize_grads(False)
            return tuple(one.clone() for one in outputs)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            if ctx.made.is_in_loss:
                return None, None, *gradients
            scale, rest = ctx.made.scale(), ctx.made.rest
            own = None if scale is None else ctx.one * scale
            return None, own, *(None if one is None else one * rest for one in gradients)

    return HandingOn


def _tensors(outputs: Any) -> Iterator[Any]:
    """All tensors of what a module gives, in the order in which `_mapped` comes to them."""
    outputs = fields_of(outputs)
    if torch().is_tensor(outputs):
        yield outputs
    elif isinstance(outputs, (Mapping, tuple, list)):
        for one in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from _tensors(one)


def _mapped(function: Callable[[Any], Any], outputs: Any) -> Any:
    """The same structure of other tensors."""
    if torch().is_tensor(outputs):
        return function(outputs)
    if isinstance(outputs, Mapping):
        made: Any = copy.copy(outputs)
        for key, value in outputs.items():
            made[key] = _mapped(function, value)
        return made
    if fields_of(outputs) is not outputs:
        made = copy.copy(outputs)
        for key, value in fields_of(outputs).items():
            object.__setattr__(made, key, _mapped(function, value))  # it may be frozen
        return made
    if isinstance(outputs, (tuple, list)):
        found = [_mapped(function, one) for one in outputs]
        return type(outputs)._make(found) if hasattr(outputs, "_make") else type(outputs)(found)
    return outputs
