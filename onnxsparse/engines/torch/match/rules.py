"""Match rules: which of the tensors that hold a parameter's values are its own.

1. Numbers that one parameter alone has, and that can be recognised, are its own wherever they are.
2. Where several parameters have the same numbers, or the numbers say nothing, every use of such a tensor has to be
   explained. While one is not, all parameters that it may mean are refused: a mask on the tensor would be one on
   somebody else as well.
3. A tensor with the name and the numbers of one parameter is its own, where everyone with such numbers has one.
4. What no node reads is no place. Nothing is said of a matrix that reads the same both ways.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.match.candidates import Candidate, Entry
from onnxsparse.engines.torch.match.tensor_reads import Sightings, Use
from onnxsparse.graph.attributes import IdentityKey

BY_NAME, BY_VALUE, BY_FOLD, BY_ORDER = "name and value", "value", "folded batch norm", "order"
_SHOWN = 3
_KINDS = {**dict.fromkeys(("Mul", "Div"), "scale"), **dict.fromkeys(("Add", "Sub", "Gemm"), "shift")}


@dataclass
class Settled:
    """What is certain, how it came to be, and why the rest is not."""

    found: dict[Entry, list[Candidate]] = field(default_factory=dict)
    how: dict[Entry, str] = field(default_factory=dict)
    reasons: dict[Entry, str] = field(default_factory=dict)
    unsure: set[Entry] = field(default_factory=set)  # their numbers are there, and may be those of something else

    def add(self, entry: Entry, own: list[Candidate], how: str) -> None:
        self.found[entry] = sorted(own, key=lambda one: not named(one))
        self.how[entry] = BY_FOLD if own[0].scale is not None else how
        self.reasons.pop(entry, None)


def settle(candidates: Sequence[Candidate], sightings: Sightings) -> Settled:
    settled = Settled()
    groups = list(_groups(candidates))
    for group in groups:
        _by_numbers(group, settled)
    readings = Readings(groups, sightings)
    for one in readings.all:
        if len(one.left) == 1 and one.left[0] in settled.found:
            readings.told(one, one.left[0])
    readings.look()
    _by_uses(groups, readings, settled)
    return settled


def _groups(candidates: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    """Candidates that have an entry or a region in common, directly or over others."""
    by_key: dict[object, list[Candidate]] = {}
    for one in candidates:
        by_key.setdefault(one.entry, []).append(one)
        by_key.setdefault(one.where, []).append(one)
    seen: set[Candidate] = set()
    for first in candidates:
        group, waiting = [], [first]
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                group.append(one)
                waiting += by_key.pop(one.entry, []) + by_key.pop(one.where, [])
        if group:
            yield group


def _by_numbers(group: list[Candidate], settled: Settled) -> None:
    for entry, own in _of_entries(group).items():
        if any(one.doubtful for one in own):
            settled.reasons[entry] = f"{_listed(own)} holds nearly its numbers, scaled: not near enough to be sure"
            continue
        clear = _clear(own)
        alone = len({one.entry for one in group}) == 1 and (entry.telling or own[0].scale is not None)
        if not clear:
            settled.reasons[entry] = f"its numbers in {_listed(own)} read the same both ways, so its layout is unknown"
        elif alone and len(clear) == len({one.where for one in own}):
            settled.add(entry, clear, BY_NAME if any(map(named, clear)) else BY_VALUE)


def _of_entries(group: Sequence[Candidate]) -> dict[Entry, list[Candidate]]:
    found: dict[Entry, list[Candidate]] = {}
    for one in group:
        found.setdefault(one.entry, []).append(one)
    return found


def _clear(own: list[Candidate]) -> list[Candidate]:
    """Those whose layout is certain: the only one that fits, or the one of a tensor that kept its name."""
    fitting: dict[object, list[Candidate]] = {}
    for one in own:
        fitting.setdefault(one.where, []).append(one)
    return [one for alike in fitting.values() for one in alike if len(alike) == 1 or named(one)]


# -- by use


def _by_uses(groups: Sequence[list[Candidate]], readings: Readings, settled: Settled) -> None:
    meant: dict[Entry, list[Reading]] = {}
    doubts: dict[Entry, Reading] = {}
    open_ones = {one.where: one for one in readings.all if one.meant is None and one.left}
    for one in readings.all:
        if one.meant is not None:
            meant.setdefault(one.meant, []).append(one)
        for entry in one.left:
            if one.where in open_ones:
                doubts.setdefault(entry, open_ones[one.where])
    for group in groups:
        for entry, own in _of_entries(group).items():
            if entry in settled.found:
                _demand_read(entry, own, meant, settled)
            elif entry not in settled.reasons:
                _by_use(entry, own, meant.get(entry, []), doubts.get(entry), settled)
        _by_own_names(group, readings, settled)
    _demand_all(meant, settled)


def _by_own_names(group: Sequence[Candidate], readings: Readings, settled: Settled) -> None:
    """A tensor of the parameter's own name, with its numbers, is certain where all who have such numbers have one."""
    places = {entry: [one for one in own if called_as(one)] for entry, own in _of_entries(group).items()}
    if any(len(own) != 1 for own in places.values()):
        return
    for entry in [one for one in places if one in settled.unsure]:
        uses = [one for one in readings.all if one.where == places[entry][0].where]
        if uses and all(entry in one.left for one in uses):
            settled.add(entry, places[entry], BY_NAME)


