"""Operators that sum over channels: MatMul, Gemm, Einsum, convolutions.

The algebra: along an axis that is summed, both operands carry the same labels, and these are a closed set, for every
index of the axes that both have besides (heads, experts). Along the others each operand's labels go on to the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onnxsparse.channel_classes.rules.elementwise import along_axis
from onnxsparse.channel_classes.tensors import Field, Sizes, Tensor, collapsed
from onnxsparse.channel_classes.walk import Node, Rule, Walk
from onnxsparse.math.values import Array

MICROSOFT = "com.microsoft"
ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def matmul(walk: Walk, node: Node) -> list[Tensor]:
    """MatMul of any ranks, with batches that broadcast; FusedMatMul turns its operands first."""
    left, right = node.input(0), node.input(1)
    if left is None or right is None or left.shape is None or right.shape is None or not left.rank * right.rank:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    one, other, result = matmul_letters(left.rank, right.rank)
    if node.attributes.integer("transBatchA") or node.attributes.integer("transBatchB"):
        return walk.blocked(node, f"{node.called} turns batches")
    one = _turned(one) if node.attributes.integer("transA") else one
    other = _turned(other) if node.attributes.integer("transB") else other
    return [contraction(walk, node, [left, right], [one, other], result)]


def _turned(letters: str) -> str:
    return letters[:-2] + letters[:-3:-1]


def matmul_letters(left: int, right: int) -> tuple[str, str, str]:
    """The letters of both operands and of the result, for their ranks."""
    batch = max(left, right, 2) - 2
    letters = ALPHABET[3 : 3 + batch]
    one = "b" if left == 1 else letters[batch - (left - 2) :] + "ab"
    other = "b" if right == 1 else letters[batch - (right - 2) :] + "bc"
    return one, other, letters + ("a" if left > 1 else "") + ("c" if right > 1 else "")


def gemm(walk: Walk, node: Node) -> list[Tensor]:
    """Gemm with its transpositions; the addend broadcasts."""
    left, right, added = node.input(0), node.input(1), node.input(2)
    if left is None or right is None:
        return walk.blocked(node)
    one = "ba" if node.attributes.integer("transA") else "ab"
    other = "cb" if node.attributes.integer("transB") else "bc"
    if left.rank != 2 or right.rank != 2:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    made = contraction(walk, node, [left, right], [one, other], "ac")
    return [made if added is None else walk.elementwise(node, [made, added], made.shape)]


def fused_matmul(walk: Walk, node: Node) -> list[Tensor]:
    """FusedMatMul and what it was called: either operand transposed, or with its rows before its batch axes."""
    left, right = node.input(0), node.input(1)
    if left is None or right is None or left.shape is None or right.shape is None or not left.rank * right.rank:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    one, other, result = matmul_letters(left.rank, right.rank)
    terms = [_stored_letters(node, one, "A"), _stored_letters(node, other, "B")]
    return [contraction(walk, node, [left, right], terms, result)]


def _stored_letters(node: Node, letters: str, side: str) -> str:
    if len(letters) > 1 and node.attributes.integer(f"trans{side}"):
        letters = letters[:-2] + letters[-1] + letters[-2]
    if len(letters) > 2 and node.attributes.integer(f"transBatch{side}"):
        letters = letters[-2] + letters[:-2] + letters[-1]
    return letters


def matmul_gelu(walk: Walk, node: Node) -> list[Tensor]:
    """GemmFastGelu: a product, a bias, Gelu."""
    made, bias = matmul(walk, node)[0], node.input(2)
    return [made if bias is None else walk.elementwise(node, [made, bias], made.shape)]


def einsum(walk: Walk, node: Node) -> list[Tensor]:
    """Einsum of any number of operands, with or without an ellipsis or a result; a diagonal is blocked."""
    tensors = [one for one in node.inputs if one is not None]
    if any(one.shape is None for one in tensors):
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    terms = einsum_letters(node.attributes.text("equation"), [one.rank for one in tensors])
    if terms is None:
        return walk.blocked(node, f"{node.called} takes a diagonal, or names another number of axes")
    return [contraction(walk, node, tensors, terms[:-1], terms[-1])]


def einsum_letters(equation: str, ranks: Sequence[int]) -> list[str] | None:
    """A letter for every axis of each operand and of the result; None where one stands twice in an operand."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    operands = left.split(",")
    if len(operands) != len(ranks):
        return None
    spare = [letter for letter in ALPHABET if letter not in equation]
    widest = max(rank - len(term.replace("...", "")) for term, rank in zip(operands, ranks))
    if widest > len(spare) or widest < 0:
        return None
    if not arrow:
        once = [one for one in sorted(set(left) - set(",.")) if left.count(one) == 1]
        result = ("..." if "..." in left else "") + "".join(once)
    found = []
    for term, rank in zip(operands, ranks):
        more = rank - len(term.replace("...", ""))
        found.append(term.replace("...", "".join(spare[widest - more : widest])))
    found.append(result.replace("...", "".join(spare[:widest])))
    fits = all(len(term) == rank for term, rank in zip(found, ranks))
    return found if fits and all(len(set(term)) == len(term) for term in found) else None


