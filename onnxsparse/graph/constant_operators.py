"""Constant folding rules: what operators make of constants, by their meaning in ONNX, in every opset version.

One function for each operator: the inputs and attributes of a node in, the constants it makes out. What a rule cannot
tell raises `UnclearError` with the reason. `RULES` is the table; an operator that is not in it is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union

import numpy as np

from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.constants import (
    DEEPEST,
    HELD,
    MOST_STEPS,
    Applied,
    Constant,
    Joined,
    Known,
    Literal,
    Made,
    NoNumbersError,
    Unknown,
    dtype_of,
)
from onnxsparse.graph.elementwise import RANGES
from onnxsparse.graph.storage import PACKED_KINDS, Array, StoredTensor, kind_of
from onnxsparse.graph.strided_view import Sizes

LARGEST_LIST = 1 << 16
"""Elements that a shape, a list of axes or a range may have."""
LARGEST_VALUE = 1 << 40
HOLE = -(1 << 62)
"""In a shape: a size that only a run tells."""
_KINDS = frozenset(
    ("float64", "float32", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
) | {"uint64", "bool"}
_FLOATS = ("float64", "float32", "float16", "bfloat16")


class UnclearError(Exception):
    """What an operator makes of its inputs cannot be told."""


@dataclass(frozen=True)
class Call:
    """One node with its inputs, all of them constant or left out."""

    operator: str
    inputs: Sequence[Known]
    attributes: Attributes
    opset: int
    outputs: int

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Constant:
        found = self.inputs[index] if index < len(self.inputs) else None
        if isinstance(found, Unknown):
            raise UnclearError(found.reason)
        if found is None:
            raise UnclearError(f"{self.operator} without its input {index}")
        return found

    def list(self, index: int, name: str = "") -> list[int] | None:
        """A list of integers that is an input, or an attribute in older versions."""
        if self.has(index):
            return _integers(self.value(index), self.operator)
        return self.attributes.integers(name) if name else None


Result = Union[Constant, list[Constant]]
Rule = Callable[[Call], Result]


def _integers(value: Constant, operator: str) -> list[int]:
    if value.size > LARGEST_LIST or dtype_of(value.kind).kind not in "iu":
        raise UnclearError(f"{operator} with sizes that are no short list of integers")
    return [int(number) for number in value.numbers().reshape(-1)]


def _scalar(value: Constant, operator: str) -> Array:
    """The one number of a value."""
    if value.size != 1:
        raise UnclearError(f"{operator} with a value of shape {list(value.shape)} where one number is wanted")
    return value.numbers().reshape(())


def _axis(axis: int, rank: int, operator: str) -> int:
    if not -rank <= axis < rank:
        raise UnclearError(f"{operator} along axis {axis} of {rank}")
    return axis % rank


def _axes(axes: Sequence[int], rank: int, operator: str) -> list[int]:
    found = [_axis(axis, rank, operator) for axis in axes]
    if len(set(found)) < len(found):
        raise UnclearError(f"{operator} that names an axis twice")
    return found


def _fits(shape: Sequence[int]) -> Sizes:
    size = 1
    for dim in shape:
        size *= dim
    if size > LARGEST_VALUE or size < 0:
        raise UnclearError("a value too large to be looked at")
    return tuple(shape)


# -- movements


def _identity(call: Call) -> Result:
    return call.value(0)


def _dropout(call: Call) -> Result:
    if call.has(2) and _scalar(call.value(2), call.operator):
        raise UnclearError("Dropout in training mode")
    return call.value(0)


def _transpose(call: Call) -> Result:
    value = call.value(0)
    perm = call.attributes.integers("perm") or list(range(len(value.shape)))[::-1]
    if sorted(perm) != list(range(len(value.shape))):
        raise UnclearError(f"Transpose with perm {perm} of {len(value.shape)} axes")
    return value.moved(lambda window: window.transposed(perm))


def _reshape(call: Call) -> Result:
    value, wanted = call.value(0), call.list(1, "shape")
    if wanted is None:
        raise UnclearError("Reshape without a shape")
    if not (call.opset >= 14 and call.attributes.integer("allowzero")):
        wanted = [value.shape[at] if size == 0 and at < len(value.shape) else size for at, size in enumerate(wanted)]
    return _shaped(value, wanted, "Reshape")


def _shaped(value: Constant, wanted: list[int], operator: str) -> Constant:
    known = int(np.prod([size for size in wanted if size != -1], dtype=object))
    if wanted.count(-1) == 1 and known > 0:
        wanted = [value.size // known if size == -1 else size for size in wanted]
    if min(wanted, default=1) < 0 or int(np.prod(wanted, dtype=object)) != value.size:
        raise UnclearError(f"{operator} of {list(value.shape)} to {wanted}, which does not fit")
    return value.reshaped(wanted)


def _squeeze(call: Call) -> Result:
    value = call.value(0)
    axes = call.list(1, "axes")
    gone = axes or [at for at, size in enumerate(value.shape) if size == 1]  # onnxruntime reads an empty list as none
    gone = _axes(gone, len(value.shape), "Squeeze")
    return _shaped(value, [size for at, size in enumerate(value.shape) if at not in gone], "Squeeze")


def _unsqueeze(call: Call) -> Result:
    value, axes = call.value(0), call.list(1, "axes")
    if axes is None:
        raise UnclearError("Unsqueeze without axes")
    rank, rest = len(value.shape) + len(axes), iter(value.shape)
    new = _axes(axes, rank, "Unsqueeze")
    return value.reshaped([1 if at in new else next(rest) for at in range(rank)])


def _flatten(call: Call) -> Result:
    value, axis = call.value(0), call.attributes.integer("axis", 1)
    rank = len(value.shape)
    if not -rank <= axis <= rank:
        raise UnclearError(f"Flatten at axis {axis} of {rank}")
    axis += rank if axis < 0 else 0
    sides = [int(np.prod(part, dtype=np.int64)) for part in (value.shape[:axis], value.shape[axis:])]
    return value.reshaped(sides)


def _expand(call: Call) -> Result:
    value, wanted = call.value(0), call.list(1) or []
    try:
        shape = np.broadcast_shapes(value.shape, _fits(wanted))
    except (ValueError, RuntimeError) as error:  # or more axes than numpy has
        raise UnclearError(f"Expand of {list(value.shape)} to {wanted}") from error
    return value.spread(shape)


def _tile(call: Call) -> Result:
    value = call.value(0)
    if call.opset < 6:
        raise UnclearError("Tile of an opset before 6")
    repeats = call.list(1) or []
    if len(repeats) != len(value.shape) or min(repeats, default=0) < 0:
        raise UnclearError(f"Tile of {list(value.shape)} by {repeats}")
    _fits([size * times for size, times in zip(value.shape, repeats)])
    return value.moved(lambda window: window.tiled(repeats))


def _slice(call: Call) -> Result:
    value = call.value(0)
    starts, ends = call.list(1, "starts"), call.list(2, "ends")
    if not starts or not ends or len(starts) != len(ends):
        raise UnclearError("Slice without its starts and ends")
    axes = call.list(3, "axes")
    axes = _axes(list(range(len(starts))) if axes is None else axes, len(value.shape), "Slice")
    steps = call.list(4) or [1] * len(starts)
    if not len(axes) == len(starts) == len(steps) or 0 in steps:
        raise UnclearError("Slice whose starts, axes and steps do not fit together")
    for axis, start, end, step in zip(axes, starts, ends, steps):
        value = _cut(value, axis, *_bounds(start, end, step, value.shape[axis]))
    return value


def _bounds(start: int, end: int, step: int, size: int) -> tuple[int, int, int]:
    """Where a slice begins and how many elements it has; bounds beyond the ends are the ends.

    Backwards an end may lie before the first element, a start may not: there it is the first (unlike in numpy).
    """
    (least, low), high = ((0, 0), size) if step > 0 else ((0, -1), size - 1)
    first, last = (min(max(at + size if at < 0 else at, to), high) for at, to in ((start, least), (end, low)))
    count = max(0, -(-(last - first) // step)) if size else 0
    return first, count, step


def _cut(value: Constant, axis: int, start: int, count: int, step: int) -> Constant:
    return value.moved(lambda window: window.sliced(axis, start, count, step))


def _split(call: Call) -> Result:
    value = call.value(0)
    axis = _axis(call.attributes.integer("axis"), len(value.shape), "Split")
    size, lengths = value.shape[axis], call.list(1, "split")
    if lengths is None:
        parts = call.attributes.integer("num_outputs", call.outputs) if call.opset >= 18 else call.outputs
        step = -(-size // max(parts, 1))
        lengths = [max(0, min(step, size - step * at)) for at in range(parts)]
    if sum(lengths) != size or min(lengths, default=0) < 0 or len(lengths) < call.outputs:
        raise UnclearError(f"Split of {size} into {lengths}")
    ends = np.cumsum([0, *lengths]).tolist()
    return [_cut(value, axis, start, length, 1) for start, length in zip(ends, lengths)]


def _concat(call: Call) -> Result:
    pieces = [call.value(index) for index in range(len(call.inputs))]
    axis = _axis(call.attributes.integer("axis", 1 if call.opset < 4 else 0), len(pieces[0].shape), "Concat")
    kept = {(*piece.shape[:axis], *piece.shape[axis + 1 :]) for piece in pieces}
    if len(kept) > 1 or len({len(piece.shape) for piece in pieces}) > 1 or len({piece.kind for piece in pieces}) > 1:
        raise UnclearError("Concat of values that do not fit together")
    return pieces[0] if len(pieces) == 1 else Constant.of(Joined(pieces, axis))


def _gather(call: Call) -> Result:
    value, indices = call.value(0), call.value(1)
    axis = _axis(call.attributes.integer("axis"), len(value.shape), "Gather")
    if indices.size > LARGEST_LIST or dtype_of(indices.kind).kind not in "iu":
        raise UnclearError("Gather with indices that are no short list of integers")
    places = indices.numbers().astype(np.int64)
    size = value.shape[axis]
    if places.size and (places.min() < -size or places.max() >= size):
        raise UnclearError("Gather beyond the end of its table")
    places = np.where(places < 0, places + size, places)
    return _picked(value, axis, places)


def _picked(value: Constant, axis: int, places: Array) -> Constant:
    shape = _fits((*value.shape[:axis], *places.shape, *value.shape[axis + 1 :]))
    inner = int(np.prod(value.shape[axis + 1 :], dtype=np.int64))
    flat, size = places.reshape(-1), value.shape[axis]

    def before(positions: Array) -> Array:
        rest, low = np.divmod(positions, max(inner, 1))
        outer, index = np.divmod(rest, max(flat.size, 1))
        found: Array = (outer * size + flat[index]) * inner + low
        return found

    return Constant.of(Made(lambda array: np.take(array, places, axis), [value], shape, value.kind, before))


def _pad(call: Call) -> Result:
    value = call.value(0)
    mode, rank = call.attributes.text("mode", "constant"), len(value.shape)
    pads = call.list(1, "pads" if call.opset >= 2 else "paddings")
    axes = _axes(call.list(3) or list(range(rank)), rank, "Pad")
    if pads is None or len(pads) != 2 * len(axes) or mode != "constant" or min(pads, default=0) < 0:
        raise UnclearError(f"Pad in mode {mode}")
    widths = [(0, 0)] * rank
    for at, axis in enumerate(axes):
        widths[axis] = (pads[at], pads[at + len(axes)])
    fill = call.value(2) if call.has(2) else Constant.literal(np.array(call.attributes.number("value", 0.0)), "float64")
    shape = _fits([size + sum(width) for size, width in zip(value.shape, widths)])

    def padded(array: Array, filling: Array) -> Array:
        return np.pad(array, widths, constant_values=filling.reshape(()).astype(array.dtype))

    return Constant.of(Made(padded, [value, fill], shape, value.kind))


def _trilu(call: Call) -> Result:
    value, upper = call.value(0), bool(call.attributes.integer("upper", 1))
    shift = int(_scalar(call.value(1), call.operator)) if call.has(1) else 0
    cut = np.triu if upper else np.tril
    return Constant.of(Made(lambda array: cut(array, shift), [value], value.shape, value.kind))


# -- shapes


def _shape(call: Call) -> Result:
    return Constant.literal(np.array(_part_of_shape(call.value(0).shape, call), np.int64))


def _part_of_shape(shape: Sequence[int], call: Call) -> list[int]:
    if call.opset < 15:
        return list(shape)
    start, end = call.attributes.integer("start"), call.attributes.integer("end", len(shape))
    return list(shape)[start:end]


def declared_shape(sizes: Sequence[int | None], call: Call) -> Constant:
    """What Shape makes of a value that only a run knows, where the file declares some of its sizes."""
    known = [HOLE if size is None else size for size in sizes]
    return Constant.literal(np.array(_part_of_shape(known, call), np.int64))


def _size(call: Call) -> Result:
    return Constant.literal(np.array(call.value(0).size, np.int64))


def _filled(call: Call) -> Result:
    shape = _fits(call.list(0) or [])
    attribute = call.attributes.table.get("value")
    if attribute is None:
        return Constant.literal(np.zeros((), np.float32)).spread(shape)
    tensor = StoredTensor(attribute.t)
    if not tensor.readable or tensor.size != 1:
        raise UnclearError("ConstantOfShape with a value that is not read here")
    number = tensor.read().reshape(())
    if tensor.kind == "bfloat16":
        number = (number.astype(np.uint32) << np.uint32(16)).astype(np.uint32).view(np.float32)
    return Constant.literal(number, tensor.kind).spread(shape)


def _range(call: Call) -> Result:
    start, limit, step = (float(_scalar(call.value(index), call.operator)) for index in range(3))
    if not step or abs((limit - start) / step) > LARGEST_LIST:
        raise UnclearError("Range of more numbers than are looked at")
    kind = call.value(0).kind
    return Constant.literal(np.arange(start, limit, step).astype(dtype_of(kind)), kind)


def _reduced(combine: Callable[..., Array]) -> Rule:
    def rule(call: Call) -> Result:
        value, axes = call.value(0), call.list(1, "axes")
        rank, keep = len(value.shape), bool(call.attributes.integer("keepdims", 1))
        if not axes and call.attributes.integer("noop_with_empty_axes"):
            return value
        gone = tuple(_axes(axes or list(range(rank)), rank, call.operator))
        shape = [1 if at in gone else size for at, size in enumerate(value.shape) if keep or at not in gone]
        made = Made(lambda array: combine(array, axis=gone, keepdims=keep), [value], tuple(shape), value.kind)
        return Constant.of(made)

    return rule


# -- element by element


def _aligned(call: Call) -> list[Constant]:
    """The inputs as they broadcast; before opset 7 the second one lies along an axis of the first."""
    values = [call.value(index) for index in range(len(call.inputs))]
    if call.opset < 7 and len(values) == 2 and call.attributes.integer("broadcast"):
        first, second = values
        axis = call.attributes.integer("axis", len(first.shape) - len(second.shape))
        axis += len(first.shape) if axis < 0 else 0
        behind = len(first.shape) - axis - len(second.shape)
        if behind < 0:
            raise UnclearError(f"{call.operator} with an axis that does not fit")
        values = [first, second.reshaped((*second.shape, *(1,) * behind))]
    try:
        _fits(np.broadcast_shapes(*(value.shape for value in values)))
    except (ValueError, RuntimeError) as error:  # or more axes than numpy has
        raise UnclearError(f"{call.operator} of values that do not broadcast") from error
    return values


def _elementwise(compute: Callable[..., Array], kind: str = "") -> Rule:
    def rule(call: Call) -> Result:
        values = _aligned(call)
        return Constant.of(Applied(compute, values, kind or values[0].kind))

    return rule


def _divided(left: Array, right: Array) -> Array:
    """Integers are divided towards zero."""
    if left.dtype.kind not in "iu":
        return np.divide(left, right)
    safe = np.where(right == 0, 1, right)
    floor = left // safe
    found: Array = floor + ((left % safe != 0) & ((left < 0) != (safe < 0)))
    return found.astype(left.dtype)


def _power(base: Array, exponent: Array) -> Array:
    if base.dtype.kind in "iu":
        return np.power(base.astype(np.float64), exponent.astype(np.float64)).astype(base.dtype)
    found: Array = np.power(base, exponent.astype(base.dtype))
    return found


def _remainder(call: Call) -> Result:
    signed = call.attributes.integer("fmod") != 0

    def compute(left: Array, right: Array) -> Array:
        if left.dtype.kind not in "iu":
            return np.fmod(left, right)
        safe = np.where(right == 0, 1, right).astype(right.dtype)
        found: Array = np.fmod(left, safe) if signed else np.mod(left, safe)
        return found

    values = _aligned(call)
    return Constant.of(Applied(compute, values, values[0].kind))


def _folded(combine: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def compute(*arrays: Array) -> Array:
        found = arrays[0]
        for array in arrays[1:]:
            found = combine(found, array)
        return found

    return compute


def _where(call: Call) -> Result:
    values = _aligned(call)
    if values[0].kind != "bool" or values[1].kind != values[2].kind:
        raise UnclearError("Where with inputs of types that do not fit")
    return Constant.of(Applied(np.where, values, values[1].kind))


def _clip(call: Call) -> Result:
    value = call.value(0)
    if call.opset < 11:
        low, high = call.attributes.number("min", -np.inf), call.attributes.number("max", np.inf)
        return Constant.of(Applied(lambda array: np.clip(array, low, high).astype(array.dtype), [value], value.kind))
    lows = [call.value(1)] if call.has(1) else []
    highs = [call.value(2)] if call.has(2) else []

    def compute(array: Array, *bounds: Array) -> Array:
        found = np.maximum(array, bounds[0]) if lows else array
        return np.minimum(found, bounds[-1]) if highs else found

    return Constant.of(Applied(compute, [value, *lows, *highs], value.kind))


_CAST_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}


def _cast(call: Call) -> Result:
    if call.opset < 6:
        name = call.attributes.text("to", "FLOAT")
        return _as_kind(call.value(0), _CAST_NAMES.get(name, name.lower()), "Cast")
    return _as_kind(call.value(0), kind_of(call.attributes.integer("to", 1)), "Cast")


def _cast_like(call: Call) -> Result:
    return _as_kind(call.value(0), call.value(1).kind, "CastLike")


def _as_kind(value: Constant, kind: str, operator: str) -> Constant:
    if kind not in _KINDS:
        raise UnclearError(f"{operator} to {kind}")
    if kind == value.kind:
        return value
    if kind == "bool":
        return Constant.of(Applied(lambda array: array != 0, [value], kind))
    return Constant.of(Applied(lambda array: array, [value], kind))


# -- quantization


def _along(call: Call, index: int, value: Constant) -> Constant:
    """A scale or zero point as it broadcasts against the value it belongs to."""
    found = call.value(index)
    rank, axis = len(value.shape), call.attributes.integer("axis", 1)
    if found.size == 1:
        return found.reshaped(())
    block = call.attributes.integer("block_size")
    axis = _axis(axis, rank, call.operator)
    if block > 0 and len(found.shape) == rank:
        blocks = found.shape[axis]
        if blocks != -(-value.shape[axis] // block):
            raise UnclearError(f"{call.operator} in blocks that do not fit")
        if blocks == 1:
            return found
        return _picked(found, axis, np.arange(value.shape[axis]) // block)
    if len(found.shape) == 1 and found.shape[0] == value.shape[axis] and block <= 0:
        return found.reshaped([found.shape[0] if at == axis else 1 for at in range(rank)])
    raise UnclearError(f"{call.operator} whose scale or zero point does not follow one axis")


def _dequantize(call: Call) -> Result:
    value, scale = call.value(0), _along(call, 1, call.value(0))
    kind = call.value(1).kind
    zeros = [_along(call, 2, value)] if call.has(2) else []
    if value.kind not in (*_KINDS, *PACKED_KINDS) or kind not in _FLOATS or dtype_of(value.kind).kind not in "iu":
        raise UnclearError(f"DequantizeLinear of {value.kind}")

    def compute(codes: Array, factor: Array, *zero: Array) -> Array:
        steps = codes.astype(np.int32) - zero[0].astype(np.int32) if zero else codes
        return steps.astype(np.float32) * factor.astype(np.float32)

    return Constant.of(Applied(compute, [value, scale, *zeros], kind))


def _quantize(call: Call) -> Result:
    value, scale = call.value(0), _along(call, 1, call.value(0))
    zeros = [_along(call, 2, value)] if call.has(2) else []
    asked = call.attributes.integer("output_dtype")
    kind = call.value(2).kind if zeros else kind_of(asked) if asked else "uint8"
    if kind not in RANGES:
        raise UnclearError(f"QuantizeLinear to {kind}")
    low, high = RANGES[kind]

    def compute(numbers: Array, factor: Array, *zero: Array) -> Array:
        steps = np.rint(numbers.astype(np.float32) / factor.astype(np.float32)).astype(np.float64)
        steps = np.clip(steps + zero[0] if zero else steps, low, high)
        return np.where(np.isnan(steps), low, steps)  # 0 / 0: onnxruntime makes the lowest number of it

    return Constant.of(Applied(compute, [value, scale, *zeros], kind))


def _sigmoid(numbers: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow."""
    small = np.exp(-np.abs(numbers))
    return np.asarray(np.where(numbers >= 0, 1 / (1 + small), small / (1 + small)))


