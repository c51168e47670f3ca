"""Elements picked by constants, written as Gather.

Compress(x, c) = Gather(x, where c)
ReverseSequence(x, n): row t of sequence b is x[n[b] - 1 - t] for t < n[b], and x[t] after it
"""

from __future__ import annotations

import math

import numpy as np
from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import gather, reshape
from onnxsparse.engines.ort.writer import Writer
from onnxsparse.math.values import Array


class Compress(Rewrite):
    """Where the condition is a constant."""

    operators = ("Compress",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        x, axis, chosen = node.input[0], attributes(node).get("axis"), view.constant(node.input[1])
        if chosen is None:
            return "its condition is not constant"
        if axis is None:
            x = reshape(writer, x, [-1])
        gather(writer, x, np.flatnonzero(chosen), axis or 0, to=node.output[0])
        return None


class ReverseSequence(Rewrite):
    """Where the lengths are constants."""

    operators = ("ReverseSequence",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape, lengths = view.shapes.get(node.input[0]), view.constant(node.input[1])
        if shape is None or lengths is None:
            return "its shape is not known, or its lengths are not constant"
        batch_first = attributes(node).get("batch_axis", 1) == 0
        places = _reversed(lengths, shape[1 if batch_first else 0])
        sequences = np.arange(len(lengths))[:, None]
        flat = sequences * shape[1] + places if batch_first else (places * shape[1] + sequences).T
        rows = reshape(writer, node.input[0], [shape[0] * shape[1], math.prod(shape[2:])])
        reshape(writer, gather(writer, rows, flat.reshape(-1), 0), shape, to=node.output[0])
        return None


def _reversed(lengths: Array, steps: int) -> Array:
    """For each sequence and step the step that goes there."""
    step, length = np.arange(steps)[None, :], lengths.reshape(-1, 1)
    return np.where(step < length, length - 1 - step, step)
