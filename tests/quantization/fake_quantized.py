"""Small fake-quantized networks, in the forms that exporters write, and what the runtime computes with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper, numpy_helper

ONNX_TYPES = {"x": TensorProto.FLOAT, "i": TensorProto.INT64}


class Net:
    """A graph that is written node by node; inputs are `x` (floats) and `i` (indices)."""

    def __init__(self, opset: int = 17) -> None:
        self.opset, self._nodes, self._tensors, self._count = opset, list[Any](), list[TensorProto](), 0

    def constant(self, array: Any, name: str = "", dtype: Any = np.float32) -> str:
        name = name or self._name("c")
        self._tensors.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def node(self, op: str, *inputs: str, to: str = "", domain: str = "", outputs: int = 1, **attributes: Any) -> str:
        name = to or self._name(op.lower())
        made = [name, *(f"{name}_{at}" for at in range(1, outputs))]
        self._nodes.append(helper.make_node(op, inputs, made, domain=domain, **attributes))
        return name

    def _name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def model(self, *outputs: str, ir_version: int = 8) -> ModelProto:
        given = dict.fromkeys(one for node in self._nodes for one in node.input if one in ONNX_TYPES)
        inputs = [helper.make_tensor_value_info(one, ONNX_TYPES[one], None) for one in given]
        ends = [helper.make_tensor_value_info(one, TensorProto.FLOAT, None) for one in outputs]
        graph = helper.make_graph(self._nodes, "net", inputs, ends, self._tensors)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)

    # -- forms of fake quantization; the scale goes along the first axis where it has several numbers

    def pair(self, x: str, scale: Any, zero: int = 0, kind: Any = np.int8, limits: Any = None, to: str = "") -> str:
        """QuantizeLinear and DequantizeLinear, and Clip between them where there are limits."""
        many = np.size(scale) > 1
        axis: dict[str, Any] = {"axis": 0} if many and self.opset >= 13 else {}
        zeros = np.full(np.shape(scale), zero)
        grid = [self.constant(scale), self.constant(zeros, dtype=kind)]
        rounded = self.node("QuantizeLinear", x, *grid, **axis)
        if limits is not None:
            ends = [self.constant(one, dtype=kind) for one in limits]
            rounded = self.node("Clip", rounded, *ends)
        return self.node("DequantizeLinear", rounded, *grid, to=to, **axis)

    def plain(self, x: str, scale: Any, low: int, high: int, rank: int, zero: int = 0, first: bool = False) -> str:
        """Div, Round, Clip and Mul; Clip `first` stands before Round."""
        step = self.constant(np.reshape(scale, (-1, *(1,) * (rank - 1))) if np.size(scale) > 1 else scale)
        at = self.node("Div", x, step)
        if zero and first:
            at = self.node("Add", at, self.constant(float(zero)))
        ends = [self.constant(float(low)), self.constant(float(high))]
        if first:
            at = self.node("Clip", at, *ends)
        at = self.node("Round", at)
        if zero and not first:
            at = self.node("Add", at, self.constant(float(zero)))
        if not first:
            at = self.node("Min", self.node("Max", at, ends[0]), ends[1])
        if zero:
            at = self.node("Sub", at, self.constant(float(zero)))
        return self.node("Mul", at, step)

    def straight_through(self, x: str, scale: Any, low: int, high: int) -> str:
        """Round as it is exported of `y + (y.round() - y).detach()`."""
        step = self.constant(scale)
        at = self.node("Clip", self.node("Div", x, step), self.constant(float(low)), self.constant(float(high)))
        at = self.node("Add", at, self.node("Sub", self.node("Round", at), at))
        return self.node("Mul", at, step)

    def fake_quant(self, x: str, scale: Any, low: int, high: int, rank: int, zero: int = 0) -> str:
        """onnxruntime-training's operator; along an axis between Div and Mul, with the step 1."""
        limits: dict[str, Any] = {"quant_min": low, "quant_max": high}
        many = np.size(scale) > 1
        inner = [self.constant(1.0 if many else scale), self.constant(float(zero))]
        step = self.constant(np.reshape(scale, (-1, *(1,) * (rank - 1)))) if many else ""
        at = self.node("Div", x, step) if many else x
        at = self.node("FakeQuant", at, *inner, domain="com.microsoft", outputs=2, **limits)
        return self.node("Mul", at, step) if many else at


def run(model: ModelProto, feeds: Mapping[str, np.ndarray], optimized: bool = False) -> list[np.ndarray]:
    """All outputs in the runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, dict(feeds))
    return found


def arrays(model: ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def operators(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]
