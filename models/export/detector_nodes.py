"""The nodes that detectors share: the best of a level's outputs, decoding of boxes, clipping, suppression.

1. Boxes are x1, y1, x2, y2. Outputs of a level are (1, A * K, H, W), anchor-major, anchors in the order row, column, A.
2. NonMaxSuppression returns no boxes without max_output_boxes_per_class, has no limit over all classes, keeps a box
   whose overlap is exactly the threshold, and takes only scores above theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from models.export.graph import Array, Graph

NONE = -1.0
"""A score that is below every threshold."""


@dataclass(frozen=True)
class Coding:
    """How deltas stand for boxes: shift of the centre by the size, logarithm of the size's ratio."""

    means: Sequence[float] = (0.0, 0.0, 0.0, 0.0)
    stds: Sequence[float] = (1.0, 1.0, 1.0, 1.0)
    largest: float = float(np.log(1000 / 16))
    """The largest logarithm of a ratio that is decoded."""


@dataclass(frozen=True)
class Level:
    """One level's outputs by name, and its anchors, (H * W * A, 4)."""

    cls: str
    loc: str
    anchors: Array
    shape: tuple[int, int]

    @property
    def count(self) -> int:
        """How many anchors each place has."""
        return len(self.anchors) // (self.shape[0] * self.shape[1])


def flattened(graph: Graph, value: str, level: Level, last: int) -> str:
    """(1, A * last, H, W) as (H * W * A, last)."""
    split = graph.op("Reshape", value, graph.integers([level.count, last, level.shape[0] * level.shape[1]]))
    turned = graph.op("Transpose", split, perm=[2, 0, 1])
    return graph.op("Reshape", turned, graph.integers([-1, last]))


def best_of(graph: Graph, level: Level, classes: int, most: int, coding: Coding) -> tuple[str, str, str]:
    """The best (anchor, class) pairs of a level: boxes (K, 4), scores (K), classes (K) from 0."""
    scores = graph.op("Sigmoid", flattened(graph, level.cls, level, classes))
    found, places = graph.top(graph.op("Reshape", scores, graph.integers([-1])), most)
    at = graph.op("Div", places, graph.integers(classes))
    deltas = graph.op("Gather", flattened(graph, level.loc, level, 4), at, axis=0)
    anchors = graph.op("Gather", graph.floats(level.anchors), at, axis=0)
    return decoded(graph, deltas, anchors, coding), found, graph.op("Mod", places, graph.integers(classes))


def decoded(graph: Graph, deltas: str, boxes: str, coding: Coding) -> str:
    """Boxes that deltas say of other boxes, (..., 4) each."""
    low, high = graph.columns(boxes, (0, 1)), graph.columns(boxes, (2, 3))
    size = graph.op("Sub", high, low)
    centre = graph.op("Add", low, graph.op("Mul", size, graph.floats(0.5)))
    moved = graph.op("Add", graph.op("Mul", deltas, graph.floats(coding.stds)), graph.floats(coding.means))
    centre = graph.op("Add", centre, graph.op("Mul", graph.columns(moved, (0, 1)), size))
    ratio = graph.op("Exp", graph.op("Min", graph.columns(moved, (2, 3)), graph.floats(coding.largest)))
    half = graph.op("Mul", graph.op("Mul", ratio, size), graph.floats(0.5))
    return graph.op("Concat", graph.op("Sub", centre, half), graph.op("Add", centre, half), axis=-1)


def clipped(graph: Graph, boxes: str, size: str) -> str:
    """Boxes inside an image, whose height and width `size` holds."""
    limits = graph.op("Gather", size, graph.integers([1, 0, 1, 0]), axis=0)
    return graph.op("Min", graph.op("Max", boxes, graph.floats(0.0)), limits)


def wide_enough(graph: Graph, boxes: str, scores: str, least: float) -> str:
    """Scores, below every threshold where a box is narrower than it may be; boxes (..., 4), scores (...)."""
    if least <= 0:
        return scores
    sides = graph.op("Sub", graph.columns(boxes, (2, 3)), graph.columns(boxes, (0, 1)))
    fits = [graph.op("Squeeze", graph.columns(sides, (at,)), graph.integers([-1])) for at in (0, 1)]
    small = graph.op("Less", graph.op("Min", *fits), graph.floats(least))
    return graph.op("Where", small, graph.floats(NONE), scores)


def suppressed(graph: Graph, boxes: str, scores: str, overlap: float, above: float, most: int) -> str:
    """The rows (batch, class, box) that NonMaxSuppression keeps; boxes (B, K, 4), scores (B, C, K)."""
    limits = graph.integers([most]), graph.floats([overlap]), graph.floats([above])
    return graph.op("NonMaxSuppression", boxes, scores, *limits)


def by_class(graph: Graph, scores: str, labels: str, classes: int) -> str:
    """Scores (K) of boxes that have one class each as (1, classes, K)."""
    wanted = graph.integers(np.arange(classes)[None, :, None])
    return graph.op("Where", graph.op("Equal", labels, wanted), scores, graph.floats(NONE))


def answer(graph: Graph, boxes: str, scores: str, labels: str, most: int) -> None:
    """The outputs of a detector: the best of what was kept, labels from 1."""
    best, places = graph.top(scores, most)
    graph.output(graph.op("Gather", boxes, places, axis=0), "boxes", ["found", 4])
    graph.output(best, "scores", ["found"])
    counted = graph.op("Add", graph.op("Gather", labels, places, axis=0), graph.integers(1))
    graph.output(counted, "labels", ["found"], kind=7)
