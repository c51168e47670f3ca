"""The layers of a torch module as a loop sees them, what a run shows of them, and what is no layer."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

from onnxsparse.graph.convolution import Convolution
from onnxsparse.loops.network import Measured, Site
from onnxsparse.math.values import Array


def measured(owner: Any, given: Any, made: Any) -> Measured:
    weight = owner.weight
    taps = math.prod(weight.shape[2:])
    if _is(owner, "Linear"):
        return Measured(None, int(made.numel() * weight.shape[1]))
    side = float(max(given.shape[2:] if given.dim() == weight.dim() else given.shape[1:]))
    if _is(owner, "ConvTranspose"):
        return Measured(side, int(given.numel() * weight.shape[1] * taps))
    return Measured(side, int(made.numel() * weight.shape[1] * taps))


def together(seen: Sequence[Measured]) -> Measured:
    """A layer that runs several times; of one that never ran nobody knows a size."""
    if not seen:
        return Measured(None, 0)
    return Measured(seen[0].size, sum(one.macs for one in seen))


def _is(owner: Any, family: str) -> bool:
    nn = importlib.import_module("torch.nn")
    kinds = {"Linear": (nn.Linear,)}
    for start in ("Conv", "ConvTranspose"):
        kinds[start] = tuple(getattr(nn, f"{start}{axes}d") for axes in (1, 2, 3))
    return isinstance(owner, kinds[family])


def site_of(path: str, owner: Any) -> Site | None:
    name, key = path or type(owner).__name__, f"{path}.weight" if path else "weight"
    if not any(_is(owner, family) for family in ("Linear", "Conv", "ConvTranspose")):
        return None
    shape = tuple(owner.weight.shape)
    if not owner.weight.is_floating_point():
        return None
    if _is(owner, "Linear"):
        shape4 = (1, *shape, 1)
        return Site(key, name, (name, key), "Linear", shape, shape4, lambda a: a.reshape(shape4), _flat)
    groups, taps = owner.groups, math.prod(shape[2:])
    found = Convolution(tuple(shape[2:]), 0, 0, groups, tuple(owner.stride), tuple(owner.dilation))
    if _is(owner, "Conv"):
        split = (groups, shape[0] // groups, shape[1], taps)
        layer = Convolution(found.kernel, shape[1], shape[0] // groups, groups, found.strides, found.dilations)
        return Site(key, name, (name, key), "Conv", shape, split, lambda a: a.reshape(split), _flat, layer)
    stored = (groups, shape[0] // groups, shape[1], taps)
    layer = Convolution(found.kernel, shape[0] // groups, shape[1], groups, found.strides, found.dilations)
    turned = (groups, shape[1], shape[0] // groups, taps)
    return Site(
        key, name, (name, key), "ConvTranspose", shape, turned,
        lambda a: a.reshape(stored).transpose(0, 2, 1, 3), lambda m: _flat(m.transpose(0, 2, 1, 3)), layer,
    )  # fmt: skip


def within(module: Any, path: str) -> tuple[str, ...]:
    """The path and the class of a layer, and of every module that it is in."""
    parts = path.split(".") if path else []
    paths = [".".join(parts[: end + 1]) for end in range(len(parts))]
    return (*paths, *(type(module.get_submodule(one)).__name__ for one in ("", *paths)))


def _flat(array: Array) -> Array:
    return array.reshape(-1)


def beside(module: Any, taken: Sequence[Any]) -> Iterator[str]:
    """Matrices that are no layers by themselves: of attention, of recurrences. They stay dense."""
    nn = importlib.import_module("torch.nn")
    for path, owner in module.named_modules():
        if isinstance(owner, (nn.MultiheadAttention, nn.RNNBase)):
            for name, one in owner.named_parameters(recurse=False):
                if one.dim() == 2 and all(one is not other for other in taken):
                    yield f"left dense: {path + '.' if path else ''}{name}: a part of {type(owner).__name__}, no layer"
