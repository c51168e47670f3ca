"""The segments of an attempt: stretches of steps with one training graph each, and the one engine there is.

1. A segment begins where a part of the run says so; all parts together say what its graph is.
2. Where two segments have the same graph the engine stays. Otherwise it is made anew, and what both know by the same
   tag is carried over, moments included.
3. There are never two engines at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from onnxsparse.engines.engine import Engine
from onnxsparse.engines.spec import Spec
from onnxsparse.modifiers.modifier import Part
from onnxsparse.train.engine_choice import Engines
from onnxsparse.train.evaluation import Evaluation
from onnxsparse.train.task import Task

ASKED_AHEAD = 1.5
"""Passes through the data from which on the dense model is asked about all of it once."""


class Segments:
    """Where the segments of a task of `total` steps lie, and the engine of the one that it is in."""

    engine: Engine

    def __init__(
        self, task: Task, engines: Engines, evaluation: Evaluation | None, total: int, note: Callable[[str], None]
    ) -> None:
        self._task, self._engines, self._evaluation, self._total, self._note = task, engines, evaluation, total, note
        self._parts: Sequence[Part] = ()
        self._starts, self._began = [0], 0
        self._spec: Spec | None = None

    @property
    def spec(self) -> Spec:
        """What the engine was made by."""
        assert self._spec is not None
        return self._spec

    def meet(self, parts: Sequence[Part]) -> None:
        """The parts that say from now on where segments begin, and what they are."""
        self._parts = parts
        self._starts = sorted({0, *(at for part in parts for at in part.boundaries() if at < self._total)})

    def enter(self, step: int) -> None:
        """Go on in the segment of a step, with all that the one before it leaves to it."""
        begin = self._begin(step)
        if begin == self._began:
            return
        self._began, spec = begin, self._spec_of(begin)
        if spec == self._spec:
            return
        for part in self._parts:
            part.leave(step)
        arrays, facts = self.engine.state()
        kept = {key: array.copy() for key, array in arrays.items()}
        del arrays
        self._load(spec)
        self.engine.restore(kept, facts)
        for part in self._parts:
            part.change(step)

    def jump(self, step: int) -> None:
        """Have the engine of a step's segment, in whatever state."""
        self._began = self._begin(step)
        spec = self._spec_of(self._began)
        if spec != self._spec:
            self._load(spec)

    def forget(self) -> None:
        """Whatever comes next gets a new engine."""
        self._spec = None

    def _begin(self, step: int) -> int:
        """The step at which the segment of a step begins."""
        return self._starts[bisect_right(self._starts, step) - 1]

    def _spec_of(self, begin: int) -> Spec:
        spec = self._task.spec
        for part in self._parts:
            spec = part.shape(spec, begin)
        return spec

    def _load(self, spec: Spec) -> None:
        """A new engine; never two at once."""
        self.__dict__.pop("engine", None)
        self.engine, self._spec = self._engines.make(spec), spec
        if self._evaluation is not None:
            self._evaluation.begin(self.engine)
        for note in self.engine.notes:
            self._note(note)
        feeding = self._task.feeding
        if feeding.count and self._total * feeding.size > ASKED_AHEAD * feeding.count:
            self.engine.ask_ahead(feeding.count, feeding.everything())
