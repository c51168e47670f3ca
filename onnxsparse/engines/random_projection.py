"""Random projections of a model's outputs: sums with random signs, whose gradients say how much each value matters.

    projection = sum over outputs and elements of  r out / scale,   r = +1 or -1

    E[(d projection / d value)^2] = mean over outputs of  1 / (elements of a sample * variance)
                                                          * sum over elements of (d out / d value)^2

1. An output that comes from a squashing function is taken before it (see `distillation`): where that saturates nothing
   moves. The output itself counts as well where a part of it comes past that function.
2. The variance of an output is that over all samples and elements, as the runtime computes the model; every output
   counts alike, whatever its size and its unit.
3. Outputs of whole numbers stand for the nearest floats before them, where no output is a float.
4. Elements that are not finite do not count, and outputs that do not vary are left out, with a note.
5. The signs are drawn by Philox: the seed is the key; the numbers of feed and draw, and the name of the output, are the
   counter.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto

from onnxsparse.engines.distillation import stated
from onnxsparse.engines.light_model import LightModel
from onnxsparse.errors import ModelError
from onnxsparse.graph.edit import FLOATS, SIZES, reads, upstream
from onnxsparse.math.values import Array

UNUSED = "no output depends on it"
IN_STEPS = "only whole numbers or steps lead from it to the outputs"
"""Why no gradient comes to a value."""

ROUNDING = 0.03
"""How far a projection may be off: half precision, and sums in another order."""

Feed = Mapping[str, Array]
Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


@dataclass(frozen=True)
class Projection:
    """What is projected, and with which numbers."""

    scales: Mapping[str, float]
    """By what each target is multiplied."""
    shapes: Sequence[Shapes]
    """Those of the targets, of each feed."""
    draws: int = 2
    seed: int = 0
    counted: Mapping[tuple[int, str], Array] = field(default_factory=dict)
    """Where some elements of a target are not finite for a feed: which ones are."""
    sums: Sequence[Mapping[str, tuple[float, float]]] = ()
    """Of each feed and target the sum of the elements with the signs of the first draw, and their norm, as a pair."""
    notes: Sequence[str] = ()

    @property
    def targets(self) -> list[str]:
        return list(self.scales)

    def factors(self, feed: int, draw: int) -> dict[str, Array]:
        """What every element of each target is multiplied with."""
        return {name: self._factors(feed, draw, name) for name in self.scales}

    def _factors(self, feed: int, draw: int, name: str) -> Array:
        signs = signs_of(name, self.seed, feed, draw, self.shapes[feed][name])
        counted = self.counted.get((feed, name))
        return (signs if counted is None else signs * counted) * np.float32(self.scales[name])

    def agrees(self, feed: int, value: float) -> bool:
        """Whether the projection of a feed, in the first draw, has this value: the model is what it was then.

        Where some elements of a target are not finite, the value may not be either, and says nothing.
        """
        if not np.isfinite(value) and any((feed, name) in self.counted for name in self.scales):
            return True
        sums = [
            (self.scales[name] * total, self.scales[name] * norm)
            for name, (total, norm) in self.sums[feed].items()
            if name in self.scales
        ]
        total, norm = sum(one for one, _ in sums), float(np.linalg.norm([one for _, one in sums]))
        return abs(value - total) <= ROUNDING * norm


def signs_of(name: str, seed: int, feed: int, draw: int, shape: Shape) -> Array:
    """+1 or -1 for every element of a target."""
    counter = [0, zlib.crc32(name.encode()), draw, feed]
    drawn = np.random.Generator(np.random.Philox(key=seed, counter=counter)).integers(0, 2, shape, np.int8)
    return (2 * drawn - 1).astype(np.float32)


def projection_of(
    model: LightModel, feeds: Iterable[Feed], draws: int, seed: int, axes: Mapping[str, int]
) -> Projection:
    """Run the model on all feeds, and see how much its targets vary. `axes` are those of the samples, where they are
    not first."""
    names = targets_of(model)
    session, samples = model.session(names), 0
    spreads, shapes, counted = {name: _Spread() for name in names}, list[Shapes](), dict[tuple[int, str], Array]()
    sums = list[dict[str, tuple[float, float]]]()
    for place, feed in enumerate(feeds):
        found = session.run(dict(feed))
        arrays = {name: np.asarray(found[name]) for name in names}
        shapes.append({name: array.shape for name, array in arrays.items()})
        samples += samples_in(feed, axes)
        sums.append({})
        for name, array in arrays.items():
            finite = np.isfinite(array)
            if not finite.all():
                counted[place, name] = finite
            values = array[finite].astype(np.float64)
            spreads[name].add(values)
            signs = signs_of(name, seed, place, 0, array.shape)[finite]
            sums[-1][name] = float(signs @ values), float(np.linalg.norm(values))
    scales, notes = _scales(spreads, samples)
    return Projection(scales, shapes, draws, seed, counted, sums, notes)


def scales_of(batches: Sequence[Feed], samples: int) -> tuple[dict[str, float], list[str]]:
    """What each of some outputs is multiplied by, from its values for all samples; and notes on those left out."""
    spreads = {name: _Spread() for name in batches[0]} if batches else {}
    for found in batches:
        for name, array in found.items():
            spreads[name].add(array[np.isfinite(array)])
    return _scales(spreads, samples)


def _scales(spreads: Mapping[str, _Spread], samples: int) -> tuple[dict[str, float], list[str]]:
    moving = {name: spread for name, spread in spreads.items() if spread.variance > 0}
    if not moving:
        raise ModelError("no output of the model varies over these samples: are they what it is made for?")
    notes = [
        f"the output '{name}' is the same for all samples and does not count" for name in spreads if name not in moving
    ]
    scales = {
        name: float((len(moving) * spread.count / max(samples, 1) * spread.variance) ** -0.5)
        for name, spread in moving.items()
    }
    return scales, notes


def samples_in(feed: Feed, axes: Mapping[str, int]) -> int:
    """How many samples a feed holds."""
    return max((array.shape[axes.get(name, 0)] for name, array in feed.items() if array.ndim), default=1)


class _Spread:
    """Count, mean and sum of squared deviations, added up batch by batch (Chan et al. 1979)."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, values: Array) -> None:
        if not values.size:
            return
        mean = float(values.mean())
        squares = float(((values - mean) ** 2).sum())
        count, off = self.count + values.size, mean - self.mean
        self.squares += squares + off * off * self.count * values.size / count
        self.mean, self.count = self.mean + off * values.size / count, count

    @property
    def variance(self) -> float:
        """0 also where only rounding moves the values."""
        found = self.squares / self.count if self.count else 0.0
        return found if found > (1e-7 * self.mean) ** 2 else 0.0


