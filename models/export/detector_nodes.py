"""The nodes that detectors share: the best of a level's outputs, decoding of boxes, clipping, suppression.

1. They do what models/detection/decoding.py does in numpy, in the same order, by the same sections of a configuration.
2. NonMaxSuppression returns no boxes without max_output_boxes_per_class, has no limit over all classes, keeps a box
   whose overlap is exactly the threshold, and takes only scores above theirs.
3. Anchors are looked up in a table of one axis: behind Gather a table of rows is an embedding, whose numbers are
   weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from models.detection.boxes import LARGEST, Deltas
from models.detection.decoding import Predictor
from models.export.graph import Array, Graph

SIZE = "size"
"""The input for the height and width of the image before it was padded; left out, the image fills its tensor."""
NONE = -1.0
"""A score that is below every threshold."""


@dataclass(frozen=True)
class Level:
    """One level's outputs by name, (1, A * classes, H, W) and (1, A * 4, H, W), and its anchors, (H * W * A, 4)."""

    cls: str
    loc: str
    anchors: Array
    shape: tuple[int, int]

    @property
    def count(self) -> int:
        """How many anchors each place has."""
        return len(self.anchors) // (self.shape[0] * self.shape[1])


def level_inputs(graph: Graph, levels: Sequence[Level], classes: int) -> None:
    for level in levels:
        graph.input(level.cls, [1, level.count * classes, *level.shape])
        graph.input(level.loc, [1, level.count * 4, *level.shape])


def best_of_levels(
    graph: Graph, levels: Sequence[Level], classes: int, deltas: Deltas, by: Predictor, image: str
) -> list[str]:
    """What a predictor takes of an image: boxes (K, 4), scores (K) and classes (K) from 0, the best first."""
    found = [_of_level(graph, level, classes, deltas, by, image) for level in levels]
    values = [graph.op("Concat", *each, axis=0) for each in zip(*found)]
    if by.merged_iou is not None:
        scores = _by_class(graph, values[1], values[2], classes)
        values = _suppressed(graph, values, scores, by.merged_iou, by, by.top_n)
    elif by.nms_iou is None:
        above = graph.op("Greater", values[1], graph.floats(by.score_thresh))
        values = [graph.op("Compress", value, above, axis=0) for value in values]
    return _ordered(graph, values, by.top_n)


def _of_level(graph: Graph, level: Level, classes: int, deltas: Deltas, by: Predictor, image: str) -> list[str]:
    scores = graph.op("Sigmoid", _flattened(graph, level.cls, level, classes))
    found, places = graph.top(graph.op("Reshape", scores, graph.integers([-1])), by.pre_nms_top_n)
    at = graph.op("Div", places, graph.integers(classes))
    moves = graph.op("Gather", _flattened(graph, level.loc, level, 4), at, axis=0)
    rows = graph.op("Mul", graph.op("Unsqueeze", at, graph.integers([1])), graph.integers(4))
    numbers = graph.op("Add", rows, graph.integers(range(4)))
    anchors = graph.op("Gather", graph.floats(level.anchors.reshape(-1)), numbers, axis=0)
    boxes = clipped(graph, decoded(graph, moves, anchors, deltas), image)
    values = [boxes, _large(graph, boxes, found, by.min_size), graph.op("Mod", places, graph.integers(classes))]
    if by.nms_iou is not None:
        scores = graph.op("Unsqueeze", values[1], graph.integers([0, 1]))
        return _suppressed(graph, values, scores, by.nms_iou, by, by.post_nms_top_n)
    return _ordered(graph, values, by.post_nms_top_n) if by.post_nms_top_n < by.pre_nms_top_n else values


def _flattened(graph: Graph, value: str, level: Level, last: int) -> str:
    """(1, A * last, H, W) as (H * W * A, last)."""
    split = graph.op("Reshape", value, graph.integers([level.count, last, level.shape[0] * level.shape[1]]))
    turned = graph.op("Transpose", split, perm=[2, 0, 1])
    return graph.op("Reshape", turned, graph.integers([-1, last]))