def contraction(walk: Walk, node: Node, tensors: Sequence[Tensor], letters: Sequence[str], result: str) -> Tensor:
    """The sum of products over all letters that are not in the result."""
    if len(tensors) > 1 and all(one.stored for one in tensors):
        tensors = [walk.resolved(one) for one in tensors]
    summed = _Contraction(walk, node, tensors, letters, result)
    summed.sum()
    return Tensor(summed.shape(), summed.rest())


class _Contraction:
    def __init__(self, walk: Walk, node: Node, tensors: Sequence[Tensor], letters: Sequence[str], result: str) -> None:
        self._walk, self._node, self._tensors, self._letters, self._result = walk, node, tensors, letters, result
        self._met: set[str] = set()
        self._why = f"its channels meet others that stay where they are at {node.called}"

    def shape(self) -> Sizes:
        sizes: dict[str, int | None] = {}
        for tensor, letters in zip(self._tensors, self._letters):
            for letter, size in zip(letters, tensor.shape or ()):
                if sizes.get(letter, 1) in (1, None):
                    sizes[letter] = size
        return tuple(sizes[letter] for letter in self._result)

    def _wide(self, index: int, letter: str) -> bool:
        letters = self._letters[index]
        return letter in letters and self._tensors[index].wide(letters.index(letter))

    def _letters_of(self, index: int, own: Field) -> set[str]:
        return {self._letters[index][axis] for axis in own.axes}

    def sum(self) -> None:
        """Unite what is summed with what it is multiplied with."""
        summed = [one for one in dict.fromkeys("".join(self._letters)) if one not in self._result]
        groups: list[set[str]] = []
        for letter in summed:
            joint = {letter}
            for index, tensor in enumerate(self._tensors):
                own = tensor.field_on(self._letters[index].index(letter)) if letter in self._letters[index] else None
                joint |= self._letters_of(index, own) if own is not None else set()
            touching = [one for one in groups if one & joint & {*summed}]
            groups = [one for one in groups if one not in touching] + [joint.union(*touching)]
        for joint in groups:
            self._sum_over([letter for letter in summed if letter in joint], joint)

    def _sum_over(self, summed: list[str], joint: set[str]) -> None:
        """Over letters whose channels are labelled together, with those that all operands have besides."""
        owners = [index for index in range(len(self._tensors)) if any(self._wide(index, one) for one in summed)]
        whole = [one for one in summed if all(self._wide(index, one) for index in owners)]
        besides = [one for one in joint if one not in summed and all(self._wide(index, one) for index in owners)]
        order = sorted(besides) + whole
        self._freeze_others(owners, [one for one in summed if one not in whole], whole)
        if not whole:
            return
        found: list[tuple[int, Array | None]] = []
        for index in owners:
            axes = tuple(self._letters[index].index(letter) for letter in order)
            found.append((index, self._walk.along(self._tensors[index], axes)))
        known = [labels for _, labels in found if labels is not None]
        if len(known) < len(found):
            for labels in known:
                self._walk.labels.freeze(labels, self._why)
            return
        for labels in known[1:]:
            self._walk.labels.unite(known[0], labels)
        if known:
            self._walk.labels.close(known[0], range(len(besides)))

    def _freeze_others(self, owners: list[int], letters: list[str], whole: list[str]) -> None:
        """Letters that not all operands of a sum have, where no letter that they all have is labelled with them."""
        for index in owners:
            for letter in letters:
                axes = self._letters[index]
                own = self._tensors[index].field_on(axes.index(letter)) if letter in axes else None
                if own is not None and not self._letters_of(index, own) & {*whole}:
                    self._walk.labels.freeze(own.labels, self._why)

    def rest(self) -> tuple[Field, ...]:
        """The fields that the result takes over from its operands."""
        fields: list[Field] = []
        every = range(len(self._tensors))
        shared = [one for one in self._result if sum(self._wide(at, one) for at in every) > 1]
        for letter in list(shared):
            own = self._beside(letter)
            if own is not None:
                fields.append(own)
                shared.remove(letter)
                self._met.add(letter)
        for index in range(len(self._tensors)):
            for own in self._kept(index, shared):
                fields.append(own)
        return self._apart(fields)

    def _beside(self, letter: str) -> Field | None:
        """A letter that operands have in common and keep: their channels meet as in a product element by element."""
        owners = [index for index in range(len(self._tensors)) if self._wide(index, letter)]
        found = []
        for index in owners:
            axis, tensor = self._letters[index].index(letter), self._tensors[index]
            held = tensor.field_on(axis)
            if not tensor.stored and (held is None or held.axes != (axis,)):
                return None
            found.append((tensor, axis))
        if all(tensor.stored for tensor, _ in found):
            return None
        labels = [self._walk.along(tensor, (axis,)) for tensor, axis in found]
        known = [one for one in labels if one is not None]
        for one in known[1:]:
            self._walk.labels.unite(known[0], one)
        return Field((self._result.index(letter),), known[0])

    def _kept(self, index: int, shared: list[str]) -> list[Field]:
        tensor, letters = self._tensors[index], self._letters[index]
        found = []
        if tensor.stored:
            for axis, letter in enumerate(letters):
                if letter not in self._result or letter in {*shared, *self._met} or not tensor.wide(axis):
                    continue
                axes = tuple([letters.index(one) for one in shared if one in letters] + [axis])
                labels = self._walk.along(tensor, axes)
                if labels is not None:
                    found.append(self._placed(labels, [letters[at] for at in axes]))
            return found
        for own in tensor.fields:
            named = [letters[axis] for axis in own.axes]
            if any(one not in self._result or one in self._met for one in named):
                continue
            pinned = [axis for axis in own.axes if letters[axis] in shared]
            self._walk.pin(own, pinned, self._why)
            if len(pinned) < len(own.axes):
                found.append(self._placed(own.labels, named))
        return found

    def _placed(self, labels: Array, named: list[str]) -> Field:
        axes = [self._result.index(letter) for letter in named]
        order = sorted(range(len(axes)), key=axes.__getitem__)
        return Field(tuple(axes[at] for at in order), labels.transpose(order))

    def _apart(self, fields: list[Field]) -> tuple[Field, ...]:
        """Fields that share no axis; of two that do, such as two in each head, the first is the same in all heads."""
        kept: list[Field] = []
        for own in fields:
            for other in [one for one in kept if set(one.axes) & set(own.axes)]:
                kept.remove(other)
                rest = tuple(axis for axis in other.axes if axis not in own.axes)
                if rest:
                    shared = [axis for axis in other.axes if axis in own.axes]
                    kept.append(Field(rest, collapsed(self._walk.labels, other, shared)))
                else:
                    self._walk.labels.freeze(other.labels, f"two kinds of channels meet at {self._node.called}")
            kept.append(own)
        return tuple(kept)


