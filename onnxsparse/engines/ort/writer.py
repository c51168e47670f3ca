"""Writing nodes into a throw-away copy of a graph, under names that are new in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, numpy_helper
from onnx.helper import make_node, make_tensor_value_info, np_dtype_to_tensor_dtype

from onnxsparse.math.values import Array


class Writer:
    """Collects nodes in `nodes`; constants and inputs go into the graph at once. The caller places the nodes."""

    def __init__(self, graph: GraphProto, opset: int) -> None:
        self.graph, self.opset = graph, opset
        self.nodes: list[NodeProto] = []
        self._taken = {value.name for value in (*graph.input, *graph.output)} | {one.name for one in graph.initializer}
        self._taken |= {name for node in graph.node for name in (node.name, *node.input, *node.output)}

    def fresh(self, stem: str) -> str:
        """A name that nothing in the graph has yet."""
        name, count = stem, 1
        while name in self._taken:
            name, count = f"{stem}_{count}", count + 1
        self._taken.add(name)
        return name

    def constant(self, value: Any, stem: str = "constant", dtype: Any = None) -> str:
        """A new initializer; floats become float32 and whole numbers int64 unless `dtype` says otherwise."""
        array: Array = np.asarray(value, dtype)
        if dtype is None and array.dtype.kind in "fi":
            array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        name = self.fresh(stem)
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name

    def input(self, stem: str, dtype: Any, shape: Sequence[int]) -> str:
        """A new graph input."""
        name = self.fresh(stem)
        kind = np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.graph.input.append(make_tensor_value_info(name, kind, list(shape)))
        return name

    def node(self, op: str, *inputs: str, to: str | None = None, domain: str = "", **attributes: Any) -> str:
        """A node with one output, named `to` or anew; returns the output's name."""
        return self.many(op, *inputs, to=[to or self.fresh(op.lower())], domain=domain, **attributes)[0]

    def cast(self, value: str, kind: int, to: str | None = None) -> str:
        """`value` as numbers of another kind, a `TensorProto.DataType`."""
        name = to or self.fresh("cast")
        self.nodes.append(make_node("Cast", [value], [name], name=self.fresh("Cast_node"), to=kind))
        return name

    def many(self, op: str, *inputs: str, to: Sequence[str], domain: str = "", **attributes: Any) -> list[str]:
        """A node with several outputs, of the names in `to` ('' = left out)."""
        given = {name: value for name, value in attributes.items() if value is not None}
        self.nodes.append(make_node(op, inputs, list(to), name=self.fresh(f"{op}_node"), domain=domain, **given))
        return list(to)
