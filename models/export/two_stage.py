"""What stands between and behind the parts of a two-stage detector as ONNX graphs: proposals with RoIAlign, and boxes.

A proposal is pooled from the level floor(log2(sqrt(area) / base_scale)) of those that the second stage reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, TensorProto

from models.detection.boxes import Deltas
from models.detection.decoding import BoxDecoder, Predictor
from models.export.detector_nodes import (
    SIZE,
    Level,
    answer,
    best_of_levels,
    clipped,
    decoded,
    level_inputs,
    sides,
    suppressed,
)
from models.export.graph import Array, Graph

ROIS = "rois"
"""The proposals, between both graphs."""


@dataclass(frozen=True)
class Feature:
    """A level that the second stage reads, (1, C, H, W)."""

    name: str
    shape: tuple[int, ...]
    stride: int


@dataclass(frozen=True)
class Pooling:
    """How features are taken out for proposals: sampling_ratio 0 is as many points as a bin has pixels."""

    size: int
    sampling_ratio: int
    base_scale: float


def proposals_graph(
    levels: Sequence[Level],
    features: Sequence[Feature],
    deltas: Deltas,
    by: Predictor,
    pooling: Pooling,
    pooled: str,
    size: Array,
) -> ModelProto:
    """From the first part's outputs to what is pooled for each proposal; `pooled` is what the second part calls it."""
    graph = Graph("proposals")
    level_inputs(graph, levels, 1)
    for feature in features:
        graph.input(feature.name, feature.shape)
    image = graph.input(SIZE, [2], size)
    rois = best_of_levels(graph, levels, 1, deltas, by, image)[0]
    graph.output(rois, ROIS, ["rows", 4])
    shape = ["rows", features[0].shape[1], pooling.size, pooling.size]
    graph.output(_pooled(graph, rois, features, pooling), pooled, shape)
    return graph.model()


def _pooled(graph: Graph, rois: str, features: Sequence[Feature], pooling: Pooling) -> str:
    """RoiAlign of every level on its own proposals, each result at the place of its proposal."""
    numbers = _level_of(graph, rois, len(features), pooling.base_scale)
    sizes = [features[0].shape[1], pooling.size, pooling.size]
    rows = graph.op("Concat", graph.op("Shape", numbers), graph.integers(sizes), axis=0)
    pooled = graph.op("ConstantOfShape", rows)
    for number, feature in enumerate(features):
        own = graph.op("Equal", numbers, graph.integers(number))
        places = graph.op("Squeeze", graph.op("NonZero", own), graph.integers([0]))
        mine = graph.op("Gather", rois, places, axis=0)
        image = graph.op("Mul", places, graph.integers(0))
        align = {
            "output_height": pooling.size, "output_width": pooling.size, "mode": "avg",
            "sampling_ratio": pooling.sampling_ratio, "spatial_scale": 1.0 / feature.stride,
            "coordinate_transformation_mode": "half_pixel",
        }  # fmt: skip
        found = graph.op("RoiAlign", feature.name, mine, image, **align)
        pooled = graph.op("ScatterND", pooled, graph.op("Unsqueeze", places, graph.integers([1])), found)
    return pooled


def _level_of(graph: Graph, rois: str, levels: int, base_scale: float) -> str:
    """How many of the sizes at which the next level begins a proposal reaches: a logarithm would round at them."""
    root = graph.op("Sqrt", graph.op("Mul", *sides(graph, rois)))
    begins = graph.floats([[base_scale * 2**level for level in range(1, levels)]])
    reached = graph.op("GreaterOrEqual", graph.op("Unsqueeze", root, graph.integers([1])), begins)
    counted = graph.op("Cast", reached, to=TensorProto.INT64)
    return graph.op("ReduceSum", counted, graph.integers([1]), keepdims=0)


def bbox_graph(cls: str, loc: str, classes: int, by: BoxDecoder, size: Array) -> ModelProto:
    """From the second part's class scores (R, classes) and deltas to boxes, scores and labels; class 0 is background.

    With `share_location` all classes have the same deltas, (R, 4) in place of (R, 4 * classes).
    """
    graph, each = Graph("post"), 1 if by.share_location else classes
    graph.input(cls, ["rows", classes])
    graph.input(loc, ["rows", 4 * each])
    rois, image = graph.input(ROIS, ["rows", 4]), graph.input(SIZE, [2], size)
    objects = graph.integers(np.arange(1, classes))
    turned = graph.op("Transpose", graph.op("Softmax", cls, axis=-1), perm=[1, 0])
    scores = graph.op("Gather", turned, objects, axis=0)
    moves = graph.op("Transpose", graph.op("Reshape", loc, graph.integers([0, each, 4])), perm=[1, 0, 2])
    moves = moves if by.share_location else graph.op("Gather", moves, objects, axis=0)
    answer(graph, *_picked(graph, clipped(graph, decoded(graph, moves, rois, by.deltas), image), scores, by))
    return graph.model()


def _picked(graph: Graph, boxes: str, scores: str, by: BoxDecoder) -> list[str]:
    """What suppression by class keeps; where every class has its own boxes, NonMaxSuppression has it as its batch."""
    stacked = graph.op("Unsqueeze", scores, graph.integers([0 if by.share_location else 1]))
    rows = suppressed(graph, boxes, stacked, by.nms_iou, by.score_thresh, by.top_n)
    best, places = graph.top(graph.op("GatherND", stacked, rows), by.top_n)
    kept = graph.op("Gather", rows, places, axis=0)
    found = graph.op("GatherND", boxes, graph.op("Gather", kept, graph.integers([0, 2]), axis=1))
    return [found, best, graph.op("Gather", kept, graph.integers(1 if by.share_location else 0), axis=1)]
