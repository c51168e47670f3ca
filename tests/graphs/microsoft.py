"""The operators of com.microsoft that hold a weight."""

from __future__ import annotations

import functools

import numpy as np
from onnx import TensorProto

from .case import MICROSOFT, Array, Built, Use, add, case, codes, expect, feed, node, simple, weights

DOMAIN = "com.microsoft"


def _fused_matmul(entry: tuple[str, str, tuple[int, ...], tuple[int, ...], int, int, int, dict]) -> Built:  # type: ignore[type-arg]
    _, order, shape, x_shape, reduction, out, rank, attributes = entry
    w = weights(*shape)
    product = node("FusedMatMul", order, "y", domain=DOMAIN, **attributes)
    wanted = expect("w", w, Use("FusedMatMul", (reduction,), (out,)))
    return simple([product], {"x": feed(*x_shape)}, [("y", rank)], {"w": w}, [wanted], domains=MICROSOFT)


# name, operands, shape of the weight, of x, reduction axis, out axis, rank of the result, attributes
FUSED = (
    ("fused_matmul_plain", "x w", (16, 8), (4, 16), 0, 1, 2, {"alpha": 0.5}),
    ("fused_matmul_trans_b", "x w", (8, 16), (4, 16), 1, 0, 2, {"transB": 1}),
    ("fused_matmul_left", "w x", (8, 16), (16, 4), 1, 0, 2, {}),
    ("fused_matmul_left_trans_a", "w x", (16, 8), (16, 4), 0, 1, 2, {"transA": 1, "alpha": 2.0}),
    ("fused_matmul_other_side_transposed", "x w", (16, 8), (16, 4), 0, 1, 2, {"transA": 1}),
    ("fused_matmul_rank3", "x w", (3, 6, 8), (3, 4, 8), 2, 1, 3, {"transB": 1}),
    ("fused_matmul_trans_batch_b", "x w", (8, 3, 6), (3, 4, 8), 0, 2, 3, {"transBatchB": 1}),
    ("fused_matmul_trans_batch_and_b", "x w", (6, 3, 8), (3, 4, 8), 2, 0, 3, {"transBatchB": 1, "transB": 1}),
    ("fused_matmul_trans_batch_rank4", "x w", (8, 2, 3, 6), (2, 3, 4, 8), 0, 3, 4, {"transBatchB": 1}),
    ("fused_matmul_trans_batch_a", "w x", (6, 3, 8), (3, 8, 4), 2, 0, 3, {"transBatchA": 1}),
)
for _entry in FUSED:
    add(_entry[0], "microsoft", functools.partial(_fused_matmul, _entry))


@case
def attention() -> Built:
    """One matrix (hidden, 3 * hidden) for q, k and v."""
    w, b = weights(16, 48), weights(48, seed=2)
    layer = node("Attention", "x w b", "y", domain=DOMAIN, num_heads=2)
    wanted = expect("w", w, Use("Attention", (0,), (1,)))
    return simple([layer], {"x": feed(2, 5, 16)}, [("y", 3)], {"w": w, "b": b}, [wanted], domains=MICROSOFT)


def _fused_gemm(trans: int) -> Built:
    w, b = (weights(8, 16) if trans else weights(16, 8)), weights(8, seed=2)
    layer = node("FusedGemm", "x w b", "y", domain=DOMAIN, transB=trans, activation="Tanh")
    wanted = expect("w", w, Use("FusedGemm", (trans,), (1 - trans,)))
    return simple([layer], {"x": feed(4, 16)}, [("y", 2)], {"w": w, "b": b}, [wanted], domains=MICROSOFT)


add("fused_gemm", "microsoft", functools.partial(_fused_gemm, 0))
add("fused_gemm_transposed", "microsoft", functools.partial(_fused_gemm, 1))


def _fused_conv(groups: int) -> Built:
    w, b = weights(6, 8, 3, 3), weights(6, seed=2)
    layer = node("FusedConv", "x w b", "y", domain=DOMAIN, activation="Tanh", group=groups)
    use = Use("FusedConv", (1,), (0,), (2, 3), out_splits=groups)
    feeds = {"x": feed(1, 8 * groups, 5, 5)}
    return simple([layer], feeds, [("y", 4)], {"w": w, "b": b}, [expect("w", w, use)], domains=MICROSOFT)


