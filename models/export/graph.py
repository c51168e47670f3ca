"""Puts an ONNX graph together node by node; what every post-processing graph is written with.

Only operators are used whose form is the same from opset 16 (RoiAlign's half_pixel) on, so a graph can be joined to a
network of any later opset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
OPSET, IR_VERSION = 17, 8
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Shape = Sequence[Any]


class Graph:
    """The nodes and constants of one graph; `name` begins the name of everything inside it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[NodeProto] = []
        self.constants: dict[tuple[Any, ...], TensorProto] = {}
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[ValueInfoProto] = []
        self.defaults: list[TensorProto] = []

    def input(self, name: str, shape: Shape, default: Array | None = None) -> str:
        """A tensor that comes from outside; one with a default may be left out."""
        self.inputs.append(helper.make_tensor_value_info(name, FLOAT, shape))
        if default is not None:
            self.defaults.append(numpy_helper.from_array(default.astype(np.float32), name))
        return name

    def output(self, value: str, name: str, shape: Shape, kind: int = FLOAT) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name], f"{self.name}/{name}"))
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.ops(kind, inputs, 1, **attributes)[0]

    def ops(self, kind: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        """A node with several outputs."""
        own = f"{self.name}/{kind}_{len(self.nodes)}"
        outputs = [f"{own}_output_{at}" for at in range(count)]
        self.nodes.append(helper.make_node(kind, inputs, outputs, own, **attributes))
        return outputs

    def floats(self, numbers: Any) -> str:
        return self._constant(np.asarray(numbers, np.float32))

    def integers(self, numbers: Any) -> str:
        return self._constant(np.asarray(numbers, np.int64))

    def _constant(self, array: Array) -> str:
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.constants:
            name = f"{self.name}/constant_{len(self.constants)}"
            self.constants[key] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        return self.constants[key].name

    def columns(self, value: str, at: Sequence[int]) -> str:
        """Some places of the last axis."""
        return self.op("Gather", value, self.integers(list(at)), axis=-1)

    def top(self, scores: str, most: int) -> tuple[str, str]:
        """The largest numbers of a vector, at most so many, and their places; of equal ones the first."""
        count = self.op("Min", self.op("Shape", scores), self.integers([most]))
        found, places = self.ops("TopK", [scores, count], 2)
        return found, places

    def model(self) -> ModelProto:
        constants = [*self.defaults, *self.constants.values()]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="onnxsparse")
        made.ir_version = IR_VERSION
        return made
