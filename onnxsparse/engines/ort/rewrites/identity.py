"""Dropout does nothing here: a random node would not resume, and an inference graph has none to begin with."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View
from onnxsparse.engines.ort.writer import Writer


class Dropout(Rewrite):
    """Passes its input on; a mask that is read is true everywhere."""

    operators = ("Dropout",)
    needless = True

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        if len(node.output) > 1 and node.output[1] in view.read:
            if node.input[0] not in view.shapes:
                return "its shape is not known, and its mask is read"
            mask = writer.constant(np.ones(view.shapes[node.input[0]], bool), "mask", bool)
            writer.node("Identity", mask, to=node.output[1])
        writer.node("Identity", node.input[0], to=node.output[0])
        return None
