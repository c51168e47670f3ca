"""Losses in torch; the numpy form is the definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OptionError
from onnxsparse.losses import Columns, Scale, axis_of_labels, labels_unlike


def distill(student: Sequence[Any], dense: Sequence[Any], scales: Sequence[Scale]) -> Any:
    """Mean square differences to the dense model's tensors, each over its scale, and the mean of them."""
    parts = [_share(ours - theirs, scale) for ours, theirs, scale in zip(student, dense, scales)]
    return sum(parts[1:], parts[0]) / len(parts)


def _share(difference: Any, scale: Scale) -> Any:
    if isinstance(scale, Columns):
        return ((difference * difference.new_tensor(scale.array**-0.5)) ** 2).mean()
    return (difference**2).mean() * (1.0 / scale)


def kl(student: Any, dense: Any, temperature: float, axis: int) -> Any:
    """The divergence from the dense model's softmax along an axis, both softened, times the temperature squared."""
    softmax = torch().nn.functional.log_softmax
    ours, theirs = softmax(student / temperature, axis), softmax(dense / temperature, axis)
    return (theirs.exp() * (theirs - ours)).sum(axis).mean() * temperature**2


def task(name: str, output: str, student: Any, labels: Any) -> Any:
    """A loss against labels: classes for cross-entropy, numbers for the others."""
    functional = torch().nn.functional
    if name == "cross-entropy":
        if bool((labels == -100).all()):
            return student.sum() * 0
        axis = axis_of_labels(tuple(student.shape), tuple(labels.shape))
        return functional.cross_entropy(student if axis is None else student.movedim(axis, 1), labels)
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
