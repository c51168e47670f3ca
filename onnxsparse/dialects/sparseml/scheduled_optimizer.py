"""SparseML's older way to put a recipe around a loop: an optimizer made of an optimizer, a module and a manager.

optimizer = ScheduledOptimizer(optimizer, model, manager, steps_per_epoch=len(loader))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnxsparse.dialects.sparseml.recipe_manager import ScheduledModifierManager
from onnxsparse.dialects.sparseml.wrapper import RecipeManagerStepWrapper
from onnxsparse.errors import OptionError


class ScheduledOptimizer(RecipeManagerStepWrapper):
    """What `manager.modify` returns, made by hand; `initialize_kwargs` are those of `manager.initialize`."""

    def __init__(
        self,
        optimizer: Any,
        module: Any,
        manager: ScheduledModifierManager,
        steps_per_epoch: float,
        loggers: Any = None,
        initialize_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(manager, ScheduledModifierManager):
            raise OptionError(f"a ScheduledModifierManager is expected, not a {type(manager).__name__}")
        if steps_per_epoch == -1:
            raise OptionError(
                "steps_per_epoch=-1 is not understood; say how many steps the optimizer makes in an epoch"
            )
        around = manager.modify(module, optimizer, steps_per_epoch, loggers=loggers, **(initialize_kwargs or {}))
        for name, value in vars(around).items():
            object.__setattr__(self, name, value)

    @property
    def manager(self) -> ScheduledModifierManager:
        return self._wrapped_manager

    @property
    def learning_rate(self) -> float:
        """That of the first parameter group; setting it sets those of all."""
        return float(self._wrapped_optimizer.param_groups[0]["lr"])

    def manager_state_dict(self) -> dict[str, Any]:
        return self._wrapped_manager.state_dict()

    def load_manager_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._wrapped_manager.load_state_dict(state_dict)

    def adjust_current_step(self, epoch: int, step: int) -> None:
        raise OptionError(
            f"adjust_current_step does nothing, as in SparseML; go on with manager.modify(..., epoch={epoch})"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "learning_rate":
            for group in self._wrapped_optimizer.param_groups:
                group["lr"] = value
        else:
            super().__setattr__(name, value)
