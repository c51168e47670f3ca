"""Einstein sums, as matrix products.

1. An ellipsis becomes letters of its own, counted from the right. An axis of length 1 that is longer elsewhere is
   dropped: it broadcasts, as an axis that is not there does.
2. Letters that neither the output nor another operand has are summed out first.
3. Of two operands, letters are *shared* (both have it and it is read later: batch), *summed* (both have it and nobody
   reads it later), or belong to one *side*. The operands become (shared, left, summed) and (shared, summed, right), and

       MatMul -> (shared, left, right)

   With nothing to sum it is a product of elements: (shared, left, 1) times (shared, 1, right).
4. More operands are taken from the left, in pairs. A transposition brings the axes into the order of the output.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, attributes
from onnxsparse.engines.ort.rewrites.shorthand import reshape
from onnxsparse.engines.ort.writer import Writer

_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


@dataclass
class _Operand:
    name: str
    letters: list[str]
    shape: list[int]

    def sizes(self) -> dict[str, int]:
        return dict(zip(self.letters, self.shape))


class Einsum(Rewrite):
    """Any number of operands, none of which has a letter twice."""

    operators = ("Einsum",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shapes = [view.shapes.get(name) for name in node.input]
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes):
            return "the shapes of its operands are not known"
        read = _read(attributes(node)["equation"], [len(one) for one in known])
        if isinstance(read, str):
            return read
        terms, output = read
        operands = [_Operand(*one) for one in zip(node.input, terms, map(list, known))]
        result = _moved(_folded(operands, output, writer), output, writer)
        writer.node("Identity", result.name, to=node.output[0])
        return None


def _read(equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]] | str:
    """The letters of each operand and of the output, or why they cannot be had."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    if len(texts) != len(ranks) or not all(_TERM.fullmatch(text) for text in (*texts, right)):
        return f"its equation {equation!r} is not understood"
    terms = [_letters(text, rank) for text, rank in zip(texts, ranks)]
    if any(len(set(term)) < len(term) for term in terms):
        return "an operand has the same letter twice"
    dots = max((term for term in map(_dotted, terms)), key=len)
    if arrow:
        before, ellipsis, after = right.partition("...")
        return terms, [*before, *(dots if ellipsis else []), *after]
    once = sorted(letter for letter in set(left) - set(",.") if left.count(letter) == 1)
    return terms, [*dots, *once]


def _letters(text: str, rank: int) -> list[str]:
    before, dots, after = text.partition("...")
    hidden = rank - len(before) - len(after) if dots else 0
    return [*before, *(f".{place}" for place in range(hidden, 0, -1)), *after]


def _dotted(letters: Iterable[str]) -> list[str]:
    return [letter for letter in letters if letter.startswith(".")]


def _folded(operands: list[_Operand], output: list[str], writer: Writer) -> _Operand:
    longest: dict[str, int] = {}
    for operand in operands:
        for letter, size in operand.sizes().items():
            longest[letter] = max(size, longest.get(letter, 1))
    operands = [_without_short(operand, longest, writer) for operand in operands]
    result, rest = operands[0], operands[1:]
    while rest:
        other, rest = rest[0], rest[1:]
        later = set(output).union(*(one.letters for one in rest))
        result = _pair(result, other, later, writer)
    return _summed(result, set(output), writer)


def _without_short(operand: _Operand, longest: dict[str, int], writer: Writer) -> _Operand:
    sizes = operand.sizes()
    kept = [letter for letter in operand.letters if sizes[letter] == longest[letter]]
    if kept == operand.letters:
        return operand
    return _shaped(operand.name, kept, [sizes[letter] for letter in kept], writer)


def _pair(one: _Operand, two: _Operand, later: set[str], writer: Writer) -> _Operand:
    one = _summed(one, later | set(two.letters), writer)
    two = _summed(two, later | set(one.letters), writer)
    both = [letter for letter in one.letters if letter in two.letters]
    shared, summed = [x for x in both if x in later], [x for x in both if x not in later]
    left, right = [x for x in one.letters if x not in both], [x for x in two.letters if x not in both]
    sizes = {**one.sizes(), **two.sizes()}
    first = _grouped(one, [shared, left, summed], writer)
    second = _grouped(two, [shared, summed, right], writer)
    product = writer.node("MatMul" if summed else "Mul", first, second)
    letters = shared + left + right
    return _shaped(product, letters, [sizes[letter] for letter in letters], writer)


def _summed(operand: _Operand, kept: set[str], writer: Writer) -> _Operand:
    gone = [place for place, letter in enumerate(operand.letters) if letter not in kept]
    if not gone:
        return operand
    name = writer.node("ReduceSum", operand.name, writer.constant(gone), keepdims=0)
    left = [(letter, size) for letter, size in operand.sizes().items() if letter in kept]
    return _Operand(name, [letter for letter, _ in left], [size for _, size in left])


def _grouped(operand: _Operand, groups: list[list[str]], writer: Writer) -> str:
    """The operand with one axis for each group of its letters."""
    sizes = operand.sizes()
    moved = _moved(operand, [letter for group in groups for letter in group], writer)
    shape = [math.prod(sizes[letter] for letter in group) for group in groups]
    return reshape(writer, moved.name, shape)


def _moved(operand: _Operand, letters: list[str], writer: Writer) -> _Operand:
    if letters == operand.letters:
        return operand
    order = [operand.letters.index(letter) for letter in letters]
    name = writer.node("Transpose", operand.name, perm=order)
    return _Operand(name, letters, [operand.shape[place] for place in order])


def _shaped(name: str, letters: list[str], shape: list[int], writer: Writer) -> _Operand:
    return _Operand(reshape(writer, name, shape), letters, shape)
