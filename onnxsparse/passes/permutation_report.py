"""Reports of `channels` and `permute`: what is one channel, what moved, what it gains, and why the rest stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from onnx import NodeProto

from onnxsparse.channel_classes.classes import ChannelClass, Channels, Member
from onnxsparse.channel_classes.ordering import Reader, reduction_labels
from onnxsparse.channel_classes.rules import table
from onnxsparse.graph.attributes import IdentityKey, label
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Use, Weight
from onnxsparse.math.values import Array
from onnxsparse.passes.permutation_gain import scores_of
from onnxsparse.passes.permuting import Permuted
from onnxsparse.patterns.nm import NM, NOfM
from onnxsparse.planning.plan import PlanRow
from onnxsparse.planning.rows import plain_row, totals_of
from onnxsparse.report.channels_table import proof_line
from onnxsparse.report.rows import Report, Row

PERMUTED, MOVED, STAYS = "permuted", "moved", "stays"
FREE, BLOCKED = "free", "blocked"
READ_AS_IT_COMES = "the channels of what it reads are not known"
ALONE = "each of its outputs reads one channel: there is no reduction to reorder"
MEETING = "its channels meet others that stay where they are"

ROUNDING = 1e-9
"""A share of scores in another order of summing differs by less."""

_WAYS_OUT = (
    ("there is no reduction", "nothing: its channels move with those of the layers around it"),
    ("has no rule for channels", "replace that operator by operators that have one, if it is made of such"),
    ("known", "fold the model's constants, or pass sizes that it is run with by --dim"),
    ("is an output of the model", "nothing: outputs keep their order; take the output away if nobody needs it"),
    ("of the model", "nothing: inputs keep their order"),
    ("cannot be read", "store it in a type that can be read, or dense"),
    ("depends on the order", "nothing, as long as that node is there: it computes something else in another order"),
    ("in a fixed order", "nothing, as long as that node is there"),
    ("meet", "give the two sides layers of their own, if the network is yours"),
    ("alike", "nothing: each of its channels has a part of its own somewhere"),
)
"""What can be done about a reason, by words in it."""


# -- channels


def channels_report(model: Model, called: str, channels: Channels) -> Report:
    """Every class with its members and readers; a row for each weight."""
    source = _Sources(model, channels)
    rows = [_free_row(weight, channels, source) for weight in model.weights]
    classes = [class_facts(one, model.weights) for one in channels.classes]
    totals = totals_of(rows, model, {FREE}, sized=False)
    return Report("channels", called, "", tuple(rows), totals, details={"classes": classes})


def class_facts(one: ChannelClass, weights: Sequence[Weight]) -> dict[str, Any]:
    """A class as it is reported: size, members with their axes, and the weights that reduce over its channels."""
    members = [
        {"tensor": member.name, "axes": list(member.axes), "numbers": _numbers(one, member)} for member in one.members
    ]
    own = {member.tensor: member for member in one.members}
    readers = [
        weight.name
        for weight in weights
        if weight.tensor in own
        and weight.uses
        and _reduces_over(weight, [member for member in one.members if member.tensor is weight.tensor])
    ]
    return {"class": one.number, "size": one.size, "members": members, "readers": readers}


def _numbers(one: ChannelClass, member: Member) -> int:
    """How many numbers of a tensor one channel has, on average where channels differ."""
    inside = int(np.isin(member.labels, one.channels).sum())
    size = int(np.prod(member.tensor.shape, dtype=np.int64))
    return size // max(1, member.labels.size) * inside // one.size


def _reduces_over(weight: Weight, members: Sequence[Member]) -> bool:
    return any(member.axes[-1] in _reduced(use) for member in members for use in weight.uses)


def _reduced(use: Use) -> tuple[int, ...]:
    return use.stored_axes(use.runs[2])


def _free_row(weight: Weight, channels: Channels, source: _Sources) -> Row:
    row = plain_row(weight, FREE)
    if not weight.uses:
        return replace(row, status=BLOCKED, reason=weight.refusal)
    why = blocked(channels, weight, source)
    return replace(row, status=BLOCKED, reason=why, advice=way_out(why)) if why else row


def blocked(channels: Channels, weight: Weight, source: _Sources) -> str:
    """Why nothing moves along the reduction of a weight; '' where something can."""
    own = [m for m in channels.by_tensor.get(weight.tensor, ()) if any(m.axes[-1] in _reduced(u) for u in weight.uses)]
    for twin in weight.twins:
        own += [
            m for m in channels.by_tensor.get(twin.tensor, ()) if any(m.axes[-1] in _reduced(u) for u in weight.uses)
        ]
    if not own and all(use.shape4[0] > use.shape4[2] == 1 for use in weight.uses):
        return ALONE
    if not own:
        return source.of(weight) or READ_AS_IT_COMES
    reasons = [channels.why(member) for member in own]
    if "" in reasons:
        return ""
    return source.of(weight) if reasons[0].startswith(MEETING) and source.of(weight) else reasons[0]


def way_out(reason: str) -> str:
    """What would unblock a weight, in words that a user can act on."""
    return next((way for words, way in _WAYS_OUT if words in reason), "")


class _Sources:
    """Why the channels have their places that weights are multiplied with: by what comes before, up to the layers."""

    def __init__(self, model: Model, channels: Channels) -> None:
        graph = model.proto.graph
        stored = {tensor.name for tensor in graph.initializer}
        self._channels, self._known = channels, table()
        self._made = {name: node for node in graph.node for name in node.output}
        self._inputs = {value.name for value in graph.input} - stored
        self._layers = {IdentityKey(use.source): (weight, use) for weight in model.weights for use in weight.uses}

    def of(self, weight: Weight) -> str:
        """An operator without a rule, what holds the outputs of a layer, or an input of the model; '' if nothing."""
        found: list[str] = []
        waiting, seen = [name for use in weight.uses for name in use.source.input], set[str]()
        while waiting:
            name = waiting.pop(0)
            node = self._made.get(name)
            if name in seen:
                continue
            seen.add(name)
            if name in self._inputs:
                found.append(f"it reads what comes in as '{name}', an input of the model")
            elif node is not None and IdentityKey(node) in self._layers:
                found.insert(0, self._held(*self._layers[IdentityKey(node)]))
            elif node is not None and self._has_rule(node):
                waiting += node.input
            elif node is not None:
                return f"{node.op_type} '{label(node)}' has no rule for channels"
        return next(filter(None, found), "")

    def _has_rule(self, node: NodeProto) -> bool:
        return ("" if node.domain == "ai.onnx" else node.domain, node.op_type) in self._known

    def _held(self, weight: Weight, use: Use) -> str:
        """What holds the outputs of a layer in their places."""
        axes = use.stored_axes(use.runs[1])
        own = [member for member in self._channels.by_tensor.get(weight.tensor, ()) if member.axes[-1] in axes]
        return next(filter(None, map(self._channels.why, own)), "")


# -- permute


def permuted_report(model: Model, called: str, found: Permuted, output: str | None) -> Report:
    """A row for each weight; figures of those that a pattern prunes, and the classes that moved, in the details."""
    plan = found.plan
    figures = _all_figures(found)
    details, notes = _details(found, figures), (*_notes(found), *_gains(figures))
    source = _Sources(model, found.channels)
    rows = tuple(_row(row, found, figures.get(row.weight), source) for row in plan.rows)
    totals = totals_of(rows, model, {PERMUTED}, sized=False)
    return Report(
        "permute",
        called,
        plan.rule.text,
        rows,
        totals,
        output=output or "",
        notes=notes,
        details={"permutation": details},
    )


def order_facts(found: Permuted) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What `prune --permute` says of the order: details and notes. To be asked for before anything moves."""
    figures = _all_figures(found)
    details = _details(found, figures)
    return details, (*filter(None, [proof_line(details)]), *_notes(found), *_gains(figures))


