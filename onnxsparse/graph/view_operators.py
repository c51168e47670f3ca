"""View operators: nodes that keep every element of a constant where it can be found again, one function each.

A crossing takes the node's inputs (all constant) and returns the value behind the node, or None where the elements
cannot be followed: then the constant counts as computed, and whoever uses it is told so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Optional

import numpy as np
from onnx import NodeProto, TensorProto

from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.elementwise import Cast, Dequantize, Mask, Quantization, Quantize, Scale, Shuffle
from onnxsparse.graph.layout import Layout, Shape, size_of
from onnxsparse.graph.origins import Joined, Part, Traced, Value, small_array
from onnxsparse.graph.storage import FLOAT_KINDS, WEIGHT_KINDS, Array, kind_of

_CASTS = frozenset(
    getattr(TensorProto, name)
    for name in ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT8", "UINT8", "INT32")
    if hasattr(TensorProto, name)
)
UNKNOWN = np.full(1, np.nan)
"""In place of a scale or zero point that cannot be read: what is computed with it is no number, so it is no zero."""


@dataclass(frozen=True, eq=False)
class Crossing:
    """The value behind a node; `mask` is set when the node applies one, `source` is the input the weight came in by."""

    value: Traced | Part | Joined
    source: int = 0
    mask: Traced | None = None


Rule = Callable[[Sequence[Value], Attributes], Optional[Crossing]]


def _reach(values: Sequence[Value], layout: Layout | None) -> Crossing | None:
    first = values[0]
    return Crossing(replace(first, layout=layout)) if isinstance(first, Traced) and layout is not None else None


def _identity(values: Sequence[Value], _: Attributes) -> Crossing | None:
    return Crossing(values[0]) if isinstance(values[0], Traced) else None


def _cast(values: Sequence[Value], attributes: Attributes) -> Crossing | None:
    wanted = attributes.integer("to", TensorProto.FLOAT)
    first = values[0]
    return Crossing(first.then(Cast(kind_of(wanted)))) if isinstance(first, Traced) and wanted in _CASTS else None


def _cast_like(values: Sequence[Value], _: Attributes) -> Crossing | None:
    first, like = (*values, None)[:2]
    if not isinstance(first, Traced) or (isinstance(like, Traced) and like.kind in ("bool", "string")):
        return None
    known = isinstance(like, Traced) and (like.kind in WEIGHT_KINDS or like.kind == "int32")
    return Crossing(first.then(Cast(like.kind)) if known and isinstance(like, Traced) else first)


def _transpose(values: Sequence[Value], attributes: Attributes) -> Crossing | None:
    if not isinstance(values[0], Traced):
        return None
    rank = len(values[0].layout.axes)
    perm = attributes.integers("perm") or list(range(rank))[::-1]
    return _reach(values, values[0].layout.transpose(perm)) if sorted(perm) == list(range(rank)) else None


def _listed(values: Sequence[Value], attributes: Attributes, name: str) -> list[int] | None:
    """A list of integers that is an input in newer opsets and was an attribute before."""
    return _numbers(values, attributes, 1, name)


def _reshape(values: Sequence[Value], attributes: Attributes) -> Crossing | None:
    wanted = _listed(values, attributes, "shape")
    if wanted is None or not isinstance(values[0], Traced):
        return None
    have = values[0].shape
    if not attributes.integer("allowzero"):
        wanted = [have[index] if dim == 0 and index < len(have) else dim for index, dim in enumerate(wanted)]
    return _reach(values, _shaped(values[0].layout, wanted))


def _shaped(layout: Layout, wanted: list[int]) -> Layout | None:
    known = size_of([dim for dim in wanted if dim != -1])
    if wanted.count(-1) > 1 or known <= 0 or any(dim < -1 for dim in wanted):
        return None
    size = size_of(layout.shape)
    return layout.reshape(tuple(size // known if dim == -1 else dim for dim in wanted))


def _squeeze(values: Sequence[Value], attributes: Attributes) -> Crossing | None:
    if not isinstance(values[0], Traced):
        return None
    shape, axes = values[0].shape, _listed(values, attributes, "axes")
    gone = {axis % len(shape) for axis in axes} if axes else {axis for axis, dim in enumerate(shape) if dim == 1}
    return _reach(values, values[0].layout.reshape(tuple(dim for axis, dim in enumerate(shape) if axis not in gone)))


def _unsqueeze(values: Sequence[Value], attributes: Attributes) -> Crossing | None:
    axes = _listed(values, attributes, "axes")
    if not axes or not isinstance(values[0], Traced):
        return None
    rank, rest = len(values[0].shape) + len(axes), iter(values[0].shape)
    new = {axis % rank for axis in axes}
    if len(new) != len(axes):
        return None
    return _reach(values, values[0].layout.reshape(tuple(1 if axis in new else next(rest) for axis in range(rank))))


def _flatten(values: Sequence[Value], attributes: Attributes) -> Crossing | None:
    if not isinstance(values[0], Traced):
        return None
    shape, axis = values[0].shape, attributes.integer("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return _reach(values, values[0].layout.reshape((size_of(shape[:axis]), size_of(shape[axis:]))))


def _quantize(values: Sequence[Value], attributes: Attributes) -> Crossing | None:
    first = _cut_into_blocks(values[0], attributes)
    if not isinstance(first, Traced) or len(values) < 2:
        return None
    scale = _beside(first, values[1], attributes)
    point = values[2] if len(values) > 2 else None
    wanted = attributes.integer("output_dtype")
    kind = point.kind if isinstance(point, Traced) else kind_of(wanted) if wanted else "uint8"
    zero = _beside(first, point, attributes) if point is not None else np.zeros(1)
    return Crossing(first.then(Quantize(first.layout.atoms, scale, zero, kind)))


def _dequantize(values: Sequence[Value], attributes: Attributes) -> Crossing | None:
    first = _cut_into_blocks(values[0], attributes)
    if not isinstance(first, Traced) or len(values) < 2:
        return None
    point = values[2] if len(values) > 2 else None
    zero = _beside(first, point, attributes) if point is not None else np.zeros(1)
    step = Dequantize(first.layout.atoms, _beside(first, values[1], attributes), zero)
    whole = first.tensor.kind in WEIGHT_KINDS and first.tensor.kind not in FLOAT_KINDS
    if not whole or first.quantization:
        return Crossing(first.then(step))  # quantized on the way: a use asks whether zeros stay zeros
    return _read_by(first, values, attributes, step)


def _read_by(first: Traced, values: Sequence[Value], attributes: Attributes, step: Dequantize) -> Crossing | None:
    """A tensor of integers, with the scale and zero point that say what they mean."""
    scale = small_array(values[1])
    zero = small_array(values[2]) if len(values) > 2 else None
    if scale is None or (len(values) > 2 and values[2] is not None and zero is None):
        return None
    zero = np.zeros(scale.shape, first.tensor.dtype) if zero is None else zero
    if zero.dtype != first.tensor.dtype:
        return None
    scales, zeros = (_placed(first, numbers, attributes) for numbers in (scale, zero))
    found = _known(first, scales, zeros)
    return Crossing(replace(first.then(step), quantization=found)) if found else None


def _beside(value: Traced, numbers: Value, attributes: Attributes) -> Array:
    """A scale or zero point over the atoms of a value; where it cannot be followed, one number if it is one."""
    found = small_array(numbers)
    if found is None:
        return UNKNOWN
    placed = _placed(value, found, attributes)
    if placed is not None:
        return placed
    return found.reshape(-1)[:1] if found.size and (found == found.reshape(-1)[0]).all() else UNKNOWN


def _cut_into_blocks(value: Value, attributes: Attributes) -> Value:
    """The value with atoms that end where blocks do, so that numbers for each block need not be repeated."""
    cut = _block_axes(value, attributes) if isinstance(value, Traced) else None
    whole = cut.reshape(value.shape) if cut and isinstance(value, Traced) else None
    return replace(value, layout=whole) if whole and isinstance(value, Traced) else value


def _block_axes(value: Traced, attributes: Attributes) -> Layout | None:
    """The layout with the axis that is cut into blocks as two axes; None where the last block is shorter."""
    shape, axis, block = value.shape, attributes.integer("axis", 1), attributes.integer("block_size")
    if block <= 0 or not -len(shape) <= axis < len(shape) or shape[axis] % block:
        return None
    axis %= len(shape)
    return value.layout.reshape((*shape[:axis], shape[axis] // block, block, *shape[axis + 1 :]))


def _placed(value: Traced, numbers: Array, attributes: Attributes) -> Array | None:
    """Numbers for a whole value, along its axis, or for each block, over the atoms of the value."""
    axis, block = attributes.integer("axis", 1), attributes.integer("block_size")
    cut, rank = _block_axes(value, attributes), len(value.shape)
    if block <= 0 or numbers.ndim != rank or not -rank <= axis < rank:
        return value.beside(numbers, axis)
    if numbers.shape[axis] != -(-value.shape[axis] // block):
        return None
    if cut is None or cut.atoms != value.layout.atoms:
        return value.beside(np.repeat(numbers, block, axis).take(range(value.shape[axis]), axis), axis)
    return replace(value, layout=cut).beside(np.expand_dims(numbers, axis % rank + 1), 0)


def quantized(value: Traced, scale: Array, zero: Array, axis: int) -> Quantization | None:
    """Scale and zero point of an integer constant, where both can be followed to the stored tensor."""
    if zero.dtype != value.tensor.dtype:
        return None
    return _known(value, value.beside(scale, axis), value.beside(zero, axis))


def _known(value: Traced, scales: Array | None, zeros: Array | None) -> Quantization | None:
    if scales is None or zeros is None:
        return None
    return Quantization(value.layout.atoms, scales.astype(np.float32), zeros)


def _multiply(values: Sequence[Value], attributes: Attributes) -> Crossing | None:
    if len(values) != 2:
        return None
    left, right = values[0], _aligned(values, attributes)
    if not isinstance(left, Traced) or not isinstance(right, Traced):
        return None
    if _is_mask_for(right, left):
        return Crossing(left, 0, right)
    if _is_mask_for(left, right):
        return Crossing(right, 1, left)
    return _scaled(left, right, 0) or _scaled(right, left, 1)


def _divide(values: Sequence[Value], attributes: Attributes) -> Crossing | None:
    if len(values) != 2:
        return None
    left, right = values[0], _aligned(values, attributes)
    return _scaled(left, right, 0, True) if isinstance(left, Traced) and isinstance(right, Traced) else None


def _aligned(values: Sequence[Value], attributes: Attributes) -> Value:
    """The second operand; before opset 7 `axis` says where its axes begin among those of the first."""
    left, right = values
    if not (isinstance(left, Traced) and isinstance(right, Traced) and attributes.integer("broadcast")):
        return right
    rank, own = len(left.shape), len(right.shape)
    start = attributes.integer("axis", rank - own)
    behind = rank - own - (start + rank if start < 0 else start)
    layout = right.layout.reshape((*right.shape, *(1,) * behind)) if behind >= 0 else None
    return replace(right, layout=layout) if layout else None


def _scaled(weight: Traced, factor: Traced, source: int, divides: bool = False) -> Crossing | None:
    """A factor that does not enlarge the weight leaves zeros where they are."""
    if len(factor.shape) > len(weight.shape) or factor.tensor.size >= weight.tensor.size:
        return None
    if not _broadcasts(factor.shape, weight.shape):
        return None
    numbers = factor.numbers()
    shape = (1,) * (len(weight.shape) - len(factor.shape)) + factor.shape
    placed = weight.beside((UNKNOWN if numbers is None else numbers.reshape(shape)), 0)
    return None if placed is None else Crossing(weight.then(Scale(weight.layout.atoms, placed, divides)), source)


def _broadcasts(shape: Shape, onto: Shape) -> bool:
    padded = (1,) * (len(onto) - len(shape)) + tuple(shape)
    return len(shape) <= len(onto) and all(have in (1, full) for have, full in zip(padded, onto))


def _is_mask_for(mask: Traced, weight: Traced) -> bool:
    if weight.tensor.kind not in WEIGHT_KINDS or not _broadcasts(mask.shape, weight.shape):
        return False
    if mask.tensor.size <= 1 and (mask.shape != weight.shape or len(mask.shape) < 2):
        return False  # a factor, not a mask
    if not mask.tensor.readable or mask.tensor.kind in ("int64", "uint64") or mask.masks:
        return False
    return mask.is_binary()


def _where(values: Sequence[Value], _: Attributes) -> Crossing | None:
    if len(values) != 3:
        return None
    mask, weight, other = values
    if not (isinstance(mask, Traced) and isinstance(weight, Traced) and mask.tensor.readable and not mask.masks):
        return None
    rest = small_array(other)
    if (
        rest is None
        or (rest != 0).any()
        or not (_broadcasts(mask.shape, weight.shape) and _broadcasts(rest.shape, weight.shape))
    ):
        return None
    return Crossing(weight, 1, mask)


def _slice(values: Sequence[Value], attributes: Attributes) -> Crossing | None:
    """One axis cut in steps of 1."""
    first = values[0]
    starts, ends = _numbers(values, attributes, 1, "starts"), _numbers(values, attributes, 2, "ends")
    axes, steps = _numbers(values, attributes, 3, "axes"), _numbers(values, attributes, 4, "steps")
    if not isinstance(first, Traced) or first.masks or not starts or not ends or len(starts) != 1 or len(ends) != 1:
        return None
    axis = axes[0] if axes else 0
    if (steps or [1]) != [1] or not -len(first.shape) <= axis < len(first.shape):
        return None
    start, stop, _ = slice(starts[0], ends[0]).indices(first.shape[axis])
    why, axis = "Slice", axis % len(first.shape)
    return Crossing(Part(frozenset({first.tensor}), why, first, axis, start, stop))


def _numbers(values: Sequence[Value], attributes: Attributes, index: int, name: str) -> list[int] | None:
    if index >= len(values) or values[index] is None:
        return attributes.integers(name)
    array = small_array(values[index])
    return None if array is None or array.dtype.kind not in "iu" else [int(item) for item in array.reshape(-1)]


def _concat(values: Sequence[Value], attributes: Attributes) -> Crossing | None:
    """All parts of one constant, each once: its rows, perhaps in another order."""
    parts = [value for value in values if isinstance(value, Part)]
    if not parts:
        return _join(values, attributes)
    if len(parts) < len(values) or any(part.source.key != parts[0].source.key for part in parts):
        return None
    source, axis = parts[0].source, parts[0].axis
    spans = [(part.start, part.stop) for part in parts]
    ordered = sorted(spans)
    tiled = [0, *(stop for _, stop in ordered)] == [*(start for start, _ in ordered), source.shape[axis]]
    same_axis = all(part.axis == axis for part in parts) and attributes.integer("axis", 1) in (
        axis,
        axis - len(source.shape),
    )
    if not tiled or not same_axis:
        return None
    if spans == ordered:
        return Crossing(source)
    order = np.concatenate([np.arange(start, stop) for start, stop in spans])
    moved = Shuffle(source.layout.atoms, source.layout.axes[axis], order)
    return Crossing(replace(source, shuffles=(*source.shuffles, moved)))


def _join(values: Sequence[Value], attributes: Attributes) -> Crossing | None:
    """Whole constants side by side, such as the two directions of a recurrent layer."""
    pieces = tuple(value for value in values if isinstance(value, Traced))
    rank = len(pieces[0].shape) if pieces else 0
    weights = [piece for piece in pieces if piece.tensor.kind in WEIGHT_KINDS and len(piece.shape) == rank >= 2]
    if len(weights) < len(values) or len({piece.tensor for piece in pieces}) < len(pieces):
        return None
    tensors = frozenset(piece.tensor for piece in pieces)
    return Crossing(Joined(tensors, "Concat", pieces, attributes.integer("axis", 1) % rank))


def parts_of(node: NodeProto, value: Value, sizes: Value, attributes: Attributes) -> list[Value]:
    """What the outputs of a Split stand for."""
    if not isinstance(value, Traced) or value.masks or (sizes is None and len(node.input) > 1 and node.input[1]):
        return []
    axis, count = attributes.integer("axis") % max(1, len(value.shape)), len(node.output)
    listed = small_array(sizes) if sizes is not None else None
    lengths = attributes.integers("split") if listed is None else [int(size) for size in listed.reshape(-1)]
    if lengths is None:
        step = -(-value.shape[axis] // count)
        lengths = [min(step, value.shape[axis] - step * index) for index in range(count)]
    if len(lengths) != count or sum(lengths) != value.shape[axis] or min(lengths) < 0:
        return []
    ends = np.cumsum(lengths).tolist()
    tensors = frozenset({value.tensor})
    return [Part(tensors, "Split", value, axis, end - length, end) for length, end in zip(lengths, ends)]


def _moved_part(node: NodeProto, part: Part, attributes: Attributes) -> Part | None:
    """A part of a constant behind a node that only turns it."""
    if node.op_type == "Identity":
        return part
    if node.op_type == "Cast":
        cast = _cast([part.source], attributes)
        return replace(part, source=cast.value) if cast and isinstance(cast.value, Traced) else None
    rank = len(part.source.shape)
    perm = attributes.integers("perm") or list(range(rank))[::-1]
    if node.op_type != "Transpose" or sorted(perm) != list(range(rank)):
        return None
    source = replace(part.source, layout=part.source.layout.transpose(perm))
    return replace(part, source=source, axis=perm.index(part.axis))


def mask_of(mask: Traced, weight: Traced) -> Mask:
    shape = (1,) * (len(weight.shape) - len(mask.shape)) + tuple(mask.shape)
    return Mask(mask, shape, weight.layout, weight.shuffles)


_RULES: dict[str, Rule] = {
    "Identity": _identity,
    "Dropout": _identity,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Flatten": _flatten,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "Slice": _slice,
    "Concat": _concat,
    "Mul": _multiply,
    "Div": _divide,
    "Where": _where,
}


PASSING = frozenset(_RULES) - {"Mul", "Div", "Where", "Slice", "Concat"}


def cross(node: NodeProto, values: Sequence[Value], attributes: Attributes) -> Crossing | None:
    """The value behind `node`, or None where its elements cannot be followed."""
    shared = node.domain in ("", "ai.onnx") or node.op_type in ("QuantizeLinear", "DequantizeLinear")
    if shared and values and isinstance(values[0], Part):
        moved = _moved_part(node, values[0], attributes)
        if moved is not None:
            return Crossing(moved)
    rule = _RULES.get(node.op_type) if shared else None
    return rule(values, attributes) if rule and values else None
