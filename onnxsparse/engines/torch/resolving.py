"""From candidates to certainty: which of the tensors that may hold a parameter are its own.

1. Numbers that one parameter alone has, and that can be recognised, are its own wherever they are.
2. Where several parameters have the same numbers, or the numbers say nothing, every use of such a tensor has to be
   explained (see `uses`). While one is not, all parameters that it may mean are refused: a mask on the tensor would be
   one on somebody else as well.
3. What no node reads is no place. Nothing is said of a matrix that reads the same both ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from onnxsparse.engines.torch.candidates import Candidate
from onnxsparse.engines.torch.entries import Entry
from onnxsparse.engines.torch.sightings import Sightings
from onnxsparse.engines.torch.uses import Reading, Readings, Where, expected, named

BY_NAME, BY_VALUE, BY_FOLD, BY_ORDER = "name and value", "value", "folded batch norm", "order"
_SHOWN = 3
_KINDS = {**dict.fromkeys(("Mul", "Div"), "scale"), **dict.fromkeys(("Add", "Sub", "Gemm"), "shift")}


@dataclass
class Settled:
    """What is certain, how it came to be, and why the rest is not."""

    found: dict[Entry, list[Candidate]] = field(default_factory=dict)
    how: dict[Entry, str] = field(default_factory=dict)
    reasons: dict[Entry, str] = field(default_factory=dict)

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


def _of_entries(group: list[Candidate]) -> dict[Entry, list[Candidate]]:
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
    _demand_all(meant, settled)


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
