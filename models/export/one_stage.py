"""The post-processing of a one-stage detector as an ONNX graph: scores, boxes, suppression by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from onnx import ModelProto

from models.export.detector_nodes import Coding, Level, answer, best_of, by_class, clipped, suppressed, wide_enough
from models.export.graph import Array, Graph

SIZE = "size"
"""The input for the height and width of the image before it was padded; left out, the image fills its tensor."""


@dataclass(frozen=True)
class Choice:
    """Which boxes a level or a class keeps; as `roi_predictor` and `bbox_predictor` have it."""

    overlap: float
    top_n: int
    above: float = 0.0
    level_top_n: int = 1000
    narrowest: float = 0.0
    coding: Coding = field(default_factory=Coding)


def level_inputs(graph: Graph, levels: Sequence[Level], classes: int) -> None:
    for level in levels:
        graph.input(level.cls, [1, level.count * classes, *level.shape])
        graph.input(level.loc, [1, level.count * 4, *level.shape])


def retina_graph(levels: Sequence[Level], classes: int, choice: Choice, size: Array) -> ModelProto:
    """From the levels' outputs to boxes (M, 4), scores (M) and labels (M), the best first; `size` is height, width."""
    graph = Graph("post")
    level_inputs(graph, levels, classes)
    image = graph.input(SIZE, [2], size)
    found = [best_of(graph, level, classes, choice.level_top_n, choice.coding) for level in levels]
    boxes, scores, labels = (graph.op("Concat", *values, axis=0) for values in zip(*found))
    boxes = clipped(graph, boxes, image)
    kept = by_class(graph, wide_enough(graph, boxes, scores, choice.narrowest), labels, classes)
    stacked = graph.op("Unsqueeze", boxes, graph.integers([0]))
    rows = suppressed(graph, stacked, kept, choice.overlap, choice.above, choice.top_n)
    at = graph.op("Gather", rows, graph.integers(2), axis=1)
    picked = [graph.op("Gather", value, at, axis=0) for value in (boxes, scores, labels)]
    answer(graph, picked[0], picked[1], picked[2], choice.top_n)
    return graph.model()
