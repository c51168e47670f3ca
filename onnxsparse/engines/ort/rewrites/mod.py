"""The remainder of a division, as the straight line that it is between two steps.

    y = fmod(a, b) = a - k b  with  k = (a - fmod(a, b)) / b, a whole number
    dy/da = 1, dy/db = -k

The value is that of the plain runtime at the stopped inputs (stop.py), to the last bit.
"""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.stop import stopped
from onnxsparse.engines.ort.writer import Writer


class Mod(Rewrite):
    """fmod of floats; the other kind is defined for whole numbers only."""

    operators = ("Mod",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if not attributes(node).get("fmod", 0):
            return "fmod=0 is not defined for floats"
        a, b = node.input
        at_a, at_b = stopped(a, writer), stopped(b, writer)
        value = writer.node("Mod", at_a, at_b, fmod=1)
        times = writer.node("Round", writer.node("Div", writer.node("Sub", at_a, value), at_b))
        along_b = writer.node("Mul", times, writer.node("Sub", b, at_b))
        change = writer.node("Sub", writer.node("Sub", a, at_a), along_b)
        writer.node("Add", value, change, to=node.output[0])
        return None
