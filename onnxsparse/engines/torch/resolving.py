"""From candidates to certainty: which of the tensors that may hold a parameter are its own.

1. Numbers that one parameter alone has, and that can be recognised, are its own wherever they are.
2. Where several parameters have the same numbers, or the numbers say nothing, a tensor belongs to the parameter that it
   is named after; or whose module the nodes that read it came from; or beside whose other tensors it is read.
3. Nothing is said of a matrix that reads the same both ways, nor of what stays open: those have a reason instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from onnxsparse.engines.torch.candidates import Candidate
from onnxsparse.engines.torch.entries import Entry
from onnxsparse.engines.torch.sightings import Sightings

BY_NAME, BY_VALUE, BY_FOLD, BY_ORDER = "name and value", "value", "folded batch norm", "order"
_SHOWN = 3


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


def named(candidate: Candidate) -> bool:
    region = candidate.region
    plain = region.role is None and candidate.layout == "same"
    return plain and not region.sighting.names.isdisjoint(candidate.entry.names)


def settle(candidates: Sequence[Candidate], sightings: Sightings) -> Settled:
    settled = Settled()
    groups = list(_groups(candidates))
    for group in groups:
        _by_numbers(group, settled)
    before = -1
    while len(settled.found) > before:
        before = len(settled.found)
        neighbours = _neighbours(settled)
        for group in groups:
            _by_place(group, settled, sightings, neighbours)
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
                waiting += by_key[one.entry] + by_key[one.where]
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
        else:
            settled.reasons[entry] = _tie(entry, group)


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


def _tie(entry: Entry, group: list[Candidate]) -> str:
    others = list(dict.fromkeys(one.entry.name for one in group if one.entry is not entry))
    where = _listed([one for one in group if one.entry is entry])
    if not others:
        return f"{where} holds its numbers, but any network may have such numbers, and nothing else says whose they are"
    return f"{where} holds its numbers, and those of {_some(others)}; nothing says which is whose"


def _listed(own: list[Candidate]) -> str:
    return _some(list(dict.fromkeys(one.region.sighting.tensor.name for one in own)))


def _some(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


# -- by place


def _neighbours(settled: Settled) -> dict[tuple[str, str], list[Entry]]:
    """The entries that certainly lie in a tensor."""
    found: dict[tuple[str, str], list[Entry]] = {}
    for entry, own in settled.found.items():
        for one in own:
            found.setdefault(one.region.sighting.key, []).append(entry)
    return found


def _by_place(
    group: list[Candidate], settled: Settled, sightings: Sightings, neighbours: dict[tuple[str, str], list[Entry]]
) -> None:
    for entry, own in _of_entries(group).items():
        if entry in settled.found or any(one.doubtful for one in own):
            continue
        clear = _clear(own)
        placed = [one for one in clear if _read_there(one, group) or _read_beside(one, group, sightings, neighbours)]
        if certain := [one for one in clear if named(one) or one in placed]:
            settled.add(entry, certain, BY_NAME if any(map(named, certain)) else BY_ORDER)


def _rivals(candidate: Candidate, group: list[Candidate], layer: bool) -> bool:
    """Whether another parameter of the same module (and of the same layer) has these numbers."""
    entry = candidate.entry
    others = {one.entry for one in group} - {entry}
    return any(one.owners & entry.owners and (not layer or one.layer == entry.layer) for one in others)


def _read_there(candidate: Candidate, group: list[Candidate]) -> bool:
    owners = candidate.entry.owners - {""}
    return bool(owners & candidate.region.sighting.scopes) and not _rivals(candidate, group, layer=False)


def _read_beside(
    candidate: Candidate,
    group: list[Candidate],
    sightings: Sightings,
    neighbours: dict[tuple[str, str], list[Entry]],
) -> bool:
    if _rivals(candidate, group, layer=True):
        return False
    entry, sighting = candidate.entry, candidate.region.sighting
    for node, _ in sighting.reads:
        for other in sightings.beside(node):
            known = neighbours.get(other.key, []) if other is not sighting else []
            if len(known) == 1 and known[0].owners & entry.owners and known[0].layer == entry.layer:
                return True
    return False
