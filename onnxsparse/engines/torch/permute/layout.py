"""Views, slices, joins, poolings and reductions of torch as operators of ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.permute.emitter import (
    FUNCTIONS,
    Call,
    Emitter,
    Made,
    NotHereError,
    Sizes,
    Value,
    functions,
    layers,
    values_in,
)

# -- pooling and reductions

_POOLS = [
    f"{what}pool{axes}d" for axes in (1, 2, 3) for what in ("max_", "avg_", "adaptive_avg_", "adaptive_max_", "lp_")
]


@functions(*_POOLS, "interpolate", "upsample", "upsample_nearest", "upsample_bilinear")
def spatial(emitter: Emitter, call: Call) -> Value:
    return _spatial(emitter, call, int(call.name[-2]) if call.name[-1] == "d" and call.name[-2].isdigit() else 0)


@layers(
    *(f"{what}Pool{axes}d" for axes in (1, 2, 3) for what in ("Max", "Avg", "AdaptiveAvg", "AdaptiveMax", "LP")),
    "Upsample", "UpsamplingNearest2d", "UpsamplingBilinear2d",
)  # fmt: skip
def spatial_layer(emitter: Emitter, call: Call) -> Value:
    return _spatial(emitter, call, int(call.name[-2]) if "Pool" in call.name else 0)


def _spatial(emitter: Emitter, call: Call, axes: int) -> Value:
    value = call.tensor()
    if value.rank < 3 or (axes and value.rank != axes + 2) or call.shape[:2] != value.shape[:2]:
        raise NotHereError  # without a batch the channels are elsewhere
    return emitter.new(
        "AveragePool" if axes else "Resize", [value], call.shape
    )  # without what sizes could be inferred by


@functions("mean", "sum", "amax", "amin", "prod", "var", "std", "logsumexp", "norm", "all", "any", "nansum", "nanmean",
           "vector_norm")  # fmt: skip
def reduction(emitter: Emitter, call: Call) -> Value:
    place, name = (2, "dim") if call.name in ("norm", "vector_norm") else (1, "dim")
    return reduced_over(emitter, call.tensor(), call.get(place, name), call.shape)


@functions("max", "min")
def extreme(emitter: Emitter, call: Call) -> Made:
    if isinstance(call.get(1, "other"), Value):
        return FUNCTIONS["maximum"](emitter, call)
    if isinstance(call.result, tuple):
        return reduced_over(emitter, call.tensor(), None, call.shape)
    (shape, _), (_, kind) = call.result
    axis = call.get(1, "dim")
    places = emitter.new(
        "ArgMax", [call.tensor()], shape, kind, axis=axis, keepdims=int(len(shape) == call.tensor().rank)
    )
    return [reduced_over(emitter, call.tensor(), axis, shape), places]


@functions("argmax", "argmin")
def place_of_extreme(emitter: Emitter, call: Call) -> Value:
    keeps = int(len(call.shape) == call.tensor().rank)
    return emitter.new("ArgMax", [call.tensor()], call.shape, "int64", axis=int(call.get(1, "dim")), keepdims=keeps)


def reduced_over(emitter: Emitter, value: Value, axes: Any, shape: Sizes) -> Value:
    found = list(range(value.rank)) if axes is None or axes == () else [axes] if isinstance(axes, int) else list(axes)
    if not all(isinstance(axis, int) for axis in found):
        raise NotHereError
    given = emitter.numbers(np.array(found, np.int64))
    return emitter.new("ReduceMean", [value, given], shape, keepdims=int(len(shape) == value.rank))


# -- the same numbers along other axes


@functions("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "ravel", "view_as", "reshape_as")
def reshape(emitter: Emitter, call: Call) -> Value:
    if any(isinstance(one, torch().dtype) for one in call.args):
        raise NotHereError
    return emitter.reshaped(call.tensor(), call.shape)


@layers("Flatten", "Unflatten")
def reshape_layer(emitter: Emitter, call: Call) -> Value:
    return emitter.reshaped(call.tensor(), call.shape)


@functions("transpose", "swapaxes", "swapdims")
def transpose(emitter: Emitter, call: Call) -> Value:
    value = call.tensor()
    one, other = (axis % value.rank for axis in (call.get(1, "dim0"), call.get(2, "dim1")))
    order = list(range(value.rank))
    order[one], order[other] = other, one
    return emitter.turned(value, order)


@functions("permute")
def permute(emitter: Emitter, call: Call) -> Value:
    given = call.args[1:] or (call.kwargs["dims"],)
    axes = given[0] if isinstance(given[0], (tuple, list)) else given
    return emitter.turned(call.tensor(), [axis % call.tensor().rank for axis in axes])


@functions("t")
def t(emitter: Emitter, call: Call) -> Value:
    return emitter.turned(call.tensor(), [*range(call.tensor().rank)][::-1])


@functions("movedim", "moveaxis")
def movedim(emitter: Emitter, call: Call) -> Value:
    value = call.tensor()
    source, target = call.get(1, "source") % value.rank, call.get(2, "destination") % value.rank
    order = [axis for axis in range(value.rank) if axis != source]
    order.insert(target, source)
    return emitter.turned(value, order)


@functions("expand", "expand_as", "broadcast_to")
def expand(emitter: Emitter, call: Call) -> Value:
    sizes = emitter.numbers(np.array([size if isinstance(size, int) else 1 for size in call.shape], np.int64))
    return emitter.new("Expand", [call.tensor(), sizes], call.shape, call.kind)


@functions("repeat", "tile")
def repeat(emitter: Emitter, call: Call) -> Value:
    given = call.args[1] if isinstance(call.args[1], (tuple, list)) else call.args[1:]
    value = call.tensor()
    times = [1] * (value.rank - len(given)) + [int(one) for one in given]
    wide = emitter.reshaped(value, (*[1] * (len(times) - value.rank), *value.shape))
    return emitter.new("Tile", [wide, emitter.numbers(np.array(times, np.int64))], call.shape, call.kind)


@functions("pixel_shuffle")
def pixel_shuffle(emitter: Emitter, call: Call) -> Value:
    return _pixel_shuffle(emitter, call, call.get(1, "upscale_factor"))


@layers("PixelShuffle")
def pixel_shuffle_layer(emitter: Emitter, call: Call) -> Value:
    return _pixel_shuffle(emitter, call, call.layer.upscale_factor)


def _pixel_shuffle(emitter: Emitter, call: Call, block: int) -> Value:
    return emitter.new("DepthToSpace", [call.tensor()], call.shape, blocksize=block, mode="CRD")


@functions("pixel_unshuffle")
def pixel_unshuffle(emitter: Emitter, call: Call) -> Value:
    return _pixel_unshuffle(emitter, call, call.get(1, "downscale_factor"))


@layers("PixelUnshuffle")
def pixel_unshuffle_layer(emitter: Emitter, call: Call) -> Value:
    return _pixel_unshuffle(emitter, call, call.layer.downscale_factor)


def _pixel_unshuffle(emitter: Emitter, call: Call, block: int) -> Value:
    n, c, *_ = call.tensor().shape
    cut = emitter.reshaped(call.tensor(), (n, c, call.shape[2], block, call.shape[3], block))
    return emitter.reshaped(emitter.turned(cut, (0, 1, 3, 5, 2, 4)), call.shape)


@functions("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(emitter: Emitter, call: Call) -> Value:
    return _channel_shuffle(emitter, call, call.get(1, "groups"))


@layers("ChannelShuffle")
def channel_shuffle_layer(emitter: Emitter, call: Call) -> Value:
    return _channel_shuffle(emitter, call, call.layer.groups)


def _channel_shuffle(emitter: Emitter, call: Call, groups: int) -> Value:
    n, c, *rest = call.tensor().shape
    cut = emitter.reshaped(call.tensor(), (n, groups, c // groups, *rest))
    order = [0, 2, 1, *range(3, len(rest) + 3)]
    return emitter.reshaped(emitter.turned(cut, order), call.shape)


# -- some of the numbers, or more of them


@functions("cat", "concat", "concatenate")
def cat(emitter: Emitter, call: Call) -> Value:
    return emitter.new(
        "Concat", list(values_in(call.get(0, "tensors"))), call.shape, call.kind, axis=call.get(1, "dim", 0)
    )


@functions("stack")
def stack(emitter: Emitter, call: Call) -> Value:
    parts, axis = list(values_in(call.get(0, "tensors"))), call.get(1, "dim", 0) % len(call.shape)
    wide = [emitter.reshaped(one, (*one.shape[:axis], 1, *one.shape[axis:])) for one in parts]
    return emitter.new("Concat", wide, call.shape, call.kind, axis=axis)


@functions("chunk", "split", "split_with_sizes", "tensor_split", "unsafe_chunk", "unsafe_split")
def split(emitter: Emitter, call: Call) -> Made:
    axis = call.get(2, "dim", 0)
    return list(emitter.split(call.tensor(), axis, [shape[axis] for shape, _ in call.result]))


@functions("unbind")
def unbind(emitter: Emitter, call: Call) -> Made:
    axis = call.get(1, "dim", 0)
    parts = emitter.split(call.tensor(), axis, [1] * len(call.result))
    return [emitter.reshaped(part, shape) for part, (shape, _) in zip(parts, call.result)]


@functions("select")
def select(emitter: Emitter, call: Call) -> Value:
    value, axis, place = call.tensor(), call.get(1, "dim"), call.get(2, "index")
    cut = _sliced(emitter, value, axis % value.rank, slice(place, place + 1 or None))
    return emitter.reshaped(cut, call.shape)


@functions("narrow")
def narrow(emitter: Emitter, call: Call) -> Value:
    value, axis, start = call.tensor(), call.get(1, "dim"), call.get(2, "start")
    return _sliced(emitter, value, axis % value.rank, slice(start, start + call.get(3, "length")))


@functions("getitem")
def getitem(emitter: Emitter, call: Call) -> Made:
    if isinstance(call.args[0], list):
        found: Made = call.args[0][call.args[1]]
        return found
    value, index = call.tensor(), call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
    if any(isinstance(one, (Value, list, tuple)) for one in index):
        raise NotHereError
    return emitter.reshaped(_indexed(emitter, value, index), call.shape)


def _indexed(emitter: Emitter, value: Value, index: Sequence[Any]) -> Value:
    """The value after its slices; axes that are taken one of stay, with one element."""
    taken = sum(one is not None and one is not Ellipsis for one in index)
    if Ellipsis not in index:
        index = (*index, Ellipsis)
    at = index.index(Ellipsis)
    whole = [*index[:at], *[slice(None)] * (value.rank - taken), *index[at + 1 :]]
    for axis, one in enumerate([one for one in whole if one is not None]):
        if isinstance(one, bool) or not isinstance(one, (int, slice)):
            raise NotHereError
        if isinstance(one, int):
            one = slice(one, one + 1 or None)
        if one != slice(None):
            value = _sliced(emitter, value, axis, one)
    return value


def _sliced(emitter: Emitter, value: Value, axis: int, place: slice) -> Value:
    size = value.shape[axis]
    if not isinstance(size, int) or not all(
        one is None or isinstance(one, int) for one in (place.start, place.stop, place.step)
    ):
        raise NotHereError
    start, stop, step = place.indices(size)
    bounds = [emitter.numbers(np.array([one], np.int64)) for one in (start, stop, axis, step)]
    shape = (*value.shape[:axis], len(range(start, stop, step)), *value.shape[axis + 1 :])
    return emitter.new("Slice", [value, *bounds], shape, value.kind)


@functions("index_select")
def index_select(emitter: Emitter, call: Call) -> Value:
    return emitter.new("Gather", [call.tensor(), call.tensor(2, "index")], call.shape, axis=call.get(1, "dim"))


@functions("pad")
def pad(emitter: Emitter, call: Call) -> Value:
    return _padded(emitter, call, call.get(1, "pad"), call.get(2, "mode", "constant"))


@layers(
    *(
        f"{what}Pad{axes}d"
        for axes in (1, 2, 3)
        for what in ("Zero", "Constant", "Reflection", "Replication", "Circular")
    )
)
def pad_layer(emitter: Emitter, call: Call) -> Value:
    modes = {"Reflection": "reflect", "Replication": "replicate", "Circular": "circular"}
    mode = next((mode for start, mode in modes.items() if call.name.startswith(start)), "constant")
    return _padded(emitter, call, call.layer.padding, mode)


def _padded(emitter: Emitter, call: Call, pads: Sequence[int], mode: str) -> Value:
    value, count = call.tensor(), len(pads) // 2
    before, after = [0] * value.rank, [0] * value.rank
    for at in range(count):
        before[value.rank - 1 - at], after[value.rank - 1 - at] = pads[2 * at], pads[2 * at + 1]
    names = {"replicate": "edge", "circular": "wrap"}
    given = emitter.numbers(np.array([*before, *after], np.int64))
    return emitter.new("Pad", [value, given], call.shape, mode=names.get(mode, mode))


@functions("embedding")
def embedding(emitter: Emitter, call: Call) -> Value:
    return emitter.new("Gather", [call.tensor(1, "weight"), call.tensor()], call.shape)


@layers("Embedding")
def embedding_layer(emitter: Emitter, call: Call) -> Value:
    return emitter.new("Gather", [emitter.own(call, "weight"), call.tensor()], call.shape)


@layers("EmbeddingBag")
def embedding_bag(emitter: Emitter, call: Call) -> Value:
    """Of a table of bags; bags that are cut from a list by offsets are another thing."""
    places, table = call.tensor(), emitter.own(call, "weight")
    if places.rank != 2 or table is None:
        raise NotHereError
    rows = emitter.new("Gather", [table, places], (*places.shape, table.shape[1]))
    return reduced_over(emitter, rows, 1, call.shape)
