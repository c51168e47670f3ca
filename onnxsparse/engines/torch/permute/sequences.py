"""Attention, transformers and recurrent layers of torch as operators of ONNX; gates lie in another order there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.permute.emitter import Call, Emitter, Made, NotHereError, Value, functions, layers
from onnxsparse.engines.torch.permute.layers import layer_normed
from onnxsparse.engines.torch.permute.layout import reduced_over
from onnxsparse.graph.torch_match import GATES


@functions("scaled_dot_product_attention")
def attention(emitter: Emitter, call: Call) -> Value:
    query, key, value = call.tensor(0, "query"), call.tensor(1, "key"), call.tensor(2, "value")
    if call.get(7, "enable_gqa", False):
        raise NotHereError
    mask = call.get(3, "attn_mask")
    return _attended(emitter, query, key, value, [mask] if isinstance(mask, Value) else [])[0]


def _attended(emitter: Emitter, query: Value, key: Value, value: Value, masks: Sequence[Value]) -> tuple[Value, Value]:
    last = key.rank - 1
    scores = emitter.matmul(query, emitter.turned(key, [*range(last - 1), last, last - 1]))
    for mask in masks:
        scores = emitter.new("Add", [scores, mask], scores.shape)
    weights = emitter.new("Softmax", [scores], scores.shape, axis=-1)
    return emitter.matmul(weights, value), weights


@layers("MultiheadAttention")
def multihead_attention(emitter: Emitter, call: Call) -> Made:
    query, key, value = call.tensor(0, "query"), call.tensor(1, "key"), call.tensor(2, "value")
    mask, padding = call.get(5, "attn_mask"), call.get(3, "key_padding_mask")
    masks = [one for one in (mask, padding) if isinstance(one, Value)]
    made, weights = _multihead(emitter, call.layer, call.path, query, key, value, masks)
    if not isinstance(call.result[1], tuple):
        return [made, None]
    shape = call.result[1][0]
    return [made, weights if len(shape) == 4 else reduced_over(emitter, weights, 1, shape)]


def _multihead(
    emitter: Emitter, layer: Any, path: str, query: Value, key: Value, value: Value, masks: Sequence[Value]
) -> tuple[Value, Value]:
    if query.rank != 3 or layer.bias_k is not None or layer.add_zero_attn:
        raise NotHereError
    projected = _projected(emitter, layer, path, (query, key, value))
    first, second = (0, 1) if layer.batch_first else (1, 0)
    apart = []
    for one in projected:
        cut = emitter.reshaped(one, (*one.shape[:2], layer.num_heads, layer.head_dim))
        apart.append(emitter.turned(cut, (first, 2, second, 3)))
    shaped = [_mask(emitter, one, query.shape[first], layer.num_heads) for one in masks]
    made, weights = _attended(emitter, apart[0], apart[1], apart[2], shaped)
    back = emitter.turned(made, (0, 2, 1, 3) if layer.batch_first else (2, 0, 1, 3))
    whole = emitter.reshaped(back, query.shape)
    bias = emitter.parameter(f"{path}.out_proj.bias") if layer.out_proj.bias is not None else None
    return emitter.linear(whole, emitter.parameter(f"{path}.out_proj.weight"), bias), weights


def _mask(emitter: Emitter, mask: Value, batch: int | None, heads: int) -> Value:
    """Over (batch, heads, query, key): of all heads together, of the keys alone, or of every head."""
    if mask.rank == 3:
        return emitter.reshaped(mask, (batch, heads, *mask.shape[1:]))
    return mask if mask.rank == 2 else emitter.reshaped(mask, (batch, 1, 1, mask.shape[-1]))


def _projected(emitter: Emitter, layer: Any, path: str, inputs: tuple[Value, Value, Value]) -> list[Value]:
    bias = emitter.parameter(f"{path}.in_proj_bias") if layer.in_proj_bias is not None else None
    width = layer.embed_dim
    if layer.in_proj_weight is None:
        weights = [emitter.parameter(f"{path}.{name}_proj_weight") for name in "qkv"]
    elif inputs[0] is inputs[1] is inputs[2]:
        whole = emitter.linear(inputs[0], emitter.parameter(f"{path}.in_proj_weight"), bias)
        return emitter.split(whole, 2, [width] * 3)
    else:
        weights = emitter.split(emitter.parameter(f"{path}.in_proj_weight"), 0, [width] * 3)
    biases = [None] * 3 if bias is None else emitter.split(bias, 0, [width] * 3)
    return [emitter.linear(one, weight, added) for one, weight, added in zip(inputs, weights, biases)]


@layers("TransformerEncoderLayer")
def encoder_layer(emitter: Emitter, call: Call) -> Value:
    masks = [one for one in (call.get(1, "src_mask"), call.get(2, "src_key_padding_mask")) if isinstance(one, Value)]
    return _encoded(emitter, call.layer, call.path, call.tensor(0, "src"), masks)


def _encoded(emitter: Emitter, layer: Any, path: str, value: Value, masks: Sequence[Value]) -> Value:
    def attend(one: Value) -> Value:
        return _multihead(emitter, layer.self_attn, f"{path}.self_attn", one, one, one, masks)[0]

    def feed(one: Value) -> Value:
        return _fed(emitter, layer, path, one)

    for norm, part in (("norm1", attend), ("norm2", feed)):
        value = _beside(emitter, layer, path, norm, part, value)
    return value


def _beside(emitter: Emitter, layer: Any, path: str, norm: str, part: Callable[[Value], Value], value: Value) -> Value:
    """A part of a transformer with what goes by it, normed before or behind."""
    if layer.norm_first:
        return emitter.new("Add", [value, part(_norm(emitter, layer, path, norm, value))], value.shape)
    return _norm(emitter, layer, path, norm, emitter.new("Add", [value, part(value)], value.shape))


def _norm(emitter: Emitter, layer: Any, path: str, name: str, value: Value) -> Value:
    norm = getattr(layer, name)
    if type(norm) is not torch().nn.LayerNorm:
        raise NotHereError
    held = [emitter.parameter(f"{path}.{name}.{one}") for one, number in norm.named_parameters() if number is not None]
    return layer_normed(emitter, value, norm.normalized_shape, *held)


def _fed(emitter: Emitter, layer: Any, path: str, value: Value) -> Value:
    for name in ("linear1", "linear2"):
        bias = emitter.parameter(f"{path}.{name}.bias") if getattr(layer, name).bias is not None else None
        value = emitter.linear(value, emitter.parameter(f"{path}.{name}.weight"), bias)
        value = emitter.new("Relu", [value], value.shape) if name == "linear1" else value
    return value


@layers("TransformerDecoderLayer")
def decoder_layer(emitter: Emitter, call: Call) -> Value:
    masks = [one for one in call.tensors if one not in (call.args[0], call.args[1])]
    if masks:
        raise NotHereError
    return _decoded(emitter, call.layer, call.path, call.tensor(0, "tgt"), call.tensor(1, "memory"))


def _decoded(emitter: Emitter, layer: Any, path: str, value: Value, memory: Value) -> Value:
    def attend(one: Value) -> Value:
        return _multihead(emitter, layer.self_attn, f"{path}.self_attn", one, one, one, ())[0]

    def look(one: Value) -> Value:
        return _multihead(emitter, layer.multihead_attn, f"{path}.multihead_attn", one, memory, memory, ())[0]

    def feed(one: Value) -> Value:
        return _fed(emitter, layer, path, one)

    for norm, part in (("norm1", attend), ("norm2", look), ("norm3", feed)):
        value = _beside(emitter, layer, path, norm, part, value)
    return value


@layers("TransformerEncoder")
def encoder(emitter: Emitter, call: Call) -> Value:
    masks = [one for one in (call.get(1, "mask"), call.get(2, "src_key_padding_mask")) if isinstance(one, Value)]
    return _whole_encoder(emitter, call.layer, call.path, call.tensor(0, "src"), masks)


@layers("TransformerDecoder")
def decoder(emitter: Emitter, call: Call) -> Value:
    if len(call.tensors) > 2:
        raise NotHereError
    return _whole_decoder(emitter, call.layer, call.path, call.tensor(0, "tgt"), call.tensor(1, "memory"))


@layers("Transformer")
def transformer(emitter: Emitter, call: Call) -> Value:
    if len(call.tensors) > 2:
        raise NotHereError
    encoded = _whole_encoder(emitter, call.layer.encoder, f"{call.path}.encoder", call.tensor(0, "src"), ())
    return _whole_decoder(emitter, call.layer.decoder, f"{call.path}.decoder", call.tensor(1, "tgt"), encoded)


def _whole_encoder(emitter: Emitter, whole: Any, path: str, value: Value, masks: Sequence[Value]) -> Value:
    for at, layer in enumerate(whole.layers):
        value = _encoded(emitter, layer, f"{path}.layers.{at}", value, masks)
    return value if whole.norm is None else _norm(emitter, whole, path, "norm", value)


def _whole_decoder(emitter: Emitter, whole: Any, path: str, value: Value, memory: Value) -> Value:
    for at, layer in enumerate(whole.layers):
        value = _decoded(emitter, layer, f"{path}.layers.{at}", value, memory)
    return value if whole.norm is None else _norm(emitter, whole, path, "norm", value)


# -- recurrent layers


@layers("LSTM", "GRU", "RNN")
def recurrent(emitter: Emitter, call: Call) -> Made:
    """From a state of zeros; one that is given, and a projection of it, are another thing."""
    layer, value = call.layer, call.tensor()
    if value.rank != 3 or len(call.tensors) > 1 or layer.proj_size:
        raise NotHereError
    value = emitter.turned(value, (1, 0, 2)) if layer.batch_first else value
    states: list[list[Value]] = []
    for depth in range(layer.num_layers):
        value, *ends = _one_layer(emitter, call, value, depth)
        states.append(ends)
    value = emitter.turned(value, (1, 0, 2)) if layer.batch_first else value
    if call.only_first:
        return [value, None]
    last = [_stacked(emitter, [one[at] for one in states]) for at in range(len(states[0]))]
    return [value, last[0] if len(last) == 1 else last]


def _one_layer(emitter: Emitter, call: Call, value: Value, depth: int) -> list[Value]:
    layer, ways = call.layer, 2 if call.layer.bidirectional else 1
    ends = [f"_l{depth}", f"_l{depth}_reverse"][:ways]
    weights = [_stacked(emitter, [_of(emitter, call, f"weight_{kind}{end}") for end in ends]) for kind in ("ih", "hh")]
    bias = _biases(emitter, call, ends) if layer.bias else None
    length, batch, hidden = value.shape[0], value.shape[1], layer.hidden_size
    state = ((ways, batch, hidden), "float32")
    kind = type(layer).__name__
    made = emitter.several(
        kind, [value, *weights, bias],
        [((length, ways, batch, hidden), "float32"), state, *([state] if kind == "LSTM" else [])],
        hidden_size=hidden, direction="bidirectional" if ways == 2 else "forward",
    )  # fmt: skip
    beside = emitter.turned(made[0], (0, 2, 1, 3))
    return [emitter.reshaped(beside, (length, batch, ways * hidden)), *made[1:]]


def _of(emitter: Emitter, call: Call, name: str) -> Value:
    """A parameter with its gates in the order of ONNX, of one direction."""
    one = emitter.own(call, name)
    if one is None or not one.shape[0]:
        raise NotHereError
    order = GATES.get(type(call.layer).__name__.lower())
    if order is not None:
        parts = emitter.split(one, 0, [one.shape[0] // len(order)] * len(order))
        one = emitter.new("Concat", [parts[at] for at in order], one.shape, axis=0)
    return emitter.reshaped(one, (1, *one.shape))


def _biases(emitter: Emitter, call: Call, ends: Sequence[str]) -> Value:
    rows = []
    for end in ends:
        pair: list[Any] = [_of(emitter, call, f"bias_{kind}{end}") for kind in ("ih", "hh")]
        rows.append(emitter.new("Concat", pair, (1, 2 * pair[0].shape[1]), axis=1))
    return _stacked(emitter, rows)


def _stacked(emitter: Emitter, parts: Sequence[Value]) -> Value:
    shape = (sum(one.shape[0] or 0 for one in parts), *parts[0].shape[1:])
    return parts[0] if len(parts) == 1 else emitter.new("Concat", list(parts), shape, axis=0)
