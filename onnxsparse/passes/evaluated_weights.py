"""Pattern check on evaluated weights, a second opinion on `verify`: the numbers that a node really gets.

1. For every weight input in every call: the numbers that arrive there, arranged by the operator's axes, hold the
   pattern. Zero is 0.0, or the zero point that the operator itself reads integers with.
2. Where the weight comes as it lies in the file, or through operators that turn its zero into the node's, equal
   address arithmetic is enough: the count of every element stands, and nothing is read twice.
3. Else the numbers are computed: whole up to WHOLE bytes, larger ones in slabs of whole rows along the reduction (the
   first, the last, on either side of every jump of the path, some between), all of them with `full`.
4. Of a weight that is cut or joined on its way, each element that the file holds a zero for has to arrive as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from onnxsparse.graph.constants import (
    Applied,
    Constant,
    Joined,
    Made,
    NoNumbersError,
    Stored,
    image,
    origins,
    sources,
    streamed,
)
from onnxsparse.graph.cross_check import meetings, unseen
from onnxsparse.graph.evaluator import Arrival, Evaluator
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.graph.strided_view import Window, merged
from onnxsparse.graph.weights import Use, Weight
from onnxsparse.math.values import Array, Reading, Values
from onnxsparse.passes.pattern_check import Checked
from onnxsparse.patterns import Pattern
from onnxsparse.patterns.nm import NM, NOfM
from onnxsparse.planning.stored_params import weight_param

WHOLE = 64 << 20
"""Bytes of the largest value that is computed whole without `full`."""
AT_ONCE = 512 << 20
"""Bytes of the largest value that is computed at once with it."""
SLAB = 1 << 17
"""Elements of one slab, and about that many of everything that is computed at once with `full`."""
MOST_JUMPS, MOST_ROWS, BETWEEN = 48, 1 << 22, 6


NOT_A_NUMBER = "what arrives there is not a number"


class SecondOpinion:
    """Judges weights by the numbers that arrive at their nodes."""

    def __init__(self, evaluator: Evaluator, full: bool = False) -> None:
        self._full = full
        self._arrivals = evaluator.by_tensor()
        self.sampled = False
        self.settled: set[Arrival] = set()
        """Arrivals that are what is stored, zero for zero."""

    def of(self, checked: Sequence[Checked]) -> list[Checked]:
        """What was checked, with what does not hold where it is used."""
        return [self._with_doubt(one) for one in checked]

    def _with_doubt(self, checked: Checked) -> Checked:
        expected = checked.expected
        if expected.pattern is None or checked.status != "holds":
            return checked
        return replace(checked, doubt=self.doubt(expected.name, expected.weight, expected.pattern, expected.drop))

    def doubt(self, name: str, weight: Weight, pattern: Pattern, drop: int) -> str:
        """Why the pattern does not hold where the weight is used; empty where it does."""
        owners = [weight, *weight.twins]
        reasons = (unseen(owner, self._arrivals.get(owner.tensor, [])) for owner in owners)
        return next(filter(None, reasons), "") or self.arriving(name, weight, pattern, drop)

    def arriving(self, name: str, weight: Weight, pattern: Pattern, drop: int) -> str:
        """The same, wherever the weight is a matrix, whether the walk knows a use there or not."""
        owners = [weight, *weight.twins]
        reasons = (self._first(name, one, self._arrivals.get(one.tensor, []), pattern, drop) for one in owners)
        return next(filter(None, reasons), "")

    def _first(self, name: str, weight: Weight, arrivals: Sequence[Arrival], pattern: Pattern, drop: int) -> str:
        masked = any(use.masks for use in weight.uses)
        for arrival, uses in meetings(weight, arrivals):
            judge = Judge(name, weight, arrival, uses, self._full, masked)
            try:
                reason = judge(pattern, drop)
            except NoNumbersError as error:
                reason = str(error)
            self.sampled = self.sampled or judge.sampled
            if judge.settled:
                self.settled.add(arrival)
            if reason:
                return f"{arrival.where}: {reason}"
        return ""


class Judge:
    """One weight at one input of one node, in one call."""

    def __init__(
        self, name: str, weight: Weight, arrival: Arrival, uses: Sequence[Use], full: bool, masked: bool
    ) -> None:
        """`masked`: any use of the weight is behind a mask."""
        self._name, self._weight, self._arrival, self._uses, self._full = name, weight, arrival, uses, full
        self._masked = masked
        self.sampled = self.settled = False

    def __call__(self, pattern: Pattern, drop: int) -> str:
        value = self._arrival.value
        matrix = self._arrival.matrix(value) if isinstance(value, Constant) else None
        if matrix is None:
            found = self._arrival.arranged()
            return found if isinstance(found, str) else "its numbers cannot be told"
        zeros = self._arrival.zero_matrices()
        if isinstance(zeros, str):
            return zeros
        self.settled = any(self._same_as_counted(matrix, zeros, use) for use in self._uses)
        if self.settled:
            return ""
        each: list[Constant | None] = [*zeros] or [None]
        for zero in each:
            reason = self._by_numbers(matrix, zero, pattern, drop)
            if reason:
                return reason
        return ""

    # -- without numbers

    def _same_as_counted(self, matrix: Constant, zeros: Sequence[Constant], use: Use) -> bool:
        """The walk's matrix is this one, and its zeros arrive as zeros: what it counted stands."""
        if use.masks:
            return not zeros and self._product_as_counted(matrix, use)
        if self._masked:
            return False
        return same_matrix(matrix, self._weight.tensor, use) and zero_stays(
            matrix, zeros, self._weight.tensor, counted_zero(self._weight, use)
        )

    def _product_as_counted(self, matrix: Constant, use: Use) -> bool:
        """A product of the weight and one mask, which both lie in memory as the walk has them: it is zero where one of
        the two is, and just that was counted."""
        source = matrix.source
        if not isinstance(source, Applied) or source.compute is not np.multiply or len(use.steps) != 1:
            return False
        if not use.masks[0].plain or matrix.window != Window.whole(source.shape):
            return False
        looks = [one.spread(source.shape) for one in source.inputs]
        found = {one.source.tensor: _look(one.window) for one in looks if isinstance(one.source, Stored)}
        return found == dict.fromkeys((self._weight.tensor, use.masks[0].tensor), use.matrix_key())

    # -- with numbers

    def _by_numbers(self, matrix: Constant, zero: Constant | None, pattern: Pattern, drop: int) -> str:
        large = matrix.size * matrix.source_width > (max(WHOLE, AT_ONCE) if self._full else WHOLE)
        self.sampled = large and not self._full
        cut = _cut_on_the_way(matrix) or matrix.size != self._weight.tensor.size
        if large:
            pieces = slabs(matrix, None if self._full else SLAB)
            return self._by_slabs(matrix, zero, pattern, pieces, cut)
        if isinstance(pattern, NM) and not cut:
            return self._streamed(matrix, zero, pattern)
        numbers = matrix.numbers()
        if _is_nan(numbers):
            return NOT_A_NUMBER
        is_zero = numbers == (0 if zero is None else zero.numbers())
        if not cut:
            return _said(pattern, pattern.violations(is_zero, drop).count)
        own = origins(matrix, self._weight.tensor)
        if own is None:
            return "its elements cannot be told apart there"
        if isinstance(pattern, NM):
            return _said(pattern, pattern.violations(is_zero | ~_of_own_groups(own >= 0, pattern.m), 0).count)
        return self._kept(is_zero, own)

    def _streamed(self, matrix: Constant, zero: Constant | None, pattern: NM) -> str:
        """All groups, in pieces that stay in the cache."""
        count = 0
        for values in streamed([matrix] if zero is None else [matrix, zero], pattern.m, SLAB):
            numbers = values[0].numbers()
            if _is_nan(numbers):
                return NOT_A_NUMBER
            if zero is None and numbers.dtype.kind == "f":
                count += pattern.check(Values(numbers, Reading(numbers.dtype.name)), 0).count
            else:
                count += pattern.violations(numbers == (0 if zero is None else values[1].numbers()), 0).count
        return _said(pattern, count)

    def _by_slabs(
        self, matrix: Constant, zero: Constant | None, pattern: Pattern, pieces: Iterator[Array], cut: bool
    ) -> str:
        """Rows along the reduction, each whole; patterns of other units by the zeros that the file holds."""
        _, _, reduce, tap = matrix.shape
        for rows in pieces:
            positions = rows[:, None] * (reduce * tap) + np.arange(reduce * tap)
            numbers = matrix.at(positions)
            if _is_nan(numbers):
                return NOT_A_NUMBER
            is_zero = numbers == (0 if zero is None else zero.at(positions))
            if isinstance(pattern, NM):
                shaped = is_zero.reshape(1, len(rows), reduce, tap)
                if cut:
                    own = np.array(owned(matrix, self._weight.tensor, positions)).reshape(shaped.shape)
                    shaped = shaped | ~_of_own_groups(own >= 0, pattern.m)
                reason = _said(pattern, pattern.violations(shaped, 0).count)
            else:
                reason = self._kept(is_zero, owned(matrix, self._weight.tensor, positions))
            if reason:
                return reason
        return ""

    def _kept(self, is_zero: Array, own: Array) -> str:
        """Every element that is zero in the file, or masked, arrives as zero."""
        lost = int(np.count_nonzero(~is_zero & self._claimed()[own] & (own >= 0)))
        return f"{lost} numbers that are zero in the file are none there" if lost else ""

    def _claimed(self) -> Array:
        use = next(iter([*self._uses, *self._weight.uses]), None)
        if use is None:
            return np.zeros(self._weight.tensor.size, bool)
        claimed = use.restore(weight_param(self._weight, use).whole().is_zero())
        for mask in use.masks:
            claimed = claimed | ~mask.stored()
        return claimed


