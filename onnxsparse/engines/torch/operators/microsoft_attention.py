"""Fused attention operators of `com.microsoft` as torch functions."""

from __future__ import annotations

import math

import torch

from onnxsparse.engines.torch.operators.attention import between, heads, rotated, scores, unheads
from onnxsparse.engines.torch.operators.values import Outputs, Tensor

_HIDDEN = -10000.0


def Attention(
    input: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    mask_index: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_sequence_length: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = _HIDDEN,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: list[int] | None = None,
    rotary_embedding_dim: int = 0,
    scale: float = 0.0,
    unidirectional: int = 0,
    outputs: int,
) -> Outputs:
    """Queries, keys and values from one product with packed weights."""
    if do_rotary or past_present_share_buffer:
        raise ValueError("Attention with do_rotary or past_present_share_buffer is not supported")
    packed = torch.matmul(input, weights)
    packed = packed if bias is None else packed + bias
    widths = qkv_hidden_sizes or [packed.shape[-1] // 3] * 3
    Q, K, V = (heads(part, num_heads) for part in torch.split(packed, widths, -1))
    if past is not None:
        K, V = torch.cat([past[0], K], 2), torch.cat([past[1], V], 2)
    total = scores(Q, K, scale)
    total = total if attention_bias is None else total + attention_bias
    seen = _seen(mask_index, input.shape[0], K.shape[2], K)
    if unidirectional:
        allowed = between(Q, K, K.shape[2] - Q.shape[2], 0, -1)
        seen = allowed if seen is None else seen & allowed
    total = total if seen is None else torch.where(seen, total, total + mask_filter_value)
    Y = unheads(torch.softmax(total, -1) @ V)
    return (Y, torch.stack([K, V])) if outputs > 1 else (Y,)


def _seen(mask: Tensor | None, batch: int, keys: int, like: Tensor) -> Tensor | None:
    """Lengths, ends and starts, or 0 and 1: as a mask over (batch, heads, queries, keys)."""
    if mask is None:
        return None
    if mask.dim() > 1:
        shown = mask > 0
        return shown[:, None, None, :] if mask.dim() == 2 else shown[:, None] if mask.dim() == 3 else shown
    place = torch.arange(keys, device=like.device)
    shown = place < mask[:batch, None]
    shown = shown & (place >= mask[batch : 2 * batch, None]) if mask.numel() == 2 * batch else shown
    return shown[:, None, None, :]


def MultiHeadAttention(
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    *,
    mask_filter_value: float = _HIDDEN,
    num_heads: int,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> Outputs:
    Q, K, V = _projected(query, key, value, bias, num_heads)
    if past_key is not None and past_value is not None:
        K, V = torch.cat([past_key, K], 2), torch.cat([past_value, V], 2)
    raw = scores(Q, K, scale)
    total = raw if attention_bias is None else raw + attention_bias
    seen = _seen(key_padding_mask, Q.shape[0], K.shape[2], K)
    if unidirectional:
        allowed = between(Q, K, K.shape[2] - Q.shape[2], 0, -1)
        seen = allowed if seen is None else seen & allowed
    total = total if seen is None else torch.where(seen, total, total + mask_filter_value)
    return unheads(torch.softmax(total, -1) @ V), K, V, raw


def _projected(
    query: Tensor, key: Tensor | None, value: Tensor | None, bias: Tensor | None, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Packed or not, with heads in front or behind: always (batch, heads, steps, width)."""
    if query.dim() == 5:
        found = [part.transpose(1, 2) for part in query.unbind(3)]
    elif key is not None and key.dim() == 5:
        found = [heads(query, count), *(part.transpose(1, 2) for part in key.unbind(3))]
    else:
        assert key is not None
        assert value is not None
        found = [heads(query, count), *(one if one.dim() == 4 else heads(one, count) for one in (key, value))]
    if bias is not None:
        widths = [part.shape[1] * part.shape[3] for part in found]
        shifts = torch.split(bias, widths) if bias.numel() == sum(widths) else (bias[: widths[0]],)
        for index, shift in enumerate(shifts):
            found[index] = found[index] + shift.reshape(1, count, 1, -1)
    return found[0], found[1], found[2]


def GroupQueryAttention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    seqlens_k: Tensor,
    total_sequence_length: Tensor,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    *,
    do_rotary: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    softcap: float = 0.0,
) -> Outputs:
    """Causal, over a cache that grows; all samples of the batch as long as the cache."""
    if key is None or value is None:
        width = query.shape[-1] // (num_heads + 2 * kv_num_heads)
        query, key, value = torch.split(query, [num_heads * width, *[kv_num_heads * width] * 2], -1)
    Q, K, V = heads(query, num_heads), heads(key, kv_num_heads), heads(value, kv_num_heads)
    before = 0 if past_key is None else past_key.shape[2]
    if do_rotary and cos_cache is not None and sin_cache is not None:
        place = slice(before, before + Q.shape[2])
        Q, K = (_turn(one, cos_cache[place], sin_cache[place], bool(rotary_interleaved)) for one in (Q, K))
    if past_key is not None:
        K, V = torch.cat([past_key, K], 2), torch.cat([past_value, V], 2)
    total = scores(Q, K, scale)
    total = softcap * torch.tanh(total / softcap) if softcap else total
    seen = between(Q, K, before, 0, local_window_size - 1 if local_window_size > 0 else -1)
    probable = torch.softmax(torch.where(seen, total, torch.full_like(total, -math.inf)), -1)
    return unheads(probable @ V.repeat_interleave(num_heads // kv_num_heads, 1)), K, V


def _turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    width = 2 * cos.shape[-1]
    return torch.cat([rotated(x[..., :width], cos, sin, interleaved), x[..., width:]], -1)


def RotaryEmbedding(
    input: Tensor,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Tensor:
    """Positions are one number, where the first step stands, or one for each step."""
    width = rotary_embedding_dim or 2 * cos_cache.shape[-1]
    count = num_heads or input.shape[-1] // width
    x = heads(input, count) if input.dim() == 3 else input
    places = position_ids
    if position_ids.numel() == 1:
        places = (position_ids.reshape(1) + torch.arange(x.shape[2], device=x.device)).expand(x.shape[0], -1)
    cos, sin = cos_cache[places].unsqueeze(1), sin_cache[places].unsqueeze(1)
    turned = torch.cat([rotated(x[..., :width], cos, sin, bool(interleaved)), x[..., width:]], -1)
    return unheads(turned) if input.dim() == 3 else turned
