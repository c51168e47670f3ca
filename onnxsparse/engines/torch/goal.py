"""What is made small: the distance to the dense model, a loss against labels, or both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxsparse.engines.ort.signals import Signal
from onnxsparse.engines.spec import Objective
from onnxsparse.engines.torch import losses
from onnxsparse.errors import ModelError
from onnxsparse.losses import Scale, chosen_axis

IGNORED = -100


class Goal:
    """The loss over the signals of both networks; `scales` are those of the float signals, by place."""

    def __init__(self, objective: Objective, signals: Sequence[Signal], scales: dict[int, Scale]) -> None:
        self._goal, self._signals, self._scales = objective, signals, scales
        self._first = ""

    @property
    def asks(self) -> bool:
        """Whether the dense model is asked."""
        return self._goal.hardness > 0

    @property
    def counts(self) -> bool:
        """Whether some labels may count and others not."""
        return self._goal.hardness < 1 and self._goal.task == "cross-entropy"

    def loss(self, values: Sequence[Any], dense: Sequence[Any] | None, labels: Any, share: Any = 1.0) -> Any:
        """`share` is what the labels of this piece count in the mean over all pieces."""
        goal, terms = self._goal, []
        self._first = self._first or self._first_float(values)
        if dense is not None:
            terms.append(self._distillation(_whole(values), _whole(dense), labels) * goal.hardness)
        if goal.hardness < 1:
            raw = goal.task in ("cross-entropy", "bce")
            place = self._place("tap" if raw else "output")
            output = self._signals[place].original
            found = losses.task(goal.task, output, values[place].float(), labels) * share
            terms.append(found * (1 - goal.hardness))
        return sum(terms[1:], terms[0])

    def _distillation(self, values: Sequence[Any], dense: Sequence[Any], labels: Any) -> Any:
        goal = self._goal
        if goal.distillation == "kl":
            place = self._place("tap")
            signal, shape = self._signals[place], tuple(values[place].shape)
            known = losses.axis_of(goal.task, values[place], labels) if goal.task == "cross-entropy" else signal.axis
            axis = chosen_axis("kl", signal.name, shape, goal.axis, known)
            return losses.kl(values[place], dense[place], goal.temperature, axis)
        places = list(self._scales)
        return losses.distill([values[i] for i in places], [dense[i] for i in places], list(self._scales.values()))

    def _first_float(self, values: Sequence[Any]) -> str:
        """The output that labels belong to where none is named."""
        pairs = zip(self._signals, values)
        return next((one.name for one, value in pairs if one.kind == "output" and value.is_floating_point()), "")

    @property
    def taught(self) -> int:
        """The signal that a teacher's answer by kl is of."""
        return self._place("tap")

    def _place(self, kind: str) -> int:
        """Where the output that labels belong to is among the signals, or its first tap."""
        wanted = self._goal.output
        outputs = [signal.name for signal in self._signals if signal.kind == "output"]
        if wanted and wanted not in outputs:
            raise ModelError(f"the model has no output '{wanted}' to train on")
        name = wanted or self._first or outputs[0]
        for place, signal in enumerate(self._signals):
            if kind == "tap" and signal.kind == "tap" and signal.original == name:
                return place
        return outputs.index(name)


def _whole(values: Sequence[Any]) -> list[Any]:
    """In float32: sums of squares and of exponentials need it."""
    return [one.float() if one.is_floating_point() else one for one in values]


def counted(labels: Any) -> float:
    """How many labels count."""
    return 0.0 if labels is None else float((labels != IGNORED).sum())
