"""The segments of an attempt: stretches of steps with one training graph each.

1. A segment begins where an act of the run says so; all acts together say what its graph is.
2. Where two segments have the same graph nothing happens. Otherwise the trainee changes its graph, and what both know
   by the same tag is carried over, optimizer state included.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from onnxsparse.engines.spec import Spec
from onnxsparse.train.acts.act import Act
from onnxsparse.train.onnx_trainee import OnnxTrainee


class Segments:
    """Where the segments of a run lie, and in which one its trainee is; `first` is the graph before any act."""

    def __init__(self, first: Spec, trainee: OnnxTrainee, acts: Sequence[Act]) -> None:
        self._first, self._trainee, self._acts = first, trainee, acts
        found = {at for act in acts for at in act.boundaries(trainee) if at < trainee.total}
        self._starts, self._began = sorted({0, *found}), 0

    def enter(self, step: int) -> None:
        """Go on in the segment of a step, with all that the one before it leaves to it."""
        begin = self._begin(step)
        if begin == self._began:
            return
        self._began, spec, trainee = begin, self._spec(begin), self._trainee
        if spec == trainee.spec:  # building a training graph takes seconds, in a process of its own
            return
        for act in self._acts:
            act.leave(trainee, step)
        trainee.rebuild(spec)
        for act in self._acts:
            act.enter(trainee, step)

    def jump(self, step: int) -> None:
        """Have the graph of a step's segment, in whatever state."""
        self._began = self._begin(step)
        spec = self._spec(self._began)
        if spec != self._trainee.spec:
            self._trainee.build(spec)

    def _begin(self, step: int) -> int:
        """The step at which the segment of a step begins."""
        return self._starts[bisect_right(self._starts, step) - 1]

    def _spec(self, begin: int) -> Spec:
        spec = self._first
        for act in self._acts:
            spec = act.shape(self._trainee, spec, begin)
        return spec
