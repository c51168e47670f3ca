"""The frame of a run: how long, how many samples at once, by which optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from onnxsparse import optimizers, rates
from onnxsparse.data.order import checked_seed
from onnxsparse.engines.engine import Pace
from onnxsparse.errors import OptionError
from onnxsparse.modifiers.modifier import Modifier, Part
from onnxsparse.rates import factor_at, warm_up_steps

if TYPE_CHECKING:
    from onnxsparse.runs.run import Run

LONGEST = 10**9
EPOCHS, SHORTEST = 3, 500
"""How long a run is where nobody says it: epochs, and the steps that it has at least."""
SHARE, LEAST_STEPS = 0.05, 10
"""The warm-up, as a share of the run and in steps."""
BUILT_IN = "ort-adamw"
"""The optimizer inside onnxruntime-training; only that engine has it."""
OWN = "own"
"""An optimizer, or a schedule of its rates, that a function of the user's makes for the torch engine."""
PRECISIONS = ("float32", "bfloat16", "float16")
GENTLE, STEEPEST = 0.015, 0.1
"""The relative rate when half of the weights go, and the highest one."""


@dataclass(frozen=True)
class Training(Modifier):
    """Epochs or steps, batch, optimizer, learning rate and its schedule.

    - !training
      epochs: 3
      batch: 32
      optimizer: relative
      rate_schedule: cosine
    """

    name: ClassVar[str] = "training"
    epochs: float | None = None
    steps: int | None = None
    steps_per_epoch: int | None = None
    batch: int = 32
    optimizer: str = "relative"
    rate: float | None = None
    rate_schedule: str = "cosine"
    warm_up: float | None = None
    weight_decay: float = 0.0
    clip: float = 0.0
    train_bn: bool = False
    seed: int = 0
    accumulate: int = 1
    precision: str = "float32"

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise OptionError("--epochs and --steps both say how long to train; give one of the two")
        for name in ("epochs", "steps", "steps_per_epoch", "rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= LONGEST:
                raise OptionError(f"{name.replace('_', '-')} is a number above 0, up to {LONGEST:g}, not {value}")
        for name in ("steps", "steps_per_epoch", "batch", "seed", "accumulate"):
            if not isinstance(getattr(self, name), (int, type(None))):
                raise OptionError(f"{name.replace('_', '-')} is a whole number, not {getattr(self, name)!r:.40}")
        for name in ("batch", "accumulate"):
            if not 1 <= getattr(self, name) <= LONGEST:
                raise OptionError(f"{name} is a whole number from 1 to {LONGEST}, not {getattr(self, name)}")
        for name in ("weight_decay", "clip", "warm_up"):
            if not 0 <= (getattr(self, name) or 0.0) < float("inf"):
                raise OptionError(f"{name.replace('_', '-')} is a number from 0, not {getattr(self, name)}")
        checked_seed(self.seed)
        self._demand_words()

    def _demand_words(self) -> None:
        if self.precision not in PRECISIONS:
            raise OptionError(f"precision is one of {', '.join(PRECISIONS)}, not {self.precision!r:.40}")
        if self.optimizer not in (BUILT_IN, OWN):
            optimizers.parse(self.optimizer)
        if self.optimizer == OWN and (self.rate is not None or self.weight_decay):
            raise OptionError("an optimizer of your own has its own rates and decay; leave lr and weight-decay out")
        if self.rate_schedule != OWN:
            rates.parse(self.rate_schedule)
        elif self.optimizer != OWN:
            raise OptionError("a schedule of your own (lr_scheduler) needs an optimizer of your own, too")

    def start(self, run: Run) -> Part:
        return _Training(self, run)

    def total(self, per_epoch: int) -> int:
        """Optimizer steps in all."""
        if self.steps is not None:
            return self.steps
        if self.epochs is None:
            return max(EPOCHS * per_epoch, SHORTEST)
        return max(1, round(self.epochs * per_epoch))

    def warm_up_at(self, total: int) -> float:
        """The warm-up of a run: a share below 1, or steps. By default 5 %, and up to ten steps of a short run."""
        if self.warm_up is not None:
            return self.warm_up
        if self.rate_schedule == OWN:
            return 0.0
        return float(max(warm_up_steps(total, SHARE), min(LEAST_STEPS, total // 5)))

    @property
    def schedule_here(self) -> str:
        """How the rate goes by what is said here: not at all where a function of the user's moves it."""
        return "constant" if self.rate_schedule == OWN else self.rate_schedule

    def base_rate(self, pruned: float) -> float:
        """The rate asked for; by default the more has gone, the farther the rest has to move.

        Of an optimizer of the user's it is a share of its rates.
        """
        if self.optimizer == OWN:
            return 1.0
        if self.rate is not None:
            return self.rate
        rate = GENTLE * (pruned / max(1 - pruned, 1e-9)) ** 0.5
        rate = min(max(rate, GENTLE / 3), STEEPEST)
        relative = self.optimizer != BUILT_IN and optimizers.parse(self.optimizer).name == "relative"
        return float(rate) if relative else float(rate) / 10


class _Training(Part):
    def __init__(self, options: Training, run: Run) -> None:
        self._options, self._run, self._schedule = options, run, rates.parse(options.schedule_here)
        self._base, self._warm_up = options.base_rate(run.pruned_share), options.warm_up_at(run.total)

    def before_step(self, step: int) -> None:
        run, options = self._run, self._options
        factor = factor_at(self._schedule, step, run.total, run.per_epoch, self._warm_up)
        run.pace = Pace(self._base * run.caution * factor, options.weight_decay, options.clip)
