"""From what is asked to a proven permutation: analysis, search or a given record, proof, and roll-back by class.

1. Readers are the weights that `prune` would prune with the same options. Their scores are magnitudes, or given.
2. The orders of all classes are proven together. Where the outputs are not what they were, halves of the classes are
   tried, and those that fail stay as they are, with the reason.
3. The record says what has moved since the first permutation of the file: see `channel_classes.permutation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from onnxsparse import progress
from onnxsparse.channel_classes.classes import ChannelClass, Channels, analyse
from onnxsparse.channel_classes.ordering import Reader, best_orders
from onnxsparse.channel_classes.permutation import METADATA, Move, MovedTensor, Permutation
from onnxsparse.engines.working_dirs import temporary
from onnxsparse.errors import OptionError, PlanError, brief
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.graph.weights import Weight
from onnxsparse.math.values import Reading, Values
from onnxsparse.options import Names
from onnxsparse.passes.given_permutation import Orders, alike, applied_to, moves_of, record_of, recorded
from onnxsparse.passes.permutation_gain import Gain, gain, grouped, scores_of
from onnxsparse.passes.permutation_proof import Proof, demand_runtime, input_shapes, write
from onnxsparse.passes.permute import Moves, Permute
from onnxsparse.patterns.nm import NM, NOfM
from onnxsparse.permutation_search import EFFORTS
from onnxsparse.planning.given_scores import GivenScores, Scores
from onnxsparse.planning.plan import Plan, PlanRow, make_plan
from onnxsparse.planning.recorded import ORIGINS, PREFIX, readable
from onnxsparse.planning.rule import Rule
from onnxsparse.scores import Magnitude


@dataclass(frozen=True)
class Asked:
    """What was asked for: for which zeros, of which weights, how long it is searched, or which order is given."""

    pattern: str | None = None
    target: str | None = None
    include: Names = ()
    exclude: Names = ()
    allow: Names = ()
    scores: Scores | None = None
    effort: str = "quick"
    seed: int = 0
    apply: Any = None
    unproven: bool = False


@dataclass(frozen=True, eq=False)
class Permuted:
    """What moves in a model, and what is known of it; nothing has moved yet."""

    plan: Plan
    scores: GivenScores | None
    channels: Channels
    orders: Orders
    moves: Moves
    facts: Mapping[str, Any]
    failed: Mapping[int, str] = field(default_factory=dict)
    """Why the order of a class was rolled back."""
    proof: Mapping[str, Any] | None = None
    left: tuple[str, ...] = ()
    """Tensors of a given record that the model has not."""
    known: Mapping[StoredTensor, Gain] = field(default_factory=dict)
    """Gains that the search has looked at already."""

    @property
    def planned(self) -> list[PlanRow]:
        return self.plan.planned

    def gain(self, row: PlanRow) -> Gain:
        """What these moves gain of a weight."""
        known, moves = self.known.get(row.weight.tensor), self.moves_of(row.weight)
        alike = known is not None and list(known.moves) == list(moves)
        return known if known is not None and alike else gain(row, moves, self.scores)

    def moves_of(self, weight: Weight) -> tuple[Move, ...]:
        """What moves in a weight, under whatever name its bytes have."""
        tensors = (weight.tensor, *(twin.tensor for twin in weight.twins))
        return next((tuple(self.moves[one]) for one in tensors if one in self.moves), ())

    @property
    def record(self) -> Permutation:
        """These moves alone."""
        names = {member.tensor: member.name for member in self.channels.members}
        tensors = {names[one]: MovedTensor(names[one], one.shape, tuple(moves)) for one, moves in self.moves.items()}
        for weight in (row.weight for row in self.plan.rows if row.weight.twins and self.moves_of(row.weight)):
            tensors.setdefault(weight.name, MovedTensor(weight.name, weight.shape, self.moves_of(weight)))
        return Permutation(tensors, self.facts)


def channels_of(model: Model) -> Channels:
    """The channel classes with sizes for what the file leaves open.

    Two samples show what happens along the first axis. Where the graph holds a size of one sample for good, that is a
    contradiction that holds channels: one sample is taken if more of them can move then.
    """
    try:
        shapes = input_shapes(model)
    except OptionError:  # an input without a shape: what is fixed is enough for some
        return analyse(model)
    # Sizes that do not fit the model block what they reach.
    found = [analyse(model, one) for one in shapes]
    best = max(found, key=lambda one: sum(each.size for each in one.classes))
    return _of_all_sizes(best, [one for one in found if one is not best and one.classes])


def _of_all_sizes(found: Channels, others: Sequence[Channels]) -> Channels:
    """Without classes in one tensor that are free for some sizes alone, such as the rows of a table behind a length."""
    kept: list[ChannelClass] = []
    reasons = dict(found.reasons)
    for one in found.classes:
        alone = len({member.tensor for member in one.members}) == 1
        if alone and not all(_free(one, other) for other in others):
            reasons.update(dict.fromkeys(one.channels.tolist(), "other sizes of the inputs use it otherwise"))
        else:
            kept.append(replace(one, number=len(kept)))
    return replace(found, classes=tuple(kept), reasons=reasons)


def _free(one: ChannelClass, other: Channels) -> bool:
    """Whether the numbers of a class can move in another analysis, too."""
    channels = np.concatenate([each.channels for each in other.classes])
    for member in one.members:
        twin = next((each for each in other.by_tensor.get(member.tensor, ()) if each.axes == member.axes), None)
        own = np.isin(member.labels, one.channels)
        if twin is None or not np.isin(twin.labels[own], channels).all():
            return False
    return True


# -- orders


def asked_for(model: Model, asked: Asked) -> Permuted:
    """The permutation that was asked for, searched or given, and proven unless that was not wanted."""
    _demand_known(asked)
    plan, scores = _readers_of(model, asked)
    permutation = None if asked.apply is None else record_of(asked.apply)
    known = recorded(model, model.path or "the model")
    if not asked.unproven:
        demand_runtime()
    readers = model, plan, scores
    found = searched(*readers, asked) if permutation is None else given(*readers, *permutation)
    if permutation is not None and known is not None:
        _refuse_again(model, known, found, permutation[1])
    _refuse_pruned(model, found)
    found = _untorn(found, "" if permutation is None else permutation[1])
    if asked.unproven:
        return replace(found, facts={**found.facts, "proven": False})
    found = proven(model, found, asked.seed)
    if permutation is not None and found.failed:
        number, why = next(iter(found.failed.items()))
        name = next(one.members[0].name for one in found.channels.classes if one.number == number)
        raise PlanError(f"{permutation[1]}: in this model the outputs change with the order of '{name}': {why}")
    return found


def _refuse_again(model: Model, known: Permutation, found: Permuted, where: str) -> None:
    """The same moves a second time would be another order."""
    moves = found.record.tensors
    if moves and all(name in known.tensors and alike(one, known.tensors[name]) for name, one in moves.items()):
        raise OptionError(
            f"{model.path or 'the model'} is in the order of {where} already, as it records; take it as it is"
        )


def _demand_known(asked: Asked) -> None:
    if asked.effort not in EFFORTS:
        raise OptionError(f"--effort is one of {', '.join(EFFORTS)}, not {brief(asked.effort)}")
    if isinstance(asked.seed, bool) or not isinstance(asked.seed, int) or not 0 <= asked.seed < 1 << 64:
        raise OptionError(f"a seed is a whole number from 0 to 2**64 - 1, not {brief(asked.seed)}")


def _readers_of(model: Model, asked: Asked) -> tuple[Plan, GivenScores | None]:
    """The weights that `prune` would prune with the same options, and the scores given for them."""
    pattern = asked.pattern if asked.pattern or asked.target else "2:4"
    names = {"include": asked.include, "exclude": asked.exclude, "allow": asked.allow}
    rule = Rule.make(pattern, asked.target, **names)
    if not isinstance(rule.pattern, NOfM):
        raise OptionError(
            f"--pattern {rule.pattern.text if rule.pattern else ''}: channels are permuted for N:M, such as 2:4"
        )
    plan = make_plan(model, rule.demand())
    if asked.scores is None:
        return plan, None
    scores = GivenScores.of(asked.scores, model.weights)
    scores.demand(row.weight for row in plan.planned)
    return plan, scores


def demand_alone(permute: bool, asked: Asked, others: Mapping[str, Any]) -> None:
    """Options of a search go with one, and a plan or masks are those of the order as it is."""
    beside = next((flag for flag, value in others.items() if value is not None), None)
    if permute and beside is not None:
        raise OptionError(f"{beside} is for the channels as they stand; `onnxsparse permute` first, or leave one out")
    searching = {
        "--scores": asked.scores is not None,
        "--effort": asked.effort != "quick",
        "--unproven": asked.unproven,
    }
    for flag, given in searching.items():
        if given and not permute:
            raise OptionError(f"{flag} is for the order of the channels; pass --permute too")


def masked(made: Plan, found: Permuted) -> Plan:
    """A plan for the permuted model with masks by the scores that were given, which moved along."""
    return made if found.scores is None else replace(made, rows=tuple(_masked(row, found) for row in made.rows))


def _masked(row: PlanRow, found: Permuted) -> PlanRow:
    if row.pattern is None or found.scores is None:
        return row
    dense = next(one.weight for one in found.plan.rows if one.name == row.name)
    scores = MovedTensor(row.name, dense.shape, found.moves_of(dense))(found.scores.scores(dense))
    values = Values(row.use.matrix(scores.reshape(-1)), Reading(scores.dtype.name))
    return replace(row, keep=row.use.restore(row.pattern.select(values, Magnitude(), row.drop)))


def searched(model: Model, plan: Plan, scores: GivenScores | None, asked: Asked) -> Permuted:
    """The orders of all classes that the readers in a plan gain by."""
    channels = channels_of(model)
    readers = [_reader(row, scores) for row in plan.planned]
    orders = best_orders(channels, readers, asked.effort, asked.seed)
    pattern = plan.rule.pattern.text if plan.rule.pattern else ""
    facts = {"pattern": pattern, "effort": asked.effort, "seed": asked.seed}
    return _gaining(Permuted(plan, scores, channels, orders, moves_of(channels, orders), facts))


def _gaining(found: Permuted) -> Permuted:
    """Without the orders by which the pattern keeps less of all readers of their class together.

    The search takes copies of a channel one by one; where several stand in one group, it may be wrong about them. It
    looks along the reduction alone: for a pattern that is along the outputs, too, classes are taken one after the other
    as long as more is kept.
    """
    if not isinstance(found.plan.rule.pattern, NM):
        return _gaining_in_turn(found)
    known = {
        row.weight.tensor: gain(row, found.moves.get(row.weight.tensor, ()), found.scores) for row in found.planned
    }
    losing = {tensor for tensor, one in known.items() if one.after < one.before}
    wrong = set()
    for one in found.channels.classes:
        tensors = {member.tensor for member in one.members}
        if one.number in found.orders and tensors & losing:
            alone = moves_of(found.channels, {one.number: found.orders[one.number]})
            own = [row for row in found.planned if row.weight.tensor in tensors]
            gains = [gain(row, alone.get(row.weight.tensor, ()), found.scores) for row in own]
            if sum(each.after - each.before for each in gains) <= 0:
                wrong.add(one.number)
    if not wrong:
        return replace(found, known=known)
    orders = {number: order for number, order in found.orders.items() if number not in wrong}
    return replace(found, orders=orders, moves=moves_of(found.channels, orders))


def _gaining_in_turn(found: Permuted) -> Permuted:
    """Only the orders by which, after those before them, the pattern keeps more of all weights together."""
    taken: Orders = {}
    before = {row.weight.tensor: gain(row, (), found.scores).before for row in found.planned}
    now = dict(before)
    for one in found.channels.classes:
        if one.number not in found.orders:
            continue
        tried = {**taken, one.number: found.orders[one.number]}
        moves, tensors = moves_of(found.channels, tried), {member.tensor for member in one.members}
        own = [row for row in found.planned if row.weight.tensor in tensors]
        after = {row.weight.tensor: gain(row, moves.get(row.weight.tensor, ()), found.scores).after for row in own}
        if sum(after[tensor] - now[tensor] for tensor in after) > 0:
            taken, now = tried, {**now, **after}
    moves = moves_of(found.channels, taken)
    known = {tensor: Gain(moves.get(tensor, ()), before[tensor], now[tensor]) for tensor in before}
    return replace(found, orders=taken, moves=moves, known=known)


def _refuse_pruned(model: Model, found: Permuted) -> None:
    """Zeros that lie in groups would not lie in them any more."""
    known = readable(model)
    for weight in model.weights if known and found.orders else ():
        pattern = known.pruned.get(weight.name, ("unstructured", 0))[0] if known else ""
        if weight.tensor in found.moves and pattern.partition(":")[0] not in ("unstructured", "alive"):
            raise OptionError(
                f"'{weight.name}' is pruned already ({pattern}), and another order would tear its groups; permute the "
                "dense model"
            )


def _untorn(found: Permuted, where: str) -> Permuted:
    """Without the orders that would tear the groups of a weight whose zeros are N:M already, whoever pruned it.

    A record, called `where`, is applied as a whole.
    """
    rows, pattern = [row for row in found.plan.rows if found.moves_of(row.weight)], found.plan.rule.pattern
    sparse = [each for row in rows for each in grouped(row, pattern)]
    failed = {}
    for number, order in found.orders.items() if sparse else ():
        moves = moves_of(found.channels, {number: order})
        torn = next((each for each in sparse if each.torn(moves.get(each.row.weight.tensor, ()))), None)
        if torn is not None:
            failed[number] = f"'{torn.row.name}' is {torn.pattern.text} already, and its groups would be torn"
    if not failed:
        return found
    if where:
        raise OptionError(f"{where}: {next(iter(failed.values()))}; apply it to the dense model, and prune that")
    orders = {number: order for number, order in found.orders.items() if number not in failed}
    return replace(found, orders=orders, moves=moves_of(found.channels, orders), failed=failed)


def _reader(row: PlanRow, scores: GivenScores | None) -> Reader:
    assert isinstance(row.pattern, NOfM)
    return Reader(row.weight.tensor, row.use, row.pattern.n, row.pattern.m, partial(scores_of, row, scores))


# -- a given record


def plant(model: Model, found: Permuted) -> Permutation:
    """Set the edits, and record what has moved since the first order; that is returned."""
    known = recorded(model, model.path or "the model")
    if not found.orders:
        return known or found.record
    whole = found.record if known is None else known.then(found.record)
    if not any(model.metadata.get(PREFIX + key) for key in ORIGINS):
        model.set_metadata({PREFIX + ORIGINS[0]: model.digest()})
    if whole:
        model.set_metadata({METADATA: whole.packed()})
    else:
        model.drop_metadata_key(METADATA)
    Permute(found.moves)(model)
    return whole


def given(model: Model, plan: Plan, scores: GivenScores | None, permutation: Permutation, where: str) -> Permuted:
    """The moves of a record in this model: legal where they are an order of each of its classes."""
    channels = channels_of(model)
    applied = applied_to(channels, permutation, where)
    facts = {key: value for key, value in permutation.facts.items() if key != "proven"}
    moves = moves_of(channels, applied.orders)
    return Permuted(plan, scores, channels, applied.orders, moves, facts, left=applied.left)


# -- proof


def proven(model: Model, found: Permuted, seed: int) -> Permuted:
    """What is left of a permutation after the proof; classes that fail stay as they are."""
    if not found.orders:
        return found
    with temporary() as folder:
        proof, done = Proof(model, folder, seed), progress.Counter("prove", 2)
        proof.begin()
        done.add(1)
        failed: dict[int, str] = {}

        def refusal(orders: Orders) -> str:
            with model.restored():
                Permute(moves_of(found.channels, orders))(model)
                return proof.refusal(proof.write("permuted"))

        kept = _kept(found.orders, refusal, failed)
        done.add(1)
        moves = found.moves if not failed else moves_of(found.channels, kept)
        failed = {**found.failed, **failed}
        return replace(found, orders=kept, moves=moves, failed=failed, proof=proof.facts if kept else None)


def _kept(orders: Orders, refusal: Callable[[Orders], str], failed: dict[int, str]) -> Orders:
    """The orders that hold together; halves are tried where they do not."""
    if not orders:
        return {}
    why = refusal(orders)
    if not why:
        return orders
    if len(orders) == 1:
        failed[next(iter(orders))] = why
        return {}
    items = list(orders.items())
    half = len(items) // 2
    first, second = (_kept(dict(part), refusal, failed) for part in (items[:half], items[half:]))
    both = {**first, **second}
    together = why if len(both) == len(orders) else refusal(both) if first and second else ""
    if together:  # each half holds alone
        failed.update(dict.fromkeys(second, together))
        return first
    return both


__all__ = [
    "Asked", "Permuted", "asked_for", "channels_of", "demand_alone", "given", "masked", "plant",
    "record_of", "write",
]  # fmt: skip
