"""A hypothesis strategy that damages a serialized model: bits, splices, cuts, and single protobuf fields."""

from __future__ import annotations

from typing import Any, Callable

import onnx
from google.protobuf.message import Message
from hypothesis import strategies as st

from graphs.fields import repeated

EDGES = (0, 1, -1, 2, 7, 2**31 - 1, -(2**31), 2**60, 2**63 - 1, -(2**63))
TEXTS = ("", "w", "x", "y", "Conv", "MatMul", "\x00", "../../etc/passwd", "\x1b[2J", "ü" * 50, "%s%n", "If")


def messages(root: Message) -> list[Message]:
    """The message and all below it."""
    found, open_ones = [], [root]
    while open_ones:
        one = open_ones.pop()
        found.append(one)
        for field, value in one.ListFields():
            if field.type == field.TYPE_MESSAGE:
                open_ones.extend(value if repeated(field) else [value])
    return found


def _choice_for(draw: Callable[..., Any], field: Any) -> Any:
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return draw(st.sampled_from([0.0, -0.0, 1e38, float("nan"), float("inf")]))
    if field.type == field.TYPE_STRING:
        return draw(st.sampled_from(TEXTS))
    if field.type == field.TYPE_BYTES:
        return draw(st.binary(max_size=40))
    small = field.type in (field.TYPE_INT32, field.TYPE_ENUM, field.TYPE_UINT32)
    usable = [edge for edge in EDGES if not small or abs(edge) < 2**31]
    if field.type in (field.TYPE_UINT64, field.TYPE_UINT32):
        usable = [edge for edge in usable if edge >= 0]
    return draw(st.sampled_from(usable))


def change_a_field(draw: Callable[..., Any], made: onnx.ModelProto) -> None:
    """Overwrite, clear, duplicate or drop one field somewhere."""
    filled = [(one, field, value) for one in messages(made) for field, value in one.ListFields()]
    owner, field, value = filled[draw(st.integers(0, len(filled) - 1))]
    action = draw(st.sampled_from(["set", "clear", "drop", "double"]))
    if action == "clear":
        owner.ClearField(field.name)
    elif repeated(field):
        _change_items(draw, field, value, action)
    elif field.type != field.TYPE_MESSAGE:
        try:
            setattr(owner, field.name, _choice_for(draw, field))
        except ValueError:
            owner.ClearField(field.name)


def _change_items(draw: Callable[..., Any], field: Any, items: Any, action: str) -> None:
    at = draw(st.integers(0, len(items) - 1))
    if action == "drop":
        del items[at]
    elif field.type == field.TYPE_MESSAGE:
        items.add().CopyFrom(items[draw(st.integers(0, len(items) - 1))])
    elif action == "double":
        items.append(items[at])
    else:
        items[at] = _choice_for(draw, field)


def _flip(draw: Callable[..., Any], content: bytearray) -> bytearray:
    for _ in range(draw(st.integers(1, 8))):
        content[draw(st.integers(0, len(content) - 1))] ^= 1 << draw(st.integers(0, 7))
    return content


def _splice(draw: Callable[..., Any], content: bytearray) -> bytearray:
    ends = sorted(draw(st.integers(0, len(content))) for _ in range(2))
    at = draw(st.integers(0, len(content)))
    return content[:at] + content[ends[0] : min(ends[1], ends[0] + 500)] + content[at + draw(st.integers(0, 40)) :]


def _cut(draw: Callable[..., Any], content: bytearray) -> bytearray:
    return content[: draw(st.integers(0, len(content)))]


@st.composite
def mutated_models(draw: Callable[..., Any], original: onnx.ModelProto) -> bytes:
    """The bytes of the model after one to three injuries."""
    made = onnx.ModelProto()
    made.CopyFrom(original)
    kind = draw(st.sampled_from(["field", "field", "field", "flip", "splice", "cut"]))
    if kind == "field":
        for _ in range(draw(st.integers(1, 3))):
            change_a_field(draw, made)
        return made.SerializeToString()
    wound = {"flip": _flip, "splice": _splice, "cut": _cut}[kind]
    return bytes(wound(draw, bytearray(made.SerializeToString())))
