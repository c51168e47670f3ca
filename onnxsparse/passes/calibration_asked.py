"""What a calibration is asked for, checked; and its samples, opened.

1. An option that is none of the words there are, or that means nothing beside another, is refused before any work.
2. Of files the seed draws the samples, of what is yielded the first are taken.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

from onnxsparse import scores, solvers
from onnxsparse.calibration.sweep import RIDGE
from onnxsparse.data import Samples as Data
from onnxsparse.data import Stream, open_data
from onnxsparse.errors import MissingExtraError, OptionError, brief, nearest
from onnxsparse.graph.model import Model
from onnxsparse.options import Path
from onnxsparse.planning.model_inputs import SampleAxes, fields_of, with_empty_past
from onnxsparse.planning.plan import Plan

SENSITIVITY = "sensitivity"
GRADIENTS, MEASURED = "gradients", "measured"
ALIKE = "none"
"""In the place of a sensitivity: every output of a layer counts by what it varies, as in SparseGPT."""
HOWS, BUDGETS = (GRADIENTS, MEASURED, ALIKE), ("params", "bytes", "macs")
ENGINES = ("auto", "ort", "torch")
SCORES = ("obs", "wanda", "ria")
"""Those that say nothing without samples."""
SAMPLES = 256
LEAST_SQUARES = "least-squares"
"""The solver behind which all layers are refitted together."""
JOINT_STEPS, LONGEST = 1500, 10**6
"""Steps of the joint refit where a model is small, and the most that may be asked for."""


@dataclass(frozen=True)
class Asked:
    """What a calibration is asked for; without an allocation levels are by sensitivity, where a pattern has levels."""

    data: Any
    samples: int = SAMPLES
    seed: int = 0
    allocation: str | None = None
    sensitivity: str = GRADIENTS
    engine: str = "auto"
    score: str = "obs"
    solver: str = LEAST_SQUARES
    budget: str = "params"
    add_bias: bool = False
    workers: int | None = None
    checkpoint: Path | None = None
    resume: bool = False
    ridge: float = RIDGE
    joint_steps: int | None = None
    """Of the joint refit; None: as many as fit the size of the model."""

    def __post_init__(self) -> None:
        words = {
            "sensitivity": (self.sensitivity, HOWS),
            "budget": (self.budget, BUDGETS),
            "engine": (self.engine, ENGINES),
        }
        for name, (value, known) in words.items():
            if value not in known:
                hint = nearest(str(value), known)
                raise OptionError(f"--{name} is one of {', '.join(known)}, not {brief(value)}{hint}")
        for flag, number in (("--samples", self.samples), ("--workers", self.workers)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise OptionError(f"{flag} takes a number from 1, not {brief(number)}")
        steps = self.joint_steps
        if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or not 0 <= steps <= LONGEST):
            raise OptionError(f"--joint-steps takes a number from 0 to {LONGEST}, not {brief(steps)}")
        if steps and self.solver != LEAST_SQUARES:
            raise OptionError(f"--joint-steps is of --solver {LEAST_SQUARES}, not of {self.solver}; leave it out")
        scores.parse(self.score)
        if not solvers.parse(self.solver).does and self.add_bias:
            raise OptionError(f"--solver {self.solver} leaves all numbers as they are; leave --add-bias out")


def demand_runtime() -> None:
    if importlib.util.find_spec("onnxruntime") is None:
        raise MissingExtraError("--data runs the model on the samples: pip install 'onnxsparse[runtime]'")


def samples_of(
    model: Model, asked: Asked, axes: SampleAxes, labels: str | None = None, whole: bool = False
) -> Data | Stream:
    """The samples that are asked for: of those with random access the ones that the seed draws, else the first.

    `whole`: all of them, in the order in which they are drawn.
    """
    if isinstance(asked.data, (Data, Stream)):
        return asked.data
    data = open_data(asked.data, with_empty_past(fields_of(model, axes)), labels, labels is not None, None)
    return data.drawn(data.count if whole else asked.samples, asked.seed) if isinstance(data, Data) else data


def by_curves(plan: Plan, asked: Asked) -> bool:
    """Whether the levels are found from samples."""
    leveled = plan.rule.sparsity is not None and plan.rule.pattern is not None and plan.rule.pattern.takes_sparsity
    return leveled and asked.allocation in (None, SENSITIVITY)


__all__ = [
    "ALIKE",
    "GRADIENTS",
    "LEAST_SQUARES",
    "SAMPLES",
    "SCORES",
    "SENSITIVITY",
    "Asked",
    "by_curves",
    "demand_runtime",
    "samples_of",
]
