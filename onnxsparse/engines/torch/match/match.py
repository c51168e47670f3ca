"""`match`: which tensor of an ONNX file is which parameter of the torch module that it was exported from.

1. Both sides are brought to one form: stored tensors with the names, nodes and scopes that read them (`tensor_reads`),
   and the module's tensors without wrappers, once each.
2. A name alone is never enough: numbers decide (`candidates`), and what they leave open is decided by names and places
   (`rules`).
3. What is not certain is refused, with the reason. What a batch normalization was folded into is said, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.match.candidates import (
    SCALES,
    SHIFTS,
    Candidate,
    Entry,
    Norm,
    Regions,
    bias_of,
    entries,
    norms,
    owners,
    part_of,
    scaled,
)
from onnxsparse.engines.torch.match.rules import BY_FOLD, Settled, settle
from onnxsparse.engines.torch.match.tensor_reads import Naming, Sighting, Sightings, regions
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.graph.torch_match import Match, Matched


def match(model: Model, module: Any) -> Match:
    """Find every tensor of the module in the model, or say why not."""
    found, sightings = _entries(module), Sightings(model)
    floats = [one for one in found if one.is_float and one.values[0].numel()]
    everywhere = Regions([region for sighting in sightings.all.values() for region in regions(sighting)])
    exact = [one for entry in floats for one in everywhere.holding(entry)]
    paths = {path for path, _ in owners(module)}
    sightings.rename(Naming(*_prefix(exact), paths))
    known = norms(owners(module))
    candidates = exact + _scaled(floats, exact, everywhere, sightings, known)
    settled = settle(candidates, sightings)
    asked = [one for one in found if not one.inner]
    matched = {entry.name: _matched(entry, settled) for entry in asked if entry in settled.found}
    folded = _fold(asked, settled, sightings, known, matched)
    refused = {one.name: _reason(one, settled, sightings) for one in asked if one.name not in {**matched, **folded}}
    aliases = {alias: entry.name for entry in asked for alias in entry.aliases}
    return Match(matched, aliases, folded, refused)


def _entries(module: Any) -> list[Entry]:
    if not hasattr(module, "state_dict"):
        raise OptionError(f"match takes a torch module, not a {type(module).__name__}")
    if isinstance(module, torch().jit.ScriptModule):
        raise OptionError("match takes a module as it was written, not one that was scripted or traced")
    for name, one in module.named_parameters():
        if torch().nn.parameter.is_lazy(one):
            raise OptionError(f"'{name}' of the module has no shape yet; run it once first")
        if one.layout != torch().strided:
            raise OptionError(f"'{name}' of the module is stored sparse; make it dense first")
    found = entries(module)
    if missing := [one.name for one in found if one.values[0].is_meta]:
        raise OptionError(f"'{missing[0]}' of the module has no numbers yet (it is on 'meta'); load its weights first")
    return found


def _scaled(
    floats: Sequence[Entry], exact: Sequence[Candidate], everywhere: Regions, sightings: Sightings, known: list[Norm]
) -> list[Candidate]:
    """Candidates for what has none, among the tensors that nobody else's numbers are in."""
    taken, entries_taken = {one.where for one in exact}, {one.entry for one in exact}
    free = Regions([one for one in everywhere.all if (one.sighting.key, one.start) not in taken])
    rest = [entry for entry in floats if entry not in entries_taken]
    return [one for entry in rest for one in scaled(entry, free, sightings, known)]


def _matched(entry: Entry, settled: Settled) -> Matched:
    first, *copies = [_place(one, settled.how[entry]) for one in settled.found[entry]]
    return Matched(**{**vars(first), "copies": tuple(copies)})


def _place(candidate: Candidate, how: str) -> Matched:
    scope, name = candidate.region.sighting.key
    return Matched(name, scope, candidate.layout, how, candidate.entry.shape, candidate.region.start)


# -- names and scopes of the file, as the module has them


def _prefix(exact: Sequence[Candidate]) -> tuple[str, str]:
    """What the names of the file, and those of the module, have before what both share."""
    pairs = [(theirs, mine) for one in exact for theirs in one.region.sighting.names for mine in one.entry.names]
    found = Counter(both for theirs, mine in pairs for both in _difference(theirs, mine))
    return found.most_common(1)[0][0] if found else ("", "")


def _difference(theirs: str, mine: str) -> list[tuple[str, str]]:
    if theirs == mine:
        return [("", "")]
    if theirs.endswith(f".{mine}"):
        return [(theirs[: -len(mine)], "")]
    return [("", mine[: -len(theirs)])] if mine.endswith(f".{theirs}") else []


# -- what was folded, and what was not found


def _fold(
    found: Sequence[Entry], settled: Settled, sightings: Sightings, known: list[Norm], matched: dict[str, Matched]
) -> dict[str, str]:
    """Name the tensors that batch normalizations became part of; biases of the layers before them become matched."""
    by_name = {name: entry for entry in found for name in entry.names}
    folded: dict[str, str] = {}
    for entry, own in settled.found.items():
        scale, weight = own[0].scale, own[0].region.sighting
        node, bias = bias_of(weight, sightings)
        if scale is None or node is None or bias is None or len(own) > 1:
            continue
        fitting = [norm for norm in known if norm.gives(scale, bias, entry.module.bias)]
        if len(fitting) > 1:
            fitting = [norm for norm in fitting if norm.path in sightings.scopes_of(bias)]
        if len(fitting) == 1:
            parts = _parts(fitting[0].path, weight, bias)
            folded.update({by_name[name].name: tensor for name, tensor in parts.items() if name in by_name})
            _bias(entry, bias, by_name, matched)
    return {name: tensor for name, tensor in folded.items() if name not in matched}


def _parts(path: str, weight: Sighting, bias: Sighting) -> dict[str, str]:
    before = f"{path}." if path else ""
    scales = {before + local: weight.tensor.name for local in SCALES}
    return {**scales, **{before + local: bias.tensor.name for local in SHIFTS}}


def _bias(entry: Entry, bias: Sighting, by_name: Mapping[str, Entry], matched: dict[str, Matched]) -> None:
    mine = by_name.get(f"{entry.owner}.bias" if entry.owner else "bias")
    if mine is not None and mine.name not in matched and entry.module.bias is not None:
        matched[mine.name] = Matched(bias.key[1], bias.key[0], "same", BY_FOLD, mine.shape)


def _reason(entry: Entry, settled: Settled, sightings: Sightings) -> str:
    if entry in settled.reasons:
        return settled.reasons[entry]
    if not entry.is_float:
        return "it holds no floats: exports have no weight for it"
    if cut := part_of(entry, sightings):
        return f"'{cut}' holds a part of it only: the exporter cut off what its sample input did not use"
    alike = [one for one in sightings.all.values() if not one.names.isdisjoint(entry.names)]
    if alike:
        return f"'{alike[0].tensor.name}' of the file holds other numbers: was the module trained or reset since?"
    if isinstance(entry.module, torch().nn.modules.batchnorm._BatchNorm):
        return "no tensor of the file holds its numbers: it was folded into a layer, and nothing says into which"
    if sightings.called and entry.owners.isdisjoint({*sightings.called, ""}):
        return "no tensor of the file holds its numbers, and no node came from its module: does forward use it?"
    return "no tensor of the file holds its numbers"
