"""The cross-entropy of logits: the engine wants its second output, the logarithms, too."""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import result
from onnxsparse.engines.ort.writer import Writer


class SoftmaxCrossEntropyLoss(Rewrite):
    """Declares both outputs."""

    operators = ("SoftmaxCrossEntropyLoss",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        logarithms = result(node, 1)
        if logarithms in view.gradients:
            return "a gradient would have to flow through its second output"
        if not logarithms:
            outputs = [node.output[0], writer.fresh("logarithms")]
            writer.many(node.op_type, *node.input, to=outputs, **attributes(node))
        return None
