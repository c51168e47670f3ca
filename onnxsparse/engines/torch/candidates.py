"""Which stored tensors a parameter may be: those that hold its numbers, exactly or with each output channel scaled.

1. The numbers of a parameter, under every layout that an exporter writes, are looked up by their hash.
2. Where a batch normalization was folded in, each output channel `a` is `s` times the parameter's `w`: least squares
   gives `s = <a, w> / <w, w>`. What remains has to be rounding, and every other pair has to be far from it.
3. With so few numbers in a channel that any tensor would fit, `s` has to be that of one of the module's batch
   normalizations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxsparse.engines.torch.entries import Entry
from onnxsparse.engines.torch.folding import Norm, bias_of
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.sightings import Region, Sightings, real
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