# -- Convolutions.


def conv(walk: Walk, node: Node) -> list[Tensor]:
    """Conv, FusedConv: (N, C, ...) with (O, C/g, ...); a bias along the channels, and what is added to the result."""
    made, added = convolved(walk, node, node.input(0), node.input(1), node.input(2), False), node.input(3)
    return made if added is None else [walk.elementwise(node, [*made, added], made[0].shape)]


def conv_deformed(walk: Walk, node: Node) -> list[Tensor]:
    """DeformConv: the channels of a group of offsets stay in it."""
    tensor, groups = node.input(0), node.attributes.integer("offset_group", 1)
    if tensor is None or tensor.shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    for other in (node.input(2), node.input(4)):
        if other is not None:
            walk.freeze(other, f"{node.called} reads it in a fixed order")
    tensor = walk.resolved(tensor)
    tensor = replace(tensor, fields=walk.freeze_axis(tensor, 0, f"{node.called} reads it in a fixed order"))
    own = tensor.field_on(1)
    if own is not None and groups > 1:
        labels = collapsed(walk.labels, own, [axis for axis in own.axes if axis != 1])
        walk.labels.close(labels.reshape(groups, -1), (0,))
    return convolved(walk, node, tensor, node.input(1), node.input(3), False)


def conv_transpose(walk: Walk, node: Node) -> list[Tensor]:
    """ConvTranspose: (N, C, ...) with (C, O/g, ...)."""
    padded = node.op == "ConvTransposeWithDynamicPads"
    if padded and node.input(2) is not None:
        walk.freeze(node.inputs[2] or Tensor(None), f"{node.called} reads it in a fixed order")
    return convolved(walk, node, node.input(0), node.input(1), node.input(3 if padded else 2), True)


