"""What a run is given, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnxsparse.engines.engine import Engine
from onnxsparse.engines.processes import Processes
from onnxsparse.engines.spec import Spec
from onnxsparse.epochs.params import Param
from onnxsparse.math.values import Array
from onnxsparse.modifiers.modifier import Modifier
from onnxsparse.passes.plan import PlanRow
from onnxsparse.report.history import History
from onnxsparse.runs.feeding import Feeding
from onnxsparse.scores import Score

MakeEngine = Callable[[Spec], Engine]
Measure = Callable[[Engine], dict[str, float]]
Watcher = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, eq=False)
class Job:
    """What a run is given: nothing of it changes."""

    modifiers: Sequence[Modifier]
    spec: Spec
    make_engine: MakeEngine
    feeding: Feeding
    planned: Mapping[str, PlanRow]
    score: Score
    start: Callable[[str], Array]
    """The dense numbers of a stored tensor, by tag."""
    pruned_share: float
    digest: str = ""
    folder: str | None = None
    resume: bool = False
    watch: Watcher | None = None
    measure: Measure | None = None
    measure_dense: Measure | None = None
    each_epoch: bool = True
    """Whether that is measured after every epoch, or only what is delivered and what it is held against."""
    processes: Processes = field(default_factory=Processes)
    params: Sequence[Param] = ()
    """What the names of a recipe mean, for modifiers that act by epochs."""
    levels: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """How many units of each planned weight go at each level, by tag."""
    milestone: Callable[[int, Engine], None] | None = None
    """Called when a level, by its place, is trained; a run that is resumed behind it does not call it again."""


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
