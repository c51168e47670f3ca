"""Masks of random paths, each with a path of its own, and what else happens to numbers: factors, quantization."""

from __future__ import annotations

import random
from typing import Callable

import numpy as np

from .case import Array
from .random_moves import cut, join, reshape, transpose, unsqueeze
from .random_scopes import KINDS, Ref, Scope, Shape, Val, numpy_kind

MaskArray = Callable[[random.Random], Array]
FLOATS = ("float32", "float64", "float16", "bfloat16")


def cast(scope: Scope, value: Val, kind: str) -> Val:
    return value if value.kind == kind else scope.add("Cast", [value], kind, value.shape, to=KINDS[kind])


def binary(scope: Scope, op: str, left: Val, right: Val, axis: int | None = None) -> Val:
    """Mul, Div, Add, Sub as the opset writes them: before opset 7 a smaller operand needs `broadcast` and `axis`."""
    shape = np.broadcast_shapes(left.shape, _aligned(left, right, axis))
    if scope.build.opset >= 7:
        return scope.add(op, [left, right], left.kind, shape)
    if left.shape == right.shape:
        return scope.add(op, [left, right], left.kind, shape)
    scope.build.tags.add("broadcast of opset 6")
    wide = " ".join(map(str, _aligned(left, right, axis)))
    given = {} if axis is None else {"axis": axis}
    return scope.add(op, [left, right], left.kind, shape, broadcast=1, doc=f"broadcast as {wide}", **given)


def _aligned(left: Val, right: Val, axis: int | None) -> Shape:
    return right.shape if axis is None else (*right.shape, *[1] * (left.rank - axis - right.rank))


# -- which elements a mask keeps


def kept(dice: random.Random, shape: Shape) -> Array:
    """Two in four along an axis, single elements, rows, or everything but little."""
    draw = dice.random()
    numbers = np.random.default_rng(dice.getrandbits(60))
    axes = [axis for axis, size in enumerate(shape) if size % 4 == 0]
    if draw < 0.5 and axes:
        axis = dice.choice(axes)
        rows = np.prod([size for at, size in enumerate(shape) if at != axis], dtype=int) * shape[axis] // 4
        groups = np.array([numbers.permutation([1, 1, 0, 0]) for _ in range(rows)])
        moved = tuple(size for at, size in enumerate(shape) if at != axis)
        return np.moveaxis(groups.reshape(*moved, shape[axis]), -1, axis).astype(bool)
    if draw < 0.9:
        return np.asarray(numbers.random(shape) < dice.choice([0.5, 0.5, 0.8, 0.25]))
    return np.asarray(numbers.random(shape) < 0.95)


def mask_shape(dice: random.Random, shape: Shape) -> Shape:
    """The whole shape, or one that broadcasts to it."""
    draw = dice.random()
    if draw < 0.6 or not shape:
        return shape
    if draw < 0.8:
        return tuple(1 if dice.random() < 0.4 else size for size in shape)
    if draw < 0.95:
        return shape[dice.randrange(len(shape)) :]
    return ()


def old_mask_shape(dice: random.Random, shape: Shape) -> tuple[Shape, int | None]:
    """Opset 6: a stretch of the axes, told by its first one."""
    if dice.random() < 0.4 or not shape:
        return shape, None
    start = dice.randrange(len(shape))
    stop = dice.randint(start + 1, len(shape))
    if start == 0 and stop == len(shape):
        return shape, None
    return shape[start:stop], (None if stop == len(shape) and dice.random() < 0.5 else start)


# -- where a mask is stored, and what its path does

STORED = ("float32", "bool", "uint8", "int8", "float16", "bfloat16", "uint16", "int32", "int64", "float64")


def _numbers(dice: random.Random, kind: str) -> tuple[float, float]:
    """What stands for dropped and kept; mostly 0 and 1."""
    draw = dice.random()
    if kind == "bool" or draw < 0.7:
        return 0, 1
    if kind in ("uint8", "uint16"):
        return dice.choice([(0, 255), (1, 2), (3, 4), (0, 2), (1, 0)])
    if kind in ("int8", "int32", "int64"):
        return dice.choice([(0, -1), (1, 2), (-1, 0), (0, 3), (1, 0)])
    return dice.choice([(0, 2), (0, 0.5), (0, -1), (1, 2), (1, 0), (0.25, 1), (-0.0, 1)])