add("fused_conv", "microsoft", functools.partial(_fused_conv, 1))
add("fused_conv_grouped", "microsoft", functools.partial(_fused_conv, 2))


def _scalar(value: float) -> Array:
    return np.asarray(np.float32(value))


@case
def matmul_integer_to_float() -> Built:
    w, scale, zero = codes(16, 8), np.geomspace(0.01, 0.4, 8).astype(np.float32), np.arange(8, dtype=np.int8)
    layer = node("MatMulIntegerToFloat", "x w xs ws xz wz", "y", domain=DOMAIN)
    stored = {"w": w, "xs": _scalar(0.1), "ws": scale, "xz": np.asarray(np.uint8(120)), "wz": zero}
    real = (w.astype(np.float32) - zero) * scale
    feeds = {"x": codes(4, 16, unsigned=True)}
    wanted = expect("w", real, Use("MatMulIntegerToFloat", (0,), (1,)), dtype="int8", zero=zero)
    return simple([layer], feeds, [("y", 2)], stored, [wanted], domains=MICROSOFT)


@case
def dynamic_quantize_matmul() -> Built:
    w, zero = codes(16, 8, unsigned=True), np.asarray(np.uint8(125))
    layer = node("DynamicQuantizeMatMul", "x w ws wz", "y", domain=DOMAIN)
    real = (w.astype(np.float32) - 125) * np.float32(0.02)
    wanted = expect("w", real, Use("DynamicQuantizeMatMul", (0,), (1,)), dtype="uint8", zero=zero)
    return simple(
        [layer], {"x": feed(4, 16)}, [("y", 2)], {"w": w, "ws": _scalar(0.02), "wz": zero}, [wanted], domains=MICROSOFT
    )


@case
def quantized_attention() -> Built:
    w, b = codes(16, 48), weights(48, seed=2)
    layer = node("QAttention", "x w b xs ws _ xz wz", "y", domain=DOMAIN, num_heads=2)
    stored = {
        "w": w,
        "b": b,
        "xs": _scalar(0.05),
        "ws": _scalar(0.02),
        "xz": np.asarray(np.uint8(120)),
        "wz": np.asarray(np.int8(3)),
    }
    real = (w.astype(np.float32) - 3) * np.float32(0.02)
    feeds = {"x": codes(2, 5, 16, unsigned=True)}
    wanted = expect("w", real, Use("QAttention", (0,), (1,)), dtype="int8", zero=np.asarray(np.int8(3)))
    return simple([layer], feeds, [("y", 3)], stored, [wanted], domains=MICROSOFT)


def _qgemm(trans: int) -> Built:
    w = codes(8, 16) if trans else codes(16, 8)
    layer = node("QGemm", "x xs xz w ws wz b ys yz", "y", domain=DOMAIN, transB=trans)
    middle = np.asarray(np.uint8(120))
    stored = {
        "w": w,
        "xs": _scalar(0.05),
        "xz": middle,
        "ws": _scalar(0.02),
        "wz": np.asarray(np.int8(2)),
        "b": np.arange(8, dtype=np.int32),
        "ys": _scalar(0.2),
        "yz": middle,
    }
    real = (w.astype(np.float32) - 2) * np.float32(0.02)
    wanted = expect("w", real, Use("QGemm", (trans,), (1 - trans,)), dtype="int8", zero=np.asarray(np.int8(2)))
    feeds = {"x": codes(4, 16, unsigned=True)}
    return simple([layer], feeds, [("y", 2, TensorProto.UINT8)], stored, [wanted], domains=MICROSOFT)


add("quantized_gemm", "microsoft", functools.partial(_qgemm, 0))
add("quantized_gemm_transposed", "microsoft", functools.partial(_qgemm, 1))


@case
def gemm_fast_gelu() -> Built:
    """The runtime has it on GPUs only."""
    w, b = weights(16, 8), weights(8, seed=2)
    layer = node("GemmFastGelu", "x w b", "y", domain=DOMAIN)
    wanted = expect("w", w, Use("GemmFastGelu", (0,), (1,)))
    return simple([layer], {"x": feed(4, 16)}, [("y", 2)], {"w": w, "b": b}, [wanted], domains=MICROSOFT, runs=False)