def counted_zero(weight: Weight, use: Use) -> Array:
    """The stored number that counts as zero in a use; it broadcasts to the use's matrix."""
    if use.quantization is None:
        return np.zeros((1, 1, 1, 1), weight.tensor.dtype)
    point = weight_param(weight, use).reading(0, weight.tensor.size).zero_point
    return np.zeros((1, 1, 1, 1), weight.tensor.dtype) if point is None else point


def same_matrix(matrix: Constant, tensor: StoredTensor, use: Use) -> bool:
    """Every look at the tensor on the way is the use's own matrix: the same elements in the same places."""
    looks = [window for one, window in sources(matrix) if one is tensor]
    return bool(looks) and all(window is not None and _look(window) == use.matrix_key() for window in looks)


def _look(window: Window) -> object:
    if window.offset:
        return None
    return tuple(tuple(reversed(merged(axis))) for axis in window.axes)


def zero_stays(matrix: Constant, zeros: Sequence[Constant], tensor: StoredTensor, stored: Array) -> bool:
    """The stored zero is the node's zero when it arrives, wherever it lies."""
    if tensor.kind in ("float32", "float64", "float16", "bfloat16") and isinstance(matrix.source, Stored):
        return True
    arrives = image(matrix, tensor, stored)
    if arrives is None:
        return False
    wanted = [zero.window.without_repeats().of(zero.source.flat()) for zero in zeros if isinstance(zero, Constant)]
    return all(bool((arrives == zero).all()) for zero in wanted or [np.zeros((), arrives.dtype)])