def _large(graph: Graph, boxes: str, scores: str, side: float) -> str:
    """Scores, below every threshold where a box is narrower than it may be."""
    if side <= 0:
        return scores
    small = graph.op("Less", graph.op("Min", *sides(graph, boxes)), graph.floats(side))
    return graph.op("Where", small, graph.floats(NONE), scores)


def _by_class(graph: Graph, scores: str, labels: str, classes: int) -> str:
    """Scores (K) of boxes that have one class each as (1, classes, K)."""
    wanted = graph.integers(np.arange(classes)[None, :, None])
    return graph.op("Where", graph.op("Equal", labels, wanted), scores, graph.floats(NONE))


def _suppressed(
    graph: Graph, values: Sequence[str], scores: str, overlap: float, by: Predictor, most: int
) -> list[str]:
    """Of boxes (K, 4) and what is known of each, those that are kept; scores (1, C, K)."""
    stacked = graph.op("Unsqueeze", values[0], graph.integers([0]))
    rows = suppressed(graph, stacked, scores, overlap, by.score_thresh, most)
    at = graph.op("Gather", rows, graph.integers(2), axis=1)
    return [graph.op("Gather", value, at, axis=0) for value in values]


def _ordered(graph: Graph, values: Sequence[str], most: int) -> list[str]:
    """Boxes, scores and classes, the best first."""
    best, places = graph.top(values[1], most)
    boxes, labels = (graph.op("Gather", values[at], places, axis=0) for at in (0, 2))
    return [boxes, best, labels]


def suppressed(graph: Graph, boxes: str, scores: str, overlap: float, above: float, most: int) -> str:
    """The rows (batch, class, box) that NonMaxSuppression keeps; boxes (B, K, 4), scores (B, C, K)."""
    limits = graph.integers([most]), graph.floats([overlap]), graph.floats([above])
    return graph.op("NonMaxSuppression", boxes, scores, *limits)


def decoded(graph: Graph, moves: str, boxes: str, deltas: Deltas) -> str:
    """Boxes moved, (..., 4)."""
    low, high = graph.columns(boxes, (0, 1)), graph.columns(boxes, (2, 3))
    size = graph.op("Sub", high, low)
    centre = graph.op("Mul", graph.op("Add", low, high), graph.floats(0.5))
    moved = graph.op("Add", graph.op("Mul", moves, graph.floats(deltas.stds)), graph.floats(deltas.means))
    centre = graph.op("Add", centre, graph.op("Mul", graph.columns(moved, (0, 1)), size))
    factor = graph.op("Exp", graph.op("Min", graph.columns(moved, (2, 3)), graph.floats(LARGEST)))
    half = graph.op("Mul", graph.op("Mul", factor, size), graph.floats(0.5))
    return graph.op("Concat", graph.op("Sub", centre, half), graph.op("Add", centre, half), axis=-1)


def clipped(graph: Graph, boxes: str, image: str) -> str:
    """Boxes cut at the edges of an image, whose height and width `image` holds."""
    limits = graph.op("Gather", image, graph.integers([1, 0, 1, 0]), axis=0)
    return graph.op("Min", graph.op("Max", boxes, graph.floats(0.0)), limits)


def sides(graph: Graph, boxes: str) -> list[str]:
    """Width and height of boxes."""
    both = graph.op("Sub", graph.columns(boxes, (2, 3)), graph.columns(boxes, (0, 1)))
    return [graph.op("Squeeze", graph.columns(both, (at,)), graph.integers([-1])) for at in (0, 1)]


def answer(graph: Graph, boxes: str, scores: str, labels: str) -> None:
    """The outputs of a detector; classes from 0 become labels from 1."""
    graph.output(boxes, "boxes", ["found", 4])
    graph.output(scores, "scores", ["found"])
    graph.output(graph.op("Add", labels, graph.integers(1)), "labels", ["found"], TensorProto.INT64)
