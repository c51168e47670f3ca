"""Matrix products for the training graph: MatMul, Gemm, fused products, Einsum, CumSum."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto

from onnxsparse.engines.ort.rewrites.rewrite import Rewrite, View, part, reshape
from onnxsparse.graph.attributes import attributes
from onnxsparse.graph.edit import Writer

# -- Products with vectors, and products that add nothing.
#
# 1. MatMul of a vector a (K) is that of the row (1, K), and of a vector b that of the column (K, 1), with the axis of
#    length 1 taken out of the result. The engine fails on most of them and is silently wrong on some.
# 2. Gemm with beta = 0 does not read its third input; the engine refuses it.


class MatMul(Rewrite):
    """Products with at least one vector."""

    operators = ("MatMul",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        a, b = node.input
        left, right, out = (view.shapes.get(name) for name in (a, b, node.output[0]))
        if left is None or right is None or out is None:
            return "the shapes of its values are not known"
        if len(left) > 1 and len(right) > 1:
            return None
        a = reshape(writer, a, [1, *left]) if len(left) == 1 else a
        b = reshape(writer, b, [*right, 1]) if len(right) == 1 else b
        reshape(writer, writer.node("MatMul", a, b), out, to=node.output[0])
        return None


class Gemm(Rewrite):
    """Products whose third input counts for nothing."""

    operators = ("Gemm",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        given = attributes(node)
        if given.pop("beta", 1.0) == 0.0 and len(node.input) > 2 and node.input[2]:
            writer.node("Gemm", *node.input[:2], to=node.output[0], **given)
        return None


# -- Matrix products that the runtime fused with what stood around them, taken apart.

_NUMBERED_ACTIVATIONS = {"LeakyRelu": ("alpha",), "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
_PLAIN_ACTIVATIONS = ("Relu", "Tanh", "Sigmoid", "Softplus", "Softsign")


class FusedMatMul(Rewrite):
    """Transposes, a product and a factor."""

    operators = ("com.microsoft:FusedMatMul", "com.microsoft:TransposeMatMul")

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        options = attributes(node)
        if options.get("transBatchA") or options.get("transBatchB"):
            return "it transposes the axes of the batch"
        if any(name not in view.shapes for name in node.input[:2]):
            return "its shapes are not known"
        sides = [
            _turned(writer, name, len(view.shapes[name])) if options.get(key) else name
            for name, key in zip(node.input, ("transA", "transB"))
        ]
        alpha = options.get("alpha", 1.0)
        if alpha == 1:
            writer.node("MatMul", *sides, to=node.output[0])
        else:
            writer.node("Mul", writer.node("MatMul", *sides), writer.constant(alpha, "alpha"), to=node.output[0])
        return None


def _turned(writer: Writer, name: str, rank: int) -> str:
    if rank < 2:  # vectors are not transposed
        return name
    return writer.node("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])


class FusedGemm(Rewrite):
    """Gemm, then the activation."""

    operators = ("com.microsoft:FusedGemm",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        options = attributes(node)
        activation = options.get("activation", "")
        if activation not in (*_PLAIN_ACTIVATIONS, *_NUMBERED_ACTIVATIONS, ""):
            return f"its activation {activation} is not known"
        kept: dict[str, Any] = {
            key: value for key, value in options.items() if key in ("alpha", "beta", "transA", "transB")
        }
        value = writer.node("Gemm", *node.input, **kept)
        named = [key for key in _NUMBERED_ACTIVATIONS.get(activation, ()) if f"activation_{key}" in options]
        numbers: dict[str, Any] = {key: options[f"activation_{key}"] for key in named}
        writer.node(activation or "Identity", value, to=node.output[0], **numbers)
        return None


# -- Einstein sums, as matrix products.
#
# 1. An ellipsis becomes letters of its own, counted from the right. An axis of length 1 that is longer elsewhere is
#    dropped: it broadcasts, as an axis that is not there does.
# 2. Letters that neither the output nor another operand has are summed out first.
# 3. Of two operands, letters are *shared* (both have it and it is read later: batch), *summed* (both have it and nobody
#    reads it later), or belong to one *side*. The operands become (shared, left, summed) and (shared, summed, right),
#    and
#
#        MatMul -> (shared, left, right)
#
#    With nothing to sum it is a product of elements: (shared, left, 1) times (shared, 1, right).
# 4. More operands are taken from the left, in pairs. A transposition brings the axes into the order of the output.

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


# -- Running sums, as products with a triangular matrix.
#
#     y = T x along the axis, with T[i, j] = 1 where j <= i  (exclusive: j < i; reverse: the transpose)
#
# Long axes are cut into pieces of 512: the sums within a piece, plus the exclusive running sum of the pieces' totals.

_PIECE = 512


class CumSum(Rewrite):
    """Along any one axis that is a constant."""

    operators = ("CumSum",)

    def write(self, node: NodeProto, view: View, writer: Writer) -> str | None:
        shape, axis = view.shapes.get(node.input[0]), view.constant(node.input[1])
        if shape is None or axis is None:
            return "its shape or its axis is not known"
        place, given = int(axis.reshape(())) % len(shape), attributes(node)
        sizes = (math.prod(shape[:place]), shape[place], math.prod(shape[place + 1 :]))
        flat = reshape(writer, node.input[0], sizes)
        summed = _running_sum(flat, sizes, bool(given.get("exclusive", 0)), bool(given.get("reverse", 0)), writer)
        reshape(writer, summed, shape, to=node.output[0])
        return None


def _running_sum(x: str, sizes: tuple[int, int, int], exclusive: bool, reverse: bool, writer: Writer) -> str:
    before, length, after = sizes
    if length <= _PIECE:
        return writer.node("MatMul", writer.constant(_triangle(length, exclusive, reverse)), x)
    pieces = -(-length // _PIECE)
    pads = writer.constant([0, 0, 0, 0, pieces * _PIECE - length, 0])
    cut = reshape(writer, writer.node("Pad", x, pads), [before, pieces, _PIECE, after])
    within = writer.node("MatMul", writer.constant(_triangle(_PIECE, exclusive, reverse)), cut)
    totals = writer.node("ReduceSum", cut, writer.constant([2]), keepdims=0)
    others = _running_sum(totals, (before, pieces, after), True, reverse, writer)
    others = reshape(writer, others, [before, pieces, 1, after])
    whole = reshape(writer, writer.node("Add", within, others), [before, -1, after])
    return part(writer, whole, 0, length, 1)


def _triangle(length: int, exclusive: bool, reverse: bool) -> np.ndarray:
    matrix = np.tri(length, k=-1 if exclusive else 0, dtype=np.float32)
    return np.ascontiguousarray(matrix.T) if reverse else matrix
