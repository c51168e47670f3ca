"""Writes a convolutional network as tf2onnx does without its optimizers: channels last, weights behind Transpose."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper, numpy_helper

LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
STORED, USED = (2, 3, 1, 0), [3, 2, 0, 1]  # OIHW -> HWIO, as TensorFlow stores a filter, and back


class Rewriter:
    """Nodes of the new graph, and the arrays of the old one."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.arrays = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
        self.nodes: list[onnx.NodeProto] = []

    def constant(self, name: str, array: Any) -> str:
        value = numpy_helper.from_array(array.copy(), f"{name}/value")
        self.nodes.append(helper.make_node("Constant", [], [name], name=name, value=value))
        return name

    def moved(self, source: str, name: str, order: list[int]) -> str:
        self.nodes.append(helper.make_node("Transpose", [source], [name], name=name, perm=order))
        return name

    def conv(self, node: onnx.NodeProto) -> None:
        """Transpose in front and behind; the filter is stored as TensorFlow stores it."""
        name, (source, weight, bias) = node.output[0], node.input
        stored = self.constant(f"{weight}/kernel", self.arrays[weight].transpose(STORED))
        inputs = [
            self.moved(source, f"{name}/first", FIRST),
            self.moved(stored, f"{weight}/used", USED),
            self.constant(f"{bias}/bias", self.arrays[bias]),
        ]
        conv = helper.make_node("Conv", inputs, [f"{name}/conv"], name=node.name)
        conv.attribute.extend(node.attribute)
        self.nodes.append(conv)
        self.moved(f"{name}/conv", name, LAST)

    def gemm(self, node: onnx.NodeProto) -> None:
        """A product and a sum, as a dense layer becomes."""
        name, (source, weight, bias) = node.output[0], node.input
        kernel = self.constant(f"{weight}/kernel", self.arrays[weight].T)
        self.nodes.append(helper.make_node("MatMul", [source, kernel], [f"{name}/product"], name=node.name))
        added = self.constant(f"{bias}/bias", self.arrays[bias])
        self.nodes.append(helper.make_node("Add", [f"{name}/product", added], [name], name=f"{node.name}/BiasAdd"))

    def mean(self, node: onnx.NodeProto) -> None:
        """Over height and width, which are the two axes in the middle."""
        self.nodes.append(
            helper.make_node("ReduceMean", node.input, node.output, name=node.name, axes=[1, 2], keepdims=1)
        )

    def other(self, node: onnx.NodeProto) -> None:
        if node.op_type not in ("Relu", "Add", "Flatten"):
            raise ValueError(f"channels_last.py does not know {node.op_type} ({node.name})")
        self.nodes.append(node)


def rewritten(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same function of images with channels last; of Conv, Relu, Add, GlobalAveragePool, Flatten and Gemm."""
    graph, rewriter = model.graph, Rewriter(model.graph)
    ways = {"Conv": rewriter.conv, "Gemm": rewriter.gemm, "GlobalAveragePool": rewriter.mean}
    for node in graph.node:
        ways.get(node.op_type, rewriter.other)(node)
    _, channels, height, width = (one.dim_value for one in graph.input[0].type.tensor_type.shape.dim)
    taken = helper.make_tensor_value_info(graph.input[0].name, 1, ["N", height, width, channels])
    made = helper.make_graph(rewriter.nodes, graph.name, [taken], list(graph.output))
    return helper.make_model(made, opset_imports=model.opset_import, ir_version=model.ir_version)
