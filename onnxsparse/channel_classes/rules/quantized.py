"""Operators on quantized numbers: scales and zero points of an axis move with it, those of a tensor have no place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onnxsparse.channel_classes.rules.contractions import contraction, convolved, matmul_letters
from onnxsparse.channel_classes.rules.elementwise import along_axis, many, passing
from onnxsparse.channel_classes.rules.layout import joined, transposed
from onnxsparse.channel_classes.rules.normalization import over, reduced, softmax
from onnxsparse.channel_classes.tensors import Tensor, View
from onnxsparse.channel_classes.walk import Node, Rule, Walk
from onnxsparse.graph.operators import REFUSED

MICROSOFT = "com.microsoft"


def quantize(walk: Walk, node: Node) -> list[Tensor]:
    """QuantizeLinear, DequantizeLinear: scales of the tensor, of each index of an axis, or of blocks of it."""
    tensor, scale, zero = node.input(0), node.input(1), node.input(2)
    if tensor is None or scale is None or tensor.shape is None or scale.shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    axis = node.attributes.integer("axis", 1) % max(tensor.rank, 1)
    numbers = [one for one in (scale, zero) if one is not None]
    if node.attributes.integer("block_size", 0):
        return [_by_blocks(walk, node, tensor, numbers, axis, node.attributes.integer("block_size"))]
    if any(one.rank > 1 for one in numbers):
        return walk.blocked(node, f"{node.called} has scales of another shape than its axis {axis}")
    return [walk.elementwise(node, [tensor, *(along_axis(one, axis, tensor.rank) for one in numbers)], tensor.shape)]


def _by_blocks(walk: Walk, node: Node, tensor: Tensor, numbers: Sequence[Tensor], axis: int, block: int) -> Tensor:
    """Channels stay in their block along the axis; along the others scales are as the tensor."""
    labels = walk.along(tensor, (axis,)) if tensor.stored or tensor.field_on(axis) else None
    if labels is not None:
        for part in np.split(labels, range(block, len(labels), block)):
            walk.labels.close(part)
    flat = [_first_of(walk, node, one, axis) for one in numbers]
    return walk.elementwise(node, [tensor, *flat], tensor.shape)


def _first_of(walk: Walk, node: Node, numbers: Tensor, axis: int) -> Tensor:
    """A value with one element along an axis in place of those that stay there."""
    why = f"{node.called} reads it in a fixed order"
    fields = walk.freeze_axis(numbers, axis, why)
    for view in numbers.views:
        held = view.axes[axis]
        if held is not None:
            walk.stored[view.tag].block(held, why)
    views = tuple(
        View(one.tag, tuple(None if at == axis else own for at, own in enumerate(one.axes))) for one in numbers.views
    )
    shape = tuple(1 if at == axis else size for at, size in enumerate(numbers.shape or ()))
    return replace(numbers, shape=shape, fields=fields, views=views, numbers=None)


def dynamic(walk: Walk, node: Node) -> list[Tensor]:
    """DynamicQuantizeLinear: one scale and zero point from the extremes of all numbers, whatever their order."""
    tensor = node.input(0)
    if tensor is None or tensor.shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    tensor = over(walk, tensor, range(tensor.rank))
    return [replace(tensor, numbers=None), Tensor((), uniform=True), Tensor((), uniform=True)]


# -- Sums of products: what is of rows or columns of an operand is of rows or columns of the result.


def _product(
    walk: Walk,
    node: Node,
    operands: tuple[int, int],
    rows: Sequence[int],
    columns: Sequence[int],
    added: Sequence[int] = (),
) -> list[Tensor]:
    """A matrix product; `rows` and `columns` are scales and zero points of the operands, `added` addends."""
    left, right = (node.input(at) for at in operands)
    if left is None or right is None or left.shape is None or right.shape is None or not left.rank * right.rank:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    one, other, result = matmul_letters(left.rank, right.rank)
    if node.attributes.integer("transA"):
        one = one[:-2] + one[-1] + one[-2]
    if node.attributes.integer("transB"):
        other = other[:-2] + other[-1] + other[-2]
    made = contraction(walk, node, [left, right], [one, other], result)
    numbers = [_of_axis(node.input(at), result, "a") for at in rows]
    numbers += [_of_axis(node.input(at), result, "c") for at in columns]
    numbers += [node.input(at) for at in added]
    if any(held is not None and held.rank > len(result) for held in numbers):
        return walk.blocked(node, f"{node.called} has scales of another shape than its axes")
    return [walk.elementwise(node, [made, *numbers], made.shape)]


def _of_axis(numbers: Tensor | None, result: str, letter: str) -> Tensor | None:
    """Numbers of an axis of the result; those of more axes broadcast as they are."""
    if numbers is None or numbers.rank != 1 or letter not in result:
        return numbers
    return along_axis(numbers, result.index(letter), len(result))


def qlinear_matmul(walk: Walk, node: Node) -> list[Tensor]:
    return _product(walk, node, (0, 3), (1, 2), (4, 5), (6, 7))


def matmul_integer(walk: Walk, node: Node) -> list[Tensor]:
    """MatMulInteger, MatMulInteger16."""
    return _product(walk, node, (0, 1), (2,), (3,))


def matmul_integer_to_float(walk: Walk, node: Node) -> list[Tensor]:
    """MatMulIntegerToFloat: A, B, their scales, their zero points, a bias."""
    return _product(walk, node, (0, 1), (2, 4), (3, 5), (6,))


def dynamic_matmul(walk: Walk, node: Node) -> list[Tensor]:
    """DynamicQuantizeMatMul: A is quantized by the extremes of all its numbers."""
    tensor = node.input(0)
    if tensor is not None and tensor.shape is not None:
        over(walk, tensor, range(tensor.rank))
    return _product(walk, node, (0, 1), (), (2, 3), (4,))


def qgemm(walk: Walk, node: Node) -> list[Tensor]:
    return _product(walk, node, (0, 3), (1, 2), (4, 5), (6, 7, 8))


def qlinear_conv(walk: Walk, node: Node) -> list[Tensor]:
    """QLinearConv: scales, zero points and biases of the filters; that of Microsoft may have channels last."""
    return _convolved(walk, node, 0, 3, (4, 5, 8), (1, 2, 6, 7))


def conv_integer(walk: Walk, node: Node) -> list[Tensor]:
    return _convolved(walk, node, 0, 1, (3,), (2,))


def _convolved(
    walk: Walk, node: Node, at: int, weight: int, of_filters: Sequence[int], of_tensors: Sequence[int]
) -> list[Tensor]:
    tensor = node.input(at)
    scalars = [node.input(index) for index in of_tensors]
    if (
        tensor is None
        or tensor.shape is None
        or any(one is not None and one.shape not in ((), (1,)) for one in scalars)
    ):
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    last = bool(node.attributes.integer("channels_last"))
    if last:
        tensor = transposed(walk, tensor, [0, tensor.rank - 1, *range(1, tensor.rank - 1)])
    made = convolved(walk, node, tensor, node.input(weight), None, False, last)[0]
    numbers = [along_axis(one, 1, tensor.rank) for one in map(node.input, of_filters) if one is not None]
    made = walk.elementwise(node, [made, *numbers], made.shape)
    return [transposed(walk, made, [0, *range(2, tensor.rank), 1]) if last else made]


# -- Others, with a scale and a zero point for the whole of each operand.


def concat(walk: Walk, node: Node) -> list[Tensor]:
    """QLinearConcat: the scale and zero point of the result, then each tensor with its own."""
    tensors = [one for one in node.inputs[2::3] if one is not None]
    if not tensors or any(one.shape is None for one in tensors):
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    axis = node.attributes.integer("axis") % max(tensors[0].rank, 1)
    return [joined(walk, node, [walk.resolved(one) for one in tensors], axis)]


def mean(walk: Walk, node: Node) -> list[Tensor]:
    """QLinearReduceMean: the axes are an attribute."""
    tensor = node.input(0)
    if tensor is None or tensor.shape is None:
        return walk.blocked(node, f"the shapes at {node.called} are not known before it runs")
    axes = [axis % max(tensor.rank, 1) for axis in node.attributes.integers("axes") or range(tensor.rank)]
    return [reduced(walk, tensor, axes, node.attributes.integer("keepdims", 1) == 1)]


def packed(walk: Walk, node: Node) -> list[Tensor]:
    """Weights whose numbers are packed in blocks with scales of their own."""
    return walk.blocked(node, f"{node.called} reads a weight: {REFUSED[MICROSOFT, node.op][1]}")


RULES: dict[tuple[str, str], Rule] = {
    **{(domain, name): quantize for domain in ("", MICROSOFT) for name in ("QuantizeLinear", "DequantizeLinear")},
    ("", "DynamicQuantizeLinear"): dynamic,
    **{(domain, "QLinearMatMul"): qlinear_matmul for domain in ("", MICROSOFT)},
    **{(domain, "QLinearConv"): qlinear_conv for domain in ("", MICROSOFT)},
    ("", "MatMulInteger"): matmul_integer,
    ("", "ConvInteger"): conv_integer,
    (MICROSOFT, "MatMulInteger16"): matmul_integer,
    (MICROSOFT, "MatMulIntegerToFloat"): matmul_integer_to_float,
    (MICROSOFT, "DynamicQuantizeMatMul"): dynamic_matmul,
    (MICROSOFT, "QGemm"): qgemm,
    **{(MICROSOFT, name): many for name in ("QLinearAdd", "QLinearMul", "QLinearWhere")},
    **{(MICROSOFT, name): passing for name in ("QLinearLeakyRelu", "QLinearSigmoid")},
    (MICROSOFT, "QLinearConcat"): concat,
    (MICROSOFT, "QLinearReduceMean"): mean,
    (MICROSOFT, "QLinearSoftmax"): softmax,
    **{(MICROSOFT, name): packed for name in ("MatMulNBits", "MatMulBnb4", "MatMulFpQ4", "GatherBlockQuantized")},
}

__all__ = ["RULES"]
