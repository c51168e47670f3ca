"""Integer weights with zero points, and the types that are listed but not pruned."""

from __future__ import annotations

import functools

import numpy as np
from onnx import TensorProto, helper

from .case import (
    MICROSOFT,
    Array,
    Built,
    Use,
    add,
    case,
    codes,
    expect,
    feed,
    graph,
    model,
    node,
    output_info,
    simple,
    tensor,
)

UINT8, INT8 = TensorProto.UINT8, TensorProto.INT8


def _zero(per_channel: bool, unsigned: bool, count: int) -> Array:
    kind = np.uint8 if unsigned else np.int8
    middle = 128 if unsigned else 2
    return (np.arange(count) % 5 + middle).astype(kind) if per_channel else np.asarray(kind(middle))


def _scale(per_channel: bool, count: int) -> Array:
    """Scales so uneven that the order of the codes is not the order of the weights."""
    return np.geomspace(0.001, 0.5, count).astype(np.float32) if per_channel else np.asarray(np.float32(0.02))


def _real(w: Array, scale: Array, zero: Array, axis: int) -> Array:
    shape = [-1 if at == axis else 1 for at in range(w.ndim)]
    spread = [part.reshape(shape) if part.ndim else part for part in (scale, zero.astype(np.int32))]
    real: Array = ((w.astype(np.int32) - spread[1]).astype(np.float32)) * spread[0]
    return real


def _spread(zero: Array, rank: int, axis: int) -> Array:
    return zero.reshape([-1 if at == axis else 1 for at in range(rank)]) if zero.ndim else zero


def _kind(unsigned: bool) -> str:
    return "uint8" if unsigned else "int8"


def _qlinear_conv(per_channel: bool, unsigned: bool) -> Built:
    w = codes(6, 8, 3, 3, unsigned=unsigned)
    scale, zero = _scale(per_channel, 6), _zero(per_channel, unsigned, 6)
    if per_channel and not unsigned:
        zero = np.zeros_like(zero)
    small, middle = np.asarray(np.float32(0.05)), np.asarray(np.uint8(120))
    stored = {"w": w, "ws": scale, "wz": zero, "xs": small, "xz": middle, "ys": small, "yz": middle}
    feeds = {"x": codes(1, 8, 5, 5, unsigned=True)}
    conv = node("QLinearConv", "x xs xz w ws wz ys yz", "y")
    use = Use("QLinearConv", (1,), (0,), (2, 3))
    wanted = expect("w", _real(w, scale, zero, 0), use, dtype=_kind(unsigned), zero=_spread(zero, 4, 0))
    return simple([conv], feeds, [("y", 4, UINT8)], stored, [wanted])


def _qlinear_matmul(per_channel: bool, unsigned: bool) -> Built:
    w = codes(16, 8, unsigned=unsigned)
    scale, zero = _scale(per_channel, 8), _zero(per_channel, unsigned, 8)
    small, middle = np.asarray(np.float32(0.05)), np.asarray(np.uint8(120))
    stored = {"w": w, "ws": scale, "wz": zero, "xs": small, "xz": middle, "ys": small, "yz": middle}
    product = node("QLinearMatMul", "x xs xz w ws wz ys yz", "y")
    wanted = expect(
        "w", _real(w, scale, zero, 1), Use("QLinearMatMul", (0,), (1,)), dtype=_kind(unsigned), zero=_spread(zero, 2, 1)
    )
    return simple([product], {"x": codes(4, 16, unsigned=True)}, [("y", 2, UINT8)], stored, [wanted])


def _conv_integer(unsigned: bool, zero_point: bool) -> Built:
    w = codes(6, 8, 3, 3, unsigned=unsigned)
    zero = _zero(False, unsigned, 6)
    stored = {"w": w, "xz": np.asarray(np.uint8(120)), **({"wz": zero} if zero_point else {})}
    conv = node("ConvInteger", "x w xz wz" if zero_point else "x w xz", "y")
    zero = zero if zero_point else np.asarray(np.int8(0))
    real = _real(w, np.asarray(np.float32(1)), zero, 0)
    use = Use("ConvInteger", (1,), (0,), (2, 3))
    feeds = {"x": codes(1, 8, 5, 5, unsigned=True)}
    wanted = expect("w", real, use, dtype=_kind(unsigned), zero=zero)
    return simple([conv], feeds, [("y", 4, TensorProto.INT32)], stored, [wanted])


