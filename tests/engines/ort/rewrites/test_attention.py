from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxsparse.engines.ort import library
from tests.engines.ort.rewrites.harness import Case, check, refused
from tests.engines.ort.rewrites.numbers import floats

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
MS = "com.microsoft"

B, S, WIDTH, HEADS = 2, 3, 8, 2

MASKS: dict[str, Any] = {
    "lengths": [2, 3],
    "keys": [[1, 1, 0], [1, 1, 1]],
    "queries": [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]] * 2,
}


def packed(*more: Any) -> list[Any]:
    return [floats(B, S, WIDTH), 0.4 * floats(WIDTH, 3 * WIDTH), floats(3 * WIDTH), *more]


def apart(keys: int, *more: Any) -> list[Any]:
    return [floats(B, S, WIDTH), floats(B, keys, WIDTH), floats(B, keys, 6), *more]


def options(**more: Any) -> dict[str, Any]:
    return {"num_heads": HEADS, **more}


@pytest.mark.parametrize("more", [{}, {"scale": 0.9}, {"unidirectional": 1}])
def test_attention(more: dict[str, Any]) -> None:
    check(Case("Attention", packed(), options(**more), domain=MS))


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str, causal: int) -> None:
    given = options(unidirectional=causal, mask_filter_value=-100.0)
    check(Case("Attention", packed(np.array(MASKS[mask], np.int32)), given, domain=MS))


def test_widths_of_their_own_and_a_bias_of_the_scores() -> None:
    inputs = [floats(B, S, WIDTH), floats(WIDTH, 20), floats(20)]
    check(Case("Attention", inputs, options(qkv_hidden_sizes=[8, 8, 4]), domain=MS))
    check(Case("Attention", packed(None, None, floats(B, HEADS, S, S)), options(), domain=MS))


def test_what_attention_refuses() -> None:
    past = floats(2, B, HEADS, 2, WIDTH // HEADS)
    case = Case("Attention", packed(None, past), options(), outputs=("y", "present"), domain=MS)
    assert refused(case) == ["com.microsoft:Attention tried: it keeps the state of earlier calls"]
    square = np.ones((B, 1, S, S), np.int32)
    case = Case("Attention", packed(square), options(), domain=MS)
    assert "the form of its mask is not known" in refused(case)[0]


@pytest.mark.parametrize("keys", [3, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_many_heads(keys: int, bias: bool) -> None:
    check(Case("MultiHeadAttention", apart(keys, floats(22) if bias else None), options(), domain=MS))
    scores = floats(B, HEADS, S, keys)
    check(Case("MultiHeadAttention", apart(keys, None, None, scores), options(), domain=MS))


@pytest.mark.parametrize("mask", ["lengths", "keys"])
def test_masks_of_many_heads(mask: str) -> None:
    # With as many keys as queries: the runtime's own kernel reads the mask wrongly otherwise.
    check(Case("MultiHeadAttention", apart(S, None, np.array(MASKS[mask], np.int32)), options(), domain=MS))


def test_later_keys() -> None:
    check(Case("MultiHeadAttention", apart(S), options(unidirectional=1), domain=MS))


def embedding(*more: Any) -> list[Any]:
    words, kinds = np.array([[0, 2, 1], [3, 3, 4]], np.int32), np.array([[0, 0, 1], [1, 0, 0]], np.int32)
    return [words, kinds, floats(5, 8), floats(6, 8), floats(2, 8), floats(8), floats(8), *more]


@pytest.mark.parametrize("opset", [16, 17])
def test_embeddings(opset: int) -> None:
    inputs = embedding(None, np.array([[2, 1, 0], [0, 1, 5]], np.int32))
    given = {"epsilon": 1e-3}
    check(Case("EmbedLayerNormalization", inputs, given, outputs=("y", "", "s"), domain=MS, opset=opset))


@pytest.mark.parametrize("mask", [[], [np.array([[1, 1, 0], [1, 1, 1]], np.int32)]])
def test_embeddings_with_fewer_inputs_and_a_mask(mask: list[Any]) -> None:
    inputs = embedding(*mask)
    inputs[1] = inputs[4] = None
    check(Case("EmbedLayerNormalization", inputs, outputs=("y", "m"), domain=MS))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("places", [[[0, 1, 2], [3, 1, 0]], [1]])
@pytest.mark.parametrize("more", [{}, {"num_heads": 2, "rotary_embedding_dim": 2}])
def test_rotations(interleaved: int, places: Any, more: dict[str, int]) -> None:
    half = more.get("rotary_embedding_dim", 4) // 2
    inputs = [floats(B, S, WIDTH), np.array(places, np.int64), floats(6, half), floats(6, half)]
    check(Case("RotaryEmbedding", inputs, {"interleaved": interleaved, **more}, domain=MS, fixed=(2, 3)))


def test_rotations_by_heads() -> None:
    inputs = [floats(B, HEADS, S, 4), np.array([[0, 1, 2], [3, 1, 0]], np.int64), floats(6, 2), floats(6, 2)]
    check(Case("RotaryEmbedding", inputs, domain=MS, fixed=(2, 3)))