RULES: dict[str, Rule] = {
    "Identity": _identity,
    "Dropout": _dropout,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Flatten": _flatten,
    "Expand": _expand,
    "Tile": _tile,
    "Slice": _slice,
    "Split": _split,
    "Concat": _concat,
    "Gather": _gather,
    "Pad": _pad,
    "Trilu": _trilu,
    "Shape": _shape,
    "Size": _size,
    "ConstantOfShape": _filled,
    "Range": _range,
    "ReduceProd": _reduced(np.prod),
    "ReduceSum": _reduced(np.sum),
    "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min),
    "Cast": _cast,
    "CastLike": _cast_like,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "Where": _where,
    "Clip": _clip,
    "Add": _elementwise(np.add),
    "Sub": _elementwise(np.subtract),
    "Mul": _elementwise(np.multiply),
    "Div": _elementwise(_divided),
    "Pow": _elementwise(_power),
    "Mod": _remainder,
    "Max": _elementwise(_folded(np.maximum)),
    "Min": _elementwise(_folded(np.minimum)),
    "Sum": _elementwise(_folded(np.add)),
    "Neg": _elementwise(np.negative),
    "Abs": _elementwise(np.abs),
    "Sign": _elementwise(np.sign),
    "Sqrt": _elementwise(np.sqrt),
    "Exp": _elementwise(np.exp),
    "Log": _elementwise(np.log),
    "Reciprocal": _elementwise(np.reciprocal),
    "Floor": _elementwise(np.floor),
    "Ceil": _elementwise(np.ceil),
    "Round": _elementwise(np.rint),
    "Tanh": _elementwise(np.tanh),
    "Sigmoid": _elementwise(_sigmoid),
    "Relu": _elementwise(lambda array: np.maximum(array, 0)),
    "Not": _elementwise(np.logical_not),
    "And": _elementwise(np.logical_and, "bool"),
    "Or": _elementwise(np.logical_or, "bool"),
    "Xor": _elementwise(np.logical_xor, "bool"),
    "Equal": _elementwise(np.equal, "bool"),
    "Less": _elementwise(np.less, "bool"),
    "LessOrEqual": _elementwise(np.less_equal, "bool"),
    "Greater": _elementwise(np.greater, "bool"),
    "GreaterOrEqual": _elementwise(np.greater_equal, "bool"),
    "BitwiseAnd": _elementwise(np.bitwise_and),
    "BitwiseOr": _elementwise(np.bitwise_or),
    "BitwiseXor": _elementwise(np.bitwise_xor),
    "BitwiseNot": _elementwise(np.invert),
}
MOVEMENTS = frozenset(
    (
        "Identity", "Dropout", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Tile", "Slice",
        "Split", "Gather", "Pad", "Cast", "CastLike", "QuantizeLinear", "DequantizeLinear",
    )
)  # fmt: skip
"""Operators whose first input stays what it was, whatever the others are: with one known only at run time too."""
BLENDS = frozenset(
    (
        "Mul", "Div", "Add", "Sub", "Where", "Concat", "SequenceConstruct", "SequenceInsert", "SequenceAt",
        "ConcatFromSequence",
    )
)  # fmt: skip
"""Operators behind which a matrix is still one, whatever a run puts in or beside it."""
PARTLY = frozenset(("Identity", "Cast", "Gather", "Slice", "Squeeze", "Unsqueeze", "Concat", "Split", "Reshape"))
"""Operators that a list of sizes passes through of which some are known only at run time."""


def known_operator(domain: str, operator: str) -> bool:
    if domain in ("", "ai.onnx"):
        return operator in RULES
    return domain == "com.microsoft" and operator in ("QuantizeLinear", "DequantizeLinear")


def results(call: Call) -> list[Constant]:
    """The constants that a node makes; raises `UnclearError` where they cannot be told."""
    for value in call.inputs:
        if isinstance(value, Unknown):
            raise UnclearError(value.reason)
    try:
        found = RULES[call.operator](call)
        return [_short(one, call.operator) for one in (found if isinstance(found, list) else [found])]
    except NoNumbersError as error:
        raise UnclearError(str(error)) from error
    except (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError, MemoryError) as error:
        raise UnclearError(f"{call.operator} with inputs that do not fit together") from error


def _short(value: Constant, operator: str) -> Constant:
    """Long chains of small values are computed at once; long ones of large values are not followed."""
    if value.source.steps <= MOST_STEPS and value.source.depth <= DEEPEST:
        return value
    if value.size > HELD:
        raise UnclearError(f"a chain of more than {DEEPEST} operators, the last of them {operator}")
    settled = Literal(value.numbers(), value.kind)
    settled.tensors = value.tensors
    return Constant.of(settled)
