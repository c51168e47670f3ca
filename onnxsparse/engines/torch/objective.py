"""The training objective in torch: distillation from the dense model, a loss against labels, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnxsparse.engines.distillation import DistillationTarget
from onnxsparse.engines.engine import LossSpec
from onnxsparse.engines.layer_terms import LayerTerm, unlike
from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.losses import Columns, Scale, Scores, axis_of_labels, chosen_axis, labels_unlike

# -- the objective


IGNORED = -100


class Goal:
    """The loss over the targets of both networks; `scales` are those of the float targets, by place."""

    def __init__(self, objective: LossSpec, signals: Sequence[DistillationTarget], scales: dict[int, Scale]) -> None:
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
            found = task(goal.task, output, values[place].float(), labels, goal.smoothing) * share
            terms.append(found * (1 - goal.hardness))
        return sum(terms[1:], terms[0])

    def of_layers(self, values: Sequence[Any], taught: Sequence[Any], projections: Mapping[str, Any]) -> Any:
        """What layers that learn from layers add to the loss."""
        places = {signal.name: place for place, signal in enumerate(self._signals)}
        total = 0.0
        for term, theirs in zip(self._goal.terms, taught):
            ours, theirs = values[places[term.student]].float(), theirs.float()
            matrix = projections[term.projected_by] if term.projection else None
            total = total + term.gain * distance(term, ours, theirs, matrix)
        return total

    def _distillation(self, values: Sequence[Any], dense: Sequence[Any], labels: Any) -> Any:
        goal = self._goal
        if goal.distillation == "kl":
            parts = [self._divergence(place, values[place], dense[place], labels) for place in self.taught]
            return sum(parts[1:], parts[0]) / len(parts)
        places = list(self._scales)
        return distill([values[i] for i in places], [dense[i] for i in places], list(self._scales.values()))

    def _divergence(self, place: int, ours: Any, theirs: Any, labels: Any) -> Any:
        goal, signal = self._goal, self._signals[place]
        labelled = goal.task == "cross-entropy" and place == self._place("tap")
        known = axis_of(goal.task, ours, labels) if labelled else signal.axis
        axis = chosen_axis("kl", signal.name, tuple(ours.shape), goal.axis, known)
        return kl(ours, theirs, goal.temperature, axis)

    def _first_float(self, values: Sequence[Any]) -> str:
        """The output that labels belong to where none is named."""
        pairs = zip(self._signals, values)
        return next((one.name for one, value in pairs if one.kind == "output" and value.is_floating_point()), "")

    @property
    def taught(self) -> list[int]:
        """The targets that a teacher's answers by kl are of."""
        return [self._place("tap", name) for name in self._goal.distilled or (self._goal.output,)]

    def _place(self, kind: str, wanted: str | None = None) -> int:
        """Where an output is among the targets, that of the labels or a given one, or the value before its squashing
        function."""
        wanted = self._goal.output if wanted is None else wanted
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


def distance(term: LayerTerm, ours: Any, theirs: Any, matrix: Any) -> Any:
    """How far a layer is from what it is to learn."""
    if matrix is not None:
        ours = torch().nn.functional.linear(ours.movedim(term.axis, -1), matrix).movedim(-1, term.axis)
    if ours.shape != theirs.shape:
        raise OptionError(unlike(term, ours.shape, theirs.shape))
    found = (ours - theirs).square().mean()
    return found / (theirs.square().mean() + term.epsilon) if term.normalize else found


# -- Losses in torch; the numpy form is the definition.


def distill(student: Sequence[Any], dense: Sequence[Any], scales: Sequence[Scale]) -> Any:
    """Mean square differences to the dense model's tensors, each over its scale, and the mean of them."""
    parts = [_share(ours, theirs, scale) for ours, theirs, scale in zip(student, dense, scales)]
    return sum(parts[1:], parts[0]) / len(parts)


def _share(ours: Any, theirs: Any, scale: Scale) -> Any:
    if isinstance(scale, Scores):
        return _share(ours, theirs, scale.distance) + kl(ours, theirs, 1.0, -1)
    difference = ours - theirs
    if isinstance(scale, Columns):
        return ((difference * difference.new_tensor(scale.array**-0.5)) ** 2).mean()
    return (difference**2).mean() * (1.0 / scale)


def kl(student: Any, dense: Any, temperature: float, axis: int) -> Any:
    """The divergence from the dense model's softmax along an axis, both softened, times the temperature squared."""
    softmax = torch().nn.functional.log_softmax
    ours, theirs = softmax(student / temperature, axis), softmax(dense / temperature, axis)
    return (theirs.exp() * (theirs - ours)).sum(axis).mean() * temperature**2


def task(name: str, output: str, student: Any, labels: Any, smoothing: float = 0.0) -> Any:
    """A loss against labels: classes for cross-entropy, numbers for the others."""
    functional = torch().nn.functional
    if name == "cross-entropy":
        if bool((labels == -100).all()):
            return student.sum() * 0
        axis = axis_of_labels(tuple(student.shape), tuple(labels.shape))
        logits = student if axis is None else student.movedim(axis, 1)
        return functional.cross_entropy(logits, labels, label_smoothing=smoothing)
    _demand_alike(name, output, student, labels)
    forms = {"mse": functional.mse_loss, "l1": functional.l1_loss, "bce": functional.binary_cross_entropy_with_logits}
    return forms[name](student, labels)


def _demand_alike(name: str, output: str, student: Any, labels: Any) -> None:
    if student.shape != labels.shape:
        raise OptionError(labels_unlike(name, output, tuple(labels.shape[1:]), [tuple(student.shape[1:])]))


def axis_of(task: str, logits: Any, labels: Any) -> int:
    """Where the classes of logits lie; without labels of classes along the second axis."""
    known = axis_of_labels(tuple(logits.shape), tuple(labels.shape)) if task == "cross-entropy" else None
    return known or (1 if logits.dim() > 1 else 0)