def convolved(
    walk: Walk,
    node: Node,
    tensor: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    turned: bool,
    channels_last: bool = False,
) -> list[Tensor]:
    """A convolution: dense, in groups, or depthwise, where each channel has filters of its own.

    With `channels_last` the value has been transposed, and the shape that was inferred is not that of the result.
    """
    if tensor is None or weight is None or weight.shape is None or tensor.shape is None or None in weight.shape[:2]:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    groups, size = node.attributes.integer("group", 1), weight.shape[0]
    if turned:
        size = (weight.shape[1] or 0) * groups
    shape = (not channels_last and node.shape()) or (tensor.shape[0], size, *[None] * (tensor.rank - 2))
    why = f"{node.called} reads it in a fixed order"
    images = tensor.field_on(0)
    for axis in range(2 if images is not None and 1 not in images.axes else 0, tensor.rank):
        if axis != 1:
            tensor = replace(tensor, fields=walk.freeze_axis(tensor, axis, why))
    for axis in range(2, weight.rank):
        weight = replace(weight, fields=walk.freeze_axis(weight, axis, why))
    inputs = walk.along(tensor, (1,)) if tensor.field_on(1) or tensor.stored else None
    outputs = _filters(walk, node, weight, inputs, groups, turned)
    fields = [Field((1,), outputs)] if outputs is not None and size != 1 else []
    fields += [one for one in tensor.fields if one.axes == (0,)]
    made = Tensor(shape, tuple(fields))
    if bias is None:
        return [made]
    return [walk.elementwise(node, [made, _per_channel(bias, tensor.rank)], shape)]


