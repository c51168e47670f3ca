"""The first steps of a run, at less than the full rate: moments know little yet, and large steps would do harm.

The rate itself starts behind them: its factor is that of the remaining steps.
"""

from __future__ import annotations

import math

from onnxsparse.errors import OptionError
from onnxsparse.rates.rate import Rate


def warm_up_steps(total: int, share_or_steps: float) -> int:
    """How many steps of a run are warm-up: a share of all below 1, a number of steps from 1 on."""
    if not 0.0 <= share_or_steps < math.inf:
        raise OptionError(f"a warm-up is a share below 1 or a number of steps, not {share_or_steps}")
    steps = share_or_steps * total if share_or_steps < 1.0 else share_or_steps
    return min(math.floor(steps + 0.5), total)


def warm_up(step: int, total: int, share_or_steps: float) -> float:
    """What the rate is multiplied with at a step, from 0: rises in equal parts and is 1 behind the warm-up."""
    steps = warm_up_steps(total, share_or_steps)
    return 1.0 if step >= steps else (step + 1) / (steps + 1)


def factor_at(rate: Rate, step: int, total: int, per_epoch: int, share_or_steps: float = 0.0) -> float:
    """The multiple of the base rate at a step of a run that begins with a warm-up."""
    steps = warm_up_steps(total, share_or_steps)
    behind = rate.factor(max(step - steps, 0), max(total - steps, 1), per_epoch)
    return warm_up(step, total, share_or_steps) * behind
