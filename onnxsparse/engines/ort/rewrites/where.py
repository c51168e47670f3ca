"""A choice between tensors that broadcast.

The engine gives a broadcast branch a gradient of the wrong size, silently: the branches through which a gradient flows
are expanded to the shape of the output first.
"""

from __future__ import annotations

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View
from onnxsparse.engines.ort.writer import Writer


class Where(Rewrite):
    """The condition and branches without a gradient stay as they are."""

    operators = ("Where",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape, branches = view.shapes.get(node.output[0]), node.input[1:]
        if shape is None or any(name not in view.shapes for name in branches):
            return "the shapes of its branches are not known"
        narrow = [name in view.gradients and view.shapes[name] != shape for name in branches]
        if any(narrow):
            target = writer.constant(shape, "shape", "int64")
            wide = [writer.node("Expand", n, target) if is_narrow else n for n, is_narrow in zip(branches, narrow)]
            writer.node("Where", node.input[0], *wide, to=node.output[0])
        return None
