"""What the training loop is given, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from onnxsparse.engines.engine import Engine
from onnxsparse.engines.processes import Processes
from onnxsparse.engines.spec import Spec
from onnxsparse.modifiers.modifier import Modifier
from onnxsparse.passes.plan import PlanRow
from onnxsparse.report.history import History
from onnxsparse.runs.feeding import Feeding
from onnxsparse.scores import Score
from onnxsparse.train.acts.act import TimedAct
from onnxsparse.train.params import Param
from onnxsparse.values import Array

Watcher = Callable[[dict[str, Any]], None]


class Asked(Protocol):
    """What the loop reads of a task; a dialect with a model of its own may ask without a `Task`. Nothing changes."""

    @property
    def modifiers(self) -> Sequence[Modifier]: ...

    @property
    def spec(self) -> Spec:
        """The training graph before any act changes it."""

    @property
    def feeding(self) -> Feeding: ...

    @property
    def planned(self) -> Mapping[str, PlanRow]: ...

    @property
    def score(self) -> Score: ...

    @property
    def pruned_share(self) -> float: ...

    @property
    def digest(self) -> str: ...

    @property
    def processes(self) -> Processes: ...

    @property
    def params(self) -> Sequence[Param]:
        """What the names of a recipe mean, for modifiers that act by epochs."""

    @property
    def acts(self) -> Sequence[TimedAct]:
        """The acts of those modifiers, in their order: the plan has bound them."""

    @property
    def levels(self) -> Mapping[str, Sequence[int]]:
        """How many units of each planned weight go at each level, by tag."""

    def numbers(self, tag: str) -> Array:
        """The dense numbers of a stored tensor."""


class MakesEngines(Protocol):
    """What makes the engine of a training graph."""

    def make(self, spec: Spec) -> Engine: ...


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
