"""Matrix products that the runtime fused with what stood around them, taken apart."""

from __future__ import annotations

from typing import Any

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.writer import Writer

_NUMBERED = {"LeakyRelu": ("alpha",), "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
_PLAIN = ("Relu", "Tanh", "Sigmoid", "Softplus", "Softsign")


class FusedMatMul(Rewrite):
    """Transposes, a product and a factor."""

    operators = ("com.microsoft:FusedMatMul", "com.microsoft:TransposeMatMul")

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        options = attributes(node)
        if options.get("transBatchA") or options.get("transBatchB"):
            return "it transposes the axes of the batch"
        if any(name not in view.shapes for name in node.input[:2]):
            return "its shapes are not known"
        sides = [
            _turned(writer, name, len(view.shapes[name])) if options.get(key) else name
            for name, key in zip(node.input, ("transA", "transB"))
        ]
        alpha = options.get("alpha", 1.0)
        if alpha == 1:
            writer.node("MatMul", *sides, to=node.output[0])
        else:
            writer.node("Mul", writer.node("MatMul", *sides), writer.constant(alpha, "alpha"), to=node.output[0])
        return None


def _turned(writer: Writer, name: str, rank: int) -> str:
    if rank < 2:  # vectors are not transposed
        return name
    return writer.node("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])


class FusedGemm(Rewrite):
    """Gemm, then the activation."""

    operators = ("com.microsoft:FusedGemm",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        options = attributes(node)
        activation = options.get("activation", "")
        if activation not in (*_PLAIN, *_NUMBERED, ""):
            return f"its activation {activation} is not known"
        kept: dict[str, Any] = {
            key: value for key, value in options.items() if key in ("alpha", "beta", "transA", "transB")
        }
        value = writer.node("Gemm", *node.input, **kept)
        numbers: dict[str, Any] = {
            key: options[f"activation_{key}"] for key in _NUMBERED.get(activation, ()) if f"activation_{key}" in options
        }
        writer.node(activation or "Identity", value, to=node.output[0], **numbers)
        return None
