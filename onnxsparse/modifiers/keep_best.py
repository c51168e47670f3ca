"""Best checkpoint by the loss on held-out samples: what is delivered is never worse than without training.

1. From the first step with the final masks on, the loss on the probe is taken at even distances, and the best state
   kept. The probe is small: of states that are as good on it within `ALIKE`, the latest is the best, which has trained
   longest and at the gentlest rate.
2. At the end it is held against the weights of the dense model under the same masks. If training did not help, it
   begins again with a third of the rate, a few times.
3. If no rate helped, the dense model's weights under the masks are delivered, and that is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from onnxsparse.errors import OptionError
from onnxsparse.modifiers.modifier import Modifier
from onnxsparse.train.acts.act import Act
from onnxsparse.train.trainee import Trainee

if TYPE_CHECKING:
    from onnxsparse.runs.run import Run

SMALLER, PART = 3.0, "a third"
ALIKE = 1.2
NOTHING = 1e-9
"""Up to this loss a pruned model does what the dense one does: no training can help, and no lower rate."""


@dataclass(frozen=True)
class KeepBest(Modifier):
    """Keep the best state by the loss on samples held out; begin again more carefully where training did harm.

    - !keep-best
      checks: 20
      retries: 3
    """

    name: ClassVar[str] = "keep-best"
    checks: int = 20
    retries: int = 3

    def __post_init__(self) -> None:
        if not 1 <= self.checks <= 10**6:
            raise OptionError(f"checks is a whole number from 1, not {self.checks}")
        if not 0 <= self.retries <= 20:
            raise OptionError(f"retries is a whole number from 0 to 20, not {self.retries}")

    def start(self, run: Run) -> Act:
        return KeepBestAct(self, run)


class KeepBestAct(Act):
    """Looks at the probe, and has the run keep its best state."""

    def __init__(self, options: KeepBest, run: Run) -> None:
        self._options, self._run = options, run
        self.best = self._least = math.inf

    def after_step(self, trainee: Trainee, step: int) -> None:
        run = self._run
        begin = run.final_from
        if step < begin:
            return
        every = max(1, (run.total - begin) // self._options.checks)
        if step == run.total - 1 or (step - begin + 1) % every == 0:
            loss = run.probe_loss()
            run.note_probe(loss)
            if loss < math.inf and loss <= ALIKE * self._least:
                self.best, self._least = loss, min(loss, self._least)
                run.remember()

    def finish(self, trainee: Trainee) -> None:
        """Masks that are final only now have not been looked at yet."""
        if self._run.final_from >= self._run.total:
            loss = self._run.probe_loss()
            if loss < math.inf:
                self.best = self._least = loss
                self._run.remember()

    def again(self) -> bool:
        """Whether the run has to begin once more: nothing it came to is better than no training."""
        left = self._run.attempt < self._options.retries
        return left and not self.helped and self._run.untrained_loss() > NOTHING

    @property
    def helped(self) -> bool:
        return self.best < self._run.untrained_loss()

    def state(self) -> dict[str, Any]:
        if not math.isfinite(self.best):
            return {"best": None, "least": None}
        return {"best": self.best, "least": self._least}

    def restore(self, state: dict[str, Any], trainee: Trainee) -> None:
        found = state["best"] is not None
        self.best, self._least = (float(state["best"]), float(state["least"])) if found else (math.inf, math.inf)