def _details(found: Permuted, figures: Mapping[Weight, Mapping[str, float]]) -> dict[str, Any]:
    weights = [row.weight for row in found.plan.rows]
    moved = [one for one in found.channels.classes if one.number in found.orders]
    return {
        "pattern": str(found.facts.get("pattern", "")),
        "effort": str(found.facts.get("effort", "")),
        "seed": _count(found.facts.get("seed")),
        "proven": found.proof is not None,
        "classes": [class_facts(one, weights) for one in moved],
        "weights": [{"name": weight.name, **one} for weight, one in figures.items()],
        "rolled_back": list(_rolled_back(found)),
        "proof": dict(found.proof) if found.proof else None,
    }


def _count(value: object) -> int:
    """A number of a record, which may hold anything."""
    return value if isinstance(value, int) and value >= 0 else 0


def _all_figures(found: Permuted) -> dict[Weight, dict[str, float]]:
    return {row.weight: _figures(row, found) for row in found.plan.planned if isinstance(row.pattern, NOfM)}


def _gains(figures: Mapping[Weight, Mapping[str, float]]) -> list[str]:
    """What the pattern keeps of the scores of all weights that it prunes."""
    before, after = (sum(one[key] * one["score"] for one in figures.values()) for key in ("before", "after"))
    whole = sum(one["score"] for one in figures.values())
    if not whole:
        return []
    shares = f"{100 * after / whole:.2f} % of the scores of what it prunes, {100 * before / whole:.2f} % before"
    return [f"the pattern keeps {shares}"]


