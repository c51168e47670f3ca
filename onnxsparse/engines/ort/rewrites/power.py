"""Powers whose exponent is trained or is no float, and powers whose base broadcasts.

    y = x^e, dy/dx = e x^(e - 1), dy/de = y log(x)

1. The engine has the first derivative, but gives a base that is broadcast a gradient of the wrong size, silently: the
   base is expanded to the shape of the output first.
2. The second derivative is drawn as a tangent at the stopped values (stop.py), where x > 0; elsewhere it is zero, as no
   change of a real exponent is defined there.
"""

from __future__ import annotations

from onnx import NodeProto, TensorProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View
from onnxsparse.engines.ort.rewrites.stop import stopped, tangent
from onnxsparse.engines.ort.writer import Writer


class Power(Rewrite):
    """Left to the engine where the exponent is a fixed float and the base has the shape of the output."""

    operators = ("Pow",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        (base, exponent), shape = node.input, view.shapes.get(node.output[0])
        if shape is None or base not in view.shapes:
            return "the shapes of its values are not known"
        narrow, whole = view.shapes[base] != shape, view.types.get(exponent) != TensorProto.FLOAT
        if not (narrow or whole or exponent in view.gradients):
            return None
        base = writer.node("Expand", base, writer.constant(shape, "shape", "int64")) if narrow else base
        exponent = writer.cast(exponent, TensorProto.FLOAT) if whole else exponent
        if exponent in view.gradients:
            _trained(base, exponent, node.output[0], writer)
        else:
            writer.node("Pow", base, exponent, to=node.output[0])
        return None


def _trained(base: str, exponent: str, to: str, writer: Writer) -> None:
    at_base, at_exponent = stopped(base, writer), stopped(exponent, writer)
    zero, one = writer.constant(0.0), writer.constant(1.0)
    positive = writer.node("Greater", at_base, zero)
    logarithm = writer.node("Log", writer.node("Where", positive, at_base, one))
    value = writer.node("Pow", at_base, at_exponent)
    slope = writer.node("Where", positive, writer.node("Mul", value, logarithm), zero)
    along_base = writer.node("Pow", base, at_exponent)
    writer.node("Add", along_base, tangent(exponent, at_exponent, slope, writer), to=to)
