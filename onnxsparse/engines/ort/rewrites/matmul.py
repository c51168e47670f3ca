"""Products with vectors, and products that add nothing.

1. MatMul of a vector a (K) is that of the row (1, K), and of a vector b that of the column (K, 1), with the axis of
   length 1 taken out of the result. The engine fails on most of them and is silently wrong on some.
2. Gemm with beta = 0 does not read its third input; the engine refuses it.
"""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import reshape
from onnxsparse.engines.ort.writer import Writer


class MatMul(Rewrite):
    """Products with at least one vector."""

    operators = ("MatMul",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        a, b = node.input
        left, right, out = (view.shapes.get(name) for name in (a, b, node.output[0]))
        if left is None or right is None or out is None:
            return "the shapes of its values are not known"
        if len(left) > 1 and len(right) > 1:
            return None
        a = reshape(writer, a, [1, *left]) if len(left) == 1 else a
        b = reshape(writer, b, [*right, 1]) if len(right) == 1 else b
        reshape(writer, writer.node("MatMul", a, b), out, to=node.output[0])
        return None


class Gemm(Rewrite):
    """Products whose third input counts for nothing."""

    operators = ("Gemm",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        given = attributes(node)
        if given.pop("beta", 1.0) == 0.0 and len(node.input) > 2 and node.input[2]:
            writer.node("Gemm", *node.input[:2], to=node.output[0], **given)
        return None