# -- which values are projected


def targets_of(model: LightModel) -> list[str]:
    """The float outputs, those that are squashed before they are; or the floats that whole numbers come from."""
    return float_targets(model.proto) or _floats_before(model, [value.name for value in model.proto.graph.output])


def float_targets(proto: ModelProto) -> list[str]:
    """The float outputs, those that are squashed before they are; none where a model gives whole numbers alone."""
    kinds = {value.name: value.type.tensor_type.elem_type for value in proto.graph.output}
    floats = [name for name, kind in kinds.items() if kind in FLOATS]
    moving = {value.name for value in proto.graph.input} - {one.name for one in proto.graph.initializer}
    taps: dict[str, list[str]] = {name: [] for name in floats}
    for one in stated(proto):
        if one.kind == "tap" and one.stated and one.original in taps:
            taps[one.original].append(one.name)
    found = dict[str, None]()
    for output, before in taps.items():
        found.update(dict.fromkeys(before))
        if _past(proto, output, before, moving):
            found[output] = None
    return list(found)


def _past(proto: ModelProto, output: str, taps: Sequence[str], moving: set[str]) -> bool:
    """Whether inputs come to an output by a way on which no tap lies."""
    found = {output}
    for node in reversed(proto.graph.node):
        if node.op_type not in SIZES and found & set(node.output):
            found |= {name for name in reads(node) if name not in taps}
    return bool(found & moving)


def _floats_before(model: LightModel, outputs: Sequence[str]) -> list[str]:
    """The nearest values before outputs of whole numbers that the runtime says are floats."""
    proto = model.proto
    made = {name: node for node in proto.graph.node for name in node.output if name}
    before = [name for name in made if name in upstream(proto.graph, outputs)]
    types = model.session(before, optimized=False).output_types
    floats = {name for name in before if types[name] in ("tensor(float)", "tensor(float16)", "tensor(double)")}
    found: dict[str, None] = {}
    seen, pending = set[str](), list(outputs)
    while pending:
        name = pending.pop(0)
        if name in seen or name not in made:
            continue
        seen.add(name)
        if name in floats:
            found.setdefault(name)
        elif made[name].op_type not in SIZES:
            pending += reads(made[name])
    if not found:
        raise ModelError("no output of the model comes from numbers that a gradient could be taken of")
    return list(found)
