"""The values of a graph as its quantization sees them: what makes and what reads each, and which are float32.

Nodes are named by their first output that has a name, and an input of a node by that and its number.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import onnx.shape_inference
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper
from onnx.helper import make_tensor_value_info

from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.edit import bodies, reads
from onnxsparse.math.values import Array
from onnxsparse.planning.quantization import Reader

OWN = ("", "ai.onnx")
MERGED = ("Relu", "Clip")
"""Activations that only narrow a range: rounding behind them does their work, so no pair stands before."""
SMALL = 1 << 10
"""Stored tensors of so many bytes are shown to shape inference, which needs the sizes in them."""


VIEWS = ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast")
"""What exporters write between a stored tensor and the layer that reads it."""


@dataclass(frozen=True)
class Stored:
    """A stored tensor as a layer reads it."""

    name: str
    axes: tuple[int, ...] | None
    """For each axis that the layer sees that of the stored tensor; None where a view mixes them."""
    seen_by: Reader | None = None
    """The view that reads the tensor, where the layer does not."""


def key(node: NodeProto) -> str:
    """What a node is called here."""
    return next((name for name in node.output if name), "")


class Values:
    """The values of a main graph."""

    def __init__(self, proto: ModelProto) -> None:
        self.proto = proto
        self.nodes = list(proto.graph.node)
        self.stored = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.inputs = {value.name for value in proto.graph.input}
        self.outputs = {value.name for value in proto.graph.output}
        self.maker: dict[str, NodeProto] = {name: node for node in self.nodes for name in node.output if name}
        self.readers: dict[str, list[Reader]] = defaultdict(list)
        """Inputs of nodes of this graph."""
        self.inside: set[str] = set()
        """Values that bodies of nodes read, too."""
        for node in self.nodes:
            for slot, name in enumerate(node.input):
                self.readers[name].append((key(node), slot))
            self.inside.update(reads(node)[sum(map(bool, node.input)) :])
        self._types = types_of(proto)
        self._kinds = {name: found.elem_type for name, found in self._types.items()}
        self._kinds.update((tensor.name, tensor.data_type) for tensor in proto.graph.initializer)

    def is_float(self, name: str, unknown: bool = True) -> bool:
        """Whether a value is float32; `unknown` is what to say where shape inference knows nothing."""
        kind = self._kinds.get(name, TensorProto.UNDEFINED)
        return unknown if kind == TensorProto.UNDEFINED else kind == TensorProto.FLOAT

    def numbers(self, name: str) -> Array | None:
        """A stored tensor; None for what is computed."""
        return numpy_helper.to_array(self.stored[name]) if name in self.stored else None

    def weight_behind(self, name: str) -> Stored | None:
        """The stored tensor that a value is, or is a view of."""
        if name in self.stored:
            return Stored(name, tuple(range(len(self.stored[name].dims))))
        node = self.maker.get(name)
        if node is None or node.op_type not in VIEWS[:-1] or node.domain not in OWN:
            return None
        source = self.weight_behind(node.input[0])
        if source is None or self.stored[source.name].data_type != TensorProto.FLOAT:
            return None
        axes, perm = None, Attributes(node, {}).integers("perm")
        if node.op_type == "Transpose" and source.axes is not None:
            axes = tuple(source.axes[axis] for axis in perm or reversed(range(len(source.axes))))
        return Stored(source.name, axes, source.seen_by or (key(node), 0))

    def sizes(self, name: str) -> tuple[int, ...] | None:
        """The sizes of a value; None where one is not known."""
        dims = self._types[name].shape.dim if name in self._types and self._types[name].HasField("shape") else ()
        found = tuple(int(dim.dim_value) for dim in dims)
        return found if found and all(found) else None

    def merged(self, name: str) -> str:
        """The value behind the activations that only this one goes into."""
        readers = self.readers[name]
        if len(readers) != 1 or name in self.outputs or name in self.inside:
            return name
        node = self.maker[readers[0][0]]
        same = node.op_type in MERGED and node.domain in OWN and readers[0][1] == 0
        return self.merged(node.output[0]) if same else name

    def made_by(self, name: str) -> NodeProto | None:
        """The node that makes a value, before the activations that merge into its range."""
        node = self.maker.get(name)
        while node is not None and node.op_type in MERGED and self.merged(node.input[0]) != node.input[0]:
            node = self.maker.get(node.input[0])
        return node


def types_of(proto: ModelProto) -> dict[str, TypeProto.Tensor]:
    """The types that shape inference finds, without the numbers of large tensors."""
    bare = ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    bare.graph.name = proto.graph.name or "graph"
    bare.graph.node.extend(proto.graph.node)
    bare.graph.input.extend(proto.graph.input)
    bare.graph.value_info.extend(proto.graph.value_info)
    bare.graph.output.extend(proto.graph.output)
    known = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        if tensor.ByteSize() <= SMALL:
            bare.graph.initializer.append(tensor)
        elif tensor.name not in known:
            bare.graph.input.append(make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    try:
        found = onnx.shape_inference.infer_shapes(bare).graph
    except Exception:  # inference is C++ and raises what it likes; a graph that it cannot read may run all the same
        found = bare.graph
    declared = (*found.value_info, *found.input, *found.output)
    return {value.name: value.type.tensor_type for value in declared}


def nodes_in_bodies(nodes: list[NodeProto]) -> list[tuple[NodeProto, str]]:
    """The nodes inside of bodies, each with the operator around it."""
    found = []
    for node in nodes:
        for body in bodies(node):
            found += [(inner, node.op_type) for inner in body.node]
            found += nodes_in_bodies(list(body.node))
    return found
