"""Integers on both sides of quantized layers: sparse integer kernels take int8, and give int8.

1. What goes into a layer comes out of a DequantizeLinear of int8 around zero.
2. What it gives goes to nothing but QuantizeLinear of int8 around zero, through operators that only move numbers or
   that a runtime computes inside of the layer: activations, additions, products.
3. Only layers whose weight is int8 behind a DequantizeLinear, in the main graph, are asked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Use, Weight
from onnxsparse.passes.pattern_check import Checked, UseChecked
from onnxsparse.patterns.nm import NOfM
from onnxsparse.targets import Target

AROUND_ZERO = "no int8 around zero"
WAY_OUT = (
    "int8 around zero comes of `quantize` or `finetune --quantize int8` with --target ampere, or of `scheme: tensorrt` "
    "in the recipe of a training; of the float model, not of this file"
)
FUSED = {
    "Add", "BatchNormalization", "Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mul", "Relu",
    "Selu", "Sigmoid", "Softplus", "Sub", "Tanh",
}  # fmt: skip
MOVED = {"Concat", "Flatten", "Identity", "MaxPool", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}


def with_integer_sides(
    model: Model, checked: Sequence[Checked], target: Target | None
) -> tuple[list[Checked], list[str]]:
    """What was checked, with layers that a sparse integer kernel does not take among those that do not pay; and how
    many there are, in words."""
    sides, found = _Sides(model.proto.graph), list[Checked]()
    lacking: dict[str, str] = {}
    layers = 0
    for one in checked:
        uses = [_judged(use, sides.lacking(one.expected.weight, use.use)) for use in one.uses]
        wanted = target.integer_sides if target else isinstance(one.expected.pattern, NOfM)
        if wanted and one.status == "holds" and any(why is not None for _, why in uses):
            layers += 1
            lacking.update((one.expected.name, why) for _, why in uses if why)
            one = replace(one, uses=tuple(use for use, _ in uses))
        found.append(one)
    return found, _said(layers, lacking)


def _judged(use: UseChecked, why: str | None) -> tuple[UseChecked, str | None]:
    verdict = replace(use.verdict, pays=False, remark=f"the int8 kernel is dense: {why}") if why else use.verdict
    return replace(use, verdict=verdict), why


def _said(layers: int, lacking: dict[str, str]) -> list[str]:
    if not layers:
        return []
    if not lacking:
        both = "the pruned layer" if layers == 1 else f"all {layers} pruned layers"
        return [f"int8 goes into {both} and comes out, as sparse INT8 kernels want it"]
    name, why = next(iter(lacking.items()))
    count = f"{layers - len(lacking)} of {layers} pruned layers"
    held = f"int8 goes into {count} and comes out, as sparse INT8 kernels want it"
    said = [f"{held}; the others run dense (the first: '{name}': {why})"]
    return [*said, *([WAY_OUT] if any(one.endswith(AROUND_ZERO) for one in lacking.values()) else [])]


class _Sides:
    def __init__(self, graph: GraphProto) -> None:
        self._stored = {tensor.name: tensor for tensor in graph.initializer}
        self._outputs = {value.name for value in graph.output}
        self._maker: dict[str, NodeProto] = {}
        self._readers: dict[str, list[NodeProto]] = defaultdict(list)
        for node in graph.node:
            self._maker.update((name, node) for name in node.output)
            for name in node.input:
                self._readers[name].append(node)

    def lacking(self, weight: Weight, use: Use) -> str | None:
        """What keeps a sparse integer kernel from the layer; None where it is no layer with integers."""
        node = use.source
        if weight.tensor.kind != "int8" or "DequantizeLinear" not in use.crossed or use.scope or use.slot > 1:
            return None
        source = self._maker.get(node.input[1 - use.slot])
        if source is None or source.op_type != "DequantizeLinear":
            return "what goes into it is not quantized"
        if not self._around_zero(source):
            return f"what goes into it is {AROUND_ZERO}"
        return self._behind(node.output[0])

    def _behind(self, name: str) -> str:
        waiting, seen = [name], set[str]()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in self._outputs:
                return "what it gives is an output of the model, in floats"
            for node in self._readers[name]:
                if node.op_type == "QuantizeLinear":
                    if not self._around_zero(node):
                        return f"what it gives is {AROUND_ZERO}"
                elif node.op_type in FUSED or node.op_type in MOVED:
                    waiting += [one for one in node.output if one]
                else:
                    return f"what it gives goes into {node.op_type} in floats"
        return ""

    def _around_zero(self, node: NodeProto) -> bool:
        """Whether a QuantizeLinear or DequantizeLinear is of int8 with zero in the middle."""
        tensor = self._stored.get(node.input[2]) if len(node.input) > 2 else None
        if tensor is None or tensor.data_type != TensorProto.INT8:
            return False
        return not numpy_helper.to_array(tensor).any()
