"""Pattern check: counts zeros, and whether they are where a pattern, a device or a plan wants them.

1. For each (tensor, use): does the pattern hold, how often not, and where first; may the device use it; does it pay.
2. What is expected comes from a plan file, from the rule the user named, or from what the model's metadata records.
3. Every weight that is not checked is a row with its reason.
4. Nothing is run, and nothing of what prunes is used but the table of facts and the patterns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from onnxsparse.graph.weights import Use, Weight
from onnxsparse.math.param import demand_finite
from onnxsparse.math.values import Array, Values
from onnxsparse.patterns import Pattern
from onnxsparse.patterns.nm import NOfM
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.planning.plan import PlanRow
from onnxsparse.planning.stored_params import WeightParam, weight_param
from onnxsparse.progress import Counter
from onnxsparse.targets import Target, Verdict

PLACES = 5


@dataclass(frozen=True)
class UseChecked:
    """The three answers for one use."""

    use: Use
    violations: int
    places: tuple[tuple[int, ...], ...]
    verdict: Verdict


@dataclass(frozen=True)
class Checked:
    """One weight after the check."""

    expected: PlanRow
    zeros: int | None = None
    uses: tuple[UseChecked, ...] = ()
    missing: str = ""
    fault: str = ""
    """What a device's levels find wrong with it."""
    doubt: str = ""
    """What its nodes really get does not hold, though the tensor does."""
    target_density: float | None = None
    wasted: int | None = None

    @property
    def status(self) -> str:
        if self.expected.pattern is None and not self.fault:
            return "unchecked"
        wrong = self.missing or self.fault or self.doubt or any(use.violations for use in self.uses)
        return "violated" if wrong else "holds"


@dataclass
class _Tally:
    each: dict[int, int] = field(default_factory=dict)
    violations: dict[int, int] = field(default_factory=dict)
    places: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)

    @property
    def zeros(self) -> int:
        """Those that every use sees."""
        return min(self.each.values(), default=0)


class ZeroCheck:
    """Counts zeros and violations, for what is expected of every weight."""

    def __init__(self, expected: Sequence[PlanRow], target: Target | None, finite: bool = False) -> None:
        """`finite`: the numbers are known to be finite."""
        self._expected, self._target, self._finite = expected, target, finite

    def checked(self) -> list[Checked]:
        done = Counter("verify", sum(expected.weight.tensor.size for expected in self._expected if expected.pattern))
        return [self._counted(expected, done) for expected in self._expected]

    def _counted(self, expected: PlanRow, done: Counter) -> Checked:
        checked = self._check(expected)
        if expected.pattern:
            done.add(expected.weight.tensor.size)
        return checked

    def _check(self, expected: PlanRow) -> Checked:
        weight, pattern = expected.weight, expected.pattern
        if pattern is None:
            return Checked(expected)
        zeros = _Zeros(expected, self._finite)
        tally = zeros.of(pattern, expected.drop)
        uses = tuple(
            UseChecked(use, tally.violations[index], tuple(tally.places[index]), self._judge(weight, use))
            for index, use in enumerate(weight.uses)
        )
        return Checked(expected, tally.zeros, uses, _refused(uses))

    def _judge(self, weight: Weight, use: Use) -> Verdict:
        return self._target.judge(weight, use) if self._target else Verdict()


def _refused(uses: tuple[UseChecked, ...]) -> str:
    return next((checked.verdict.refusal for checked in uses if checked.verdict.refusal), "")


class _Zeros:
    """Reads one weight once, and holds its zeros against a pattern along every use."""

    def __init__(self, expected: PlanRow, finite: bool) -> None:
        self._finite = finite
        self._expected, self._weight = expected, expected.weight
        self._masks = [[~mask.stored() for mask in use.masks] for use in self._weight.uses]
        """For each use, what its own masks take out."""

    def of(self, pattern: Pattern, drop: int) -> _Tally:
        if isinstance(pattern, NOfM):
            return self.by_groups(pattern)
        return self.by_elements(pattern, drop) if isinstance(pattern, Unstructured) else self.by_units(pattern, drop)

    def by_groups(self, pattern: NOfM) -> _Tally:
        tally = _Tally()
        for index, use in enumerate(self._weight.uses):
            tally.violations[index], tally.places[index] = 0, []
            _, outputs, inputs, _ = pattern.cell(use.shape4)
            for param, start, stop, flat in self._slabs(use, inputs, outputs):
                self._count(tally, index, param, pattern, start, stop, flat)
        return tally

    def _slabs(self, use: Use, inputs: int = 1, outputs: int = 1) -> Iterator[tuple[WeightParam, int, int, Array]]:
        param = weight_param(self._weight, use)
        for start, stop, flat in param.slabs(inputs, outputs):
            yield param, start, stop, flat

    def _count(
        self, tally: _Tally, index: int, param: WeightParam, pattern: NOfM, start: int, stop: int, flat: Array
    ) -> None:
        values = param.over(flat, start, stop)
        masked = param.use.matrix(self._masked(index, start, stop)) if self._masks[index] else None
        found = pattern.check(values, 0) if masked is None else pattern.violations(values.is_zero() | masked, 0)
        tally.violations[index] += found.count
        if found.count and len(tally.places[index]) < PLACES:
            numbers = param.use.matrix(np.arange(start, stop))
            tally.places[index] += [self._stored(int(numbers[place])) for place in found.places]
            del tally.places[index][PLACES:]
        if index == 0:
            self._demand_finite(values)
        if index == 0 or masked is not None or self._masks[0]:
            zero = values.is_zero() if masked is None else values.is_zero() | masked
            tally.each[index] = tally.each.get(index, 0) + int(np.count_nonzero(zero))

    def _demand_finite(self, values: Values) -> None:
        if not self._finite:
            demand_finite(values, self._expected.name)

    def _masked(self, index: int, start: int, stop: int) -> Array:
        merged: Array = np.logical_or.reduce([mask[start:stop] for mask in self._masks[index]])
        return merged

    def by_elements(self, pattern: Unstructured, drop: int) -> _Tally:
        tally = _Tally()
        for index, use in enumerate(self._weight.uses):
            tally.each[index] = sum(self._zeros_of(index, *slab) for slab in self._slabs(use))
            tally.violations[index], tally.places[index] = pattern.missing(tally.each[index], drop), []
        return tally

    def _zeros_of(self, index: int, param: WeightParam, start: int, stop: int, flat: Array) -> int:
        values = param.over(flat, start, stop)
        self._demand_finite(values)
        zero = values.is_zero()
        if self._masks[index]:
            zero = zero | param.use.matrix(self._masked(index, start, stop))
        return int(np.count_nonzero(zero))

    def by_units(self, pattern: Pattern, drop: int) -> _Tally:
        tally = _Tally()
        flat = self._weight.tensor.read()
        for index, use in enumerate(self._weight.uses):
            values = weight_param(self._weight, use).over(flat, 0, flat.size)
            self._demand_finite(values)
            zero = values.is_zero()
            if self._masks[index]:
                zero = zero | use.matrix(self._masked(index, 0, flat.size))
            found = pattern.violations(zero, drop)
            tally.violations[index], tally.places[index] = found.count, list(found.places)
            tally.each[index] = int(np.count_nonzero(zero))
        return tally

    def _stored(self, number: int) -> tuple[int, ...]:
        return tuple(int(axis) for axis in np.unravel_index(number, self._weight.shape))
