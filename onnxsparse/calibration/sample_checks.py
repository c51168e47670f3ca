"""What samples may be wrong with: samples to leave out, and inputs that are not what a model was made for.

1. Samples with numbers that are not finite, and those whose numbers are all alike, are left out and counted; another
   one of the batch stands in. Minus infinity is a number here: masks hold it.
2. Wrong preprocessing is the commonest mistake. What a model expects is told by the first of these that it has:

    a QuantizeLinear of its input          the range that the integers cover
    a BatchNormalization                   mean and variance of what comes in
    a first layer with a bias              sums vary as much as biases do, within a factor: folded normalisation makes
                                           them alike

   Only what is off by far is told: a model may be used on other data than it was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from onnx import NodeProto

from onnxsparse.calibration.moments import Samples
from onnxsparse.calibration.sensitivity import first_batches
from onnxsparse.calibration.streams import Cut, Store, Stream
from onnxsparse.errors import OptionError
from onnxsparse.graph.attributes import Attributes, label
from onnxsparse.graph.elementwise import RANGES
from onnxsparse.math.values import Array

SMALL = 16
"""Inputs of fewer numbers a sample may be alike in all."""
MOVING = frozenset({
    "Identity", "Transpose", "Reshape", "Cast", "Unsqueeze", "Squeeze", "Flatten", "Pad", "Sub", "Div", "Mul", "Add",
})  # fmt: skip
"""Between an input and the first layer: normalisation by constants counts, too."""
WIDER, SHIFTED = 6.0, 2.0
"""A variance so many times as large or small as the stored one, a mean so many deviations away."""
OUTSIDE, NARROW = 0.1, 0.05
"""Of the numbers outside of the range of integers; of that range covered."""
STRONG, LARGE, WEAK, FAINT = 10.0, 8.0, 0.02, 0.1
"""How much more or less sums vary than biases, for each root of what is summed up, and the size of the inputs then."""
PREPARED = "are the samples prepared as the model was trained (scaling, mean and deviation, order of channels)?"


# -- samples that are left out


def sound(samples: Samples, axes: Mapping[str, int], shared: Iterable[str]) -> Samples:
    """The samples without those that say nothing. `shared` are inputs that all samples have in common."""
    names = [name for name in samples.feeds[0] if name not in set(shared)] if samples.feeds else []
    broken = [_flags(feed, names, axes, size, _broken) for feed, size in zip(samples.feeds, samples.sizes)]
    alike = [_flags(feed, names, axes, size, _alike) for feed, size in zip(samples.feeds, samples.sizes)]
    count = sum(len(flags) for flags in broken)
    notes = []
    if sum(flags.sum() for flags in alike) == count:
        alike = [np.zeros_like(flags) for flags in alike]
    for flags, what in ((broken, "hold numbers that are not finite"), (alike, "hold one number only")):
        if found := sum(int(one.sum()) for one in flags):
            notes.append(f"{found} of {count} samples {what} and are left out")
    bad = [one | other for one, other in zip(broken, alike)]
    if not notes:
        return samples
    if all(one.all() for one in bad):
        raise OptionError("--data: every sample holds numbers that are not finite, or one number only")
    return _without(replace(samples, notes=(*samples.notes, *notes)), bad, names, axes)


def _flags(
    feed: Mapping[str, Array], names: Sequence[str], axes: Mapping[str, int], size: int, wrong: Callable[[Array], Array]
) -> Array:
    """Which samples of a batch are wrong."""
    found = np.zeros(size, bool)
    for name in names:
        array = feed[name]
        if array.dtype.kind == "f" and array.ndim and array.shape[axes.get(name, 0)] == size:
            found |= wrong(np.moveaxis(array, axes.get(name, 0), 0).reshape(size, -1))
    return found


def _without(samples: Samples, bad: Sequence[Array], names: Sequence[str], axes: Mapping[str, int]) -> Samples:
    """Good samples of a batch stand in for its bad ones; a batch without any is gone."""
    feeds, sizes, held = [], [], 0
    for number, (feed, size, flags) in enumerate(zip(samples.feeds, samples.sizes, bad)):
        good = np.flatnonzero(~flags)
        if not len(good):
            continue
        rows = np.where(flags, np.resize(good, size), np.arange(size))
        feeds.append({name: _taken(array, rows, axes.get(name, 0), name in names) for name, array in feed.items()})
        sizes.append(size)
        held += samples.is_held(number)
    return replace(samples, feeds=feeds, sizes=sizes, held=min(held, len(feeds) - 1))


def _taken(array: Array, rows: Array, axis: int, own: bool) -> Array:
    whole = own and array.ndim > axis and array.shape[axis] == len(rows)
    return np.take(array, rows, axis) if whole else array


# -- inputs that are not what a model expects


def doubts(cut: Cut, samples: Samples) -> list[str]:
    """What speaks against the preparation of the samples."""
    feeds = samples.feeds[: first_batches(samples.sizes)]
    if not feeds:
        return []
    found = _doubt(cut, feeds)
    return [found] if found else []


def _doubt(cut: Cut, feeds: Sequence[Mapping[str, Array]]) -> str:
    """What the first of the three that there is says."""
    near = _near(cut, feeds[0])
    quantizer = next((node for node in cut.nodes if _quantizes(cut, node, near)), None)
    if quantizer is not None:
        return _by_range(cut, quantizer, feeds)
    first = next((node for node in cut.nodes if _sums(cut, node)), None)
    norm = next((node for node in cut.nodes if _normalises(cut, node)), None)
    if norm is not None and _early(cut, norm, first):
        return _by_statistics(cut, norm, feeds)
    if first is not None and first.input[0] in near:
        return _by_bias(cut, first, feeds)
    return ""


def _near(cut: Cut, feed: Mapping[str, Array]) -> set[str]:
    """The float inputs, and what is only moved or normalised by constants."""
    found = {name for name, array in feed.items() if array.dtype.kind == "f"}
    for node in cut.nodes:
        moving = [name for name in node.input if name and not cut.is_constant(name)]
        if node.op_type in MOVING and moving and set(moving) <= found:
            found.add(node.output[0])
    return found


def _quantizes(cut: Cut, node: NodeProto, near: set[str]) -> bool:
    known = all(cut.is_constant(name) for name in node.input[1:] if name)
    return node.op_type == "QuantizeLinear" and node.input[0] in near and known and len(node.input) > 2


def _normalises(cut: Cut, node: NodeProto) -> bool:
    training = Attributes(node, {}).integer("training_mode")
    return node.op_type == "BatchNormalization" and not training and all(map(cut.is_constant, node.input[1:5]))


def _sums(cut: Cut, node: NodeProto) -> bool:
    product = node.op_type in ("Conv", "Gemm", "MatMul") and len(node.input) > 1
    return product and cut.is_constant(node.input[1]) and not cut.is_constant(node.input[0])


def _early(cut: Cut, norm: NodeProto, first: NodeProto | None) -> bool:
    """Whether a normalisation stands before the first layer, or right behind it."""
    place = cut.place[norm.output[0]]
    return first is None or norm.input[0] == first.output[0] or place < cut.place[first.output[0]]


def _by_range(cut: Cut, node: NodeProto, feeds: Sequence[Mapping[str, Array]]) -> str:
    scale, zero = (cut.constant(name) for name in node.input[1:3])
    if scale.size != 1 or zero.dtype.name not in RANGES:
        return ""
    low, high = ((end - float(zero.reshape(-1)[0])) * float(scale.reshape(-1)[0]) for end in RANGES[zero.dtype.name])
    values = _values(cut, node.input[0], feeds)
    outside = np.mean((values < low - scale.max()) | (values > high + scale.max()))
    covered = (values.max() - values.min()) / (high - low)
    if outside <= OUTSIDE and covered >= NARROW:
        return ""
    return (
        f"the samples lie between {values.min():.3g} and {values.max():.3g}, and the model's integers for '"
        f"{node.input[0]}' cover {low:.3g} to {high:.3g}: {PREPARED}"
    )


def _by_statistics(cut: Cut, node: NodeProto, feeds: Sequence[Mapping[str, Array]]) -> str:
    mean, variance = (cut.constant(name).astype(np.float64) for name in node.input[3:5])
    values = _values(cut, node.input[0], feeds)
    channels = np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)
    alive = variance > variance.max(initial=0.0) * 1e-6
    if not alive.any():
        return ""
    growth = float(np.median(channels.var(axis=1)[alive] / variance[alive]))
    shift = float(np.median(np.abs(channels.mean(axis=1) - mean)[alive] / np.sqrt(variance[alive])))
    if 1 / WIDER <= growth <= WIDER and shift <= SHIFTED:
        return ""
    return (
        f"what comes into {label(node)} has {growth:.3g} times the variance that it was trained with, and its mean is "
        f"{shift:.2g} deviations away: {PREPARED}"
    )


def _by_bias(cut: Cut, node: NodeProto, feeds: Sequence[Mapping[str, Array]]) -> str:
    bias = _bias(cut, node)
    if bias is None:
        return ""
    sums, values = _values(cut, node.output[0], feeds), _values(cut, node.input[0], feeds)
    axis = 1 if node.op_type == "Conv" else sums.ndim - 1
    varied = np.median(np.moveaxis(sums, axis, 0).reshape(sums.shape[axis], -1).std(axis=1))
    inputs = cut.constant(node.input[1]).size / max(sums.shape[axis], 1)
    ratio = float(varied / max(float(np.median(np.abs(bias))), 1e-12) / np.sqrt(max(inputs, 1)))
    size = float(np.sqrt(np.mean(np.square(values))))
    if not (ratio > STRONG and size > LARGE) and not (ratio < WEAK and size < FAINT):
        return ""
    far = "large" if ratio > 1 else "small"
    return (
        f"the samples, between {values.min():.3g} and {values.max():.3g}, are far too {far} for {label(node)}, the "
        f"first layer, by its biases: {PREPARED}"
    )


def _bias(cut: Cut, node: NodeProto) -> Array | None:
    if node.op_type != "MatMul":
        known = len(node.input) > 2 and bool(node.input[2]) and cut.is_constant(node.input[2])
        return cut.constant(node.input[2]).astype(np.float64) if known else None
    behind = [one for one in cut.reading(node.output[0]) if one.op_type == "Add"]
    names = [name for one in behind for name in one.input if cut.is_constant(name)]
    return cut.constant(names[0]).astype(np.float64) if names else None


def _values(cut: Cut, name: str, feeds: Sequence[Mapping[str, Array]]) -> Array:
    """A value for the first samples, as one array over batches."""
    found = [batch[name] for batch in Stream(cut, feeds, Store()).values([name])]
    widths = [one.shape[1:] for one in found]
    alike = found if len(set(widths)) == 1 else found[:1]
    return np.concatenate([one.reshape(one.shape or (1,)) for one in alike]).astype(np.float64)


def _broken(rows: Array) -> Array:
    return np.asarray(np.isnan(rows).any(axis=1) | np.isposinf(rows).any(axis=1))


def _alike(rows: Array) -> Array:
    return np.asarray((rows == rows[:, :1]).all(axis=1)) if rows.shape[1] >= SMALL else np.zeros(len(rows), bool)


__all__ = ["doubts", "sound"]