def _cut_on_the_way(value: Constant) -> bool:
    source = value.source
    if isinstance(source, Applied):
        return any(_cut_on_the_way(one) for one in source.inputs if one.tensors)
    return isinstance(source, (Joined, Made))


def _of_own_groups(own: Array, m: int) -> Array:
    """Where a group of M along the reduction holds an element of the weight."""
    group, out, reduce, tap = own.shape
    whole = own[:, :, : reduce - reduce % m].reshape(group, out, -1, m, tap).any(3)
    found = own.copy()
    found[:, :, : reduce - reduce % m] = np.repeat(whole, m, 2)
    return found


def _is_nan(numbers: Array) -> bool:
    return numbers.dtype.kind == "f" and bool(numbers.size) and bool(np.isnan(numbers.min()))  # NaN goes through


def _said(pattern: Pattern, count: int) -> str:
    if not count:
        return ""
    if isinstance(pattern, NOfM):
        return f"{count} groups of what arrives there hold more than {pattern.n} non-zeros"
    return f"{count} more zeros of {pattern.text} are needed in what arrives there"


# -- slabs


def slabs(matrix: Constant, limit: int | None) -> Iterator[Array]:
    """Numbers of rows (group and output together): all of them, or the slabs that are looked at."""
    group, out, reduce, tap = matrix.shape
    rows, each = group * out, max(1, SLAB // max(reduce * tap, 1))
    if limit is None:
        for start in range(0, rows, each):
            yield np.arange(start, min(start + each, rows))
        return
    few = max(2, each // 8)
    starts = {0, max(0, rows - few)} | {rows * part // (BETWEEN + 1) for part in range(1, BETWEEN + 1)}
    starts |= {max(0, at - few // 2) for at in jumps(matrix)}
    for start in sorted(starts):
        yield np.arange(start, min(start + few, rows))


def slabs_of(value: Constant) -> Iterator[Array]:
    """Flat positions of the slabs of any value that are looked at."""
    last = value.shape[-1] if value.shape else 1
    matrix = value.reshaped((1, value.size // max(last, 1), last, 1))
    for rows in slabs(matrix, SLAB):
        yield rows[:, None] * last + np.arange(last)


def jumps(matrix: Constant) -> list[int]:
    """Rows at which what is looked at does not go on as before: where Split, Concat, Slice or a mask begin or end."""
    group, out, reduce, tap = matrix.shape
    rows = np.arange(group * out, dtype=np.int64)
    found: set[int] = set()
    if rows.size > MOST_ROWS:
        return []
    for track in tracks(matrix, rows * (reduce * tap)):
        steps = np.diff(track)
        places = np.flatnonzero(np.diff(steps)) + 1
        found |= {int(place) for place in places[:: max(1, len(places) // MOST_JUMPS)]}
    return sorted(found)[:: max(1, len(found) // MOST_JUMPS)] if found else []


def tracks(value: Constant, positions: Array) -> Iterator[Array]:
    """For each stored tensor behind a value: which of its elements stand at some positions."""
    source, inner = value.source, value.window.at(positions)
    if isinstance(source, Stored):
        yield inner
    elif isinstance(source, Applied):
        for one in source.inputs:
            yield from tracks(one.spread(source.shape), inner)
    elif isinstance(source, Joined):
        yield source.owners(inner)
    elif isinstance(source, Made) and source.places is not None:
        yield from tracks(source.inputs[0], source.places(inner))


def owned(value: Constant, tensor: StoredTensor, positions: Array) -> Array:
    """The elements of a tensor that stand at some positions of a value, -1 where none does."""
    source, nothing = value.source, np.full(positions.shape, -1, np.int64)
    if tensor not in source.tensors:
        return nothing
    inner = value.window.at(positions)
    if isinstance(source, Stored):
        return inner
    if isinstance(source, Applied):
        mine = [one for one in source.inputs if tensor in one.tensors]
        return owned(mine[0].spread(source.shape), tensor, inner)
    if isinstance(source, Joined):
        for number, piece in enumerate(source.pieces):
            chosen, here = source.inside(number, inner)
            if chosen.any():
                nothing[chosen] = owned(piece, tensor, here)
        return nothing
    if isinstance(source, Made) and source.places is not None:
        return owned(source.inputs[0], tensor, source.places(inner))
    raise NoNumbersError("its elements cannot be told apart there")