def stored_mask(scope: Scope, path: str, shape: Shape, kind: str) -> tuple[Val, tuple[float, float]]:
    """A stored tensor of zeros and ones (or two other numbers), seen in the shape that was asked for."""
    dice = scope.build.dice.at(path)
    off, on = _numbers(dice, kind)
    broken = kind in FLOATS and dice.random() < 0.04
    if broken:
        scope.build.tags.add("NaN")

    def make(own: random.Random) -> Array:
        keep = kept(own, shape)
        values = np.where(keep, on, off).astype("float32" if kind == "bfloat16" else numpy_kind(kind))
        if broken and values.size:
            values.reshape(-1)[own.randrange(values.size)] = np.nan
        return values

    return _disguised(scope, f"{path}/stored", make, shape, kind), (off, on)


def _disguised(scope: Scope, path: str, make: MaskArray, shape: Shape, kind: str) -> Val:
    """The array as it is, or stored turned, in two pieces, within a larger one, flat or small and spread."""
    dice = scope.build.dice.at(f"{path}/form")
    draw = dice.random()
    rank = len(shape)
    if not scope.build.dice.wants(f"{path}/form") or draw < 0.55 or rank == 0 or (kind == "bfloat16"):
        return scope.source(path, make, "m", kind)
    if draw < 0.67 and rank > 1:
        perm = dice.sample(range(rank), rank)
        turned = scope.source(path, lambda own: make(own).transpose(np.argsort(perm)), "m", kind)
        return transpose(scope, turned, perm)
    axis = dice.randrange(rank)
    if draw < 0.77 and shape[axis] > 1 and kind != "uint16":
        half = shape[axis] // 2
        parts = [
            scope.source(f"{path}/{n}", lambda own, n=n: np.split(make(own), [half], axis)[n], "m", kind)  # type: ignore[misc]
            for n in range(2)
        ]
        return join(scope, parts, axis)
    if draw < 0.87 and kind != "uint16":
        wide = scope.source(path, lambda own: np.concatenate([make(own), make(own)[::-1]], axis), "m", kind)
        return cut(scope, wide, axis, 0, shape[axis])
    flat = scope.source(path, lambda own: make(own).reshape(-1), "m", kind)
    return reshape(scope, flat, shape)


def mask_value(scope: Scope, path: str, shape: Shape, kind: str) -> Val:
    """A mask of a float type, behind a path of its own."""
    dice = scope.build.dice.at(f"{path}/kinds")
    stored = dice.choice(STORED) if dice.random() < 0.6 else "float32"
    if stored == "bfloat16" and scope.build.opset < 13:
        stored = "float16"
    value, _ = stored_mask(scope, path, shape, stored)
    value = _to_float(scope, value, dice)
    for number in range(dice.choice([0, 0, 0, 1, 1, 2])):
        if scope.build.dice.wants(f"{path}/f{number}"):
            value = _on_a_mask(scope, value, scope.build.dice.at(f"{path}/f{number}"))
    return cast(scope, value, kind)


def _to_float(scope: Scope, value: Val, dice: random.Random) -> Val:
    if value.kind == "bool" and dice.random() < 0.5:
        scope.build.tags.add("Not")
        value = scope.add("Not", [value], "bool", value.shape)
    if value.kind in ("uint8", "int8") and scope.build.opset >= 10 and dice.random() < 0.5:
        scope.build.tags.add("mask with a zero point")
        return dequantized(scope, value, dice, "float32", per_axis=False)
    return cast(scope, value, "float32")


def _on_a_mask(scope: Scope, value: Val, dice: random.Random) -> Val:
    """One operator on a float mask: some keep it a mask, some make it another one, some make it none."""
    draw = dice.random()
    opset = scope.build.opset
    if draw < 0.08 and scope.kind == "function" and opset >= 12:
        scope.build.tags.add("attribute of a call")
        numbers = [dice.choice([1.0, 2.0, 0.0, -1.0]) for _ in range(3)]
        name = scope.refer(lambda call: numbers[call % 3])
        return binary(scope, "Mul", value, scope.add("Constant", [], "float32", (), value_float=Ref(f"{name}:1")))
    if draw < 0.35:
        scope.build.tags.add("factor on a mask")
        number = dice.choice([2, 0.5, 1, -1, 255, 0, 3])
        factor = scope.constant(np.float32(number), "s")
        return binary(scope, "Mul" if number == 0 or dice.random() < 0.6 else "Div", value, factor)
    if draw < 0.45:
        one = scope.constant(np.float32(1), "s")
        if opset >= 7:
            return binary(scope, "Sub", one, value)
        return binary(scope, "Sub", value, one)
    if draw < 0.6 and opset >= 10:
        scope.build.tags.add("quantized mask")
        return fake_quantized(scope, value, dice, per_axis=False)
    if draw < 0.72 and opset >= 9:
        as_bool = cast(scope, value, "bool")
        pair = [scope.constant(np.float32(number), "s") for number in dice.choice([(1, 0), (0, 1), (2, 0), (1, 0.5)])]
        return scope.add("Where", [as_bool, *pair], "float32", value.shape)
    if draw < 0.8:
        turned = scope.add("Not", [cast(scope, value, "bool")], "bool", value.shape)
        return cast(scope, turned, "float32")
    if draw < 0.9:
        return scope.own(value)
    return cast(scope, cast(scope, value, dice.choice(["uint8", "float16", "int32", "bool"])), "float32")