def _matmul_integer(unsigned: bool, per_channel: bool, left: bool = False) -> Built:
    w = codes(8, 16, unsigned=unsigned) if left else codes(16, 8, unsigned=unsigned)
    zero = _zero(per_channel, unsigned, 8)
    stored = {"w": w, "xz": np.asarray(np.uint8(120)), "wz": zero}
    product = node("MatMulInteger", "w x wz xz" if left else "x w xz wz", "y")
    axis = 1 if left else 0
    real = _real(w, np.asarray(np.float32(1)), zero, 1 - axis)
    feeds = {"x": codes(16, 4, unsigned=True) if left else codes(4, 16, unsigned=True)}
    wanted = expect(
        "w", real, Use("MatMulInteger", (axis,), (1 - axis,)), dtype=_kind(unsigned), zero=_spread(zero, 2, 1 - axis)
    )
    return simple([product], feeds, [("y", 2, TensorProto.INT32)], stored, [wanted])


for _unsigned in (False, True):
    for _per_channel in (False, True):
        _tail = f"{_kind(_unsigned)}_{'per_channel' if _per_channel else 'per_tensor'}"
        add(f"qlinear_conv_{_tail}", "quantized", functools.partial(_qlinear_conv, _per_channel, _unsigned))
        add(f"qlinear_matmul_{_tail}", "quantized", functools.partial(_qlinear_matmul, _per_channel, _unsigned))
        add(f"conv_integer_{_tail}", "quantized", functools.partial(_conv_integer, _unsigned, _per_channel))
        add(f"matmul_integer_{_tail}", "quantized", functools.partial(_matmul_integer, _unsigned, _per_channel))
add("matmul_integer_left", "quantized", functools.partial(_matmul_integer, True, False, True))


def _dequantized(op: str, unsigned: bool, per_channel: bool, with_zero: bool = True) -> Built:
    """QDQ: the weight is dequantised, then used by a float operator."""
    conv = op == "Conv"
    w = codes(*((6, 8, 3, 3) if conv else (6, 16)), unsigned=unsigned)
    scale, zero = _scale(per_channel, 6), _zero(per_channel, unsigned, 6)
    stored = {"w": w, "s": scale, **({"z": zero} if with_zero else {})}
    dequantize = node("DequantizeLinear", "w s z" if with_zero else "w s", "d", axis=0)
    use = Use("Conv", (1,), (0,), (2, 3)) if conv else Use("Gemm", (1,), (0,))
    last = node("Conv", "x d", "y") if conv else node("Gemm", "x d", "y", transB=1)
    zero = zero if with_zero else np.asarray(np.int8(0))
    real = _real(w, scale, zero, 0)
    wanted = expect("w", real, use, dtype=_kind(unsigned), zero=_spread(zero, w.ndim, 0))
    x = feed(1, 8, 5, 5) if conv else feed(4, 16)
    return simple([dequantize, last], {"x": x}, [("y", 4 if conv else 2)], stored, [wanted])


for _op in ("Conv", "Gemm"):
    for _unsigned in (False, True):
        for _per_channel in (False, True):
            _tail = f"{_kind(_unsigned)}_{'per_channel' if _per_channel else 'per_tensor'}"
            add(
                f"qdq_{_op.lower()}_{_tail}", "quantized", functools.partial(_dequantized, _op, _unsigned, _per_channel)
            )
add("qdq_conv_without_zero_point", "quantized", functools.partial(_dequantized, "Conv", False, True, False))


@case
def qdq_weight_in_constant_node() -> Built:
    w, scale = codes(6, 16), _scale(True, 6)
    nodes = [
        node("Constant", "", "w", value=tensor("", w)),
        node("DequantizeLinear", "w s", "d", axis=0),
        node("Gemm", "x d", "y", transB=1),
    ]
    wanted = expect(
        "w", _real(w, scale, np.asarray(np.int8(0)), 0), Use("Gemm", (1,), (0,)), storage="constant", dtype="int8"
    )
    return simple(nodes, {"x": feed(4, 16)}, [("y", 2)], {"s": scale}, [wanted])


