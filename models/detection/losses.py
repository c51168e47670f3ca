"""Losses of detectors, as sums over anchors or proposals: what a sum is divided by is the caller's.

| type                  | kwargs                   | on                                                           |
|-----------------------|--------------------------|--------------------------------------------------------------|
| quality_focal_loss    | gamma                    | classes; the target of the right one is the overlap reached  |
| sigmoid_focal_loss    | alpha, gamma             | classes                                                      |
| sigmoid_cross_entropy |                          | classes                                                      |
| softmax_cross_entropy | class_dim, label_smooth  | classes and background                                       |
| iou_loss              | loss_type: giou or iou   | boxes                                                        |
| smooth_l1_loss        | beta, or sigma           | deltas                                                       |
| l1_loss               |                          | deltas                                                       |

Each takes `loss_weight`, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from models.sections import Section

Tensor = Any
SMALL = 1e-7


@dataclass(frozen=True)
class Loss:
    """A loss by its type, times its weight; `quality` and `boxes` say what it wants as its targets."""

    kind: str
    weight: float
    call: Callable[[Tensor, Tensor], Tensor]

    @property
    def quality(self) -> bool:
        """The target of the right class is the overlap that the predicted box reaches."""
        return self.kind == "quality_focal_loss"

    @property
    def boxes(self) -> bool:
        """It compares boxes, not deltas."""
        return self.kind == "iou_loss"

    def __call__(self, found: Tensor, wanted: Tensor) -> Tensor:
        """The sum; nothing to compare gives a zero that still has a gradient."""
        return self.call(found, wanted) * self.weight


def quality_focal(logits: Tensor, quality: Tensor, gamma: float = 2.0) -> Tensor:
    """Binary cross-entropy with soft targets times |target - probability| ** gamma."""
    entropy = functional.binary_cross_entropy_with_logits(logits, quality, reduction="none")
    return entropy * (quality - logits.sigmoid()).abs() ** gamma


def sigmoid_focal(logits: Tensor, target: Tensor, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    """Binary cross-entropy times (1 - probability of the truth) ** gamma; alpha weighs objects, 1 - alpha the rest."""
    entropy = functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    missed = (target - logits.sigmoid()).abs()
    return entropy * missed**gamma * (alpha * target + (1 - alpha) * (1 - target))


def overlaps(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """IoU and generalized IoU of each box with the one beside it."""
    sides = torch.minimum(first[:, 2:], second[:, 2:]) - torch.maximum(first[:, :2], second[:, :2])
    hull = torch.maximum(first[:, 2:], second[:, 2:]) - torch.minimum(first[:, :2], second[:, :2])
    shared, around = sides.clamp(min=0).prod(1), hull.clamp(min=0).prod(1)
    union = sum((each[:, 2:] - each[:, :2]).clamp(min=0).prod(1) for each in (first, second)) - shared
    iou = shared / union.clamp(min=SMALL)
    return iou, iou - (around - union) / around.clamp(min=SMALL)


def softmax_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of each row; the smoothed part of a label is shared out among all classes."""
    return functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)


def read_class_loss(cfg: Section, known: Sequence[str]) -> Loss:
    """The section `cls_loss`."""
    return _read(cfg, "cls_loss", known, _CLASSES)


def read_box_loss(cfg: Section, known: Sequence[str] = ("l1_loss", "smooth_l1_loss", "iou_loss")) -> Loss:
    """The section `loc_loss`."""
    return _read(cfg, "loc_loss", known, _BOXES)


def _read(cfg: Section, name: str, known: Sequence[str], table: dict[str, Any]) -> Loss:
    kind, kwargs = cfg.typed(name, known)
    made = Loss(kind, kwargs.number("loss_weight", 1.0, least=0), table[kind](kwargs))
    kwargs.end()
    return made


def _quality_focal(kwargs: Section) -> Callable[[Tensor, Tensor], Tensor]:
    gamma = kwargs.number("gamma", 2.0, least=0)
    return lambda logits, quality: quality_focal(logits, quality, gamma).sum()


def _sigmoid_focal(kwargs: Section) -> Callable[[Tensor, Tensor], Tensor]:
    alpha, gamma = kwargs.number("alpha", 0.25, least=0, most=1), kwargs.number("gamma", 2.0, least=0)
    return lambda logits, target: sigmoid_focal(logits, target, alpha, gamma).sum()


def _softmax_entropy(kwargs: Section) -> Callable[[Tensor, Tensor], Tensor]:
    if kwargs.any("class_dim", -1) not in (-1, 1):
        kwargs.refuse("class_dim", "-1, the last one", kwargs.any("class_dim"))
    smoothing = kwargs.number("label_smooth", 0.0, least=0, most=1)
    return lambda logits, labels: softmax_entropy(logits, labels, smoothing).sum()


def _iou(kwargs: Section) -> Callable[[Tensor, Tensor], Tensor]:
    which = ("iou", "giou").index(kwargs.word("loss_type", ("iou", "giou"), "giou"))
    return lambda found, wanted: (1 - overlaps(found, wanted)[which]).sum()


def _smooth_l1(kwargs: Section) -> Callable[[Tensor, Tensor], Tensor]:
    if kwargs.has("sigma"):
        beta = 1 / max(kwargs.number("sigma", least=0), SMALL) ** 2
    else:
        beta = kwargs.number("beta", 1.0, least=0)
    return lambda found, wanted: functional.smooth_l1_loss(found, wanted, reduction="sum", beta=beta)


def _sigmoid_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, target, reduction="sum")


def _l1(found: Tensor, wanted: Tensor) -> Tensor:
    return (found - wanted).abs().sum()


_CLASSES = {
    "quality_focal_loss": _quality_focal,
    "sigmoid_focal_loss": _sigmoid_focal,
    "sigmoid_cross_entropy": lambda _: _sigmoid_entropy,
    "softmax_cross_entropy": _softmax_entropy,
}
_BOXES = {"iou_loss": _iou, "smooth_l1_loss": _smooth_l1, "l1_loss": lambda _: _l1}
