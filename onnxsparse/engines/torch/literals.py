"""Plain Python numbers from attributes and small stored tensors."""

from __future__ import annotations

from typing import Any

from onnx import AttributeProto

from onnxsparse.errors import ModelError
from onnxsparse.graph.attributes import text
from onnxsparse.graph.storage import StoredTensor

LARGEST = 64
_WHOLE = ("int64", "int32")
_NUMBERS = (*_WHOLE, "float32", "float64", "float16")


def numbers(stored: StoredTensor, single: bool) -> Any:
    """The integers of a small stored tensor as a list, or its one number; None where it has to stay a tensor."""
    if single:
        return stored.read().tolist()[0] if stored.size == 1 and stored.kind in _NUMBERS else None
    if stored.size > LARGEST or stored.kind not in _WHOLE:
        return None
    found = stored.read().tolist()
    return found if stored.shape else found[0]


def attribute_value(attribute: AttributeProto) -> Any:
    kind = attribute.type
    if kind == AttributeProto.INT:
        return attribute.i
    if kind == AttributeProto.FLOAT:
        return attribute.f
    if kind == AttributeProto.STRING:
        return attribute.s.decode("utf-8", "replace")
    if kind == AttributeProto.INTS:
        return list(attribute.ints)
    if kind == AttributeProto.FLOATS:
        return list(attribute.floats)
    if kind == AttributeProto.STRINGS:
        return [one.decode("utf-8", "replace") for one in attribute.strings]
    if kind == AttributeProto.TYPE_PROTO:
        return None
    raise ModelError(f"attribute '{text(attribute.name)}' is of a kind that torch does not take")
