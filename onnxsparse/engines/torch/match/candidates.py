"""Match candidates: stored tensors that hold a parameter's values, exactly or with each output channel scaled.

1. The numbers of a parameter, under every layout that an exporter writes, are looked up by their hash.
2. Where a batch normalization was folded in, each output channel `a` is `s` times the parameter's `w`: least squares
   gives `s = <a, w> / <w, w>`. What remains has to be rounding, and every other pair has to be far from it.
3. With so few numbers in a channel that any tensor would fit, `s` has to be that of one of the module's batch
   normalizations.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from onnx import NodeProto

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.match.tensor_reads import Region, Sighting, Sightings, real
from onnxsparse.graph.storage import Array
from onnxsparse.graph.torch_match import GATES, PLAIN, SAME, Shape, arranged, fits, squeezed

ROUNDING = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-3, "bfloat16": 6e-3}
FAR, ALIKE = 1e-2, 0.5
TELLING = 4  # numbers beyond one for each channel that a scaled weight has to have


@dataclass(frozen=True, eq=False)
class Candidate:
    """A parameter, a region that may hold it, and how it would lie there."""

    entry: Entry
    region: Region
    layout: str
    scale: Array | None = None
    doubtful: bool = False

    @property
    def where(self) -> tuple[tuple[str, str], int]:
        return self.region.sighting.key, self.region.start


class Regions:
    """The regions of a model by shape and type; the numbers of each are hashed when first asked for."""

    def __init__(self, found: Sequence[Region]) -> None:
        self.all = list(found)
        self._by_shape: dict[Shape, list[Region]] = {}
        for region in found:
            self._by_shape.setdefault(region.shape, []).append(region)

    def shaped(self, shape: Shape) -> list[Region]:
        return self._by_shape.get(squeezed(shape), [])

    def holding(self, entry: Entry) -> Iterator[Candidate]:
        """The regions with exactly the numbers of the entry."""
        seen = set()
        for index in range(len(entry.values)):
            for layout in _layouts(entry):
                for region in self.shaped(_shape(entry.shape, layout)):
                    if layout not in region.layouts or not region.holds(entry.local) or (region, layout) in seen:
                        continue
                    if _digest_of(region) == _digest_of_entry(entry, index, _kind(region), layout):
                        seen.add((region, layout))
                        yield Candidate(entry, region, layout)


def _layouts(entry: Entry) -> list[str]:
    recurrent = isinstance(entry.module, (torch().nn.RNNBase, torch().nn.RNNCellBase))
    return [one for one in (*PLAIN, *(GATES if recurrent else ())) if fits(one, entry.shape)]


def _shape(shape: Shape, layout: str) -> Shape:
    return (shape[1], shape[0], *shape[2:]) if layout in ("transposed", "swapped") else shape


def _kind(region: Region) -> str:
    return region.sighting.tensor.kind


def _digest_of(region: Region) -> bytes:
    if not region.digest:
        region.digest = _digest(region.sighting.tensor.read(region.start, region.start + region.size))
    return region.digest


def _digest_of_entry(entry: Entry, index: int, kind: str, layout: str) -> bytes:
    key = (index, kind, layout)
    if key not in entry.digests:
        entry.digests[key] = _digest(arranged(entry.numbers(index, kind), layout))
    return entry.digests[key]


def _digest(array: Array) -> bytes:
    if array.dtype.kind == "f":
        array = array + array.dtype.type(0)  # -0.0 is 0.0
    elif array.dtype == np.uint16:
        array = np.where(array == 0x8000, np.uint16(0), array)  # of bfloat16
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).digest()


def scaled(entry: Entry, regions: Regions, sightings: Sightings, norms: Sequence[Norm]) -> Iterator[Candidate]:
    """The regions that hold the entry with each of its output channels scaled."""
    if not (entry.local == "weight" and isinstance(entry.module, _layers())):
        return
    weight = _channels(entry, entry.numbers(0, "float64"))
    for layout in [one for one in PLAIN if fits(one, entry.shape)]:
        for region in regions.shaped(_shape(entry.shape, layout)):
            if region.role is None and _alike(entry, region, layout, weight):
                stored = _channels(entry, numbers_of(region, entry.shape, layout))
                scale, rest = _fitted(stored, weight)
                if rest < FAR and (_tells(weight) or _explained(entry, region, scale, sightings, norms)):
                    yield Candidate(entry, region, layout, scale, rest >= ROUNDING[_kind(region)])


def part_of(entry: Entry, sightings: Sightings) -> str:
    """The stored tensor that holds the beginning of a parameter along some of its axes."""
    for tensor in sightings.all:
        less = len(tensor.shape) == len(entry.shape) and tensor.shape != entry.shape and tensor.size > 1
        if less and all(short <= full for short, full in zip(tensor.shape, entry.shape)):
            part = entry.numbers(0, tensor.kind)[tuple(slice(size) for size in tensor.shape)]
            first = np.array_equal(part.reshape(-1)[:1], tensor.read(0, 1))
            if first and entry.telling and np.array_equal(part, tensor.array()):
                return tensor.name
    return ""


def _layers() -> tuple[Any, ...]:
    nn = torch().nn
    return (nn.modules.conv._ConvNd, nn.Linear)


def numbers_of(region: Region, shape: Shape, layout: str) -> Array:
    """What a region holds, in the order of the parameter, as float64."""
    flat = region.sighting.tensor.read(region.start, region.start + region.size)
    found: Array = arranged(real(flat, _kind(region)).reshape(_shape(shape, layout)), layout)
    return found


def _alike(entry: Entry, region: Region, layout: str, weight: Array) -> bool:
    """Whether the first channel that says anything is a multiple of the entry's: most tensors are told apart by it."""
    if getattr(entry.module, "transposed", False) or layout != SAME:
        return True
    row = int(np.argmax(np.any(weight != 0, axis=1)))
    start = region.start + row * weight.shape[1]
    stored = real(region.sighting.tensor.read(start, start + weight.shape[1]), _kind(region))
    return _fitted(stored[None], weight[row : row + 1])[1] < ALIKE or not stored.any()


