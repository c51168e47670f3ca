"""The fused operators of com.microsoft compute what onnxruntime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from onnx import helper

from onnxsparse.torch import to_module
from tests.engines.torch.running import MICROSOFT, Array, apply, assert_equal, model, numbers, runtime

B, S, H, N = 2, 5, 16, 4


def ids(*shape: int, top: int = 6) -> Array:
    return np.random.default_rng(1).integers(0, top, shape).astype(np.int32)


def scales(*shape: int) -> Array:
    return np.abs(numbers(*shape, seed=3)) + np.float32(0.5)


X = numbers(B, S, H)
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
QKV = [numbers(B, S, H, seed=seed) for seed in (1, 2, 3)]
PAST = [numbers(B, N, 3, H // N, seed=seed) for seed in (4, 5)]
IMAGE, KERNEL = numbers(2, 4, 7, 7), numbers(6, 4, 3, 3, seed=1)
WIDE_COS, WIDE_SIN = np.cos(numbers(12, 8)), np.sin(numbers(12, 8))
COS, SIN = np.cos(numbers(12, 2)), np.sin(numbers(12, 2))

GROUPED = [
    *(numbers(B, S, 64), numbers(B, S, 32), numbers(B, S, 32, seed=2)),
    *(None, None, np.array([4, 4], np.int32), np.array(5, np.int32)),
]

# operator, inputs (None for one left out), attributes, how many outputs
Case = tuple[str, list[Any], dict[str, Any], int]
CASES: list[Case] = [
    ("Gelu", [X], {}, 1),
    ("FastGelu", [X], {}, 1),
    ("FastGelu", [X, numbers(H)], {}, 1),
    ("QuickGelu", [X], {"alpha": 1.5}, 1),
    ("BiasGelu", [X, numbers(H)], {}, 1),
    ("FusedMatMul", [X, numbers(H, 7)], {"alpha": 0.5}, 1),
    ("FusedMatMul", [X, numbers(B, S, 7)], {"transA": 1}, 1),
    ("FusedMatMul", [X, numbers(B, 7, H)], {"transB": 1}, 1),
    ("FusedMatMul", [numbers(5, 3, 2, 4), numbers(3, 2, 5, 4)], {"transBatchA": 1, "transB": 1}, 1),
    ("TransposeMatMul", [X, numbers(B, 7, H)], {"transB": 1, "alpha": 2.0}, 1),
    ("FusedGemm", [numbers(3, 4), numbers(5, 4), numbers(5)], {"transB": 1, "activation": "Relu"}, 1),
    (
        "FusedGemm",
        [numbers(3, 4), numbers(4, 5), numbers(5)],
        {"activation": "LeakyRelu", "activation_alpha": 0.1, "alpha": 0.5},
        1,
    ),
    ("FusedConv", [IMAGE, KERNEL, numbers(6)], {"activation": "Relu", "pads": [1, 1, 1, 1]}, 1),
    ("FusedConv", [IMAGE, KERNEL, numbers(6), numbers(2, 6, 5, 5)], {"activation": "Relu"}, 1),
    ("FusedConv", [IMAGE, KERNEL], {"activation": "Clip", "activation_params": [-0.5, 0.5]}, 1),
    ("FusedConv", [IMAGE, KERNEL], {"activation": "HardSigmoid", "activation_params": [0.2, 0.4]}, 1),
    ("SkipLayerNormalization", [X, numbers(B, S, H, seed=1), scales(H), numbers(H)], {"epsilon": 1e-5}, 1),
    ("SkipLayerNormalization", [X, numbers(B, S, H, seed=1), scales(H), None, numbers(H)], {}, 4),
    ("SkipSimplifiedLayerNormalization", [X, numbers(B, S, H, seed=1), scales(H), numbers(H)], {}, 4),
    (
        "EmbedLayerNormalization",
        [ids(B, S), ids(B, S, top=2), numbers(9, H), numbers(8, H), numbers(2, H), scales(H), numbers(H), MASK],
        {},
        3,
    ),
    ("EmbedLayerNormalization", [ids(B, S), None, numbers(9, H), numbers(8, H), None, scales(H), numbers(H)], {}, 2),
    ("Attention", [X, numbers(H, 3 * H), numbers(3 * H)], {"num_heads": N}, 1),
    ("Attention", [X, numbers(H, 3 * H), numbers(3 * H), MASK], {"num_heads": N}, 1),
    ("Attention", [X, numbers(H, 3 * H), numbers(3 * H), np.array([3, 5], np.int32)], {"num_heads": N}, 1),
    ("Attention", [X, numbers(H, 3 * H), numbers(3 * H)], {"num_heads": N, "unidirectional": 1}, 1),
    ("Attention", [X, numbers(H, 48), numbers(48)], {"num_heads": N, "qkv_hidden_sizes": [12, 12, 24]}, 1),
    (
        "Attention",
        [X, numbers(H, 3 * H), numbers(3 * H), None, numbers(2, B, N, 3, H // N)],
        {"num_heads": N, "unidirectional": 1},
        2,
    ),
    ("MultiHeadAttention", QKV, {"num_heads": N}, 1),
    ("MultiHeadAttention", [*QKV, numbers(3 * H)], {"num_heads": N, "scale": 0.3}, 1),
    ("MultiHeadAttention", [*QKV, None, MASK], {"num_heads": N}, 1),
    ("MultiHeadAttention", [*QKV, None, None, numbers(1, N, S, S)], {"num_heads": N}, 1),
    ("MultiHeadAttention", [*QKV, None, None, None, *PAST], {"num_heads": N}, 3),
    ("MultiHeadAttention", QKV, {"num_heads": N, "unidirectional": 1}, 1),
    ("RotaryEmbedding", [X, np.array([2], np.int64), COS, SIN], {}, 1),
    ("RotaryEmbedding", [X, ids(B, S).astype(np.int64), COS, SIN], {"interleaved": 1}, 1),
    (
        "GroupQueryAttention",
        GROUPED,
        {"num_heads": N, "kv_num_heads": 2},
        1,
    ),
    (
        "GroupQueryAttention",
        [*GROUPED, WIDE_COS, WIDE_SIN],
        {"num_heads": N, "kv_num_heads": 2, "do_rotary": 1, "local_window_size": 3},
        1,
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{len(case[1])}-{'-'.join(case[2])}")
def test_a_fused_operator(case: Case) -> None:
    operator, inputs, attributes, count = case
    feeds = {f"i{index}": one for index, one in enumerate(inputs) if one is not None}
    names = [f"i{index}" if one is not None else "" for index, one in enumerate(inputs)]
    outputs = [f"y{index}" for index in range(count)]
    made = [name if index in (0, count - 1) or "Attention" in operator or "Embed" in operator else ""
            for index, name in enumerate(outputs)]  # fmt: skip
    node = helper.make_node(operator, names, made, domain=MICROSOFT, **attributes)
    proto = model([node], feeds, outputs=[name for name in made if name], fixed=True)
    try:
        wanted = runtime(proto, feeds)
    except Exception as error:
        pytest.skip(f"onnxruntime does not run it: {error}".splitlines()[0][:200])
    for got, one in zip(apply(to_module(proto), feeds), wanted):
        assert_equal(got, one)