def masked(scope: Scope, path: str, value: Val) -> Val:
    """A float value times a mask, by Mul, Div or Where."""
    dice = scope.build.dice.at(f"{path}/how")
    opset = scope.build.opset
    scope.build.tags.add("mask")
    if opset < 7:
        shape, axis = old_mask_shape(dice, value.shape)
        return binary(scope, "Mul", value, mask_value(scope, path, shape, value.kind), axis)
    shape = mask_shape(dice, value.shape)
    integers = value.kind not in FLOATS
    if (
        (integers or dice.random() < 0.3)
        and opset >= 9
        and value.kind in ("float32", "float64", "uint8", "int32", "int64")
    ):
        return _where(scope, path, value, shape, dice)
    mask = mask_value(scope, path, shape, value.kind)
    if dice.random() < 0.06:
        return binary(scope, "Div", value, mask)  # by zero, or by one: no mask
    return binary(scope, "Mul", *((value, mask) if dice.random() < 0.6 else (mask, value)))


def _where(scope: Scope, path: str, value: Val, shape: Shape, dice: random.Random) -> Val:
    """Where with a third input that is zero, or not, and the weight on either side."""
    scope.build.tags.add("Where")
    kind = dice.choice(["bool", "bool", "bool", "uint8", "float32", "int8"])
    condition, _ = stored_mask(scope, path, shape, kind)
    condition = cast(scope, condition, "bool")
    if dice.random() < 0.25 and scope.build.dice.wants(f"{path}/not"):
        condition = scope.add("Not", [condition], "bool", condition.shape)
    other = _third(scope, path, value, dice)
    pair = (value, other) if dice.random() < 0.8 else (other, value)
    return scope.add("Where", [condition, *pair], value.kind, value.shape)


def _third(scope: Scope, path: str, value: Val, dice: random.Random) -> Val:
    kind = numpy_kind(value.kind)
    draw = dice.random()
    if draw < 0.45:
        return scope.constant(np.zeros((), kind), "s")
    if draw < 0.6:
        return scope.constant(np.zeros((1,) * value.rank, kind), "s")
    if draw < 0.7:
        return scope.constant(np.zeros(value.shape, kind), "m")
    scope.build.tags.add("third input of Where")
    number = dice.choice([-0.0, 1, 3]) if value.kind in FLOATS else dice.choice([1, 128, 3])
    if draw < 0.8:
        return scope.source(f"{path}/third", lambda own: np.full((), own.choice([0, number]), kind), "s", value.kind)
    if draw < 0.9 and value.kind == "float32":
        zero = scope.constant(np.zeros((), np.float32), "s")
        return binary(scope, "Add", zero, scope.constant(np.full((), number, np.float32), "s"))
    return scope.constant(np.full(value.shape[-1:], number, kind), "s")


# -- factors and quantization of the weight itself


def factor(scope: Scope, path: str, value: Val) -> Val:
    """Times or by a scale: one number, one for each row, or one for each element."""
    dice = scope.build.dice.at(f"{path}/factor")
    shape, axis = mask_shape(dice, value.shape), None
    if scope.build.opset < 7:
        shape, axis = old_mask_shape(dice, value.shape)
    elif dice.random() < 0.6:
        shape = ()
    kind = "float32" if value.kind == "bfloat16" else value.kind

    def make(own: random.Random) -> Array:
        numbers = np.random.default_rng(own.getrandbits(60))
        return numbers.choice([0.5, 2.0, 0.25, 1.5, -1.0], shape).astype(kind)

    number = cast(scope, scope.source(f"{path}/v", make, "s", kind), value.kind)
    return binary(scope, dice.choice(["Mul", "Mul", "Div"]), value, number, axis)


