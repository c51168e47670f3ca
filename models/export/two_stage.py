"""What stands between and behind the parts of a two-stage detector as ONNX graphs: proposals with RoIAlign, and boxes.

A proposal belongs to the level floor(log2(sqrt(area) / base_scale)) of those that the second stage reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto

from models.export.detector_nodes import Level, answer, best_of, clipped, decoded, suppressed, wide_enough
from models.export.graph import Array, Graph
from models.export.one_stage import SIZE, Choice, level_inputs

ROIS = "rois"
"""The proposals, between both graphs."""


@dataclass(frozen=True)
class Feature:
    """A level that the second stage reads."""

    name: str
    shape: tuple[int, int, int]
    stride: int


@dataclass(frozen=True)
class Pooling:
    """How features are taken out for proposals: sampling_ratio 0 is as many points as a bin has pixels."""

    size: int = 7
    sampling_ratio: int = 0
    base_scale: float = 56.0


def proposals_graph(
    levels: Sequence[Level],
    features: Sequence[Feature],
    choice: Choice,
    level_keeps: int,
    pooling: Pooling,
    pooled: str,
    size: Array,
) -> ModelProto:
    """From the first part's outputs to what is pooled for each proposal; `pooled` is what the second part calls it."""
    graph = Graph("proposals")
    level_inputs(graph, levels, 1)
    for feature in features:
        if not any(one.name == feature.name for one in graph.inputs):
            graph.input(feature.name, [1, *feature.shape])
    image = graph.input(SIZE, [2], size)
    found = [_of_level(graph, level, choice, level_keeps, image) for level in levels]
    boxes, scores = (graph.op("Concat", *values, axis=0) for values in zip(*found))
    places = graph.top(scores, choice.top_n)[1]
    rois = graph.op("Gather", boxes, places, axis=0)
    graph.output(rois, ROIS, ["rows", 4])
    shape = ["rows", features[0].shape[0], pooling.size, pooling.size]
    graph.output(_pooled(graph, rois, features, pooling), pooled, shape)
    return graph.model()


def _of_level(graph: Graph, level: Level, choice: Choice, keeps: int, image: str) -> tuple[str, str]:
    boxes, scores, _ = best_of(graph, level, 1, choice.level_top_n, choice.coding)
    boxes = clipped(graph, boxes, image)
    scores = wide_enough(graph, boxes, scores, choice.narrowest)
    stacked = graph.op("Unsqueeze", boxes, graph.integers([0])), graph.op("Unsqueeze", scores, graph.integers([0, 1]))
    rows = suppressed(graph, *stacked, choice.overlap, choice.above, keeps)
    at = graph.op("Gather", rows, graph.integers(2), axis=1)
    return graph.op("Gather", boxes, at, axis=0), graph.op("Gather", scores, at, axis=0)


def _pooled(graph: Graph, rois: str, features: Sequence[Feature], pooling: Pooling) -> str:
    """RoiAlign of every level on its own proposals, then in the order of the proposals."""
    numbers = _level_of(graph, rois, len(features), pooling.base_scale)
    places, parts = [], []
    for number, feature in enumerate(features):
        own = graph.op("Equal", numbers, graph.floats(number))
        places.append(graph.op("Squeeze", graph.op("NonZero", own), graph.integers([0])))
        mine = graph.op("Gather", rois, places[-1], axis=0)
        image = graph.op("Mul", places[-1], graph.integers(0))
        align = {
            "output_height": pooling.size, "output_width": pooling.size, "mode": "avg",
            "sampling_ratio": pooling.sampling_ratio, "spatial_scale": 1.0 / feature.stride,
            "coordinate_transformation_mode": "half_pixel",
        }  # fmt: skip
        parts.append(graph.op("RoiAlign", feature.name, mine, image, **align))
    order = graph.op("Concat", *places, axis=0)
    back = graph.ops("TopK", [order, graph.op("Shape", order)], 2, largest=0)[1]
    return graph.op("Gather", graph.op("Concat", *parts, axis=0), back, axis=0)


def _level_of(graph: Graph, rois: str, levels: int, base_scale: float) -> str:
    sides = graph.op("Sub", graph.columns(rois, (2, 3)), graph.columns(rois, (0, 1)))
    squeezed = [graph.op("Squeeze", graph.columns(sides, (at,)), graph.integers([-1])) for at in (0, 1)]
    scale = graph.op("Div", graph.op("Sqrt", graph.op("Mul", *squeezed)), graph.floats(base_scale))
    safe = graph.op("Log", graph.op("Max", scale, graph.floats(1e-6)))
    level = graph.op("Floor", graph.op("Mul", safe, graph.floats(1 / np.log(2))))
    return graph.op("Clip", level, graph.floats(0), graph.floats(levels - 1))


def bbox_graph(cls: str, loc: str, classes: int, shares: bool, choice: Choice, size: Array) -> ModelProto:
    """From the second part's class scores (R, classes) and deltas to boxes, scores and labels; class 0 is background.

    `shares` says that all classes have the same deltas, (R, 4) in place of (R, 4 * classes).
    """
    graph = Graph("post")
    graph.input(cls, ["rows", classes])
    graph.input(loc, ["rows", 4 if shares else 4 * classes])
    rois, image = graph.input(ROIS, ["rows", 4]), graph.input(SIZE, [2], size)
    foreground = graph.integers(np.arange(1, classes))
    turned = graph.op("Transpose", graph.op("Softmax", cls, axis=-1), perm=[1, 0])
    scores = graph.op("Gather", turned, foreground, axis=0)
    deltas = graph.op("Reshape", loc, graph.integers([0, 1 if shares else classes, 4]))
    deltas = graph.op("Transpose", deltas, perm=[1, 0, 2])
    if not shares:
        deltas = graph.op("Gather", deltas, foreground, axis=0)
    boxes = clipped(graph, decoded(graph, deltas, rois, choice.coding), image)
    picked = _picked(graph, boxes, wide_enough(graph, boxes, scores, choice.narrowest), shares, choice)
    answer(graph, *picked, choice.top_n)
    return graph.model()


def _picked(graph: Graph, boxes: str, scores: str, shares: bool, choice: Choice) -> tuple[str, str, str]:
    """What suppression by class keeps; where every class has its own boxes, NonMaxSuppression has it as its batch."""
    stacked = graph.op("Unsqueeze", scores, graph.integers([0 if shares else 1]))
    rows = suppressed(graph, boxes, stacked, choice.overlap, choice.above, choice.top_n)
    kept = graph.op("GatherND", stacked, rows)
    at = graph.op("Gather", rows, graph.integers([0, 2]), axis=1)
    labels = graph.op("Gather", rows, graph.integers(1 if shares else 0), axis=1)
    return graph.op("GatherND", boxes, at), kept, labels
