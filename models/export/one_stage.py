"""The post-processing of a one-stage detector as an ONNX graph: scores, boxes, suppression by class."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import ModelProto

from models.detection.boxes import Deltas
from models.detection.decoding import Predictor
from models.export.detector_nodes import SIZE, Level, answer, best_of_levels, level_inputs
from models.export.graph import Array, Graph


def retina_graph(levels: Sequence[Level], classes: int, deltas: Deltas, by: Predictor, size: Array) -> ModelProto:
    """From the levels' outputs to boxes (M, 4), scores (M) and labels (M), the best first; `size` is height, width."""
    graph = Graph("post")
    level_inputs(graph, levels, classes)
    image = graph.input(SIZE, [2], size)
    answer(graph, *best_of_levels(graph, levels, classes, deltas, by, image))
    return graph.model()
