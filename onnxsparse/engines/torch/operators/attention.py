"""Attention as a torch function, with masks, caches and shared heads."""

from __future__ import annotations

import math

import torch

from onnxsparse.engines.torch.operators.values import DTYPES, Outputs, Tensor


def Attention(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> Outputs:
    flat = Q.dim() == 3
    if flat:
        assert q_num_heads is not None
        assert kv_num_heads is not None
        Q, K, V = heads(Q, q_num_heads), heads(K, kv_num_heads), heads(V, kv_num_heads)
    if past_key is not None:
        K, V = torch.cat([past_key, K], 2), torch.cat([past_value, V], 2)
    offset = past_key.shape[2] if past_key is not None else 0
    if past_key is None and nonpad_kv_seqlen is not None:
        offset = (nonpad_kv_seqlen.reshape(-1, 1, 1, 1) - Q.shape[2]).to(Q.device)
    allowed = between(Q, K, offset, 0 if is_causal else right_window_size, left_window_size)
    if is_causal and right_window_size >= 0:
        allowed = allowed & between(Q, K, offset, right_window_size, -1)
    if nonpad_kv_seqlen is not None:
        allowed = allowed & (torch.arange(K.shape[2], device=Q.device) < nonpad_kv_seqlen.reshape(-1, 1, 1, 1))
    bias = _bias(Q, K, attn_mask, allowed)
    raw = scores(Q, K, scale)
    capped = softcap * torch.tanh(raw / softcap) if softcap else raw
    biased = capped + bias
    probable = _softmax(biased, bias, softmax_precision).to(Q.dtype)
    Y = probable @ _repeated(V, Q)
    shown = (raw if not softcap else capped, capped, biased, probable)[qk_matmul_output_mode]
    return (unheads(Y) if flat else Y), K, V, shown.to(Q.dtype)


def heads(x: Tensor, count: int) -> Tensor:
    """(batch, steps, heads * width) as (batch, heads, steps, width)."""
    return x.reshape(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def unheads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def _repeated(x: Tensor, Q: Tensor) -> Tensor:
    """Each head of keys or values, for all heads of queries that share it."""
    return x if x.shape[1] == Q.shape[1] else x.repeat_interleave(Q.shape[1] // x.shape[1], 1)


def scores(Q: Tensor, K: Tensor, scale: float | None) -> Tensor:
    factor = scale or 1 / math.sqrt(Q.shape[-1])
    return (Q * math.sqrt(factor)) @ (_repeated(K, Q) * math.sqrt(factor)).transpose(-1, -2)


def between(Q: Tensor, K: Tensor, offset: int | Tensor, right: int, left: int) -> Tensor:
    """Which keys a query may see: from `left` before it to `right` after it, -1 for all."""
    ahead = torch.arange(K.shape[2], device=Q.device) - torch.arange(Q.shape[2], device=Q.device)[:, None] - offset
    allowed = torch.ones_like(ahead, dtype=torch.bool)
    allowed = allowed & (ahead <= right) if right >= 0 else allowed
    return allowed & (ahead >= -left) if left >= 0 else allowed


def _bias(Q: Tensor, K: Tensor, mask: Tensor | None, allowed: Tensor) -> Tensor:
    minus = torch.full((), -math.inf, dtype=Q.dtype, device=Q.device)
    bias = torch.where(allowed, torch.zeros_like(minus), minus)
    if mask is None:
        return bias
    if mask.dtype == torch.bool:
        mask = torch.where(mask, torch.zeros_like(minus), minus)
    short = K.shape[2] - mask.shape[-1]
    if short > 0:
        mask = torch.nn.functional.pad(mask, (0, short), value=-math.inf)
    return bias + mask


def _softmax(biased: Tensor, bias: Tensor, precision: int | None) -> Tensor:
    """A query that may see nothing gets nothing."""
    hidden = torch.isneginf(bias.amax(-1, keepdim=True))
    exact = biased if precision is None else biased.to(DTYPES[precision])
    found = torch.softmax(torch.where(hidden, torch.zeros_like(exact), exact), -1)
    return torch.where(hidden, torch.zeros_like(found), found)


def RotaryEmbedding(
    X: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    x = heads(X, num_heads) if X.dim() == 3 else X
    cos, sin = (cos_cache, sin_cache) if position_ids is None else (cos_cache[position_ids], sin_cache[position_ids])
    width = rotary_embedding_dim or x.shape[-1]
    turned = rotated(x[..., :width], cos.unsqueeze(1), sin.unsqueeze(1), bool(interleaved))
    y = torch.cat([turned, x[..., width:]], -1)
    return unheads(y) if X.dim() == 3 else y


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    if interleaved:
        one, other = x[..., 0::2], x[..., 1::2]
        return torch.stack([cos * one - sin * other, sin * one + cos * other], -1).flatten(-2)
    one, other = x.chunk(2, -1)
    return torch.cat([cos * one - sin * other, sin * one + cos * other], -1)
