"""Base class of rewrites: one operator that cannot be differentiated, written with operators that can."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from onnxsparse.graph.attributes import attributes
from onnxsparse.graph.edit import FLOATS, Writer, reads
from onnxsparse.math.values import Array


@dataclass
class View:
    """What is known about the values of a graph whose shapes are all fixed."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    opset: int = 17
    gradients: set[str] = field(default_factory=set)
    """Values through which a gradient has to flow: they depend on a trained weight, and an output depends on them."""
    read: set[str] = field(default_factory=set)
    """Values that a node or the graph's caller reads."""
    makers: dict[str, NodeProto] = field(default_factory=dict)
    """The node that each value comes from."""

    @classmethod
    def of(cls, model: ModelProto, trained: set[str]) -> View:
        """The view of a model that has `value_info` for all its values (run shape inference before)."""
        view = cls(opset=max(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")))
        for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
            kind = value.type.tensor_type
            if kind.elem_type:
                view.types[value.name] = kind.elem_type
            if all(dim.HasField("dim_value") for dim in kind.shape.dim) and kind.HasField("shape"):
                view.shapes[value.name] = tuple(dim.dim_value for dim in kind.shape.dim)
        for tensor in model.graph.initializer:
            view.shapes[tensor.name], view.types[tensor.name] = tuple(tensor.dims), tensor.data_type
            if tensor.name not in trained:
                view.constants[tensor.name] = tensor
        view.makers = {name: node for node in model.graph.node for name in node.output}
        view.read = {name for node in model.graph.node for name in reads(node)}
        view.read |= {value.name for value in model.graph.output}
        view.gradients = _reached(model.graph, trained, view.types) & _reaching(model.graph, view.types)
        return view

    def constant(self, name: str) -> Array | None:
        """The numbers of a constant that is not trained."""
        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def flows(self, node: NodeProto) -> bool:
        """Whether a gradient has to pass through this node."""
        if not any(name in self.gradients for name in node.output):
            return False
        return any(name in self.gradients for name in reads(node))


def _reached(graph: GraphProto, trained: set[str], types: dict[str, int]) -> set[str]:
    found = set(trained)
    for node in graph.node:
        if any(name in found for name in reads(node)):
            found.update(name for name in node.output if types.get(name, TensorProto.FLOAT) in FLOATS)
    return found


def _reaching(graph: GraphProto, types: dict[str, int]) -> set[str]:
    found = {value.name for value in graph.output if types.get(value.name, TensorProto.FLOAT) in FLOATS}
    for node in reversed(graph.node):
        if any(name in found for name in node.output):
            found.update(name for name in reads(node) if types.get(name, TensorProto.FLOAT) in FLOATS)
    return found


class Rewrite(ABC):
    """One or a few operators, rewritten the same way. Every public module of this folder is searched for them."""

    operators: ClassVar[tuple[str, ...]]
    """`Op` for ONNX's own operators, `domain:Op` for others."""
    needless: ClassVar[bool] = False
    """True when it has to be rewritten even where no gradient flows: there is no kernel, or it is wrong."""

    @abstractmethod
    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        """Write nodes that give `node`'s outputs their names. Returns why that cannot be done, or None.

        Writing nothing and returning None leaves the node as it is: the engine is right about it.
        """


def operator(node: NodeProto) -> str:
    """`Op` for ONNX's own operators, `domain:Op` for others."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}:{node.op_type}"


def given(node: NodeProto, place: int) -> str | None:
    """The name of an input that may be left out."""
    return node.input[place] if place < len(node.input) and node.input[place] else None


def result(node: NodeProto, place: int) -> str | None:
    """The name of an output that may be left out."""
    return node.output[place] if place < len(node.output) and node.output[place] else None


def reshape(writer: Writer, value: str, shape: Sequence[int], to: str | None = None) -> str:
    """A Reshape to fixed sizes."""
    return writer.node("Reshape", value, writer.constant(list(shape), "shape", np.int64), to=to)


def reduce(writer: Writer, op: str, value: str, axes: Sequence[int], keep: bool = True, to: str | None = None) -> str:
    """A reduction along at least one axis: the axes are an attribute or an input, as the opset has it."""
    if writer.opset >= (13 if op == "ReduceSum" else 18):
        return writer.node(op, value, writer.constant(list(axes), "axes", np.int64), keepdims=int(keep), to=to)
    return writer.node(op, value, axes=list(axes), keepdims=int(keep), to=to)


def gather(writer: Writer, value: str, places: Sequence[int] | Array, axis: int, to: str | None = None) -> str:
    """The given places along an axis, in the given order."""
    return writer.node("Gather", value, writer.constant(places, "places", np.int64), axis=axis, to=to)


def part(writer: Writer, value: str, start: int, end: int, axis: int, to: str | None = None) -> str:
    """The places from `start` up to `end` along an axis."""
    limits = [writer.constant([number], "limit", np.int64) for number in (start, end, axis)]
    return writer.node("Slice", value, *limits, to=to)


def standardized(writer: Writer, value: str, axes: Sequence[int], epsilon: float) -> str:
    """(value - mean) / sqrt(variance + epsilon) over some axes."""
    centered = writer.node("Sub", value, reduce(writer, "ReduceMean", value, axes))
    return writer.node("Div", centered, root_mean_square(writer, centered, axes, epsilon))


def root_mean_square(writer: Writer, value: str, axes: Sequence[int], epsilon: float) -> str:
    """sqrt(mean(value * value) + epsilon) over some axes."""
    mean = reduce(writer, "ReduceMean", writer.node("Mul", value, value), axes)
    return writer.node("Sqrt", writer.node("Add", mean, writer.constant(epsilon, "epsilon")))


def window(node: NodeProto, shape: Sequence[int], kernel: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Strides, dilations and explicit pads (all begins, then all ends) of a node that moves a window over its input."""
    given = attributes(node)
    ones = [1] * len(kernel)
    strides, dilations = given.get("strides", ones), given.get("dilations", ones)
    mode = given.get("auto_pad", "NOTSET")
    if not mode.startswith("SAME"):
        none = [0] * 2 * len(kernel)
        return strides, dilations, given.get("pads", none) if mode == "NOTSET" else none
    totals = [
        max((math.ceil(size / stride) - 1) * stride + (width - 1) * dilation + 1 - size, 0)
        for size, stride, width, dilation in zip(shape[2:], strides, kernel, dilations)
    ]
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return strides, dilations, less + more if mode == "SAME_UPPER" else more + less
