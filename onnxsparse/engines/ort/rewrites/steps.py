"""Step functions: flat wherever they have a derivative, which is zero.

    y = f(x), dy/dx = 0

They are taken of the stopped input (stop.py); what else reads the input still passes its gradient.
"""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.stop import stopped
from onnxsparse.engines.ort.writer import Writer


class Steps(Rewrite):
    """Roundings, the sign, and the one-hot vector of the largest."""

    operators = ("Floor", "Ceil", "Round", "Sign", "Hardmax")

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        flat = stopped(node.input[0], writer)
        writer.node(node.op_type, flat, to=node.output[0], axis=attributes(node).get("axis"))
        return None
