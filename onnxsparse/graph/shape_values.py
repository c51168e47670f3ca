"""Shape arithmetic: small integers that are known without running anything, such as sizes, bounds and axes.

1. What is computed from stored integers by the arithmetic of shapes is known.
2. So is the shape of a constant, and what the file declares of the shape of anything else: some sizes of a shape may
   be free and others not, and those that are not can be picked out.
3. What the operators say of a shape counts more than what the file declares, which may be left from before an edit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Optional

import numpy as np
import onnx.shape_inference
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from onnxsparse.graph.attributes import Attributes, IdentityKey
from onnxsparse.graph.edit import scopes
from onnxsparse.graph.origins import Dims, Known, Traced, Value, computed, small_array
from onnxsparse.graph.storage import Array, StoredTensor

Sizes = tuple[Optional[int], ...]
Declared = Callable[[str], Optional[Sizes]]
LARGEST_GRAPH = 20_000


class Shapes:
    """The shapes of values that depend on the model's inputs; free sizes are None."""

    def __init__(self, proto: ModelProto) -> None:
        self._proto = proto
        self._declared: dict[IdentityKey, dict[str, Sizes]] = {}
        self._inferred: dict[IdentityKey, dict[str, Sizes]] | None = None

    def of(self, name: str, container: GraphProto | FunctionProto) -> Sizes | None:
        """What the file declares of a value, corrected by what its operators say; None where it declares nothing."""
        key = IdentityKey(container)
        if key not in self._declared:
            given = getattr(container, "input", ()) if isinstance(container, GraphProto) else ()
            self._declared[key] = _sizes_of([*container.value_info, *given])
        said = self._declared[key].get(name)
        if said is None or not any(size is not None for size in said):
            return said
        found = self._by_operators().get(key, {}).get(name)
        if found is None:
            return said
        if len(found) != len(said):
            return found
        return tuple(size if one is None else one for one, size in zip(found, said))

    def known(self, name: str, container: GraphProto | FunctionProto) -> Sizes | None:
        """What the operators say of a value, or else the file."""
        return self._by_operators().get(IdentityKey(container), {}).get(name) or self.of(name, container)

    def _by_operators(self) -> dict[IdentityKey, dict[str, Sizes]]:
        if self._inferred is None and len(self._proto.graph.node) > LARGEST_GRAPH:
            self._inferred = {}
        if self._inferred is None:
            bare = ModelProto()
            bare.CopyFrom(self._proto)
            for graph in scopes(bare.graph):
                del graph.value_info[:]
            for info in bare.graph.output:
                info.type.tensor_type.ClearField("shape")
            try:
                bare = onnx.shape_inference.infer_shapes(bare, data_prop=True)
            except Exception:  # whatever the inference makes of an odd graph: nothing contradicts the file then
                self._inferred = {}
                return self._inferred
            pairs = zip(scopes(self._proto.graph), scopes(bare.graph))
            self._inferred = {IdentityKey(own): _sizes_of([*made.value_info, *made.output]) for own, made in pairs}
            given = {info.name for info in self._proto.graph.input}
            main = self._inferred[IdentityKey(self._proto.graph)]
            self._inferred[IdentityKey(self._proto.graph)] = {
                name: one for name, one in main.items() if name not in given
            }
        return self._inferred


def _sizes_of(values: Sequence[ValueInfoProto]) -> dict[str, Sizes]:
    kinds = [(one.name, one.type.tensor_type) for one in values]
    return {
        name: tuple(dim.dim_value if dim.dim_value > 0 else None for dim in kind.shape.dim)
        for name, kind in kinds
        if kind.HasField("shape")
    }


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


# -- The arithmetic of shapes: what exporters compute a Reshape's target or a Slice's bounds with.
#
# Only small arrays of integers are evaluated, by operators that do nothing else than move or combine them; anything
# else has no value here, and whoever needed it says so.


LARGEST = 1024

