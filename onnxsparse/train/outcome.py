"""Outcome of a run, and the rows of its history while it goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from onnxsparse.math.values import Array
from onnxsparse.report.history import History, Moment
from onnxsparse.train.fake_quantization import Integers

# -- the outcome


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
    integers: Integers | None = None
    """What makes integers of it, as the network in training was rounded; None where that was not."""


# -- What a run tells of itself: rows of its history, with the mean loss since the row before.


ROWS = 100


class Account:
    """The history of a run of `total` steps, and the sums for its next row. Only the speed depends on the clock."""

    def __init__(self, total: int, per_epoch: int, batch: int, watch: Watcher | None) -> None:
        self._total, self._per_epoch, self._batch, self._watch = total, per_epoch, batch, watch
        self._every = max(1, total // ROWS)
        self.history = History()
        self.probed: float | None = None
        self._asked = False
        self._sum, self._since = 0.0, 0
        self.start_clock()

    def start_clock(self) -> None:
        """The speed of the next row is counted from here."""
        self._clock, self._timed = time.monotonic(), 0

    def begin_again(self) -> None:
        """Another attempt begins."""
        self.history.until(-1)
        self._sum, self._since, self.probed = 0.0, 0, None
        self.start_clock()

    def count(self, loss: float) -> None:
        """The loss of one more step."""
        self._sum, self._since, self._timed = self._sum + loss, self._since + 1, self._timed + 1

    def ask(self) -> None:
        """A row after this step."""
        self._asked = True

    def ends_epoch(self, done: int) -> bool:
        """Whether a whole epoch, but not the last one, is over after so many steps."""
        return done % self._per_epoch == 0 and done != self._total

    def is_due(self, done: int) -> bool:
        """Whether a row is due after so many steps."""
        return self._asked or done % self._every == 0 or done == self._total or self.probed is not None

    def add(self, done: int, attempt: int, rate: float, sparsity: float | None, metrics: dict[str, float]) -> None:
        """A row after so many steps."""
        row = Moment(
            epoch=round(done / self._per_epoch, 4),
            step=done,
            loss=self._sum / self._since,
            sparsity=sparsity,
            rate=rate,
            samples_per_second=self._speed(),
            probe=self.probed,
            metrics=metrics,
        )
        self.history.add(row)
        self._sum, self._since, self.probed, self._asked = 0.0, 0, None, False
        if self._watch is not None:
            self._watch({"of": self._total, "attempt": attempt + 1, **vars(row)})

    def _speed(self) -> float:
        seconds, steps = max(time.monotonic() - self._clock, 1e-9), self._timed
        self.start_clock()
        return round(steps * self._batch / seconds, 1)

    def state(self) -> dict[str, Any]:
        return {"history": self.history.to_facts(), "sum": self._sum, "since": self._since}

    def restore(self, state: dict[str, Any]) -> None:
        self.history = History.from_facts(state["history"])
        self._sum, self._since = float(state["sum"]), int(state["since"])
