"""An MSBench scheduler as an act of the training loop: its published calls at the right steps, and its state.

1. Before every step `prune_model` is called with the step's number; where other sparsers take over at a step (the
   subnet of ProbMask), a segment of the run begins there.
2. The rate is that of the scheduler's stages. What draws weights towards sparse ones (ADMM) is added to the gradients.
3. A checkpoint holds what the scheduler knows, the numbers that no engine has, and what the run was made by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from onnxsparse.acts.act import Act, Run
from onnxsparse.acts.trainee import Trainee
from onnxsparse.engines.engine import Spec
from onnxsparse.math.values import Array
from onnxsparse.recipes.modifiers.modifier import Modifier
from onnxsparse.train.onnx_trainee import OnnxTrainee
from onnxsparse.train.stepped_model import SteppedModel


@dataclass(frozen=True)
class Schedule(Modifier):
    """A prepared scheduler and its model.

    `made_by` goes into every checkpoint; `stepped` is told the loss of each step, and how many are done.
    """

    name: ClassVar[str] = "msbench"
    scheduler: Any
    model: SteppedModel
    made_by: Mapping[str, Any]
    stepped: Callable[[int, float], None]

    def start(self, run: Run) -> Act:
        return ScheduleAct(self, lambda: run.loss)


class ScheduleAct(Act):
    """What it does at every step."""

    def __init__(self, options: Schedule, loss: Callable[[], float]) -> None:
        self._scheduler, self._model, self._options, self._loss = options.scheduler, options.model, options, loss
        self._loaded: Mapping[str, Array] = {}

    def boundaries(self, trainee: Trainee) -> Iterable[int]:
        return cast("Iterable[int]", self._scheduler.graph_changes())

    def shape(self, trainee: Trainee, spec: Spec, step: int) -> Spec:
        return spec.with_sparsers(self._scheduler.sparsers_at(step))

    def leave(self, trainee: Trainee, step: int) -> None:
        """What the old graph's arrays say decides what comes into the new one."""
        self._prune(trainee, step)

    def before_step(self, trainee: Trainee, step: int) -> None:
        self._prune(trainee, step)
        trainee.settings = self._model.pace

    def _prune(self, trainee: Trainee, step: int) -> None:
        self._model.attach(cast(OnnxTrainee, trainee))
        self._model.steps = step
        self._scheduler.prune_model(self._model, step)

    def before_update(self, trainee: Trainee, step: int) -> None:
        self._model.add_pull(cast(OnnxTrainee, trainee).engine)

    def after_step(self, trainee: Trainee, step: int) -> None:
        self._model.steps = step + 1
        self._options.stepped(step + 1, self._loss())

    def state(self) -> dict[str, Any]:
        return {"scheduler": self._scheduler.facts(), "network": self._model.facts(), **self._options.made_by}

    def arrays(self) -> Mapping[str, Array]:
        return self._model.arrays_beside()

    def load(self, arrays: Mapping[str, Array]) -> None:
        self._loaded = arrays

    def restore(self, state: dict[str, Any], trainee: Trainee) -> None:
        self._model.restore(self._loaded, {"engine": {}, **state["network"]})
        self._model.attach(cast(OnnxTrainee, trainee))
        self._scheduler.resume(state["scheduler"])
