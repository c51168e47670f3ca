"""The sum of word, position and segment embeddings, normalized."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.layer_norm import normalize
from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import given, part, result
from onnxsparse.engines.ort.writer import Writer


class EmbedLayerNormalization(Rewrite):
    """Look-ups, their sum, and a LayerNormalization."""

    operators = ("com.microsoft:EmbedLayerNormalization",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        ids, shape = view.shapes.get(node.input[0]), view.shapes.get(node.output[0])
        if ids is None or shape is None:
            return "its shapes are not known"
        if result(node, 1) in view.read:
            _count(node, ids[0], writer)
        words, positions = node.input[2], node.input[3]
        total = writer.node("Gather", words, node.input[0], axis=0)
        chosen = given(node, 8)
        place = writer.node("Gather", positions, chosen, axis=0) if chosen else part(writer, positions, 0, ids[1], 0)
        total = writer.node("Add", total, place)
        segments, kinds = given(node, 4), given(node, 1)
        if segments and kinds:
            total = writer.node("Add", total, writer.node("Gather", segments, kinds, axis=0))
        if result(node, 2):
            writer.node("Identity", total, to=node.output[2])
        epsilon = attributes(node).get("epsilon", 1e-12)
        normalize(writer, total, node.input[5], node.input[6], shape, len(shape) - 1, epsilon, [node.output[0]])
        return None


def _count(node: NodeProto, batch: int, writer: Writer) -> None:
    """The second output: how many places of each sample the mask keeps."""
    mask = given(node, 7)
    if mask:
        axes = writer.constant([1], "axes", np.int64)
        writer.node("ReduceSum", mask, axes, to=node.output[1], keepdims=0)
    else:
        writer.node("Identity", writer.constant(np.zeros(batch), "none", np.int32), to=node.output[1])
