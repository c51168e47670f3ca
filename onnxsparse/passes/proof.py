"""Proof of written files: what is to be delivered is read again, checked and evaluated before it gets its name.

1. Every weight that a plan names holds its pattern as the walk counts it, and at every node that gets it, in every
   call, as it is evaluated (see `evaluated_weights`).
2. The arrivals of the model read and of the model to be written are compared in pairs:
       prune      a number at a weight input is what it was, or the operator's zero
       mask       the same; and where no masked weight comes from, nothing changed
       fold       every number is what it was (0 is -0 here, and what is no number equals itself)
       discard    a number is what it was, or it was 0
       soft mask  a weight that comes through nodes of its own (see `soft_masks`) has other numbers, all finite; so has
                  one whose nodes are discarded
   What reads a pruned or masked weight otherwise (an element-wise operator, an output) gets other numbers: allowed.
3. What does not hold is a `ProofError`: one line with the weight, the node and the call, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np

from onnxsparse.errors import ProofError
from onnxsparse.graph.constants import Constant, Known, Literal, NoNumbersError, Stored, Unknown, streamed
from onnxsparse.graph.evaluator import Arrival, Evaluator
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.graph.weights import Weight
from onnxsparse.math.values import Array
from onnxsparse.passes.evaluated_weights import SLAB, WHOLE, SecondOpinion, slabs_of
from onnxsparse.passes.pattern_check import Checked, ZeroCheck
from onnxsparse.planning.plan import PlanRow
from onnxsparse.planning.stored_params import count_zeros
from onnxsparse.report.rows import Row

PRUNE, MASK, FOLD, DISCARD, SOFT = "prune", "mask", "fold", "discard", "soft mask"


@dataclass(frozen=True)
class Before:
    """The model as it was read: where its constants arrived, and the tensors whose numbers or masks are to change."""

    command: str
    evaluator: Evaluator
    touched: frozenset[StoredTensor]
    softened: frozenset[StoredTensor] = frozenset()

    @classmethod
    def of(
        cls, model: Model, command: str, touched: Iterable[StoredTensor], softened: Iterable[StoredTensor] = ()
    ) -> Before:
        """To be taken before anything is changed. What shares bytes of a data file is touched together."""
        chosen = set(touched)
        for alike in _sharing(model.flow.stores.homes):
            if not chosen.isdisjoint(alike):
                chosen.update(alike)
        return cls(command, model.evaluator, frozenset(chosen), frozenset(softened))

    def hold(self) -> None:
        """Keep numbers that saving replaces: those that stand in the graph itself, not in a file."""
        for arrival in self.evaluator.arrivals:
            plain = isinstance(arrival.value, Constant) and isinstance(arrival.value.source, Stored)
            if self.command == PRUNE and (arrival.slot is None or plain):
                continue
            for tensor in arrival.tensors:
                if tensor.edit and tensor.span is None:
                    self.evaluator.hold(tensor)


def proved(
    rows: Sequence[Row], written: Model, made: Sequence[PlanRow], before: Before | None = None, masked: bool = False
) -> list[Row]:
    """The rows with the zeros that really are in the file; a promise that does not hold there ends the command.

    `masked`: the zeros are masks in the graph, so the rows stay as they are.
    """
    weights = {weight.name: weight for weight in written.weights}
    gone = next((row.name for row in made if row.name not in weights), None)
    if gone is not None:
        raise ProofError(f"'{gone}' is no weight of the result; nothing was written")
    opinion = SecondOpinion(written.evaluator)
    expected = [replace(row, weight=weights[row.name]) for row in made]
    checked = {} if masked else _held(expected)
    _arriving(expected, opinion, masked)
    if before is not None:
        compare(before, written.evaluator, opinion.settled if before.command == PRUNE else frozenset[Arrival]())
    if masked:
        return list(rows)
    return [replace(row, zeros=_zeros(row.name, checked, weights)) for row in rows]


def _held(expected: Sequence[PlanRow]) -> dict[str, Checked]:
    """What the walk counts in the tensors."""
    checked = {entry.expected.name: entry for entry in ZeroCheck(expected, None, finite=True).checked()}
    broken = next((name for name, entry in checked.items() if entry.status != "holds"), None)
    if broken is not None:
        raise ProofError(f"the pattern does not hold in '{broken}' after pruning; nothing was written")
    return checked


def _arriving(expected: Sequence[PlanRow], opinion: SecondOpinion, masked: bool) -> None:
    """What the nodes get. Behind a mask the walk may not follow every path that it follows without."""
    for one in expected:
        if one.pattern is not None:
            look = opinion.arriving if masked else opinion.doubt
            doubt = ("" if masked else one.weight.refusal) or look(one.name, one.weight, one.pattern, one.drop)
            if doubt:
                raise ProofError(
                    f"the pattern of '{one.name}' does not hold where it is used: {doubt}; nothing was written"
                )


def _zeros(name: str, checked: Mapping[str, Checked], weights: Mapping[str, Weight]) -> int | None:
    if name in checked:
        return checked[name].zeros
    return count_zeros(weights[name]) if name in weights else None


def _sharing(tensors: Iterable[StoredTensor]) -> Iterator[list[StoredTensor]]:
    """Tensors of data files in runs that overlap each other."""
    placed = [(one.span.path, one.span.offset, one.span.length, one) for one in tensors if one.external and one.span]
    run: list[StoredTensor] = []
    reach: tuple[str, int] = ("", 0)
    for path, offset, length, tensor in sorted(placed, key=lambda place: place[:3]):
        if path != reach[0] or offset >= reach[1]:
            if len(run) > 1:
                yield run
            run, reach = [], (path, offset)
        run.append(tensor)
        reach = (path, max(reach[1], offset + length))
    if len(run) > 1:
        yield run


# -- before and after


def compare(before: Before, after: Evaluator, settled: AbstractSet[Arrival] = frozenset()) -> None:
    """Hold every arrival of the result against what arrived there before.

    `settled`: the arrivals of pruned weights that are what is stored, zero for zero.
    """
    old, new = before.evaluator.arrivals, after.arrivals
    for one, other in zip(old, new):
        if (one.op, one.scope, one.index, one.calls) != (other.op, other.scope, other.index, other.calls):
            raise ProofError(f"{one.where} is not where it was in the result; nothing was written")
        if other not in settled:
            _Pair(before, one, other)()
    if len(old) != len(new):
        longer = (old if len(old) > len(new) else new)[min(len(old), len(new))]
        raise ProofError(f"{longer.where} is read by one of the two models only; nothing was written")


class _Pair:
    """One input of one node before and after."""

    def __init__(self, before: Before, old: Arrival, new: Arrival) -> None:
        self._command, self._touched = before.command, before.touched
        self._old, self._new = old, new
        self._changing = bool(old.tensors & before.touched)
        self._other = before.command in (SOFT, DISCARD) and bool(old.tensors & before.softened)

    def __call__(self) -> None:
        if not self._changing and self._command == PRUNE:
            return  # the graph is as it was, and so are the bytes
        if self._other:
            self._demand_numbers()
            return
        plain = isinstance(self._new.value, Constant) and isinstance(self._new.value.source, Stored)
        other = self._command in (PRUNE, MASK) or (self._command == DISCARD and not plain)
        if self._changing and other and self._old.slot is None:
            self._demand_numbers()
            return
        waiting: list[tuple[Known, Known]] = [(self._old.value, self._new.value)]
        seen: set[tuple[Known, Known]] = set()
        while waiting:
            old, new = waiting.pop()
            if (old, new) in seen:
                continue
            seen.add((old, new))
            if isinstance(old, Constant) and isinstance(new, Constant):
                self._values(old, new)
            else:
                waiting += self._unknown(old, new)

    def _demand_numbers(self) -> None:
        """Other numbers are allowed here, but none that are not finite because of a mask."""
        old, new = self._old.value, self._new.value
        if self._command not in (MASK, SOFT) or not isinstance(new, Constant) or new.size * new.source_width > WHOLE:
            return
        try:
            more = isinstance(old, Constant) and _count_nan(new.numbers()) > _count_nan(old.numbers())
        except NoNumbersError:
            return
        if more:
            raise self._error("it gets what is not a number")

    def _values(self, old: Constant, new: Constant) -> None:
        if (old.shape, old.kind) != (new.shape, new.kind):
            raise self._error(f"it got {old.kind} {list(old.shape)} and would get {new.kind} {list(new.shape)}")
        if self._plainly_the_same(old, new):
            return
        try:
            for first, second, zero in self._pieces(old, new):
                self._numbers(first, second, zero)
        except NoNumbersError as error:
            raise self._error(str(error)) from error

    def _unknown(self, old: Known, new: Known) -> list[tuple[Known, Known]]:
        """What cannot be told is the same where it is made of the same: the pairs to look at in its place."""
        inputs: Sequence[Known] = old.inputs if isinstance(old, Unknown) else ()
        others: Sequence[Known] = new.inputs if isinstance(new, Unknown) else ()
        reason = next((one.reason for one in (old, new) if isinstance(one, Unknown)), "a run decides")
        alike = type(old) is type(new) and len(inputs) == len(others)
        if not alike or (self._changing and self._command in (PRUNE, MASK)):
            raise self._error(f"what it gets cannot be told: {reason}")
        return list(zip(inputs, others))

    def _plainly_the_same(self, old: Constant, new: Constant) -> bool:
        """The same look at the same untouched tensor; or at a pruned one, which was checked as it is stored."""
        one, other = old.source, new.source
        if isinstance(one, Literal) and isinstance(other, Literal) and not old.tensors:
            return bool(np.array_equal(one.flat(), other.flat())) and old.window == new.window
        if not (isinstance(one, Stored) and isinstance(other, Stored) and old.window == new.window):
            return False
        if self._command == PRUNE:
            return True
        return one.tensor not in self._touched and _alike(one.tensor, other.tensor)

    def _pieces(self, old: Constant, new: Constant) -> Iterable[tuple[Array, Array, Array | None]]:
        zero = self._zero(new)
        if old.size * old.source_width <= WHOLE:
            for one, other, *rest in streamed([old, new] if zero is None else [old, new, zero], 1, 2 * SLAB):
                yield one.numbers(), other.numbers(), rest[0].numbers() if rest else None
            return
        for positions in slabs_of(old):
            yield old.at(positions), new.at(positions), None if zero is None else zero.at(positions)

    def _zero(self, value: Constant) -> Constant | None:
        """The operator's own zero, in the axes of the value."""
        zeros = self._new.zeros
        if value is not self._new.value or not zeros or not isinstance(zeros[0], Constant):
            return None
        found = self._new.aligned(zeros[0])
        return found.spread(value.shape) if isinstance(found, Constant) else None

    def _numbers(self, old: Array, new: Array, zero: Array | None) -> None:
        same = (old == new) | ((old != old) & (new != new))
        if self._changing and self._command in (PRUNE, MASK):
            same |= new == (0 if zero is None else zero)
        elif self._changing and self._command == DISCARD:
            same |= old == 0
        if not same.all():
            count = int(np.count_nonzero(~same))
            raise self._error(f"{count} of its {same.size} numbers would be others than they were")

    def _error(self, what: str) -> ProofError:
        named = sorted(one.name for one in self._old.tensors & self._touched) or sorted(
            one.name for one in self._old.tensors
        )
        weight = f"'{named[0]}' at " if named else ""
        return ProofError(f"{self._command} does not hold for {weight}{self._new.where}: {what}; nothing was written")


def _alike(one: StoredTensor, other: StoredTensor) -> bool:
    """The same tensor of the file before and after, which nobody edited."""
    same = (one.name, one.kind, one.shape, one.external) == (other.name, other.kind, other.shape, other.external)
    length = (one.span.length if one.span else None) == (other.span.length if other.span else None)
    return same and length and one.edit is None


def _count_nan(numbers: Array) -> int:
    return int(np.isnan(numbers).sum()) if numbers.dtype.kind == "f" else 0