def _zero_point(dice: random.Random, kind: str, shape: Shape) -> MaskArray:
    lively = dice.random()

    def make(own: random.Random) -> Array:
        numbers = np.random.default_rng(own.getrandbits(60))
        if lively < 0.3:
            return np.zeros(shape, kind)
        low, high = (0, 200) if kind == "uint8" else (-60, 60)
        if lively < 0.6:
            return np.full(shape, numbers.integers(low, high), kind)
        return numbers.integers(low, high, shape).astype(kind)

    return make


def _by_blocks(scope: Scope, value: Val, dice: random.Random) -> tuple:  # type: ignore[type-arg]
    """A scale and a zero point for every block of an axis."""
    axes = [axis for axis, size in enumerate(value.shape) if size % 4 == 0]
    if not axes:
        return [scope.constant(np.float32(0.125), "s")], {}
    scope.build.tags.add("scales by blocks")
    axis, block = dice.choice(axes), dice.choice([2, 4])
    shape = tuple(size // block if at == axis else size for at, size in enumerate(value.shape))
    numbers = np.random.default_rng(dice.getrandbits(60))
    inputs = [scope.constant(numbers.choice([0.125, 0.0625], shape).astype(np.float32), "s")]
    if dice.random() < 0.7:
        inputs.append(scope.constant(_zero_point(dice, value.kind, shape)(dice), "z", value.kind))
    return inputs, {"axis": axis, "block_size": block}


def _quantizer(scope: Scope, value: Val, dice: random.Random, per_axis: bool, kind: str, power: bool) -> tuple:  # type: ignore[type-arg]
    """Scale, zero point (or none) and the axis."""
    axis = None
    if per_axis and value.rank > 0 and scope.build.opset >= 13 and dice.random() < 0.5:
        axis = dice.randrange(value.rank)
    shape: Shape = () if axis is None else (value.shape[axis],)
    scale = [0.125, 0.0625, 0.25] if power else [0.01, 0.05, 0.125]
    path = f"q{dice.getrandbits(40)}"

    def scales(own: random.Random) -> Array:
        return np.random.default_rng(own.getrandbits(60)).choice(scale, shape).astype(np.float32)

    inputs = [scope.source(f"{path}/scale", scales, "s", "float32")]
    if dice.random() < 0.75:
        inputs.append(scope.source(f"{path}/zero", _zero_point(dice, kind, shape), "z", kind))
    given = {} if axis is None else {"axis": axis if dice.random() < 0.6 else axis - value.rank}
    if axis is not None and scope.kind == "function" and dice.random() < 0.4:
        same = [at for at, size in enumerate(value.shape) if size == value.shape[axis]]
        scope.build.tags.add("attribute of a call")
        name = scope.refer(lambda call: same[call % len(same)])
        given = {"axis": Ref(f"{name}:2")}
    return inputs, given


def dequantized(scope: Scope, value: Val, dice: random.Random, kind: str = "float32", per_axis: bool = True) -> Val:
    if per_axis and scope.build.opset >= 21 and scope.kind != "function" and dice.random() < 0.3:
        inputs, given = _by_blocks(scope, value, dice)
    else:
        inputs, given = _quantizer(scope, value, dice, per_axis, value.kind, True)
    scope.build.tags.add("DequantizeLinear")
    return scope.add("DequantizeLinear", [value, *inputs], "float32", value.shape, **given)


def quantized(scope: Scope, value: Val, dice: random.Random, per_axis: bool = True) -> Val:
    kind = dice.choice(["int8", "uint8"])
    inputs, given = _quantizer(scope, value, dice, per_axis, kind, True)
    if len(inputs) == 1:
        kind = "uint8"  # what QuantizeLinear makes where no zero point says its type
    return scope.add("QuantizeLinear", [value, *inputs], kind, value.shape, **given)


def fake_quantized(scope: Scope, value: Val, dice: random.Random, per_axis: bool = True) -> Val:
    """QuantizeLinear and DequantizeLinear with the same scale and zero point, or each with its own."""
    scope.build.tags.add("Q/DQ")
    if dice.random() < 0.5:
        return dequantized(scope, quantized(scope, value, dice, per_axis), dice, per_axis=per_axis)
    kind = dice.choice(["int8", "uint8"])
    inputs, given = _quantizer(scope, value, dice, per_axis, kind, True)
    kind = kind if len(inputs) > 1 else "uint8"
    low = scope.add("QuantizeLinear", [value, *inputs], kind, value.shape, **given)
    return scope.add("DequantizeLinear", [low, *inputs], "float32", value.shape, **given)


__all__ = ["binary", "cast", "dequantized", "factor", "fake_quantized", "masked", "quantized", "unsqueeze"]