@case
def qdq_in_blocks() -> Built:
    """Opset 21: one scale for every 8 elements along K."""
    w, scale = codes(16, 6), np.geomspace(0.01, 0.4, 12).reshape(2, 6).astype(np.float32)
    nodes = [node("DequantizeLinear", "w s", "d", axis=0, block_size=8), node("MatMul", "x d", "y")]
    real = w.astype(np.float32) * np.repeat(scale, 8, axis=0)
    wanted = expect("w", real, Use("MatMul", (0,), (1,)), dtype="int8", reason="blocked scale", lenient=True)
    return simple(nodes, {"x": feed(4, 16)}, [("y", 2)], {"w": w, "s": scale}, [wanted], opset=21, ir=10)


@case
def dynamic_quantization() -> Built:
    """What the dynamic quantiser of the runtime writes: MatMulInteger, then the scale."""
    w, zero = codes(16, 8, unsigned=True), np.asarray(np.uint8(131))
    nodes = [
        node("DynamicQuantizeLinear", "x", "q xs xz"),
        node("MatMulInteger", "q w xz wz", "i"),
        node("Cast", "i", "f", to=TensorProto.FLOAT),
        node("Mul", "xs ws", "s"),
        node("Mul", "f s", "y"),
    ]
    stored = {"w": w, "wz": zero, "ws": np.asarray(np.float32(0.02))}
    wanted = expect(
        "w", _real(w, np.asarray(np.float32(1)), zero, 0), Use("MatMulInteger", (0,), (1,)), dtype="uint8", zero=zero
    )
    return simple(nodes, {"x": feed(4, 16)}, [("y", 2)], stored, [wanted])


def _short(elem_type: int, size: int, opset: int, bits_dtype: str) -> Built:
    """float8 through DQ: listed with a reason."""
    raw = np.random.default_rng(7).integers(0, 100, size, dtype=np.uint8).tobytes()
    w = helper.make_tensor("w", elem_type, (16, 8), raw, raw=True)
    nodes = [node("DequantizeLinear", "w s", "d"), node("MatMul", "x d", "y")]
    whole = graph(nodes, {"x": feed(4, 16)}, [("y", 2)], [w, tensor("s", np.asarray(np.float32(0.1)))])
    wanted = expect(
        "w", np.zeros((16, 8), np.float32), Use("MatMul", (0,), (1,)), reason="unsupported type", dtype=bits_dtype
    )
    return Built(model(whole, opset=opset, ir=10), {"x": feed(4, 16)}, (wanted,), runs=False)


SHORT = (
    ("float8e4m3fn", TensorProto.FLOAT8E4M3FN, 128, 19),
    ("float8e5m2", TensorProto.FLOAT8E5M2, 128, 19),
)
for _name, _elem_type, _size, _opset in SHORT:
    add(f"type_{_name}", "quantized", functools.partial(_short, _elem_type, _size, _opset, _name))