def _figures(row: PlanRow, found: Permuted) -> dict[str, float]:
    """What the pattern keeps of a weight's scores before and after, and the efficacy: see `permutation_search`."""
    assert isinstance(row.pattern, NOfM)
    gain, whole = found.gain(row), scores_of(row, found.scores)
    before, after = gain.before, gain.after
    gone = row.pattern.drop_count(row.use.shape4, None)
    free = _unstructured(whole, gone)
    efficacy = (after - before) / (free - before) if free > before else 0.0
    total = float(whole.sum(dtype=np.float64))
    share = total or 1.0
    return {
        "score": total,
        "before": before / share,
        "after": after / share,
        "unstructured": free / share,
        "efficacy": efficacy,
    }


def _unstructured(scores: Array, gone: int) -> float:
    """The sum of all scores but the smallest."""
    flat = scores.reshape(-1)
    if not gone:
        return float(flat.sum(dtype=np.float64))
    return float(np.partition(flat, gone - 1)[gone:].sum(dtype=np.float64))


def _row(row: PlanRow, found: Permuted, figures: Mapping[str, Any] | None, source: _Sources) -> Row:
    weight = row.weight
    moves = bool(found.moves_of(weight))
    plain = plain_row(weight, MOVED if moves else STAYS)
    if row.pattern is None or figures is None:
        return replace(plain, reason=row.reason, advice=row.advice, words=row.words) if not moves else plain
    plain = replace(plain, pattern=row.pattern.text)
    if abs(figures["after"] - figures["before"]) > ROUNDING:
        return replace(plain, status=PERMUTED)
    why = blocked(found.channels, weight, source) or _failed(found, weight) or _without_gain(row, found)
    return replace(plain, reason=why, advice=way_out(why))


def _without_gain(row: PlanRow, found: Permuted) -> str:
    """Why an order gains nothing of a weight that nothing holds in its place."""
    assert isinstance(row.pattern, NOfM)
    reader = Reader(row.weight.tensor, row.use, row.pattern.n, row.pattern.m, partial(scores_of, row, found.scores))
    labels = reduction_labels(reader, found.channels.by_tensor.get(row.weight.tensor, []))
    size = row.pattern.m
    if isinstance(row.pattern, NM) and labels is not None and not labels.shape[1] % size:
        groups = labels.reshape(-1, size)
        if (groups == groups[:, :1]).all():
            return f"each group of {size} lies within one channel, so every order keeps the same of it"
    return "no order that was found keeps more of it" if found.known else "the given order keeps the same of it"


def _failed(found: Permuted, weight: Weight) -> str:
    own = [one for one in found.channels.classes if one.number in found.failed]
    failed = next((one for one in own if any(member.tensor is weight.tensor for member in one.members)), None)
    return "" if failed is None else f"its order was rolled back: {found.failed[failed.number]}"


def _rolled_back(found: Permuted) -> Iterator[dict[str, Any]]:
    for one in found.channels.classes:
        if one.number in found.failed:
            names = [member.name for member in one.members]
            yield {"class": one.number, "size": one.size, "members": names, "reason": found.failed[one.number]}


def _notes(found: Permuted) -> tuple[str, ...]:
    notes = [
        f"class {one['class']} ({one['size']} channels, '{one['members'][0]}' first) was rolled back: {one['reason']}"
        for one in _rolled_back(found)
    ]
    notes += filter(None, [(found.proof or {}).get("refused", "")])
    notes += [f"{one}: it proves nothing" for one in (found.proof or {}).get("uninformative", ())]
    if found.left:
        count = f"{len(found.left)} tensors" if len(found.left) > 1 else "a tensor"
        notes.append(f"the model has not {count} of the record, '{found.left[0]}' first; every order of it is applied")
    pattern = found.plan.rule.pattern
    if found.known and isinstance(pattern, NOfM) and not isinstance(pattern, NM):
        searched = f"the order is searched for {pattern.n}:{pattern.m} along the inputs"
        notes.append(f"{searched}, and taken where {pattern.text} keeps more")
    if not found.orders:
        notes.append(
            "nothing moves; the file is a copy" if not found.failed else "nothing is left to move; the file is a copy"
        )
    return tuple(notes)


__all__ = ["channels_report", "order_facts", "permuted_report"]
