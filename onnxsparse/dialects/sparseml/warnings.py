"""Warnings of a training loop that contradicts its recipe, given once for each module, where the loop stands.

1. Somebody else moves a learning rate that the recipe moves, too.
2. Training goes on behind the end of the recipe. One step there is as it should be: with it SparseML sets the last
   level. The second is one too many, unless the loop said that the recipe is over.
3. Training ended before a mask came to its last level, by more than a step.
4. The recipe distils, and no loss came by until the second step of it, or until the end where there is none.
5. The recipe quantizes, and training ended before it began to.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from onnxsparse.acts.act import TimedAct
from onnxsparse.dialects.sparseml.contents import Contents
from onnxsparse.dialects.sparseml.distillation import Teacher
from onnxsparse.engines.torch.library import torch
from onnxsparse.recipes.modifiers.modifier import Scheduled
from onnxsparse.recipes.modifiers.quantization import QuantizeAct
from onnxsparse.recipes.writing import tag_of
from onnxsparse.train.module_trainee import ModuleTrainee

AT_CALL, AT_STEP = 4, 6
"""How far the user's line lies above: of a call of the manager, and of a step, which the wrapper stands between."""

SECOND = 2
UNTAUGHT = (
    "the recipe distils, but the loop never calls loss_update: no teacher was heard. Pass the loss through it before "
    "backward"
)


class Watch:
    """One loop around one module."""

    def __init__(self, recipe: Contents) -> None:
        self._recipe = recipe
        self._foreign = False
        self.is_over, self.is_taught = False, False
        self._untaught = 0

    def meet(self, optimizer: Any) -> None:
        if _is_scheduled(optimizer):
            self._say_foreign(f"{_schedulers(optimizer)} moves the learning rate of this optimizer", AT_CALL)

    def step(self, trainee: ModuleTrainee, epoch: float) -> None:
        """Before a step does anything."""
        if trainee.rates_set is not None and trainee.rates_set != trainee.rates(None):
            who = _schedulers(trainee.optimizer, "somebody else")
            self._say_foreign(f"{who} changed the learning rate between two steps", AT_STEP)
        last = self._recipe.max_epochs
        if not self.is_over and 0 < last < epoch - 0.5 / trainee.per_epoch:
            self.is_over = True
            _say(f"training goes on at epoch {epoch:g}, and the recipe ends at {last}. {_steps(trainee)}", AT_STEP)

    def end(self, trainee: ModuleTrainee, acts: Sequence[tuple[Scheduled, TimedAct]], last: float) -> None:
        """Before everything comes to its end."""
        late = [one for one, act in acts if act.masked() and one.end_epoch > last + 1.5 / trainee.per_epoch]
        if late:
            _say(
                f"training ended at epoch {last:.4g}, but !{late[0].name} lasts to {late[0].end_epoch:g}: its last "
                f"level is set at once. {_steps(trainee)}",
                AT_CALL,
            )

        waiting = [one for one, act in acts if isinstance(act, QuantizeAct) and not act.clock.started]
        if waiting:
            _say(
                f"training ended at epoch {last:.4g}, and !{tag_of(waiting[0])} begins at {waiting[0].start_epoch:g}: "
                f"nothing is quantized. {_steps(trainee)}",
                AT_CALL,
            )

    def taught_step(self, teachers: Iterable[Teacher], epoch: float) -> None:
        """Before a step; the loss of the first one that is distilled may be made inside of it, by a closure."""
        if not self.is_taught and any(one.is_active(epoch) for one in teachers):
            self._untaught += 1
            if self._untaught == SECOND:
                _say(UNTAUGHT, AT_STEP)

    def untaught(self, teachers: Iterable[Teacher], last: float) -> None:
        said = self._untaught >= SECOND
        if not said and not self.is_taught and any(not one.disabled and one.begun(last) for one in teachers):
            _say(UNTAUGHT, AT_CALL)

    def _say_foreign(self, what: str, level: int) -> None:
        """Whoever is heard last in a step decides."""
        if not self._foreign and self._recipe.learning_rate_modifiers:
            self._foreign = True
            _say(f"{what}, and the recipe does so, too; leave one of them out", level + 1)


def _say(text: str, level: int) -> None:
    warnings.warn(text, stacklevel=level)


def _steps(trainee: ModuleTrainee) -> str:
    return f"Are {trainee.per_epoch} steps an epoch?"


def _schedulers(optimizer: Any, otherwise: str = "a scheduler of torch") -> str:
    """The classes of the schedulers of an optimizer, by looking through all objects: they know it, it does not know
    them. It is asked once in a loop, where there is something to warn of."""
    kind = torch().optim.lr_scheduler.LRScheduler
    known = [one for one in gc.get_objects() if issubclass(type(one), kind)]
    names = dict.fromkeys(type(one).__name__ for one in known if getattr(one, "optimizer", None) is optimizer)
    return " and ".join(names) or otherwise


def _is_scheduled(optimizer: Any) -> bool:
    """Schedulers of torch leave a mark on the step that they follow."""
    step = getattr(optimizer, "step", None)
    return hasattr(step, "_wrapped_by_lr_sched") or hasattr(step, "_with_counter")
