"""What a loop says of its epochs: how many steps each has, and at which it begins."""

from __future__ import annotations

import math
from typing import Any

from onnxsparse.errors import OptionError
from onnxsparse.modifiers.scheduled import FARTHEST


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


def _is_number(value: Any) -> bool:
    """Also those of numpy."""
    if isinstance(value, (bool, str)) or value is None:
        return False
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
