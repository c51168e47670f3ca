"""Distillation in a run: between two steps the training graph has the teacher's share in its loss.

1. The teacher `self` is the model as it was when the run began.
2. Without labels the teacher is all there is to learn from, whatever the hardness.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from onnxsparse.engines.spec import Spec
from onnxsparse.epochs.distilling import DISABLE, SELF, Distilling
from onnxsparse.epochs.running import Acting
from onnxsparse.errors import OptionError

if TYPE_CHECKING:
    from onnxsparse.runs.run import Run


class Teaching(Acting):
    def __init__(self, act: Distilling, run: Run) -> None:
        super().__init__(act, run)
        self._distilling, self._run = act, run
        self._first = self.step_at(max(act.span.start, 0.0))
        self._end = self.step_at(act.span.end) if act.span.end >= 0 else run.total
        _demand_one_output(act)
        if act.teacher not in (SELF, DISABLE) and not os.path.isfile(act.teacher):
            raise OptionError(f"{act.where}: teacher: there is no file {act.teacher:.100}")

    def boundaries(self) -> Iterable[int]:
        return () if self._distilling.teacher == DISABLE else (self._first, self._end)

    def shape(self, spec: Spec, step: int) -> Spec:
        act, goal = self._distilling, spec.objective
        if act.teacher == DISABLE or not self._first <= step < self._end:
            return spec
        hardness = act.hardness if goal.task else 1.0
        teacher = "" if act.teacher == SELF else act.teacher
        changed = replace(goal, distillation="kl", hardness=hardness, temperature=act.temperature, teacher=teacher)
        return replace(spec, objective=changed)


def _demand_one_output(act: Distilling) -> None:
    if act.outputs is not None and list(act.outputs) != [0] and len(act.outputs) != 1:
        raise OptionError(f"{act.where}: distill_output_keys names one output in a run, not {list(act.outputs)}")
