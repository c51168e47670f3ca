"""Layers of a torch module that are skipped for a while: what stands in for one hands on what it is called with.

1. A skipped layer keeps its parameters and its optimizer state, but the module does not have it: it is not in the state
   dict and gets no gradient.
2. The layer is kept inside of what stands in for it, so that a deep copy of the module can have its own back. It goes
   to other devices and other modes with the module.
3. A linear layer or convolution that gives more or less than it takes is refused, for what follows could not take what
   it is called with, unless a layer that takes what it gives is skipped, too, or nothing follows: the last one that the
   module has may be its output. Other layers do not say what they give.
4. What stands in hands a single argument on as it is, several as a tuple; arguments by name are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OptionError


@cache
def skipped_class() -> Any:
    """The class of what stands in for a layer; made when torch is there."""

    class SkippedLayer(torch().nn.Module):  # type: ignore[misc]
        """An identity that has the layer in whose place it stands, beside its modules."""

        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.hidden = (layer,)  # in a tuple, so that it is none of this module's children
            self.training = layer.training

        def forward(self, *inputs: Any, **_: Any) -> Any:
            return inputs[0] if len(inputs) == 1 else inputs

        def train(self, mode: bool = True) -> Any:
            self.hidden[0].train(mode)
            return super().train(mode)

        def _apply(self, fn: Any, recurse: bool = True) -> Any:
            self.hidden[0]._apply(fn)
            return super()._apply(fn, recurse)

    return SkippedLayer


def demand_same_width(module: Any, paths: Sequence[str], where: str) -> None:
    """Refuse a single layer that gives another number of features or channels than it takes, by its name."""
    widths = {path: width for path, one in named_modules(module) if (width := _width(one)) is not None}
    skipped = {path: widths[path] for path in _outermost(paths) if path in widths}
    for path, (taken, given) in skipped.items():
        continued = given in {first for first, last in skipped.values() if first != last}
        if taken != given and not continued and path != list(widths)[-1]:
            raise OptionError(
                f"{where}: {path[:80]!r} cannot be skipped: it gives {given} features or channels and takes {taken}, "
                "and what follows it is made for what it gives"
            )


def _width(layer: Any) -> tuple[int, int] | None:
    """How many features or channels a layer gets and gives, where it says so."""
    if isinstance(layer, torch().nn.Linear):
        return layer.in_features, layer.out_features
    if isinstance(layer, torch().nn.modules.conv._ConvNd):
        return layer.in_channels, layer.out_channels
    return None


def skip(module: Any, paths: Sequence[str]) -> None:
    """Put a stand-in where a layer is; what lies in another of these layers goes with that."""
    for path in _outermost(paths):
        owner, name = _place(module, path)
        if not isinstance(owner._modules[name], skipped_class()):
            owner._modules[name] = skipped_class()(owner._modules[name])


def put_back(module: Any, paths: Sequence[str]) -> None:
    """Put the layers back."""
    for path in _outermost(paths):
        owner, name = _place(module, path)
        found = owner._modules[name]
        if isinstance(found, skipped_class()):
            owner._modules[name] = found.hidden[0]


def named_modules(module: Any) -> Iterator[tuple[str, Any]]:
    """Every module by its path, those of skipped layers too, as if they were not skipped."""
    for path, one in module.named_modules():
        if isinstance(one, skipped_class()):
            yield from one.hidden[0].named_modules(prefix=path)
        else:
            yield path, one


def _outermost(paths: Sequence[str]) -> list[str]:
    known = set(paths)
    return [path for path in dict.fromkeys(paths) if not any(path.startswith(f"{other}.") for other in known)]


def _place(module: Any, path: str) -> tuple[Any, str]:
    owner, _, name = path.rpartition(".")
    return module.get_submodule(owner), name
