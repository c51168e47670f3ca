"""The pruning plan: what will happen to every weight, decided before anything is changed.

1. Every weight of the model gets a row: a pattern and how many units go, or the reason why it stays dense.
2. A reason is looked for in this order: it cannot be pruned at all, the user's --exclude and --include, the words
   that stay dense by default, the target's refusal, a pattern that does not fit all of its uses.
3. What is left is shared out by the allocation.
What it does not do: change anything, or look at more of the numbers than the allocation and the words need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onnxsparse.allocations.allocation import Shares
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Use, Weight
from onnxsparse.math.values import Array
from onnxsparse.patterns import Pattern
from onnxsparse.patterns.nm import NM
from onnxsparse.patterns.transposable import Transposable
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.planning.defaults import DEPTHWISE, heads_of, words_of
from onnxsparse.planning.layers import layers_of
from onnxsparse.planning.names import named
from onnxsparse.planning.recorded import readable
from onnxsparse.planning.rule import Rule
from onnxsparse.planning.stored_params import Candidate, WeightParam, weight_param
from onnxsparse.planning.ties import Tie, ties_among
from onnxsparse.report.rows import TIED


@dataclass(frozen=True, eq=False)
class PlanRow:
    """One weight: what goes, or why it stays dense."""

    weight: Weight
    pattern: Pattern | None = None
    drop: int = 0
    reason: str = ""
    advice: str = ""
    words: tuple[str, ...] = ()
    chosen: bool = False  # dense because the user said so
    keep: Array | None = None  # a mask given by the user, in stored order
    cut: tuple[int, int] | None = None  # the key at which the dropped end, and how many equal ones go, where known
    tied: PlanRow | None = None  # what this weight is a copy of: it has the same mask

    @property
    def name(self) -> str:
        return self.weight.name

    @property
    def use(self) -> Use:
        return self.weight.uses[0]

    @property
    def param(self) -> WeightParam:
        return weight_param(self.weight)

    @property
    def ragged(self) -> int:
        return self.pattern.ragged(self.use.shape4) if self.pattern else 0

    @property
    def sparsity(self) -> float | None:
        """The share of units that go; None where the pattern fixes it."""
        if self.pattern is None or not self.pattern.takes_sparsity:
            return None
        return self.drop / max(1, self.pattern.units(self.use.shape4))


@dataclass(frozen=True)
class Plan:
    """A row for every weight of a model, and the rule they came from."""

    rows: tuple[PlanRow, ...]
    rule: Rule
    holds: bool = False  # its zeros are those that the file has already
    calibration: Mapping[str, Any] = field(default_factory=dict)  # what decided it, where samples did

    @property
    def planned(self) -> list[PlanRow]:
        return [row for row in self.rows if row.pattern is not None]

    @property
    def left_out(self) -> list[PlanRow]:
        """Weights that stay dense, whole or in part, though nobody asked for it."""
        return [row for row in self.rows if (row.pattern is None and not row.chosen) or row.ragged]


@dataclass(frozen=True)
class Reason:
    """Why a weight stays dense, and what to do about it."""

    text: str
    advice: str = ""
    words: tuple[str, ...] = ()
    chosen: bool = False


def make_plan(model: Model, rule: Rule, verifying: bool = False) -> Plan:
    """The plan that a rule makes for a model.

    `verifying`: it is what a model has to be already, so weights behind a mask, and depthwise layers that the record
    calls pruned, are not left out.
    """
    found = eligible(model, rule, verifying)
    ties = ties_of(found)
    rows = _allocated(model, [row for row in found.rows if row.weight not in ties], found.rule)
    return Plan(tuple(_alike(with_copies(found.rows, rows, ties))), found.rule)


def ties_of(made: Plan) -> dict[Weight, Tie]:
    """The copies among planned weights, where the rule ties these."""
    return ties_among((row.weight, row.pattern.text) for row in made.rows if row.pattern) if made.rule.ties else {}


def with_copies(every: Sequence[PlanRow], rows: Sequence[PlanRow], ties: Mapping[Weight, Tie]) -> list[PlanRow]:
    """All rows in their order: of a copy as much goes as of what it is a copy of, at the same places."""
    known = {row.weight: row for row in rows}
    return [
        known[row.weight] if row.weight not in ties else _copy(row, known[ties[row.weight].leader]) for row in every
    ]


def _copy(row: PlanRow, leader: PlanRow) -> PlanRow:
    reason = "; ".join(filter(None, [row.reason, f"{TIED}'{leader.name}'"]))
    return replace(row, drop=leader.drop, cut=None, reason=reason, tied=leader)


def eligible(model: Model, rule: Rule, verifying: bool = False) -> Plan:
    """Which weights a rule takes, and why it leaves the others dense; how much of each goes is not decided."""
    known = readable(model)
    # A weight that was pruned before is no fixed mathematics, whatever its few numbers look like now.
    rule = replace(rule, trained=frozenset(known.pruned)) if known else rule
    rule = replace(rule, heads=_heads(model, rule))
    chosen = rule.names.choose([named(weight) for weight in model.weights])
    rows = [_row(weight, chosen[weight.name], rule, verifying) for weight in model.weights]
    return Plan(tuple(_agreed(rows)), rule)


def _heads(model: Model, rule: Rule) -> frozenset[str]:
    """The names of the output layers, where a pattern could silence an output."""

    def fixed(weight: Weight) -> bool:
        return weight.name not in rule.trained and "basis" in words_of(weight_param(weight))

    if rule.pattern is None or rule.pattern.name != "filter" or "output" in rule.allow:
        return frozenset()
    return frozenset(weight.name for weight in heads_of(model, fixed))


def _agreed(rows: list[PlanRow]) -> list[PlanRow]:
    """A weight stays dense with any other name of the same bytes."""
    dense = {row.weight: row for row in rows if row.pattern is None}
    return [_with_twins(row, [dense[twin] for twin in row.weight.twins if twin in dense]) for row in rows]


def _with_twins(row: PlanRow, dense: list[PlanRow]) -> PlanRow:
    if row.pattern is None or not dense:
        return row
    return PlanRow(
        row.weight,
        reason=f"its bytes are also those of '{dense[0].name}', which stays dense",
        chosen=dense[0].chosen,
    )


def _alike(rows: list[PlanRow]) -> list[PlanRow]:
    """All names of the same bytes lose the same number."""
    drops: dict[Weight, int] = {}
    for row in rows:
        for twin in row.weight.twins:
            drops.setdefault(twin, drops.get(row.weight, row.drop))
    return [replace(row, drop=drops.get(row.weight, row.drop)) if row.weight.twins else row for row in rows]


def _row(weight: Weight, deselected: str, rule: Rule, verifying: bool) -> PlanRow:
    reason = why_dense(weight, deselected, rule, verifying)
    if reason is None:
        return PlanRow(weight, rule.pattern)
    return PlanRow(weight, None, 0, reason.text, reason.advice, reason.words, reason.chosen)


def why_dense(weight: Weight, deselected: str, rule: Rule, verifying: bool) -> Reason | None:
    """The first reason to leave a weight dense, or None."""
    return (
        _impossible(weight, verifying)
        or (Reason(deselected, chosen=True) if deselected else None)
        or _held_back(weight_param(weight), rule, verifying)
        or _refused_by_target(weight, rule)
        or (does_not_fit(weight, rule.pattern) if rule.pattern else None)
    )


def _impossible(weight: Weight, verifying: bool) -> Reason | None:
    if weight.refusal:
        return Reason(weight.refusal, way_out(weight.refusal))
    if not verifying and any(use.masks for use in weight.uses):
        return Reason("a mask is applied to it in the graph already", "run `onnxsparse fold` first")
    return None


def way_out(refusal: str) -> str:
    """What to do about a weight that cannot be pruned as it is."""
    return (
        "fold the model's constants first (onnxsim or onnxruntime's basic optimisation)"
        if "rearranges" in refusal
        else ""
    )


def _held_back(param: WeightParam, rule: Rule, verifying: bool) -> Reason | None:
    found = words_of(param)
    if param.name in rule.heads:
        found["output"] = "an output layer: a filter less is an output that says nothing"
    if param.name in rule.trained:
        found.pop("basis", None)
    blocking = {word: seen for word, seen in found.items() if word not in rule.allow}
    if not blocking:
        return None
    misfit = does_not_fit(param.weight, rule.pattern) if rule.pattern else None
    further = misfit or _refused_by_target(param.weight, rule)
    if verifying and tuple(blocking) == (DEPTHWISE,) and param.name in rule.trained and further is None:
        return None
    text = ", ".join(f"{word} ({seen})" for word, seen in blocking.items())
    return Reason(text, _way_out(tuple(blocking), further), tuple(blocking))


def _way_out(words: tuple[str, ...], further: Reason | None) -> str:
    """Allowing a word helps only where the pattern and the target would take the weight then."""
    if further is None:
        return f"--allow {','.join(words)} to prune it"
    return f"allowing it would not help: {further.text}"


def _refused_by_target(weight: Weight, rule: Rule) -> Reason | None:
    if rule.target is None:
        return None
    verdicts = [rule.target.judge(weight, use) for use in weight.uses]
    refused = next((verdict for verdict in verdicts if verdict.refusal), None)
    return Reason(refused.refusal, refused.advice) if refused else None


def does_not_fit(weight: Weight, pattern: Pattern) -> Reason | None:
    """A mask belongs to the stored tensor: the pattern must be the same along all uses, and have at least one unit."""
    keys = {_fit_key(use, pattern) for use in weight.all_uses}
    if len(keys) > 1:
        users = " and ".join(dict.fromkeys(f"{use.op} '{use.node}'" for use in weight.all_uses))
        return Reason(
            f"one tensor along two axes: {users} reduce over different axes of it",
            "--pattern unstructured fits every use",
        )
    cut = next((use for use in weight.all_uses if _cuts_units(use, pattern)), None)
    if cut is not None:
        return Reason(
            f"{cut.op} '{cut.node}' reads its outputs in another order or in parts: units of {pattern.text} are torn",
            "--pattern unstructured and N:M fit every order of outputs",
        )
    units = pattern.units(weight.uses[0].shape4)
    if units == 0:
        return Reason(_no_unit(weight.uses[0], pattern), "choose a smaller pattern, or pad the channels in the model")
    return None


def _fit_key(use: Use, pattern: Pattern) -> object:
    if pattern.name == "unstructured":
        return ""
    if isinstance(pattern, Transposable):
        return use.square_key()
    return use.groups_key(pattern.m) if isinstance(pattern, NM) else use.matrix_key()


def _cuts_units(use: Use, pattern: Pattern) -> bool:
    """Whether a unit that holds several outputs is torn where Split, Slice or Concat move them."""
    if pattern.name in ("unstructured", "N:M", "alive", "filter"):
        return False
    if pattern.name == "channel":
        return bool(use.shuffles) and use.shape4[0] > 1
    high, outs = getattr(pattern, "outputs", 1), use.shape4[1]
    return high > 1 and (bool(use.shuffles) or any(end % high and end != outs for end in use.rows or ()))


def _no_unit(use: Use, pattern: Pattern) -> str:
    group, out, inputs, _ = use.shape4
    where = " per group" if group > 1 else ""
    return f"{inputs} in{where} by {out} out holds no whole unit of {pattern.text}"


def candidates(model: Model, rows: Sequence[PlanRow], rule: Rule) -> list[Candidate]:
    """What the allocation of a rule shares out among."""
    assert rule.pattern is not None
    rows = [row for row in rows if row.tied is None]
    if not rule.allocation.needs_places:
        return [Candidate(row.param, rule.pattern, rule.score) for row in rows if row.pattern]
    layers = layers_of(model, [row.weight for row in rows])
    known = [(row, layers.get(row.weight)) for row in rows]
    return [
        Candidate(row.param, rule.pattern, rule.score, layer.place(rule.target, row.pattern is None) if layer else None)
        for row, layer in known
        if layer or row.pattern
    ]


def _allocated(model: Model, rows: list[PlanRow], rule: Rule) -> list[PlanRow]:
    """Give every planned row its count."""
    if rule.pattern is None:
        return rows
    found = candidates(model, rows, rule)
    shares = rule.allocation.allocate(found, rule.sparsity, rule.pattern) if found else Shares({})
    return [replace(row, drop=shares[row.name], cut=_cut(row, shares, rule)) if row.pattern else row for row in rows]


def _cut(row: PlanRow, shares: Shares, rule: Rule) -> tuple[int, int] | None:
    """The allocation's cut, where its scores are the very keys that the weight is pruned by."""
    same = (
        row.weight.tensor.kind == "float32"
        and rule.score.name == "magnitude"
        and isinstance(rule.pattern, Unstructured)
    )
    cut = shares.cuts.get(row.name)
    return cut if same and cut is not None and cut[0] < 1 << 31 and not row.weight.twins else None
