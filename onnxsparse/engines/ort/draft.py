"""The throw-away copy while it is being prepared: the model, the tags of its trained tensors, and what was noted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


@dataclass
class Draft:
    """`tags` holds the trained tensors only: initializers of the main graph by name."""

    model: ModelProto
    tags: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def graph(self) -> GraphProto:
        return self.model.graph

    @property
    def opset(self) -> int:
        return next((entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx")), 1)

    def copy(self) -> Draft:
        model = ModelProto()
        model.CopyFrom(self.model)
        return Draft(model, dict(self.tags), list(self.notes), dict(self.lost))

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def tensors(self) -> dict[str, TensorProto]:
        return {tensor.name: tensor for tensor in self.graph.initializer}

    def place(self, nodes: Sequence[NodeProto]) -> None:
        """The nodes of the graph are these now."""
        keep(self.graph.node, nodes)


def keep(field: Any, kept: Sequence[Any]) -> None:
    """A repeated field holds these messages (its own or others) and no more."""
    copies = []
    for entry in kept:
        copies.append(type(entry)())
        copies[-1].CopyFrom(entry)
    del field[:]
    field.extend(copies)


def called(node: NodeProto) -> str:
    """A node in words."""
    name = node.name or (node.output[0] if node.output else "")
    return f"{node.op_type} '{name}'"
