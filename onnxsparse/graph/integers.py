"""Small integers that are known without running anything: computed shapes, bounds and axes.

1. What is computed from stored integers by the arithmetic of shapes is known.
2. So is the shape of a constant, and what the file declares of the shape of anything else: some sizes of a shape may
   be free and others not, and those that are not can be picked out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Optional

import numpy as np
from onnx import NodeProto

from onnxsparse.graph.arithmetic import LARGEST, evaluate
from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.storage import Array, StoredTensor
from onnxsparse.graph.traced import Dims, Known, Traced, Value, computed, small_array

Sizes = tuple[Optional[int], ...]
Declared = Callable[[str], Optional[Sizes]]


def known(node: NodeProto, values: Sequence[Value], attributes: Attributes) -> Known | None:
    """Small integers computed from small integers."""
    if node.domain not in ("", "ai.onnx"):
        return None
    given = [value for value in values if value is not None]
    small = [value.array if isinstance(value, Known) else _integers(value) for value in values]
    arrays = [array for array in small if array is not None]
    array = evaluate(node.op_type, arrays, attributes) if len(arrays) == len(values) else None
    return None if array is None else Known(computed(given, node.op_type).tensors, node.op_type, array)


def shape_of(
    node: NodeProto, values: Sequence[Value], attributes: Attributes, declared: Declared
) -> Known | Dims | None:
    """The shape of a constant, or the declared one of anything else; and what is picked out of one."""
    if node.domain not in ("", "ai.onnx") or not node.input:
        return None
    value = values[0]
    if node.op_type == "Shape":
        sizes = value.shape if isinstance(value, Traced) else declared(node.input[0])
        tensors = computed([value], "Shape").tensors if value is not None else frozenset[StoredTensor]()
        stop = attributes.integer("end", len(sizes)) if sizes else 0
        return _dims(sizes[attributes.integer("start", 0) : stop], tensors) if sizes else None
    if isinstance(value, Dims) and node.op_type in ("Gather", "Slice", "Identity", "Cast"):
        bounds = [one.array if isinstance(one, Known) else _integers(one) for one in values[1:]]
        places = [one for one in (np.arange(len(value.sizes)), *bounds) if one is not None]
        chosen = evaluate(node.op_type, places, attributes) if len(places) == len(values) else None
        if chosen is not None:
            picked = [value.sizes[int(place)] for place in chosen.reshape(-1)]
            found = _dims(tuple(picked), value.tensors)
            return replace(found, array=found.array.reshape(chosen.shape)) if isinstance(found, Known) else None
    return None


def _dims(sizes: tuple[int | None, ...], tensors: frozenset[StoredTensor]) -> Known | Dims:
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return Dims(tensors, "Shape", sizes)
    return Known(tensors, "Shape", np.array(known, np.int64))


def _integers(value: Value) -> Array | None:
    whole = isinstance(value, Traced) and value.tensor.kind in ("int64", "int32") and value.tensor.size <= LARGEST
    return small_array(value) if whole else None
