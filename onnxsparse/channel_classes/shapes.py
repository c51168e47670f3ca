"""Sizes of values: those that shape inference wrote into the copy, and those of one node by what the walk knows.

Inference over a whole graph stops at an operator that it does not know, and at sizes that come from arithmetic it does
not follow; in the body of a Loop it starts with nothing. The walk knows more by then, and asks again for one node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import numpy as np
import onnx.shape_inference
from onnx import (
    GraphProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    defs,
    helper,
    numpy_helper,
)

from onnxsparse.channel_classes.tensors import Sizes, Tensor
from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.edit import bodies
from onnxsparse.graph.shape_values import LARGEST
from onnxsparse.math.values import Array


def shapes_in(graph: GraphProto) -> dict[str, Sizes]:
    """The sizes of the named values of a graph."""
    found: dict[str, Sizes] = {}
    for value in (*graph.value_info, *graph.output, *graph.input):
        sizes = sizes_of(value.type)
        if sizes is not None:
            found[value.name] = sizes
    return found


def symbols_in(graph: GraphProto) -> dict[str, tuple[str, ...]]:
    """The names of sizes that are not known, by value."""
    values: tuple[ValueInfoProto, ...] = (*graph.value_info, *graph.output, *graph.input)
    return {one.name: tuple(dim.dim_param for dim in one.type.tensor_type.shape.dim) for one in values}


def sizes_of(kind: TypeProto) -> Sizes | None:
    if not kind.tensor_type.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in kind.tensor_type.shape.dim)


def asked_again(
    node: NodeProto, inputs: Sequence[Tensor | None], found: tuple[Sizes | None, ...], opset: int
) -> tuple[Sizes | None, ...]:
    """The sizes of a node's results, with those that follow from its inputs where some are not known."""
    open_ones = any(shape is None or None in shape for shape in found)
    given = {name: one for name, one in zip(node.input, inputs) if one is not None}
    if not open_ones or not given or node.domain not in ("", "ai.onnx") or any(bodies(node)):
        return found
    if any(one.shape is None for one in given.values()):
        return found
    made = _inferred(node, given, opset)
    return tuple(_filled(shape, made.get(name)) for name, shape in zip(node.output, found))


def _inferred(node: NodeProto, given: dict[str, Tensor], opset: int) -> dict[str, Sizes | None]:
    numbers = {name: numpy_helper.from_array(one.numbers) for name, one in given.items() if one.numbers is not None}
    kinds = {
        name: helper.make_tensor_type_proto(
            numbers[name].data_type if name in numbers else TensorProto.FLOAT, one.shape or ()
        )
        for name, one in given.items()
    }
    try:
        schema = defs.get_schema(node.op_type, opset, "")
        imports = [helper.make_opsetid("", opset)]
        made = onnx.shape_inference.infer_node_outputs(schema, node, kinds, numbers, opset_imports=imports)
    except Exception:  # whatever the inference makes of an odd node: its sizes are not known
        return {}
    return {name: sizes_of(kind) for name, kind in made.items()}


def _filled(shape: Sizes | None, other: Sizes | None) -> Sizes | None:
    if shape is None or other is None or len(shape) != len(other):
        return other if shape is None else shape
    return tuple(two if one is None else one for one, two in zip(shape, other))


# -- What exporters compute of sizes besides the arithmetic of shapes: places, bounds, and which branch runs.

_COMPUTED: Mapping[str, Callable[..., Array]] = {
    "Abs": np.abs,
    "And": np.logical_and,
    "Equal": np.equal,
    "Expand": lambda data, shape: data * np.ones(shape, data.dtype),
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Max": lambda *arrays: reduce(np.maximum, arrays),
    "Min": lambda *arrays: reduce(np.minimum, arrays),
    "Neg": np.negative,
    "Not": np.logical_not,
    "Or": np.logical_or,
    "Range": lambda start, limit, step: np.arange(int(start), int(limit), int(step), dtype=start.dtype),
    "Where": np.where,
}


def computed(node: NodeProto, arrays: Sequence[Array], attributes: Attributes) -> Array | None:
    """What a node makes of small integers that are known; None where it is none of these, or they do not fit."""
    if node.op_type == "Cast" and attributes.integer("to") == TensorProto.BOOL:
        return arrays[0].astype(bool)
    if node.op_type == "Mod":
        rule: Callable[..., Array] | None = np.fmod if attributes.integer("fmod") else np.mod
    else:
        rule = _COMPUTED.get(node.op_type)
    if rule is None or any(array.size > LARGEST or array.dtype.kind not in "iub" for array in arrays):
        return None
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(rule(*arrays))
    except (ValueError, TypeError, ZeroDivisionError):  # the runtime will say so
        return None
    return found if found.size <= LARGEST else None


__all__ = ["asked_again", "computed", "shapes_in", "sizes_of", "symbols_in"]
