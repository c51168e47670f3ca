"""What matrix products sum up: MatMul, Gemm, Einsum, quantized and fused forms, with the weight on either side.

Every one of them is an Einsum of two operands, say `...mk,...kn->...mn`. Labels of the weight say what its axes are:

    inputs       of both operands, summed over
    outputs      of the weight alone
    groups       of both and of the result: each matrix of a batch is a block
    positions    the other labels of the result

An activation is arranged as (groups..., positions..., inputs...), a result as (groups..., positions..., outputs...).
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from onnxsparse.calibration.reductions.placing import Placed
from onnxsparse.calibration.reductions.reduction import Operand, Reduction, Values, spread
from onnxsparse.graph.layout import Shape
from onnxsparse.graph.weights import Use
from onnxsparse.math.values import Array

DOTS = "..."


@dataclass(frozen=True)
class Terms:
    """The equation of a product, from where its weight stands."""

    activation: str
    weight: str
    result: str

    @property
    def spare(self) -> str:
        """Labels for the axes that the dots stand for, the last of which is that of the last axis."""
        return "".join(one for one in string.ascii_letters if one not in self.activation + self.weight + self.result)

    def spelled(self, term: str, rank: int) -> str:
        """A term with a label for each axis of a value."""
        count = rank - len(term.replace(DOTS, ""))
        return term.replace(DOTS, self.spare[len(self.spare) - count :])


@dataclass(frozen=True, eq=False)
class Product(Reduction):
    """A block for each matrix of a batch."""

    placed: Placed
    source: Operand
    terms: Terms
    factor: float
    lone: str
    """The label that a vector among the activations has not."""

    def rows(self, values: Values, dense: Values | None = None, most: int | None = None) -> Sequence[Array]:
        numbers = self.source.read(values)
        if self.factor != 1:
            numbers = numbers * np.float32(self.factor)
        vector = bool(self.lone) and numbers.ndim < 2
        blocks = self._blocks(numbers, self.terms.activation, vector, self._inputs)
        return [_taken(block, most, self.width) for block in blocks]

    def by_output(self, value: Array) -> Sequence[Array]:
        vector = bool(self.lone) and value.ndim - len(self.terms.result.replace(DOTS, "")) < self._dots
        blocks = self._blocks(value, self.terms.result, vector, self._outs)
        return [_taken(block, None, self.outputs[0].size) for block in blocks]

    @property
    def weighs_positions(self) -> bool:
        return True

    # -- labels

    @property
    def _shape(self) -> Shape:
        return self.placed.shape

    @property
    def _dots(self) -> int:
        """How many axes of the weight its dots stand for."""
        return len(self._shape) - len(self.terms.weight.replace(DOTS, ""))

    def _labels(self, axes: Sequence[int]) -> str:
        spelled = self.terms.spelled(self.terms.weight, len(self._shape))
        return "".join(spelled[axis] for axis in axes)

    @property
    def _inputs(self) -> str:
        return self._labels(self.uses[0].arrangement.reduce)

    @property
    def _outs(self) -> str:
        return self._labels(self.uses[0].arrangement.out)

    @property
    def _groups(self) -> tuple[int, ...]:
        """Axes of the weight; along one of size 1 every activation meets the same numbers."""
        return tuple(axis for axis in self.uses[0].arrangement.group if self._shape[axis] > 1)

    def _read(self, numbers: Array, own: str) -> Array:
        """Of numbers with these labels those that the weight meets, where it is joined with others."""
        if self.placed.joined is None:
            return numbers
        at = own.find(self._labels(self.placed.joined[:1]))
        return numbers if at < 0 or numbers.shape[at] == 1 else self.placed.own(numbers, at)

    def _blocks(self, numbers: Array, term: str, vector: bool, last: str) -> Iterator[Array]:
        """For each group (positions..., `last`...): views, where memory allows."""
        term = term.replace(self.lone, "") if vector else term
        own, groups = self.terms.spelled(term, numbers.ndim), self._labels(self._groups)
        numbers = self._read(numbers, own)
        dots = max(len(own) - len(term.replace(DOTS, "")), self._dots)
        result = self.terms.spelled(self.terms.result, dots + len(self.terms.result.replace(DOTS, "")))
        positions = "".join(one for one in result if one not in groups + self._outs)
        wanted = groups + positions + last
        arranged = np.einsum(f"{own}->{''.join(one for one in wanted if one in own)}", numbers)
        arranged = np.expand_dims(arranged, tuple(at for at, one in enumerate(wanted) if one not in own))
        sizes = tuple(self._shape[axis] for axis in self._groups)
        arranged = np.broadcast_to(arranged, (*sizes, *arranged.shape[len(sizes) :]))
        ends = len(positions)
        for index in np.ndindex(*sizes):
            block = arranged[index]
            yield block.reshape(*block.shape[:ends], -1)


def _taken(block: Array, most: int | None, width: int) -> Array:
    """The positions of a block in one axis; of each sample, which is the first axis, at most so many."""
    return (spread(block, range(1, block.ndim - 1), most) if block.ndim > 2 else block).reshape(-1, width)


# -- from nodes


def product(
    use: Use, placed: Placed, source: Operand, terms: Terms, factor: float, result: str, lone: str
) -> Reduction:
    return Product((use,), source.names, result, placed.outputs, placed, source, terms, factor, lone)
