"""Training settings as modifiers: length, batches and optimizer; the loss; which state is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from onnxsparse import losses, optimizers, rates
from onnxsparse.acts.act import Act, Run
from onnxsparse.acts.trainee import Trainee
from onnxsparse.data.samples import checked_seed
from onnxsparse.engines.engine import Pace
from onnxsparse.errors import OptionError, nearest
from onnxsparse.losses import KL, CrossEntropy
from onnxsparse.rates import factor_at, warm_up_steps
from onnxsparse.recipes.modifiers.modifier import Modifier

# -- Training settings: how long, how many samples at once, by which optimizer and learning rate.


LONGEST = 10**9
EPOCHS, SHORTEST = 3, 1500
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

NEARER, GENTLEST = 0.4, 0.0075
"""From a calibrated start with the dense model as the only goal: what the rate is multiplied by, and the lowest one. On
Fashion-MNIST a CNN with 95 % zeros came to 89.8 % at 0.016 (89.3 from a plain start); at 2:4 to 90.2, 90.1 and 90.1 at
0.005, 0.0075 and 0.01 in 200 steps; a depthwise one with 90 % zeros and 6,000 images to 87.7, 88.1 and 87.8 at 0.011,
0.015 and 0.03, with a loss that fell from each to the next."""


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

    def start(self, run: Run) -> Act:
        return TrainingAct(self, run.pruned_share, run.task.starts_near)

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

    def base_rate(self, pruned: float, near: bool = False) -> float:
        """The rate asked for; by default the more has gone, the farther the rest has to move. Near the goal it is
        not that far.

        Of an optimizer of the user's it is a share of its rates.
        """
        if self.optimizer == OWN:
            return 1.0
        if self.rate is not None:
            return self.rate
        rate = GENTLE * (pruned / max(1 - pruned, 1e-9)) ** 0.5
        rate = min(max(rate, GENTLE / 3), STEEPEST)
        rate = max(rate * NEARER, GENTLEST) if near else rate
        relative = self.optimizer != BUILT_IN and optimizers.parse(self.optimizer).name == "relative"
        return float(rate) if relative else float(rate) / 10


class TrainingAct(Act):
    """Rate, decay and clipping of every step."""

    def __init__(self, options: Training, pruned_share: float, near: bool) -> None:
        self._options, self._schedule = options, rates.parse(options.schedule_here)
        self._base = options.base_rate(pruned_share, near)

    def before_step(self, trainee: Trainee, step: int) -> None:
        total, options = trainee.total, self._options
        factor = factor_at(self._schedule, step, total, trainee.per_epoch, options.warm_up_at(total))
        trainee.settings = Pace(self._base * trainee.caution * factor, options.weight_decay, options.clip)


# -- The loss of a run: distillation from the dense model, a task loss against labels, or both.


TASKS = ("cross-entropy", "mse", "bce", "l1")
DISTILLATIONS = ("distill", "kl")
MIXED, TEMPERATURE = 0.7, 2.0


@dataclass(frozen=True)
class Objective(Modifier):
    """Distillation from the dense model, a loss against labels, or both.

    - !objective
      loss: cross-entropy
      hardness: 0.5
    """

    name: ClassVar[str] = "objective"
    loss: str = "distill"
    hardness: float | None = None
    temperature: float = TEMPERATURE
    distillation: str = "distill"
    output: str = ""

    def __post_init__(self) -> None:
        if _word(self.loss) not in (*TASKS, *DISTILLATIONS):
            known = (*DISTILLATIONS, *TASKS)
            hint = nearest(_word(self.loss), known) or f" (known: {', '.join(known)})"
            raise OptionError(f"--loss does not know {self.loss!r:.40}{hint}")
        if _word(self.distillation) not in DISTILLATIONS:
            raise OptionError(f"distillation is one of {', '.join(DISTILLATIONS)}, not {self.distillation!r:.40}")
        self._demand_known_options()
        if self.hardness is not None and not 0 <= self.hardness <= 1:
            raise OptionError(f"hardness, the share of the distillation, lies from 0 to 1, not at {self.hardness}")
        if self.hardness is not None and not self.task and self.hardness != 1:
            raise OptionError("hardness mixes distillation with a task loss; name one, such as --loss cross-entropy")
        if not 0 < self.temperature < float("inf"):
            raise OptionError(f"temperature is a number above 0, not {self.temperature}")

    def _demand_known_options(self) -> None:
        """Only kl and cross-entropy have options here; an ignored label is always -100."""
        for text in (self.loss, self.distillation):
            if ":" in text and _word(text) not in (KL.name, CrossEntropy.name):
                raise OptionError(f"{_word(text)} takes no options here; leave {text.partition(':')[2]!r:.40} out")
        labels = self._cross_entropy
        if labels is not None and labels.ignore != CrossEntropy.ignore:
            raise OptionError(f"labels to leave out are {CrossEntropy.ignore} here; leave 'ignore={labels.ignore}' out")
        kl = self._kl
        if kl is not None and "temperature=" in self._distils and self.temperature not in (TEMPERATURE, kl.temperature):
            raise OptionError(f"the temperature is said twice: {kl.temperature:g} and {self.temperature:g}")

    @property
    def task(self) -> str:
        return _word(self.loss) if _word(self.loss) in TASKS else ""

    @property
    def _cross_entropy(self) -> CrossEntropy | None:
        found = losses.parse(self.loss) if self.task == CrossEntropy.name else None
        return found if isinstance(found, CrossEntropy) else None

    @property
    def smoothing(self) -> float:
        """Of labels: the share that goes to all classes."""
        return 0.0 if self._cross_entropy is None else self._cross_entropy.smoothing

    @property
    def _distils(self) -> str:
        return self.distillation if self.task else self.loss

    @property
    def _kl(self) -> KL | None:
        found = losses.parse(self._distils) if _word(self._distils) == KL.name else None
        return found if isinstance(found, KL) else None

    @property
    def kind_of_distillation(self) -> str:
        return _word(self._distils)

    @property
    def idle(self) -> list[str]:
        """What was said and changes nothing."""
        if self.temperature == TEMPERATURE or self.kind_of_distillation == KL.name:
            return []
        other = "--distillation kl" if self.task else "--loss kl"
        return [f"the temperature {self.temperature:g} changes nothing: it softens kl, which {other} asks for"]

    @property
    def softness(self) -> float:
        """The temperature, wherever it was said."""
        kl = self._kl
        return self.temperature if kl is None or "temperature=" not in self._distils else kl.temperature

    @property
    def axis(self) -> int | None:
        """The axis of the classes for kl, where the user says it."""
        return None if self._kl is None else self._kl.axis

    @property
    def share(self) -> float:
        """The share of the distillation."""
        if not self.task:
            return 1.0
        return MIXED if self.hardness is None else self.hardness

    def start(self, run: Run) -> Act:
        return Act()  # the training graph has it, from the first step to the last


def _word(text: str) -> str:
    return text.partition(":")[0]


# -- Best checkpoint by the loss on held-out samples: what is delivered is never worse than without training.
#
# 1. From the first step with the final masks on, the loss on the probe is taken at even distances, and the best state
#    kept. The probe is small: of states that are as good on it within `ALIKE`, the latest is the best, which has
#    trained longest and at the gentlest rate.
# 2. At the end it is held against the weights of the dense model under the same masks. If training did not help, it
#    begins again with a third of the rate, a few times.
# 3. If no rate helped, the dense model's weights under the masks are delivered, and that is said.


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
                run.keep_as_best()

    def finish(self, trainee: Trainee) -> None:
        """Masks that are final only now have not been looked at yet."""
        if self._run.final_from >= self._run.total:
            loss = self._run.probe_loss()
            if loss < math.inf:
                self.best = self._least = loss
                self._run.keep_as_best()

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
