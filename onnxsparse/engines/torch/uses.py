"""Which parameter a node means where it reads a tensor whose numbers several have, or any network may have.

Such a tensor may be stored once for many parameters (exporters merge what is equal), and a parameter whose numbers do
nothing may be gone. So each use is looked at for itself:

1. Parameters that cannot be read so are out: a bias is no scale.
2. Where the exporter says which module the node came from, it is one of that module, or of a part of it that is never
   called itself. Where other tensors of the node are known, it is one of their module and of their layer.
3. Where the tensor has a name, there, it is the parameter of that name, if the node came from the very module that has
   it, or all others have a tensor of their own name, or the exporter gave a merged tensor all of its names again.
4. One that is left, for a reason, is meant. Otherwise the use is open, and all that are left are in doubt. So it is if
   the node reads a tensor of another module beside it, or numbers that any network may have are read more often than
   everything else of their module: parts of other tensors may look like them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onnxsparse.engines.torch.candidates import Candidate
from onnxsparse.engines.torch.entries import Entry
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.sightings import Sightings, Use
from onnxsparse.graph.attributes import IdentityKey

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
    by_label: bool
    relabelled: bool
    meant: Entry | None = None


class Readings:
    """What every use of some candidates' tensors means; more as more becomes known."""

    def __init__(self, groups: Iterable[Sequence[Candidate]], sightings: Sightings) -> None:
        self._sightings = sightings
        self._known: dict[IdentityKey, list[tuple[int, Entry]]] = defaultdict(list)
        self._counts: Counter[Entry] = Counter()
        self._homes: dict[Entry, set[Where]] = defaultdict(set)
        self._called = sightings.called
        self.all = [one for group in groups for one in self._of_group(group)]

    def _of_group(self, group: Sequence[Candidate]) -> Iterable[Reading]:
        by_place: dict[Where, dict[Entry, Candidate]] = defaultdict(dict)
        for one in group:
            by_place[one.where][one.entry] = one
            if named(one):
                self._homes[one.entry].add(one.where)
        for where, own in by_place.items():
            sighting = next(iter(own.values())).region.sighting
            by_label = sum(not sighting.names.isdisjoint(entry.names) for entry in own) > 1
            for use in self._sightings.uses(sighting):
                left = [entry for entry in own if _readable(entry, use)]
                yield Reading(use, where, left, by_label, use.label not in sighting.own_names)

    def told(self, reading: Reading, entry: Entry) -> None:
        reading.left, reading.meant = [entry], entry
        self._counts[entry] += reading.use.whole
        self._known[IdentityKey(reading.use.node)].append((reading.use.slot, entry))

    def look(self) -> None:
        """Say of every use what can be said."""
        more = True
        while more:
            open_ones = [one for one in self.all if one.meant is None and one.left]
            certain = [one for one in open_ones if self._narrowed(one)]
            for one in certain:
                self.told(one, one.left[0])
            more = bool(certain)
        for doubtful in [one for one in self.all if one.meant is not None and self._contradicted(one, one.meant)]:
            doubtful.meant = None

    def _narrowed(self, reading: Reading) -> bool:
        """Whether there is a reason for the only one that is left."""
        if reading.relabelled and not any(one.telling or reading.use.label in one.names for one in reading.left):
            return False
        because = False
        for look in (self._there, self._beside, self._called_so):
            if found := look(reading):
                reading.left, because = found, True
        return because and len(reading.left) == 1

    def _there(self, reading: Reading) -> list[Entry]:
        scope = self._sightings.scopes[IdentityKey(reading.use.node)]
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
        around = [(IdentityKey(one), one is reading.use.node) for one in self._sightings.around(reading.use.node)]
        known = [
            entry
            for node, same in around
            for slot, entry in self._known.get(node, ())
            if not (same and slot == reading.use.slot)
        ]
        return [one for one in reading.left if any(_kin(one, other) for other in known)]

    def _contradicted(self, reading: Reading, entry: Entry) -> bool:
        node, slot = reading.use.node, reading.use.slot
        makers = [one for one in self._sightings.around(node) if one.op_type == "MatMul" and one is not node]
        with_it = [other for at, other in self._known[IdentityKey(node)] if at != slot]
        with_it += [other for one in makers for _, other in self._known[IdentityKey(one)]]
        if with_it and node.op_type not in ("Mul", "Div") and not any(_kin(entry, other) for other in with_it):
            return True
        return not entry.telling and not expected(entry, reading.use) and self._too_often(entry)

    def _too_often(self, entry: Entry) -> bool:
        """Whether it is read more often than all else of its module, as if that were called more often."""
        most = max((count for other, count in self._counts.items() if _kin(entry, other)), default=1)
        return self._counts[entry] > most

    def _called_so(self, reading: Reading) -> list[Entry]:
        found = [one for one in reading.left if reading.use.label in one.names]
        others = [one for one in reading.left if one not in found]
        there = any(self._sightings.scopes[IdentityKey(reading.use.node)] in one.owners for one in found)
        return found if there or reading.by_label or all(self._homes[one] - {reading.where} for one in others) else []


def named(candidate: Candidate) -> bool:
    region = candidate.region
    straight = region.role is None and candidate.layout == "same"
    return straight and not region.sighting.names.isdisjoint(candidate.entry.names)


def _kin(one: Entry, other: Entry) -> bool:
    return one is not other and bool(one.owners & other.owners) and one.layer == other.layer


def _readable(entry: Entry, use: Use) -> bool:
    """Whether a node of that kind can read it there; of modules that are not torch's own, anything may be."""
    slots = _SLOTS.get(use.node.op_type)
    if slots is None or not _own(entry):
        return True
    if type(entry.module).__name__ == "GroupNorm" and use.node.op_type == "InstanceNormalization":
        return False  # its scale and its bias are constants
    if entry.local.startswith("running_") and use.node.op_type in _ELEMENTS:
        return True
    return slots.get(use.slot) == entry.local


def _own(entry: Entry) -> bool:
    kind = type(entry.module)
    return kind.__module__.startswith("torch.nn.modules.") and kind.__name__.startswith(_LAYERS)


def expected(entry: Entry, use: Use) -> bool:
    """Whether a node of that kind reads there just what the entry is."""
    if isinstance(entry.module, torch().nn.PReLU):
        return bool(use.node.op_type == "PRelu")
    slots = {} if use.node.op_type in _ELEMENTS else _SLOTS.get(use.node.op_type, {})
    return _own(entry) and slots.get(use.slot) == entry.local