def _demand_read(entry: Entry, own: list[Candidate], meant: dict[Entry, list[Reading]], settled: Settled) -> None:
    read = {one.where for one in meant.get(entry, ())}
    settled.found[entry] = [one for one in settled.found[entry] if one.where in read]
    if not settled.found[entry]:
        del settled.found[entry]
        settled.reasons[entry] = (
            f"{_listed(own)} holds its numbers, but no node that reads it is this parameter's: is it used in forward "
            "as it is, without weight_norm or the like?"
        )


def _by_use(entry: Entry, own: list[Candidate], meant: list[Reading], doubt: Reading | None, settled: Settled) -> None:
    wheres = {one.where for one in meant}
    clear = [one for one in _clear(own) if one.where in wheres]
    constant = entry.common and not all(expected(entry, one.use) for one in meant)
    mixed = not entry.telling and len({_KINDS.get(one.use.node.op_type) for one in meant}) > 1
    if doubt is not None or (wheres and (constant or mixed)):
        settled.unsure.add(entry)
    if doubt is not None:
        settled.reasons[entry] = _tie(entry, own, doubt)
    elif not wheres:
        settled.reasons[entry] = _gone(own)
    elif constant:
        settled.reasons[entry] = f"{_listed(own)} holds its single number, but any constant may be that"
    elif mixed:
        settled.reasons[entry] = f"{_listed(own)} holds its numbers, but is read in different ways, as a constant is"
    elif len(clear) < len(wheres):
        settled.reasons[entry] = f"its numbers in {_listed(own)} read the same both ways, so its layout is unknown"
    else:
        settled.add(entry, clear, BY_NAME if any(map(named, clear)) else BY_ORDER)


def _demand_all(meant: dict[Entry, list[Reading]], settled: Settled) -> None:
    """Nobody keeps a tensor that one of those who share it was refused."""
    shared: dict[Where, set[Entry]] = {}
    for entry, uses in meant.items():
        for one in uses:
            shared.setdefault(one.where, set()).add(entry)
    waiting = [entry for entry in meant if entry not in settled.found]
    while waiting:
        entry = waiting.pop()
        for other in sorted({one for where in {one.where for one in meant[entry]} for one in shared[where]}, key=_name):
            if settled.found.pop(other, None):
                settled.reasons[other] = f"its numbers are stored once for it and for '{entry.name}', which is refused"
                waiting.append(other)


def _name(entry: Entry) -> str:
    return entry.name


def _tie(entry: Entry, own: list[Candidate], doubt: Reading) -> str:
    where, others = _listed(own), [one.name for one in doubt.left if one is not entry]
    if not others:
        return f"{where} holds its numbers, but any network may have such numbers, and nothing else says whose they are"
    return f"{where} holds its numbers, and those of {_some(others)}; nothing says which is whose"


def _gone(own: list[Candidate]) -> str:
    return (
        f"{_listed(own)} holds its numbers, but every node that reads it is of another module: the exporter left it "
        "out, or forward never uses it"
    )


def _listed(own: list[Candidate]) -> str:
    return _some(list(dict.fromkeys(one.region.sighting.tensor.name for one in own)))


def _some(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


# -- Which parameter a node means where it reads a tensor whose numbers several have, or any network may have.
#
# Such a tensor may be stored once for many parameters (exporters merge what is equal), and a parameter whose numbers do
# nothing may be gone. So each use is looked at for itself:
#
# 1. Parameters that cannot be read so are out: a bias is no scale.
# 2. Where the exporter says which module the node came from, it is one of that module, or of a part of it that is never
#    called itself. Where other tensors of the node are known, it is one of their module and of their layer.
# 3. Where the tensor has a name, there, it is the parameter of that name, if the node came from the very module that
#    has it, or all others have a tensor of their own name, or the exporter gave a merged tensor all of its names again.
# 4. One that is left, for a reason, is meant. Otherwise the use is open, and all that are left are in doubt. So it is
#    if the node reads a tensor of another module beside it, or numbers that any network may have are read more often
#    than everything else of their module: parts of other tensors may look like them.


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


def called_as(candidate: Candidate) -> bool:
    """Whether the tensor itself has the name of the parameter, and no Identity gave it that."""
    return named(candidate) and not candidate.region.sighting.own_names.isdisjoint(candidate.entry.names)


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
