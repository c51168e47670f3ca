"""A sparser on one parameter of a module, for a loop that is not ours: a parametrization, as masks are (`holding`).

What the sparser trains are parameters of the module, so an optimizer that is made afterwards moves them along. What it
is fed with are buffers. State dicts hold neither: they are those of the plain module (see `state_names`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, cast

import numpy as np

from onnxsparse.engines.torch.holding import original_of, plain_again
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.sparsers import effective
from onnxsparse.engines.torch.state_names import Standing, keep_plain
from onnxsparse.math.values import Array
from onnxsparse.sparsers.probabilistic import Probabilistic
from onnxsparse.sparsers.sparser import Moment, Sparser


@cache
def sparsing_class() -> Any:
    """The class of the parametrization; made when torch is there."""

    class Sparsing(Standing, torch().nn.Module):  # type: ignore[misc]
        """What stands in for a weight."""

        drawn: Moment | None = None
        """When the subnet is drawn of what is kept by chance; states say which one that would be now."""

        def __init__(self, sparser: Sparser, trained: Mapping[str, Any], fed: Mapping[str, Any], order: Any) -> None:
            super().__init__()
            self.sparser, self.order, self.roles = sparser, order, (tuple(trained), tuple(fed))
            for role, tensor in trained.items():
                self.register_parameter(role, torch().nn.Parameter(tensor))
            for role, tensor in fed.items():
                self.register_buffer(role, tensor, persistent=False)

        def tensors(self, kind: int) -> dict[str, Any]:
            """What is trained (0), or fed (1), by role."""
            return {role: getattr(self, role) for role in self.roles[kind]}

        def forward(self, weight: Any) -> Any:
            return effective(self.sparser, weight, self.tensors(0), self.tensors(1))

        def plain(self, weight: Any) -> Any:
            numbers, trained = array_of(weight), {role: array_of(one) for role, one in self.tensors(0).items()}
            if self.drawn is None:
                keep = self.sparser.keep(numbers, trained, np.broadcast_to(np.float32(1), numbers.shape))
            else:
                keep = cast(Probabilistic, self.sparser).draw(trained["score"], self.drawn)
            return _tensor(self.sparser.bake(numbers, trained, keep), weight.device).to(weight.dtype)

    return Sparsing


def put_on(owner: Any, name: str, sparser: Sparser, trained: Mapping[str, Array], fed: Mapping[str, Array]) -> None:
    """Have a sparser stand in for a parameter of a module."""
    device, order = owner._parameters[name].device, tuple(owner._parameters)
    made = [{role: _tensor(array, device) for role, array in arrays.items()} for arrays in (trained, fed)]
    parametrize = importlib.import_module("torch.nn.utils.parametrize")
    parametrize.register_parametrization(owner, name, sparsing_class()(sparser, *made, order), unsafe=True)
    keep_plain(owner)


def _tensor(array: Array, device: Any) -> Any:
    return torch().from_numpy(np.array(array)).to(device)


def array_of(tensor: Any) -> Array:
    """A tensor's numbers; on the CPU its own memory."""
    plain = tensor.detach()
    plain = plain if plain.dtype in (torch().float32, torch().float64) else plain.float()
    found: Array = plain.cpu().numpy()
    return found


def take_off(owner: Any, name: str) -> None:
    """The parameter as it is under the sparser."""
    plain_again(owner, name, sparsing_of(owner, name).order)


def sparsing_of(owner: Any, name: str) -> Any:
    return owner.parametrizations[name][0]


def all_sparsed(module: Any) -> Iterator[tuple[str, Any, str]]:
    """Path, owner and name of every parameter with a sparser."""
    for prefix, owner in list(module.named_modules()):
        for name, one in list((getattr(owner, "parametrizations", None) or {}).items()):
            if isinstance(one[0], sparsing_class()):
                yield (f"{prefix}.{name}" if prefix else name), owner, name


__all__ = ["all_sparsed", "array_of", "original_of", "put_on", "sparsing_of", "take_off"]
