"""Fake quantization in onnxruntime-training: while a graph is prepared a division and a product, rounding in between
once it is built.

1. The preparations see `x / scale * scale` with a scale of one half, which computes x to the last bit: it is what the
   dense model and the proof of the gradients compute, too. The scale is tagged as what trains is, so nothing folds it.
2. When the graph is assembled, com.microsoft's FakeQuant between the two rounds with straight-through gradient, and the
   zero point and the clipping come behind it, as in QuantizeLinear: a zero point added before would round otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, NodeProto
from onnx.helper import make_node

from onnxsparse.engines.fake_quantization import DOMAIN, FakeQuantize, is_fake
from onnxsparse.engines.ort.prepare import Prepared
from onnxsparse.engines.ort.sparsers import MICROSOFT
from onnxsparse.graph.edit import FreshNames, Writer, keep

WIDEST = 1 << 24
"""Whole numbers up to here are exact in float32; the grid clips long before."""


@dataclass
class Rounding:
    """Names in the training graph, by live array and, for what is observed, by key."""

    trained: dict[str, str] = field(default_factory=dict)
    frozen: dict[str, str] = field(default_factory=dict)
    ranges: dict[str, tuple[str, str]] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    """Of a learned scale, what is taken of its gradient (LSQ, Esser et al. 2020)."""


def as_products(model: ModelProto) -> dict[str, FakeQuantize]:
    """Write fake quantization as division and product, in place; returns it by the tags of the scales."""
    found, nodes, fresh = dict[str, FakeQuantize](), list[NodeProto](), FreshNames.of(model.graph)
    for node in model.graph.node:
        if not is_fake(node):
            nodes.append(node)
            continue
        said, (value, scale), steps = FakeQuantize.of(node), node.input, fresh(f"{node.output[0]}_steps")
        found[said.scale] = said
        nodes.append(make_node("Div", [value, scale], [steps], f"{node.name}_steps"))
        nodes.append(make_node("Mul", [steps, scale], [node.output[0]], node.name))
    if found:
        keep(model.graph.node, nodes)
        keep(model.opset_import, [one for one in model.opset_import if one.domain != DOMAIN])
    return found


def taken_out(prepared: Prepared, known: Mapping[str, FakeQuantize]) -> dict[str, FakeQuantize]:
    """Scales are no weights: those of a prepared graph, by the name of the stored scale."""
    found = {name: known[tag] for name, tag in prepared.weights.items() if tag in known}
    prepared.weights = {name: tag for name, tag in prepared.weights.items() if tag not in known}
    prepared.unreached = {tag: why for tag, why in prepared.unreached.items() if tag not in known}
    return found


def rounded(writer: Writer, scales: Mapping[str, FakeQuantize], shapes: Mapping[str, tuple[int, ...]]) -> Rounding:
    """Write the rounding between every division and its product."""
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in writer.graph.initializer}
    made, placed = Rounding(), list[NodeProto]()
    zero_points: dict[str, str] = {}
    for node in writer.graph.node:
        placed.append(node)
        said = scales.get(node.input[1]) if node.op_type == "Div" else None
        if said is None:
            continue
        if said.key not in zero_points:
            zero_points[said.key] = writer.constant(0.0, "zero_point")
            made.frozen[said.zero_point] = zero_points[said.key]
            (made.trained if said.learned else made.frozen)[said.scale] = node.input[1]
        writer.nodes = []
        if said.learned:
            each = math.prod(shapes[node.output[0]]) / sizes[node.input[1]]
            made.shares[said.scale] = 1 / math.sqrt(each * max(said.grid.high, 1))
        if said.observed and said.key not in made.ranges:
            value = node.input[0]
            ends = (writer.node(kind, value, keepdims=0) for kind in ("ReduceMin", "ReduceMax"))
            made.ranges[said.key] = (next(ends), next(ends))
        steps = node.output[0]
        node.output[0] = writer.fresh("steps")
        _write(writer, node.output[0], zero_points[said.key], said, steps)
        placed += writer.nodes
    writer.nodes = []
    keep(writer.graph.node, placed)
    return made


def _write(writer: Writer, steps: str, zero_point: str, said: FakeQuantize, to: str) -> None:
    one, zero = writer.constant(1.0, "one"), writer.constant(0.0, "zero")
    whole, _ = writer.many(
        "FakeQuant", steps, one, zero, to=[writer.fresh("whole"), writer.fresh("inside")],
        domain=MICROSOFT, quant_min=-WIDEST, quant_max=WIDEST,
    )  # fmt: skip
    low, high = (writer.constant(np.float32(end), "level") for end in (said.grid.low, said.grid.high))
    inside = writer.node("Clip", writer.node("Add", whole, zero_point), low, high)
    writer.node("Sub", inside, zero_point, to=to)