def _channels(entry: Entry, weight: Array) -> Array:
    """One row for each output channel."""
    if not getattr(entry.module, "transposed", False):
        return weight.reshape(weight.shape[0], -1)
    groups = entry.module.groups
    split = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    return split.swapaxes(1, 2).reshape(groups * weight.shape[1], -1)


def _fitted(stored: Array, weight: Array) -> tuple[Array, float]:
    """The scale of each channel, and the part of the stored numbers that it does not explain."""
    square, both = np.einsum("ij,ij->i", weight, weight), np.einsum("ij,ij->i", stored, weight)
    scale = both / np.where(square > 0, square, 1)
    whole = float(np.einsum("ij,ij->", stored, stored))
    rest = whole - float(np.dot(scale, both))
    return scale, float(np.sqrt(max(rest, 0.0) / whole)) if whole > 0 else 1.0


def _tells(weight: Array) -> bool:
    rows = int((np.abs(weight).sum(1) > 0).sum())
    used = (weight != 0).sum(1)
    return rows > 0 and int(np.maximum(used - 1, 0).sum()) >= TELLING


def _explained(entry: Entry, region: Region, scale: Array, sightings: Sightings, norms: Sequence[Norm]) -> bool:
    _, bias = bias_of(region.sighting, sightings)
    return bias is not None and any(norm.gives(scale, bias, entry.module.bias) for norm in norms)


# -- The parameters and buffers of a user's module, under the names of the bare network.
#
# 1. What wraps a module (DistributedDataParallel, torch.compile and their like) adds nothing to a name.
# 2. A parametrized tensor is one entry under its plain name: what the module computes with, and what it is made from.
#    So is one that `torch.nn.utils.prune` has masked. Parts that are no tensor of that shape are inner entries.
# 3. Tensors that share their storage are one entry; its other names are its aliases.


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


# -- Batch normalizations that an exporter folded into the layer before them, checked with their own numbers.
#
# A folded layer has the weight `s w` and the bias `(b - mean) s + beta`, with `s = gamma / sqrt(var + eps)`.


_CLOSE = {"float64": 1e-4, "float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}
SCALES, SHIFTS = ("weight", "running_var"), ("bias", "running_mean")


@dataclass(frozen=True)
class Norm:
    """A batch normalization of the module, as what it multiplies with and what it adds."""

    path: str
    scale: Array
    mean: Array
    beta: Array

    def gives(self, scale: Array, bias: Sighting, before: Any) -> bool:
        """Whether a layer with the bias `before` has that scale and that stored bias, once this is folded in."""
        if bias.tensor.size != self.scale.size or scale.size != self.scale.size:
            return False
        close, stored = _CLOSE[bias.tensor.kind], real(bias.tensor.read(), bias.tensor.kind)
        old = 0.0 if before is None else before.detach().double().cpu().numpy()
        shift = (old - self.mean) * self.scale + self.beta
        return _near(scale, self.scale, close) and _near(stored, shift, close)


def norms(owners: Iterable[tuple[str, Any]]) -> list[Norm]:
    kind = torch().nn.modules.batchnorm._BatchNorm
    return [_norm(path, one) for path, one in owners if isinstance(one, kind) and one.running_var is not None]


def _norm(path: str, module: Any) -> Norm:
    var, mean = (one.detach().double().cpu().numpy() for one in (module.running_var, module.running_mean))
    gamma, beta = (
        np.full(var.shape, plain) if one is None else one.detach().double().cpu().numpy()
        for one, plain in ((module.weight, 1.0), (module.bias, 0.0))
    )
    return Norm(path, gamma / np.sqrt(var + module.eps), mean, beta)


def bias_of(weight: Sighting, sightings: Sightings) -> tuple[NodeProto | None, Sighting | None]:
    """The node that a stored weight is multiplied in, and its stored bias: an input, or what is added next."""
    for use in weight.reads:
        node = use.node
        if use.slot != 1:
            continue
        bias = sightings.stored(node, 2)
        if bias is None and node.op_type == "MatMul":
            bias = next((one for one in sightings.beside(node) if one is not weight), None)
        return node, bias
    return None, None


def _near(one: Array, other: Array, close: float) -> bool:
    reach = max(float(np.abs(other).max(initial=0)), 1e-6)
    return bool(np.abs(one - other).max(initial=0) <= close * reach)
