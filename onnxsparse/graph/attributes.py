"""Reading a node's attributes, inside local functions too, where an attribute may stand for one of the caller's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from onnx import AttributeProto, NodeProto
from onnx.helper import get_attribute_value

from onnxsparse.errors import ModelError

Caller = Mapping[str, Optional[AttributeProto]]

_FIELDS: dict[int, str] = {
    AttributeProto.INT: "i",
    AttributeProto.FLOAT: "f",
    AttributeProto.STRING: "s",
    AttributeProto.INTS: "ints",
    AttributeProto.FLOATS: "floats",
    AttributeProto.TENSOR: "t",
}


class Attributes:
    """The attributes of one node at one call. `caller` has those of the function call around it."""

    def __init__(self, node: NodeProto, caller: Caller) -> None:
        self._node = node
        self.table: dict[str, AttributeProto | None] = {}
        for attribute in node.attribute:
            source = attribute.ref_attr_name
            self.table[attribute.name] = caller.get(source) if source else attribute

    def integer(self, name: str, default: int = 0) -> int:
        return int(self._value(name, AttributeProto.INT, default))

    def number(self, name: str, default: float) -> float:
        return float(self._value(name, AttributeProto.FLOAT, default))

    def text(self, name: str, default: str = "") -> str:
        value = self._value(name, AttributeProto.STRING, default)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def integers(self, name: str, default: Sequence[int] | None = None) -> list[int] | None:
        value = self._value(name, AttributeProto.INTS, default)
        return None if value is None else [int(item) for item in value]

    def _value(self, name: str, kind: int, default: Any) -> Any:
        attribute = self.table.get(name)
        if attribute is None:
            return default
        if attribute.type not in (kind, AttributeProto.UNDEFINED):
            raise ModelError(f"node '{label(self._node)}' has attribute '{name}' of the wrong type")
        return getattr(attribute, _FIELDS[kind])


class IdentityKey:
    """A protobuf message as the key of a table.

    Messages compare by their content and have no hash, and Python gives the address of one that nobody holds to the
    next; so the key is the very message, and holds it.
    """

    __slots__ = ("_message",)

    def __init__(self, message: object) -> None:
        self._message = message

    def __hash__(self) -> int:
        return object.__hash__(self._message)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self._message is other._message


def attributes(node: NodeProto) -> dict[str, Any]:
    """The attributes of a node that is in no function, as Python values; texts as str."""
    return {one.name: _plain(one) for one in node.attribute}


def _plain(attribute: AttributeProto) -> Any:
    value = get_attribute_value(attribute)
    if attribute.type == AttributeProto.STRINGS:
        return [text.decode() for text in value]
    return value.decode() if isinstance(value, bytes) else value


def label(node: NodeProto) -> str:
    """What a person would call the node: its name, else its first output."""
    return text(node.name or next((name for name in node.output if name), "") or node.op_type)


def text(value: str | bytes) -> str:
    """A string field of the file; one that is not UTF-8 arrives as bytes."""
    if isinstance(value, bytes):
        raise ModelError(
            f"the model holds a name or text that is not UTF-8 ({value[:40]!r}); it is damaged, export it again"
        )
    return value
