"""Where random paths end: operators that multiply with a weight, and readers that are none.

A node that takes a weight says in its `doc_string` at which inputs ("weight slots 1"), so that the judge need not find
out which of two operands is the activation. What an operator makes is never the input of another one.
"""

from __future__ import annotations

import random
from typing import Callable

import numpy as np

from .case import Array
from .random_masks import cast, dequantized, fake_quantized
from .random_moves import cut, join, reshape, unsqueeze
from .random_scopes import Ref, Scope, Shape, Val, numpy_kind

Maker = Callable[[random.Random], Array]


def numbers(shape: Shape, kind: str) -> Maker:
    def make(own: random.Random) -> Array:
        drawn = np.random.default_rng(own.getrandbits(60))
        if kind in ("int8", "uint8"):
            return drawn.integers(*((0, 9) if kind == "uint8" else (-4, 5)), shape).astype(kind)
        return drawn.normal(0, 1, shape).astype(numpy_kind(kind))

    return make


def _x(scope: Scope, path: str, shape: Shape, kind: str) -> Val:
    return scope.runtime(f"{path}/x", numbers(shape, kind), kind)


def end(scope: Scope, value: Val, path: str) -> None:
    """An operator that takes the value as a weight."""
    dice = scope.build.dice.at(path)
    if value.kind in ("float16", "bfloat16", "int32", "int64", "bool", "uint16", "int16"):
        value = cast(scope, value, "float32")
    if value.kind in ("int8", "uint8") and scope.build.opset < 10:
        value = cast(scope, value, "float32")
    if value.kind in ("int8", "uint8"):
        _integers(scope, value, path, dice)
    else:
        _floats(scope, value, path, dice)


def _floats(scope: Scope, value: Val, path: str, dice: random.Random) -> None:
    if value.rank < 2:
        value = _matrix(scope, value, dice)
    if value.kind == "float64":
        scope.emit(_matmul(scope, value, path, dice))
        return
    choices = [_matmul, _matmul]
    choices += [_gemm, _gemm, _lookup, _as_conv] if value.rank == 2 else [_conv, _conv, _lookup]
    if value.rank == 2 and scope.build.opset >= 12:
        choices.append(_einsum)
    if value.shape[-2] % 4 == 0 and value.size == value.shape[-2] * value.shape[-1] and scope.build.opset >= 7:
        choices.append(_lstm)
    scope.emit(dice.choice(choices)(scope, value, path, dice))


