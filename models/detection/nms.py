"""Non-maximum suppression in numpy, with the rules of ONNX's NonMaxSuppression.

A box is kept whose overlap with a better one is exactly the threshold; boxes of different classes keep each other.
Beyond ONNX, `top_n` counts over all classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from models.detection.boxes import iou

Array = np.ndarray[Any, Any]
BLOCK = 128
"""Candidates that are compared with those kept, and then with each other, at a time."""


def best_first(scores: Array, count: int | None = None) -> Array:
    """The indices of the best scores; of equal ones the first, as in ONNX's TopK."""
    return np.argsort(-scores, kind="stable")[:count]


def nms(boxes: Array, scores: Array, threshold: float, labels: Array | None = None, top_n: int | None = None) -> Array:
    """The indices of the boxes that are kept, the best first."""
    order, kept = best_first(scores), np.zeros(0, np.intp)
    for begin in range(0, len(order), BLOCK):
        if top_n is not None and len(kept) >= top_n:
            break
        block = order[begin : begin + BLOCK]
        block = block[~_suppressing(boxes, labels, kept, block, threshold).any(0)]
        block = block[_kept_of(_suppressing(boxes, labels, block, block, threshold))]
        kept = np.concatenate([kept, block])
    return kept[:top_n]


def _suppressing(boxes: Array, labels: Array | None, first: Array, second: Array, threshold: float) -> Array:
    over = iou(boxes[first], boxes[second]) > threshold
    return over if labels is None else over & (labels[first][:, None] == labels[second][None, :])


def _kept_of(over: Array) -> Array:
    """Which of some candidates, the best first, are kept, by which suppresses which."""
    kept = np.ones(len(over), bool)
    for at, row in enumerate(over):
        if kept[at]:
            kept[at + 1 :] &= ~row[at + 1 :]
    return kept