def _halves(unsigned: bool, axis: int | None, block: int = 0, inputs: int = 16) -> Built:
    """4-bit integers, two in a byte, with a scale and a zero point for each output, each block of inputs, or one."""
    generator = np.random.default_rng(block + inputs)
    low = 0 if unsigned else -8
    w = generator.integers(low, low + 16, (7, inputs)).astype(np.uint8 if unsigned else np.int8)
    sizes = {None: (), 0: (7,), 1: (7, -(-inputs // block) if block else 1)}[axis]
    zero = generator.integers(low + 4, low + 12, sizes).astype(w.dtype)
    scale = generator.uniform(0.01, 0.5, sizes).astype(np.float32)
    whole = [np.repeat(one, block, 1)[:, :inputs] if block else one for one in (scale, zero)]
    whole = [one[:, None] if axis == 0 else one for one in whole]
    real = (w.astype(np.int32) - whole[1]).astype(np.float32) * whole[0]
    kind = TensorProto.UINT4 if unsigned else TensorProto.INT4
    places = {} if axis is None else {"axis": axis, **({"block_size": block} if block else {})}
    nodes = [node("DequantizeLinear", "w s z", "d", **places), node("Gemm", "x d", "y", transB=1)]
    stored = [helper.make_tensor(name, kind, one.shape, one.ravel().tolist()) for name, one in (("w", w), ("z", zero))]
    whole_graph = graph(nodes, {"x": feed(4, inputs)}, [("y", 2)], [*stored, tensor("s", scale)])
    wanted = expect("w", real, Use("Gemm", (1,), (0,)), dtype="uint4" if unsigned else "int4", zero=whole[1])
    return Built(model(whole_graph, opset=21, ir=10), {"x": feed(4, inputs)}, (wanted,))


HALVES = {"per_tensor": (None, 0, 16), "per_channel": (0, 0, 16), "blocks": (1, 8, 16), "short_block": (1, 8, 20)}
for _unsigned in (False, True):
    for _tail, _how in {**HALVES, "one_block": (1, 16, 15)}.items():
        add(f"qdq_{'u' if _unsigned else ''}int4_{_tail}", "quantized", functools.partial(_halves, _unsigned, *_how))


@case
def matmul_nbits() -> Built:
    """4 bits packed: (N, blocks, bytes)."""
    packed = np.random.default_rng(3).integers(0, 255, (8, 2, 16), dtype=np.uint8)
    stored = {"w": packed, "s": np.full(16, 0.1, np.float32)}
    product = node("MatMulNBits", "x w s", "y", domain="com.microsoft", K=64, N=8, bits=4, block_size=32)
    wanted = expect("w", np.zeros(packed.shape), reason="unsupported type", dtype="uint8")
    return simple([product], {"x": feed(4, 64)}, [("y", 2)], stored, [wanted], domains=MICROSOFT)


@case
def gather_block_quantized() -> Built:
    w = helper.make_tensor("w", TensorProto.UINT4, (10, 32), bytes(range(160)), raw=True)
    feeds = {"i": np.array([1, 3])}
    gather = node(
        "GatherBlockQuantized", "w i s", "y", domain="com.microsoft", block_size=32, quantize_axis=1, gather_axis=0
    )
    whole = graph([gather], feeds, [("y", 2)], [w, tensor("s", np.full((10, 1), 0.1, np.float32))])
    wanted = expect("w", np.zeros((10, 32)), reason="unsupported type", dtype="uint4")
    return Built(model(whole, opset=21, ir=10, domains=MICROSOFT), feeds, (wanted,), runs=False)


def _sparse(constant: bool) -> Built:
    """Stored as values and indices: already sparse in storage."""
    values = helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, -2.0, 3.0])
    indices = helper.make_tensor("w_indices", TensorProto.INT64, [3], [5, 40, 100])
    stored = helper.make_sparse_tensor(values, indices, [16, 8])
    product = node("MatMul", "x w", "y")
    nodes = [node("Constant", "", "w", sparse_value=stored), product] if constant else [product]
    whole = graph(nodes, {"x": feed(4, 16)}, [("y", 2)])
    if not constant:
        whole.sparse_initializer.append(stored)
    wanted = expect("w", np.zeros((16, 8)), reason="unsupported type")
    return Built(model(whole), {"x": feed(4, 16)}, (wanted,))


add("sparse_initializer", "quantized", functools.partial(_sparse, False))
add("sparse_constant", "quantized", functools.partial(_sparse, True))


def _other_type(elem_type: int, dtype: str, opset: int | None = None) -> Built:
    """int32 weights of a MatMul: legal, and nothing that a device prunes."""
    w = np.random.default_rng(2).integers(-9, 9, (16, 8)).astype(dtype)
    feeds = {"x": np.ones((4, 16), dtype)}
    whole = helper.make_graph(
        [node("MatMul", "x w", "y")],
        "g",
        [helper.make_tensor_value_info("x", elem_type, [4, 16])],
        [output_info("y", 2, elem_type)],
        [tensor("w", w)],
    )
    wanted = expect("w", w.astype(np.float64), Use("MatMul", (0,), (1,)), reason="unsupported type", dtype=dtype)
    return Built(model(whole, opset=opset or 17), feeds, (wanted,))


add("type_int32", "quantized", functools.partial(_other_type, TensorProto.INT32, "int32"))
add("type_int64", "quantized", functools.partial(_other_type, TensorProto.INT64, "int64"))