def _filters(walk: Walk, node: Node, weight: Tensor, inputs: Array | None, groups: int, turned: bool) -> Array | None:
    """Unite what comes in with the filters; return the labels of what comes out."""
    first, second = (weight.shape or (0, 0))[:2]
    assert first is not None
    assert second is not None
    made = weight.field_on(1)
    if groups == 1 and made is not None and made is weight.field_on(0):
        own = walk.along(weight, (0, 1))
        assert own is not None
        walk.labels.close(own, (1 if turned else 0,))
        _join(walk, node, inputs[:, None] if turned and inputs is not None else inputs, own)
        return None
    if groups == 1:
        own = walk.along(weight, (0 if turned else 1,))
        _join(walk, node, inputs, own)
        return walk.along(weight, (1 if turned else 0,))
    if (first if turned else first // groups) and (first == groups if turned else second == 1):
        return _depthwise(walk, node, weight, inputs, groups, turned)
    return (
        _grouped_turned(walk, node, weight, inputs, groups) if turned else _grouped(walk, node, weight, inputs, groups)
    )


def _join(walk: Walk, node: Node, inputs: Array | None, own: Array | None, groups: int = 1) -> None:
    """What is summed: the same labels on both sides, closed in each group."""
    why = f"its channels meet others that stay where they are at {node.called}"
    if inputs is None or own is None:
        for labels in (inputs, own):
            if labels is not None:
                walk.labels.freeze(labels, why)
        return
    walk.labels.unite(inputs, own)
    walk.labels.close(inputs.reshape(groups, -1), (0,))


def _depthwise(walk: Walk, node: Node, weight: Tensor, inputs: Array | None, groups: int, turned: bool) -> Array | None:
    """Each input channel has its own filters, which move with it, all of them together."""
    if turned:
        weight = replace(weight, fields=walk.freeze_axis(weight, 1, f"{node.called} reads it in a fixed order"))
        rows = walk.along(weight, (0,))
        size = (weight.shape or (0, 0))[1] or 0
        _join(walk, node, inputs, rows)
        return None if rows is None else np.repeat(rows, size)
    rows = walk.along(weight, (0,))
    spread = None if inputs is None else np.repeat(inputs, len(rows) // groups if rows is not None else 1)
    why = f"its channels meet others that stay where they are at {node.called}"
    if rows is None or spread is None:
        for labels in (rows, inputs):
            if labels is not None:
                walk.labels.freeze(labels, why)
        return None
    walk.labels.unite(spread, rows)
    return rows


def _grouped(walk: Walk, node: Node, weight: Tensor, inputs: Array | None, groups: int) -> Array | None:
    """(O, C/g, ...): the columns of each group by themselves; the rows of a group stay in it."""
    rows = walk.along(weight, (0,))
    if rows is not None:
        walk.labels.close(rows.reshape(groups, -1), (0,))
    columns = walk.along(weight, (0, 1)) if inputs is not None else None
    if inputs is None or columns is None:
        _join(walk, node, inputs, columns)
        return rows
    spread = np.repeat(inputs.reshape(groups, -1), columns.shape[0] // groups, axis=0)
    walk.labels.unite(spread, columns)
    walk.labels.close(inputs.reshape(groups, -1), (0,))
    return rows


def _grouped_turned(walk: Walk, node: Node, weight: Tensor, inputs: Array | None, groups: int) -> Array | None:
    """(C, O/g, ...): the rows are what comes in, closed in each group; the columns of each group by themselves."""
    rows, columns = walk.along(weight, (0,)), walk.along(weight, (0, 1))
    _join(walk, node, inputs, rows, groups)
    if columns is None:
        return None
    grouped = columns.reshape(groups, -1, columns.shape[1])
    walk.labels.unite(grouped, grouped[:, :1])
    return grouped[:, 0].reshape(-1)


def _per_channel(bias: Tensor, rank: int) -> Tensor:
    """A list of numbers along the channels, as a value that broadcasts."""
    return along_axis(bias, 1, rank)


RULES: dict[tuple[str, str], Rule] = {
    ("", "MatMul"): matmul,
    ("", "Gemm"): gemm,
    ("", "Einsum"): einsum,
    ("", "Conv"): conv,
    ("", "ConvTranspose"): conv_transpose,
    ("", "DeformConv"): conv_deformed,
    (MICROSOFT, "ConvTransposeWithDynamicPads"): conv_transpose,
    (MICROSOFT, "FusedConv"): conv,
    (MICROSOFT, "FusedGemm"): gemm,
    (MICROSOFT, "GemmFastGelu"): matmul_gelu,
    **{(MICROSOFT, name): fused_matmul for name in ("FusedMatMul", "FusedMatMulActivation", "TransposeMatMul")},
}

__all__ = ["RULES", "contraction", "convolved", "matmul_letters"]