Rule = Callable[[Sequence[Array], Attributes], Optional[Array]]


def evaluate(operator: str, arrays: Sequence[Array], attributes: Attributes) -> Array | None:
    """The value of one node whose inputs are small arrays of integers, or None."""
    rule = _RULES.get(operator)
    if rule is None or not arrays or any(array.size > LARGEST or array.dtype.kind not in "iub" for array in arrays):
        return None
    try:
        with np.errstate(all="ignore"):
            result = rule(arrays, attributes)
    except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError):
        return None  # arguments that do not fit together: the runtime will say so
    return None if result is None or result.size > LARGEST else result


def _axes(arrays: Sequence[Array], attributes: Attributes, index: int) -> list[int] | None:
    if len(arrays) > index:
        return [int(axis) for axis in arrays[index].reshape(-1)]
    return attributes.integers("axes")


def _concat(arrays: Sequence[Array], attributes: Attributes) -> Array | None:
    return np.concatenate(list(arrays), axis=attributes.integer("axis"))


def _gather(arrays: Sequence[Array], attributes: Attributes) -> Array | None:
    data, indices = arrays
    return np.asarray(np.take(data, indices.astype(np.int64), axis=attributes.integer("axis")))


def _unsqueeze(arrays: Sequence[Array], attributes: Attributes) -> Array | None:
    axes = _axes(arrays, attributes, 1)
    return np.expand_dims(arrays[0], tuple(axes)) if axes else None


def _squeeze(arrays: Sequence[Array], attributes: Attributes) -> Array | None:
    axes = _axes(arrays, attributes, 1)
    return np.squeeze(arrays[0], None if axes is None else tuple(axes))


def _slice(arrays: Sequence[Array], attributes: Attributes) -> Array | None:
    """Along one axis: of a shape, or of the pairs that pads are turned round in."""
    bounds = [[int(value) for value in array.reshape(-1)] for array in arrays[1:]]
    starts = bounds[0] if bounds else attributes.integers("starts") or []
    ends = bounds[1] if len(bounds) > 1 else attributes.integers("ends") or []
    axes = bounds[2] if len(bounds) > 2 else attributes.integers("axes") or [0]
    step = bounds[3][0] if len(bounds) > 3 else 1
    if len(starts) != 1 or len(ends) != 1 or len(axes) != 1 or not arrays[0].ndim:
        return None
    turned = np.moveaxis(arrays[0], axes[0], 0)
    return np.moveaxis(turned[slice(starts[0], _end(ends[0], step, len(turned)), step)], 0, axes[0])


def _end(end: int, step: int, size: int) -> int | None:
    """A bound before the first, which Python counts from the end."""
    return None if step < 0 and end < -size else end


def _transpose(arrays: Sequence[Array], attributes: Attributes) -> Array | None:
    return np.transpose(arrays[0], attributes.integers("perm"))


def _divide(arrays: Sequence[Array], _: Attributes) -> Array | None:
    """Integers are divided towards zero."""
    left, right = arrays
    return np.asarray(np.trunc(left / right).astype(left.dtype)) if right.all() else None


_RULES: dict[str, Rule] = {
    "Identity": lambda arrays, _: arrays[0],
    "Cast": lambda arrays, attributes: arrays[0] if attributes.integer("to") in (6, 7) else None,
    "Concat": _concat,
    "Gather": _gather,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Slice": _slice,
    "Transpose": _transpose,
    "Reshape": lambda arrays, _: arrays[0].reshape([int(dim) for dim in arrays[1].reshape(-1)]),
    "Add": lambda arrays, _: np.asarray(arrays[0] + arrays[1]),
    "Sub": lambda arrays, _: np.asarray(arrays[0] - arrays[1]),
    "Mul": lambda arrays, _: np.asarray(arrays[0] * arrays[1]),
    "Div": _divide,
    "ReduceProd": lambda arrays, _: np.asarray(arrays[0].prod()),
}
