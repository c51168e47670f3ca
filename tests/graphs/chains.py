"""What may stand between a stored tensor and its use: Identity, Transpose, Reshape, Squeeze, Cast, Q and DQ."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, TensorProto

from .case import Array, Built, Expected, Use, add, case, codes, expect, feed, node, simple, untied, weights


def _to_matmul(nodes: Sequence[NodeProto], stored: dict, wanted: Expected, k: int = 16, opset: int = 17) -> Built:  # type: ignore[type-arg]
    """The chain ends in `r`, the right operand of a MatMul with x of (4, k)."""
    return simple([*nodes, node("MatMul", "x r", "y")], {"x": feed(4, k)}, [("y", 2)], stored, [wanted], opset)


def _int64(*values: int) -> Array:
    return np.array(values, dtype=np.int64)


@case
def identity_chain() -> Built:
    w = weights(16, 8)
    steps = ["w", "i1", "i2", "i3", "i4", "r"]
    nodes = [node("Identity", a, b) for a, b in zip(steps, steps[1:])]
    return _to_matmul(nodes, {"w": w}, expect("w", w, Use("MatMul", (0,), (1,))))


@case
def identity_chain_of_150() -> Built:
    w = weights(16, 8)
    steps = ["w", *[f"i{number}" for number in range(150)], "r"]
    nodes = [node("Identity", a, b) for a, b in zip(steps, steps[1:])]
    return _to_matmul(nodes, {"w": w}, expect("w", w, Use("MatMul", (0,), (1,))))


@case
def transpose_without_perm() -> Built:
    w = weights(8, 16)
    return _to_matmul([node("Transpose", "w", "r")], {"w": w}, expect("w", w, Use("MatMul", (1,), (0,))))


@case
def transpose_with_perm() -> Built:
    w = weights(8, 16)
    nodes = [node("Transpose", "w", "r", perm=[1, 0])]
    return _to_matmul(nodes, {"w": w}, expect("w", w, Use("MatMul", (1,), (0,))))


@case
def transpose_twice() -> Built:
    w = weights(16, 8)
    nodes = [node("Transpose", "w", "t"), node("Transpose", "t", "r")]
    return _to_matmul(nodes, {"w": w}, expect("w", w, Use("MatMul", (0,), (1,))))


@case
def transpose_cycle_of_three() -> Built:
    """A perm that is not its own inverse: (in, batch, out) becomes (batch, in, out) only read the right way."""
    w = weights(8, 6, 3)
    nodes = [node("Transpose", "w", "t", perm=[2, 0, 1]), node("MatMul", "x t", "y")]
    use = Use("MatMul", (0,), (1,))
    return simple(nodes, {"x": feed(3, 4, 8)}, [("y", 3)], {"w": w}, [expect("w", w, use)])


@case
def reshape_merges_k() -> Built:
    """(heads, head, out) to (heads * head, out)."""
    w = weights(2, 8, 6)
    nodes = [node("Reshape", "w s", "r")]
    return _to_matmul(nodes, {"w": w, "s": _int64(16, 6)}, expect("w", w, Use("MatMul", (0, 1), (2,))))


@case
def reshape_merges_k_of_odd_parts() -> Built:
    """Groups of four cross the border between the merged axes."""
    w = weights(4, 6, 5)
    nodes = [node("Reshape", "w s", "r")]
    return _to_matmul(nodes, {"w": w, "s": _int64(-1, 5)}, expect("w", w, Use("MatMul", (0, 1), (2,))), k=24)


@case
def transpose_then_reshape_merges_k() -> Built:
    """Stored (head, heads, out): along K the stored order is (1, 0)."""
    w = untied(8, 2, 6)
    nodes = [node("Transpose", "w", "t", perm=[1, 0, 2]), node("Reshape", "t s", "r")]
    return _to_matmul(nodes, {"w": w, "s": _int64(16, 6)}, expect("w", w, Use("MatMul", (1, 0), (2,))))


@case
def reshape_then_transpose_merges_out() -> Built:
    """(out, a, b) to (out, a * b) to (a * b, out)."""
    w = weights(6, 2, 8)
    nodes = [node("Reshape", "w s", "t"), node("Transpose", "t", "r")]
    return _to_matmul(nodes, {"w": w, "s": _int64(6, 16)}, expect("w", w, Use("MatMul", (1, 2), (0,))))


@case
def reshape_splits_out() -> Built:
    w = weights(16, 12)
    nodes = [node("Reshape", "w s", "t"), node("Transpose", "t", "u", perm=[1, 0, 2]), node("MatMul", "x u", "y")]
    use = Use("MatMul", (0,), (1,))
    return simple(nodes, {"x": feed(4, 16)}, [("y", 3)], {"w": w, "s": _int64(16, 3, 4)}, [expect("w", w, use)])


@case
def reshape_splits_k_to_batches() -> Built:
    """(16, 6) to two batches of (8, 6)."""
    w = weights(16, 6)
    nodes = [node("Reshape", "w s", "t"), node("MatMul", "x t", "y")]
    use = Use("MatMul", (0,), (1,), splits=2)
    return simple(nodes, {"x": feed(2, 4, 8)}, [("y", 3)], {"w": w, "s": _int64(2, 8, 6)}, [expect("w", w, use)])


@case
def reshape_splits_k_raggedly() -> Built:
    """Two batches of K = 6: the tail belongs to each batch."""
    w = weights(12, 5)
    nodes = [node("Reshape", "w s", "t"), node("MatMul", "x t", "y")]
    use = Use("MatMul", (0,), (1,), splits=2)
    return simple(nodes, {"x": feed(2, 4, 6)}, [("y", 3)], {"w": w, "s": _int64(2, 6, 5)}, [expect("w", w, use)])


@case
def reshape_across_rows() -> Built:
    """(16, 6) read as (12, 8): no axis of the stored tensor is the reduction axis."""
    w = weights(16, 6)
    use = Use("MatMul", (0, 1), (), layout=lambda a: a.reshape(1, 12, 8, 1).transpose(0, 2, 1, 3))
    wanted = expect("w", w, use, reason="not traceable", lenient=True)
    return _to_matmul([node("Reshape", "w s", "r")], {"w": w, "s": _int64(12, 8)}, wanted, k=12)


@case
def reshape_with_zero_and_minus_one() -> Built:
    w = weights(16, 2, 4)
    nodes = [node("Reshape", "w s", "r")]
    return _to_matmul(nodes, {"w": w, "s": _int64(0, -1)}, expect("w", w, Use("MatMul", (0,), (1, 2))))


@case
def reshape_of_pointwise_conv() -> Built:
    w = weights(6, 16, 1, 1)
    nodes = [node("Reshape", "w s", "t"), node("Gemm", "x t", "y", transB=1)]
    use = Use("Gemm", (1,), (0,))
    return simple(nodes, {"x": feed(4, 16)}, [("y", 2)], {"w": w, "s": _int64(6, 16)}, [expect("w", w, use)])


@case
def reshape_with_shape_attribute() -> Built:
    """Opset 1 to 4 kept the shape in an attribute."""
    w = weights(2, 8, 6)
    nodes = [node("Reshape", "w", "r", shape=[16, 6])]
    built = _to_matmul(nodes, {"w": w}, expect("w", w, Use("MatMul", (0, 1), (2,))), opset=4)
    return Built(built.model, built.feeds, built.expected, runs=False)


@case
def squeeze_attribute() -> Built:
    w = weights(1, 16, 1, 8)
    nodes = [node("Squeeze", "w", "r", axes=[0, 2])]
    return _to_matmul(nodes, {"w": w}, expect("w", w, Use("MatMul", (1,), (3,))), opset=11)


@case
def squeeze_input() -> Built:
    w = weights(16, 1, 8)
    nodes = [node("Squeeze", "w a", "r")]
    return _to_matmul(nodes, {"w": w, "a": _int64(-2)}, expect("w", w, Use("MatMul", (0,), (2,))))


@case
def squeeze_everything_of_one() -> Built:
    w = weights(1, 16, 8, 1)
    return _to_matmul([node("Squeeze", "w", "r")], {"w": w}, expect("w", w, Use("MatMul", (1,), (2,))))


@case
def unsqueeze_attribute() -> Built:
    w = weights(16, 8)
    nodes = [node("Unsqueeze", "w", "u", axes=[0]), node("MatMul", "x u", "y")]
    use = Use("MatMul", (0,), (1,))
    return simple(nodes, {"x": feed(4, 16)}, [("y", 3)], {"w": w}, [expect("w", w, use)], opset=11)


def _cast(stored: type, opset: int) -> Built:
    w = weights(16, 8).astype(stored)
    nodes = [node("Cast", "w", "r", to=TensorProto.FLOAT)]
    wanted = expect("w", w.astype(np.float32), Use("MatMul", (0,), (1,)), dtype=np.dtype(stored).name)
    return _to_matmul(nodes, {"w": w}, wanted, opset=opset)


add("cast_from_float16", "chains", functools.partial(_cast, np.float16, 17))
add("cast_from_float64", "chains", functools.partial(_cast, np.float64, 13))


@case
def dequantize_then_transpose() -> Built:
    w, scale, zero = codes(8, 16), np.float32(0.02), np.int8(3)
    nodes = [node("DequantizeLinear", "w s z", "d"), node("Transpose", "d", "r")]
    wanted = expect(
        "w", (w.astype(np.float32) - 3) * scale, Use("MatMul", (1,), (0,)), dtype="int8", zero=np.asarray(zero)
    )
    return _to_matmul(nodes, {"w": w, "s": np.asarray(scale), "z": np.asarray(zero)}, wanted)


@case
def transpose_then_dequantize_per_channel() -> Built:
    """The axis of the scale is an axis after the Transpose."""
    w, scale = codes(8, 16), np.linspace(0.01, 0.3, 8, dtype=np.float32)
    zero = np.arange(8, dtype=np.int8) - 3
    nodes = [node("Transpose", "w", "t"), node("DequantizeLinear", "t s z", "r", axis=1)]
    real = (w.astype(np.float32) - zero[:, None]) * scale[:, None]
    wanted = expect("w", real, Use("MatMul", (1,), (0,)), dtype="int8", zero=zero[:, None])
    return _to_matmul(nodes, {"w": w, "s": scale, "z": zero}, wanted)


@case
def quantize_dequantize_of_floats() -> Built:
    """Quantisation-aware training: float weight, Q, DQ. The stored floats are pruned."""
    w = weights(16, 8)
    stored = {"w": w, "s": np.float32(0.02), "z": np.int8(0)}
    stored = {name: np.asarray(value) for name, value in stored.items()}
    nodes = [node("QuantizeLinear", "w s z", "q"), node("DequantizeLinear", "q s z", "r")]
    return _to_matmul(nodes, stored, expect("w", w, Use("MatMul", (0,), (1,))))


@case
def everything_at_once() -> Built:
    """float16 (2, out, 8): Cast, Identity, Transpose, Q, DQ, Reshape to (16, out), Unsqueeze, Squeeze."""
    w = weights(2, 6, 8).astype(np.float16)
    nodes = [
        node("Cast", "w", "c", to=TensorProto.FLOAT),
        node("Identity", "c", "i"),
        node("Transpose", "i", "t", perm=[0, 2, 1]),
        node("QuantizeLinear", "t sc zp", "q"),
        node("DequantizeLinear", "q sc zp", "d"),
        node("Reshape", "d s", "e"),
        node("Unsqueeze", "e a", "u"),
        node("Squeeze", "u a", "r"),
    ]
    stored = {
        "w": w,
        "sc": np.asarray(np.float32(0.02)),
        "zp": np.asarray(np.int8(0)),
        "s": _int64(16, 6),
        "a": _int64(0),
    }
    return _to_matmul(nodes, stored, expect("w", w.astype(np.float32), Use("MatMul", (0, 2), (1,)), dtype="float16"))


def _lost(middle: Sequence[NodeProto], stored: dict, shape: Sequence[int], k: int = 16) -> Built:  # type: ignore[type-arg]
    """A weight that is computed with before it is used: it stays dense, and says so."""
    w = weights(*shape)
    return _to_matmul(middle, {"w": w, **stored}, expect("w", w, reason="not traceable", lenient=True), k=k)


LOST = {
    "through_split": ([node("Split", "w", "r r2", axis=1)], {}, (16, 12)),
    "through_slice": ([node("Slice", "w a b", "r")], {"a": _int64(0, 0), "b": _int64(16, 6)}, (20, 8)),
    "through_concat": ([node("Concat", "w v", "r", axis=0)], {"v": weights(8, 6, seed=3)}, (8, 6)),
    "through_weight_norm": (
        [node("ReduceL2", "w", "n", axes=[0]), node("Div", "w n", "d"), node("Mul", "d gain", "r")],
        {"gain": np.linspace(0.5, 2, 6, dtype=np.float32)},
        (16, 6),
    ),
    "through_lora_add": (
        [node("MatMul", "la lb", "d"), node("Add", "w d", "r")],
        {"la": weights(16, 2, seed=3), "lb": weights(2, 6, seed=4)},
        (16, 6),
    ),
    "through_pad": ([node("Pad", "w p", "r")], {"p": _int64(0, 0, 4, 0)}, (12, 6)),
    "reshape_by_computed_shape": ([node("Shape", "w", "s"), node("Reshape", "w s", "r")], {}, (16, 6)),
}
for _name, (_middle, _stored, _shape) in LOST.items():
    add(_name, "chains", functools.partial(_lost, _middle, _stored, _shape))
