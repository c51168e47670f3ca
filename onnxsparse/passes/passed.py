"""Levels that a model has passed before they are trained: zeros of its own are more than the level asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnxsparse.passes.layers import counts
from onnxsparse.passes.matrices import count_zeros
from onnxsparse.passes.plan import Plan


@dataclass(frozen=True)
class Passed:
    """What the network comes to in place of the level, as a share, and the words for that."""

    share: float
    text: str


def passed(plan: Plan, drops: Mapping[str, int], level: float) -> Passed | None:
    """Whether a level, in per cent, is passed by the zeros of a dense model's plan; `drops` are those of the level."""
    target = plan.rule.target
    layers = [row for row in plan.rows if counts(row.weight)]
    size = max(sum(row.weight.tensor.size for row in layers), 1)
    zeros = {row.name: count_zeros(row.weight) or 0 for row in layers}
    own = sum(zeros.values()) / size
    share = sum(max(zero, drops.get(name, 0)) for name, zero in zeros.items()) / size
    if target is None or target.tolerance is None or share - level / 100 <= target.tolerance or not own:
        return None
    if own > level / 100:
        return Passed(share, f"level {level:g} is passed already: the model has {100 * own:.2f} % zeros")
    together = f"{100 * share:.2f} % with the {100 * own:.2f} % that the model has"
    return Passed(share, f"level {level:g} is passed by its zeros: {together}")
