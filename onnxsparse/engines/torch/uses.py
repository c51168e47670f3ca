"""Which parameter a node means where it reads a tensor whose numbers several have, or any network may have.

Such a tensor may be stored once for many parameters (exporters merge what is equal), and a parameter whose numbers do
nothing may be gone. So each use is looked at for itself:

1. Parameters that cannot be read so are out: a bias is no scale.
2. Where the exporter says which module the node came from, it is one of that module, or of a part of it that is never
   called itself. Where other tensors of the node are known, it is one of their module and of their layer.
3. Where the tensor has a name, there, it is the parameter of that name, if all others have a tensor of their own name.
4. One that is left, for a reason, is meant. Otherwise the use is open, and all that are left are in doubt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onnxsparse.engines.torch.candidates import Candidate
from onnxsparse.engines.torch.entries import Entry
from onnxsparse.engines.torch.sightings import Sightings, Use

Where = tuple[tuple[str, str], int]

_AFFINE, _SCALED, _SHIFTED = {1: "weight", 2: "bias"}, {0: "weight", 1: "weight"}, {0: "bias", 1: "bias"}
_SLOTS = {
    "Conv": _AFFINE,
    "ConvTranspose": _AFFINE,
    "LayerNormalization": _AFFINE,
    "InstanceNormalization": _AFFINE,
    "GroupNormalization": _AFFINE,
    "BatchNormalization": {**_AFFINE, 3: "running_mean", 4: "running_var"},
    "Gemm": {**_SCALED, 2: "bias"},
    "MatMul": _SCALED,
    "Mul": _SCALED,
    "Div": _SCALED,
    "Add": _SHIFTED,
    "Sub": _SHIFTED,
}
_ELEMENTS = ("Mul", "Div", "Add", "Sub")
_NORMS = ("BatchNorm", "SyncBatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm")
_LAYERS = ("Linear", "NonDynamicallyQuantizableLinear", "Conv", *_NORMS)


@dataclass(eq=False)
class Reading:
    """One use of one place of a stored tensor, the parameters that it may mean, and the one that it does."""

    use: Use
    where: Where
    left: list[Entry]
    meant: Entry | None = None


class Readings:
    """What every use of some candidates' tensors means; more as more becomes known."""

    def __init__(self, groups: Iterable[Sequence[Candidate]], sightings: Sightings) -> None:
        self._sightings = sightings
        self._known: dict[int, list[tuple[int, Entry]]] = defaultdict(list)
        self._homes: dict[Entry, set[Where]] = defaultdict(set)
        self._called = _with_parents(sightings.scopes.values())
        self.all = [one for group in groups for one in self._of_group(group)]

    def _of_group(self, group: Sequence[Candidate]) -> Iterable[Reading]:
        by_place: dict[Where, dict[Entry, Candidate]] = defaultdict(dict)
        for one in group:
            by_place[one.where][one.entry] = one
            if named(one):
                self._homes[one.entry].add(one.where)
        for where, own in by_place.items():
            sighting = next(iter(own.values())).region.sighting
            for use in self._sightings.uses(sighting):
                yield Reading(use, where, [entry for entry in own if _readable(entry, use)])

    def told(self, reading: Reading, entry: Entry) -> None:
        reading.left, reading.meant = [entry], entry
        self._known[id(reading.use.node)].append((reading.use.slot, entry))

    def look(self) -> None:
        """Say of every use what can be said."""
        more = True
        while more:
            open_ones = [one for one in self.all if one.meant is None and one.left]
            certain = [one for one in open_ones if self._narrowed(one)]
            for one in certain:
                self.told(one, one.left[0])
            more = bool(certain)

    def _narrowed(self, reading: Reading) -> bool:
        """Whether there is a reason for the only one that is left."""
        because = False
        for look in (self._there, self._beside, self._called_so):
            if found := look(reading):
                reading.left, because = found, True
        return because and len(reading.left) == 1

    def _there(self, reading: Reading) -> list[Entry]:
        scope = self._sightings.scopes[id(reading.use.node)]
        if scope is None:
            return []
        return [one for one in reading.left if any(self._within(owner, scope) for owner in one.owners)]

    def _within(self, owner: str, scope: str) -> bool:
        """Whether a module is the one of a scope, or a part of it that is not called, but read from there."""
        if owner == scope:
            return True
        if scope and not owner.startswith(f"{scope}."):
            return False
        rest = owner[len(scope) :].lstrip(".").split(".")
        steps = [".".join([scope, *rest[: count + 1]]).lstrip(".") for count in range(len(rest))]
        return self._called.isdisjoint(steps)

    def _beside(self, reading: Reading) -> list[Entry]:
        around = [(id(one), one is reading.use.node) for one in self._sightings.around(reading.use.node)]
        known = [
            entry
            for node, same in around
            for slot, entry in self._known.get(node, ())
            if not (same and slot == reading.use.slot)
        ]
        return [one for one in reading.left if any(_kin(one, other) for other in known)]

    def _called_so(self, reading: Reading) -> list[Entry]:
        found = [one for one in reading.left if reading.use.label in one.names]
        others = [one for one in reading.left if one not in found]
        return found if all(self._homes[one] - {reading.where} for one in others) else []


def named(candidate: Candidate) -> bool:
    region = candidate.region
    straight = region.role is None and candidate.layout == "same"
    return straight and not region.sighting.names.isdisjoint(candidate.entry.names)


def _kin(one: Entry, other: Entry) -> bool:
    return one is not other and bool(one.owners & other.owners) and one.layer == other.layer


def _readable(entry: Entry, use: Use) -> bool:
    """Whether a node of that kind can read it there; of modules that are not torch's own, anything may be."""
    kind, slots = type(entry.module), _SLOTS.get(use.node.op_type)
    own = kind.__module__.startswith("torch.nn.modules.") and kind.__name__.startswith(_LAYERS)
    if slots is None or not own:
        return True
    if kind.__name__ == "GroupNorm" and use.node.op_type == "InstanceNormalization":
        return False  # its scale and its bias are constants
    if entry.local.startswith("running_") and use.node.op_type in _ELEMENTS:
        return True
    return slots.get(use.slot) == entry.local


def _with_parents(scopes: Iterable[str | None]) -> set[str]:
    """Every module that is called, and those that it is a part of."""
    found = set()
    for scope in set(scopes):
        steps = scope.split(".") if scope else []
        found |= {".".join(steps[: count + 1]) for count in range(len(steps))}
    return found
