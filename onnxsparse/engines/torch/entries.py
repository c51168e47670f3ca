"""The parameters and buffers of a user's module, under the names of the bare network.

1. What wraps a module (DistributedDataParallel, torch.compile and their like) adds nothing to a name.
2. A parametrized tensor is one entry under its plain name: what the module computes with, and what it is made from.
   So is one that `torch.nn.utils.prune` has masked. Parts that are no tensor of that shape are inner entries.
3. Tensors that share their storage are one entry; its other names are its aliases.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from onnxsparse.engines.torch.library import torch
from onnxsparse.graph.storage import Array
from onnxsparse.graph.torch_match import Shape

_INNER = {
    "OptimizedModule": "_orig_mod",
    **dict.fromkeys(("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"), "module"),
}
_TYPES = {"float64": "float64", "float32": "float32", "float16": "float16", "bfloat16": "bfloat16"}


@dataclass(eq=False)
class Entry:
    """One tensor of the module: its name, who owns it, and the numbers it may have in a file."""

    name: str
    owner: str
    local: str
    module: Any
    values: list[Any]
    aliases: list[str] = field(default_factory=list)
    inner: bool = False  # a part that a parametrization computes its tensor from; nobody asks for it
    digests: dict[tuple[int, str, str], bytes] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        return tuple(self.values[0].shape)

    @property
    def names(self) -> list[str]:
        return [self.name, *self.aliases]

    @property
    def owners(self) -> set[str]:
        return {name.rpartition(".")[0] for name in self.names}

    @property
    def layer(self) -> str:
        """Which layer of a recurrent module it belongs to; "" in all others."""
        found = re.search(r"_l\d+", self.local) if isinstance(self.module, torch().nn.RNNBase) else None
        return found.group() if found else ""

    @property
    def is_float(self) -> bool:
        return bool(self.values[0].is_floating_point())

    @cached_property
    def telling(self) -> bool:
        """Whether the numbers can be recognised: equal ones, and whole ones, are found in any network."""
        value = self.values[0]
        return bool((value != value.reshape(-1)[0]).any() and (value != value.round()).any())

    @property
    def common(self) -> bool:
        """Whether it is a single number of few digits, as constants are."""
        value = self.values[0]
        return value.numel() == 1 and bool((value.double() * 1000 == (value.double() * 1000).round()).all())

    def numbers(self, index: int, kind: str) -> Array:
        """A value as a file of that type holds it; bfloat16 as its bits, and no -0.0."""
        tensor = (self.values[index].cpu() + 0.0).to(getattr(torch(), _TYPES[kind]))
        found: Array = tensor.view(torch().int16).numpy().view(np.uint16) if kind == "bfloat16" else tensor.numpy()
        return found


def bare(module: Any) -> Any:
    """The module without what wraps it."""
    while (inner := _INNER.get(type(module).__name__)) and hasattr(module, inner):
        module = getattr(module, inner)
    return module


def entries(module: Any) -> list[Entry]:
    """Every tensor of the module once, in the order of its state."""
    found: dict[Hashable, Entry] = {}
    for path, owner in owners(module):
        for local, values in _tensors(owner):
            name = f"{path}.{local}" if path else local
            inner = ".parametrizations." in f".{local}"
            known = found.setdefault(_identity(values), Entry(name, path, local, owner, values, inner=inner))
            if known.name != name:
                known.aliases.append(name)
    return list(found.values())


def owners(module: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every module below, with its path; one that stands in several places comes under each."""
    module = bare(module)
    yield path, module
    for name, child in module._modules.items():
        if child is not None and name != "parametrizations":
            yield from owners(child, f"{path}.{name}" if path else name)


def _tensors(owner: Any) -> Iterator[tuple[str, list[Any]]]:
    own = {**owner._parameters, **owner._buffers}
    masked = {name[: -len("_orig")] for name in own if name.endswith("_orig") and f"{name[:-5]}_mask" in own}
    for name, tensor in own.items():
        plain = name[: -len("_orig")]
        if plain in masked and name.endswith("_orig"):
            yield plain, [(tensor * own[f"{plain}_mask"]).detach(), tensor.detach()]
        elif tensor is not None and not (name.endswith("_mask") and name[: -len("_mask")] in masked):
            yield name, [tensor.detach()]
    for name, parts in owner._modules.get("parametrizations", {}).items():
        yield name, _parametrized(getattr(owner, name).detach(), getattr(parts, "original", None))
        for local, part in parts._parameters.items():
            if local != "original":
                yield f"parametrizations.{name}.{local}", [part.detach()]


def _parametrized(value: Any, original: Any) -> list[Any]:
    """What is computed with comes first; what it is made from, if it is alike, may be in the file as well."""
    return [value, original.detach()] if original is not None and original.shape == value.shape else [value]


def _identity(values: list[Any]) -> Hashable:
    """What is computed from one tensor in two ways is two."""
    if len(values) > 1:
        computed = values[0].contiguous().reshape(-1).view(torch().uint8).cpu().numpy().tobytes()
        return _storage(values[-1]), hashlib.blake2b(computed, digest_size=16).digest()
    return _storage(values[-1])


def _storage(tensor: Any) -> Hashable:
    if tensor.numel() == 0:
        return (tensor,)  # which is hashed by its identity
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype
