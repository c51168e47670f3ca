"""What a loop says: how many steps an epoch has and at which it begins, its optimizer, and its teacher."""

from __future__ import annotations

import math
import os
from typing import Any

from onnxsparse.errors import OptionError, brief
from onnxsparse.modifiers.scheduled import FARTHEST
from onnxsparse.passes.taken import proto_of
from onnxsparse.recipes.modifiers.distillation import DISABLE, SELF


def demand_steps(steps_per_epoch: Any) -> None:
    if not _is_number(steps_per_epoch) or not 0 < steps_per_epoch < FARTHEST:
        raise OptionError(f"steps_per_epoch is a number above 0, and below {FARTHEST:g}, not {steps_per_epoch!r:.40}")


def epoch_of(epoch: Any) -> float:
    """Where a loop begins; without a number at 0, and at infinity, which -1 is too, where the recipe is over."""
    if epoch is None:
        return 0.0
    if not _is_number(epoch) or math.isnan(epoch) or (epoch < 0 and epoch != -1) or FARTHEST <= epoch < math.inf:
        raise OptionError(f"epoch is a number from 0, or -1 where the recipe is over, not {epoch!r:.40}")
    return math.inf if epoch == -1 else float(epoch)


def demand_optimizer(optimizer: Any, module: Any) -> None:
    if not hasattr(optimizer, "param_groups"):
        raise OptionError(f"an optimizer of torch is expected, not a {type(optimizer).__name__}")
    own = set(module.parameters()) if hasattr(module, "parameters") else set()
    if own and not any(one in own for group in optimizer.param_groups for one in group["params"]):
        raise OptionError(
            "the optimizer has none of the module's parameters; make it of model.parameters() of this module"
        )


def demand_teacher(teacher: Any) -> None:
    if isinstance(teacher, (str, os.PathLike)) and teacher not in (SELF, DISABLE):
        if not os.path.isfile(teacher):
            raise OptionError(f"the teacher: there is no file {os.fspath(teacher):.100}")
    elif not isinstance(teacher, str) and not callable(teacher) and proto_of(teacher) is None:
        raise OptionError(
            f"a teacher is '{SELF}', '{DISABLE}', a module or the path of an ONNX file, not {brief(teacher):.40}"
        )


def _is_number(value: Any) -> bool:
    """Also those of numpy."""
    if isinstance(value, (bool, str)) or value is None:
        return False
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
