"""What a rewrite is: one operator that the engine cannot differentiate, written with operators that it can."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.helper import get_attribute_value

from onnxsparse.engines.ort.writer import Writer
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


_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def _reached(graph: GraphProto, trained: set[str], types: dict[str, int]) -> set[str]:
    found = set(trained)
    for node in graph.node:
        if any(name in found for name in reads(node)):
            found.update(name for name in node.output if types.get(name, TensorProto.FLOAT) in _FLOATS)
    return found


def _reaching(graph: GraphProto, types: dict[str, int]) -> set[str]:
    found = {value.name for value in graph.output if types.get(value.name, TensorProto.FLOAT) in _FLOATS}
    for node in reversed(graph.node):
        if any(name in found for name in node.output):
            found.update(name for name in reads(node) if types.get(name, TensorProto.FLOAT) in _FLOATS)
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


def reads(node: NodeProto) -> list[str]:
    """All names that a node reads, those of nested graphs included."""
    found = list(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            found += [name for inner in graph.node for name in reads(inner)]
            found += [value.name for value in graph.output]
    return found


def operator(node: NodeProto) -> str:
    """`Op` for ONNX's own operators, `domain:Op` for others."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}:{node.op_type}"


def attributes(node: NodeProto) -> dict[str, Any]:
    """The attributes of a node as Python values; texts as str."""
    return {one.name: _plain(one) for one in node.attribute}


def _plain(attribute: AttributeProto) -> Any:
    value = get_attribute_value(attribute)
    if attribute.type == AttributeProto.STRINGS:
        return [text.decode() for text in value]
    return value.decode() if isinstance(value, bytes) else value