def _matrix(scope: Scope, value: Val, dice: random.Random) -> Val:
    """A value of one axis, or none, as a matrix."""
    size = value.size
    rows = dice.choice([part for part in (1, 4, 8) if size % part == 0 and size >= part])
    return reshape(scope, value, (rows, size // rows))


def _matmul(scope: Scope, value: Val, path: str, dice: random.Random, op: str = "MatMul", kind: str = "") -> Val:
    *batch, rows, columns = value.shape
    kind = kind or value.kind
    if dice.random() < 0.65:
        x = _x(scope, path, (3, rows), kind)
        return scope.add(op, [x, value], kind, (*batch, 3, columns), doc="weight slots 1")
    x = _x(scope, path, (columns, 3), kind)
    return scope.add(op, [value, x], kind, (*batch, rows, 3), doc="weight slots 0")


def _gemm(scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    turned, left = dice.random() < 0.5, dice.random() < 0.3
    along, out = (1, 0) if turned != left else (0, 1)
    x = _x(scope, path, (value.shape[along], 3) if left else (3, value.shape[along]), "float32")
    shape = (value.shape[out], 3) if left else (3, value.shape[out])
    inputs = [value, x] if left else [x, value]
    if scope.build.opset < 11:
        inputs.append(scope.constant(np.zeros(shape, np.float32), "b"))
    given: dict[str, object] = {"transA" if left else "transB": int(turned)}
    if scope.kind == "function" and value.shape[0] == value.shape[1] and dice.random() < 0.3:
        scope.build.tags.add("attribute of a call")
        given = {"transA" if left else "transB": Ref(f"{scope.refer(lambda call: int(turned) ^ (call % 2))}:2")}
    return scope.add("Gemm", inputs, "float32", shape, doc=f"weight slots {int(not left)}", **given)


def _einsum(scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    rows, columns = value.shape
    if dice.random() < 0.5:
        x = _x(scope, path, (3, columns), "float32")
        return scope.add("Einsum", [x, value], "float32", (3, rows), equation="bk,nk->bn", doc="weight slots 1")
    x = _x(scope, path, (rows, 3), "float32")
    return scope.add("Einsum", [value, x], "float32", (3, columns), equation="kn,kb->bn", doc="weight slots 0")


def _ids(scope: Scope, path: str, count: int) -> Val:
    return scope.runtime(
        f"{path}/ids", lambda own: np.array([own.randrange(count) for _ in range(3)], np.int64), "int64"
    )


def _lookup(scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    axis = dice.randrange(value.rank) if dice.random() < 0.4 else 0
    ids = _ids(scope, path, value.shape[axis])
    shape = (*value.shape[:axis], 3, *value.shape[axis + 1 :])
    return scope.add("Gather", [value, ids], value.kind, shape, axis=axis, doc="weight slots 0")


def _as_conv(scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    rows, columns = value.shape
    taps = dice.choice([tap for tap in (1, 3, 4) if columns % tap == 0])
    return _conv(scope, reshape(scope, value, (rows, columns // taps, taps)), path, dice)


def _conv(scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    first, second, *taps = value.shape
    group = dice.choice([part for part in (1, 1, 2, 4) if first % part == 0])
    sizes = [tap + 1 for tap in taps]
    if dice.random() < 0.7:
        x = _x(scope, path, (1, second * group, *sizes), "float32")
        shape = (1, first, *(2 for _ in taps))
        return scope.add("Conv", [x, value], "float32", shape, group=group, doc="weight slots 1")
    x = _x(scope, path, (1, first, *(2 for _ in taps)), "float32")
    shape = (1, second * group, *sizes)
    return scope.add("ConvTranspose", [x, value], "float32", shape, group=group, doc="weight slots 1")


def _lstm(scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    *_, rows, columns = value.shape
    hidden = rows // 4
    flat = value if value.shape == (1, rows, columns) else reshape(scope, value, (1, rows, columns))
    state = scope.constant(numbers((1, rows, hidden), "float32")(dice), "w")
    x = _x(scope, path, (2, 1, columns), "float32")
    inputs = [x, flat, state]
    outputs = [("float32", (2, 1, 1, hidden))]
    return scope.many("LSTM", inputs, outputs, hidden_size=hidden, doc="weight slots 1 2")[0]


# -- integers


def _integers(scope: Scope, value: Val, path: str, dice: random.Random) -> None:
    if value.rank < 2:
        value = _matrix(scope, value, dice)
    draw = dice.random()
    if draw < 0.3 and value.rank >= 2:
        scope.emit(_matmul_integer(scope, value, path, dice))
    elif draw < 0.45 and value.rank > 2 and value.kind == "uint8":
        scope.emit(_conv_integer(scope, value, path, dice))
    elif draw < 0.6 and value.rank > 2:
        scope.emit(_qlinear_conv(scope, value, path, dice))
    elif draw < 0.7 and value.rank == 2:
        scope.emit(_qlinear_matmul(scope, value, path, dice))
    elif draw < 0.85:
        _quantized_lookup(scope, value, path, dice)
    else:
        _floats(scope, dequantized(scope, value, dice), path, dice)


def _zero(scope: Scope, path: str, kind: str, shape: Shape) -> Val:
    def make(own: random.Random) -> Array:
        drawn = np.random.default_rng(own.getrandbits(60))
        low, high = (0, 200) if kind == "uint8" else (-60, 60)
        return drawn.integers(low, high, shape).astype(kind) * np.array(own.random() < 0.7, kind)

    return scope.source(f"{path}/zero", make, "z", kind)


def _matmul_integer(scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    *batch, rows, columns = value.shape
    if dice.random() < 0.75:
        x = _x(scope, path, (3, rows), "uint8")
        zero = _zero(scope, path, value.kind, (columns,) if dice.random() < 0.5 and not batch else ())
        inputs: list[Val | str] = [x, value, "", zero] if dice.random() < 0.8 else [x, value]
        return scope.add("MatMulInteger", inputs, "int32", (*batch, 3, columns), doc="weight slots 1")
    x = _x(scope, path, (columns, 3), value.kind)
    inputs = [value, x] + ([_zero(scope, path, value.kind, ())] if dice.random() < 0.8 else [])
    return scope.add("MatMulInteger", inputs, "int32", (*batch, rows, 3), doc="weight slots 0")


def _conv_integer(scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    first, second, *taps = value.shape
    x = _x(scope, path, (1, second, *(tap + 1 for tap in taps)), "uint8")
    point = scope.constant(np.array(3, np.uint8), "z")
    shape = (1, first, *(2 for _ in taps))
    inputs = [x, value, point, _zero(scope, path, value.kind, ())]
    return scope.add("ConvInteger", inputs, "int32", shape, doc="weight slots 1")


def _qlinear_conv(scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    first, second, *taps = value.shape
    group = dice.choice([part for part in (1, 1, 2) if first % part == 0])
    x = _x(scope, path, (1, second * group, *(tap + 1 for tap in taps)), "uint8")
    scale, zero = scope.constant(np.float32(0.1), "s"), scope.constant(np.array(3, np.uint8), "z")
    rows = (first,) if dice.random() < 0.5 else ()
    scales = scope.constant(np.full(rows, 0.05, np.float32), "s")
    same = dice.randrange(0, 50)
    point = _zero(scope, path, value.kind, ()) if not rows else scope.constant(np.full(rows, same, value.kind), "z")
    inputs = [x, scale, zero, value, scales, point, scope.constant(np.float32(0.5), "s"), zero]
    shape = (1, first, *(2 for _ in taps))
    return scope.add("QLinearConv", inputs, "uint8", shape, group=group, doc="weight slots 3")


def _qlinear_matmul(scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    rows, columns = value.shape
    x = _x(scope, path, (3, rows), "uint8")
    scale, zero = scope.constant(np.float32(0.1), "s"), scope.constant(np.array(3, np.uint8), "z")
    many = (columns,) if dice.random() < 0.4 else ()
    scales = scope.constant(np.full(many, 0.05, np.float32), "s")
    inputs = [x, scale, zero, value, scales, _zero(scope, path, value.kind, many), scale, zero]
    return scope.add("QLinearMatMul", inputs, "uint8", (3, columns), doc="weight slots 3")


def _quantized_lookup(scope: Scope, value: Val, path: str, dice: random.Random) -> None:
    """A table of integers, looked up once and dequantised once, or twice with other zero points."""
    ids = _ids(scope, path, value.shape[0])
    rows = scope.add("Gather", [value, ids], value.kind, (3, *value.shape[1:]), doc="weight slots 0 table")
    scope.build.tags.add("table of integers")
    for number in range(dice.choice([1, 1, 2])):
        if number == 0 or scope.build.dice.wants(f"{path}/dq{number}"):
            scope.emit(dequantized(scope, rows, scope.build.dice.at(f"{path}/dq{number}"), per_axis=False))


# -- readers that are no weights' slots


def read(scope: Scope, value: Val, path: str) -> None:
    """An element-wise reader, a reader that moves, or a graph output."""
    dice = scope.build.dice.at(path)
    scope.build.tags.add("other reader")
    if value.kind in ("float16", "bfloat16") or dice.random() < 0.2:
        scope.emit(scope.own(cast(scope, value, "float32")))
        return
    if value.kind in ("int8", "uint8", "bool", "int32", "int64", "uint16", "int16"):
        scope.emit(scope.own(value))
        return
    scope.emit(dice.choice([_sign, _sign, _beside, _slice, _met, _met, _fake, _sum])(scope, value, path, dice))


def _sign(scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    return scope.add(dice.choice(["Neg", "Abs"]), [value], value.kind, value.shape)


def _beside(scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    if value.rank == 0:
        return scope.own(value)
    axis = dice.randrange(value.rank)
    other = scope.constant(np.ones(value.shape, value.kind), "b")
    return join(scope, [value, other], axis)


def _slice(scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    if value.rank == 0 or value.shape[0] < 2:
        return scope.own(value)
    return cut(scope, value, 0, 0, value.shape[0] // 2)


def _met(scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    """Together with an input of the model."""
    x = _x(scope, path, value.shape, value.kind)
    return scope.add(dice.choice(["Mul", "Add"]), [value, x], value.kind, value.shape)


def _fake(scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    if scope.build.opset < 10 or value.kind != "float32":
        return scope.own(value)
    return fake_quantized(scope, value, dice)


def _sum(scope: Scope, value: Val, path: str, dice: random.Random) -> Val:
    return scope.add("ReduceMax" if dice.random() < 0.5 else "ReduceMin", [value], value.kind, (1,) * value.rank)


__all__ = ["end", "numbers", "read", "unsqueeze"]
