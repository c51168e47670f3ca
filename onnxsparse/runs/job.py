"""What a run comes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from onnxsparse.math.values import Array
from onnxsparse.report.history import History

Watcher = Callable[[dict[str, Any]], None]


@dataclass
class Outcome:
    """What a run came to: the numbers of every stored tensor that trained, by tag."""

    arrays: dict[str, Array]
    masked: list[str]
    history: History
    loss_untrained: float
    loss: float
    helped: bool
    """Whether the loss on the samples held out is less than that of the pruned model without training."""
    attempts: int
    notes: list[str] = field(default_factory=list)
    unreached: dict[str, str] = field(default_factory=dict)
    unit: str = ""
    """What the losses are, in words."""
    dense: dict[str, float] = field(default_factory=dict)
    untrained: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    trained: bool = False
    """Whether the arrays are those of a training; otherwise, those of a one-shot pruning."""
