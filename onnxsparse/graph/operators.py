"""Table of operators: for each, which inputs are weights and what their axes mean.

Every axis of a weight plays one of four roles:

    out      one output each (a filter, a column of a Linear)
    reduce   summed over inside one output: the axis along which N:M groups lie
    tap      a position of a convolution kernel
    group    separate matrices side by side: convolution groups, batched MatMul, RNN directions

Discovery, masks, folding and verification all read this table, and nothing else knows an operator by name.
A new operator is a new line in `FACTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

from onnx import defs

from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.layout import Run, Shape

MICROSOFT = "com.microsoft"
VECTOR = "a vector: it has no output axis, so there is no matrix to prune"


@dataclass(frozen=True)
class Arrangement:
    """The weight's axes after `shape` split them, sorted by role."""

    shape: Shape
    out: Run
    reduce: Run
    tap: Run = ()
    group: Run = ()


Arrange = Callable[[Shape, Attributes], Union[Arrangement, str]]


@dataclass(frozen=True)
class Slot:
    """One weight input of an operator, and the inputs that hold its scale and zero point."""

    index: int
    family: str
    arrange: Arrange
    scale: int | None = None
    zero_point: int | None = None


def _axes(start: int, stop: int) -> Run:
    return tuple(range(start, stop))


def conv(shape: Shape, attributes: Attributes) -> Arrangement | str:
    """(O, C/g, taps...)"""
    group = attributes.integer("group", 1)
    if len(shape) < 3 or group < 1 or shape[0] % group:
        return f"its shape {list(shape)} does not fit a convolution with {group} group(s)"
    return Arrangement((group, shape[0] // group, *shape[1:]), (1,), (2,), _axes(3, len(shape) + 1), (0,))


def conv_transpose(shape: Shape, attributes: Attributes) -> Arrangement | str:
    """(C, O/g, taps...)"""
    group = attributes.integer("group", 1)
    if len(shape) < 3 or group < 1 or shape[0] % group:
        return f"its shape {list(shape)} does not fit a transposed convolution with {group} group(s)"
    return Arrangement((group, shape[0] // group, *shape[1:]), (2,), (1,), _axes(3, len(shape) + 1), (0,))


def _matrix(shape: Shape, reduce: int, out: int) -> Arrangement | str:
    """Axes `reduce` and `out` of the last two; all axes before them are batch."""
    if len(shape) < 2:
        return VECTOR
    last = len(shape) - 2
    return Arrangement(shape, (last + out,), (last + reduce,), (), _axes(0, last))


def matmul_right(shape: Shape, attributes: Attributes) -> Arrangement | str:
    """(batch..., K, N)"""
    return _matrix(shape, reduce=0, out=1)


def matmul_left(shape: Shape, attributes: Attributes) -> Arrangement | str:
    """(batch..., M, K)"""
    return _matrix(shape, reduce=1, out=0)


def gemm_right(shape: Shape, attributes: Attributes) -> Arrangement | str:
    """(K, N), or (N, K) with transB"""
    turned = bool(attributes.integer("transB"))
    return _matrix(shape, reduce=int(turned), out=int(not turned))


def gemm_left(shape: Shape, attributes: Attributes) -> Arrangement | str:
    """(M, K), or (K, M) with transA"""
    turned = bool(attributes.integer("transA"))
    return _matrix(shape, reduce=int(not turned), out=int(turned))


def _batch_first(arrangement: Arrangement | str, rotated: int) -> Arrangement | str:
    """FusedMatMul's transBatch stores (rows, batch..., columns): the roles sit on rotated axes."""
    if isinstance(arrangement, str) or not rotated:
        return arrangement
    rank = len(arrangement.shape)
    origin = (*_axes(1, rank - 1), 0, rank - 1)
    roles = (arrangement.out, arrangement.reduce, arrangement.tap, arrangement.group)
    out, reduce, tap, group = (tuple(origin[axis] for axis in role) for role in roles)
    return Arrangement(arrangement.shape, out, reduce, tap, group)


def fused_right(shape: Shape, attributes: Attributes) -> Arrangement | str:
    return _batch_first(gemm_right(shape, attributes), attributes.integer("transBatchB"))


def fused_left(shape: Shape, attributes: Attributes) -> Arrangement | str:
    return _batch_first(gemm_left(shape, attributes), attributes.integer("transBatchA"))


def recurrent(shape: Shape, attributes: Attributes) -> Arrangement | str:
    """(directions, gates * hidden, inputs)"""
    if len(shape) != 3:
        return f"its shape {list(shape)} is not that of a recurrent weight"
    return Arrangement(shape, (1,), (2,), (), (0,))


def recurrent_turned(shape: Shape, attributes: Attributes) -> Arrangement | str:
    """(directions, inputs, gates * hidden)"""
    if len(shape) != 3:
        return f"its shape {list(shape)} is not that of a recurrent weight"
    return Arrangement(shape, (2,), (1,), (), (0,))


def table(shape: Shape, attributes: Attributes) -> Arrangement | str:
    """A lookup table: one row per index; a row's elements stand for the reduction axis."""
    rank = len(shape)
    if rank < 2:
        return VECTOR
    axis = attributes.integer("axis", 0)
    if not -rank <= axis < rank:
        return f"its axis {axis} is out of range for shape {list(shape)}"
    axis %= rank
    return Arrangement(shape, (axis,), tuple(other for other in range(rank) if other != axis))


def einsum(index: int) -> Arrange:
    """Operand `index` of an Einsum that is a matrix product."""

    def arrange(shape: Shape, attributes: Attributes) -> Arrangement | str:
        equation = attributes.text("equation").replace(" ", "")
        terms, arrow, result = equation.partition("->")
        operands = terms.split(",")
        if len(operands) != 2:
            return f"Einsum '{equation}' is not the product of two matrices"
        result = result if arrow else implicit_result(terms)
        return _einsum_roles(equation, operands[index], operands[1 - index], result, shape)

    return arrange


def implicit_result(terms: str) -> str:
    """Without an arrow the labels that stand once, in alphabetical order, are the result."""
    labels = terms.replace(",", "").replace("...", "")
    return ("..." if "..." in terms else "") + "".join(
        sorted(label for label in set(labels) if labels.count(label) == 1)
    )


def _einsum_roles(equation: str, own: str, other: str, result: str, shape: Shape) -> Arrangement | str:
    labels = own.replace("...", "." * (len(shape) - len(own.replace("...", ""))))
    if len(labels) != len(shape) or len(set(labels.replace(".", ""))) != len(labels.replace(".", "")):
        return f"Einsum '{equation}' takes a diagonal of this weight or names another number of axes"
    roles: dict[str, list[int]] = {"out": [], "reduce": [], "group": []}
    for axis, axis_label in enumerate(labels):
        role = _einsum_role(axis_label, other, result)
        if role is None:
            return f"Einsum '{equation}' sums this weight alone over '{axis_label}', which is not a matrix product"
        roles[role].append(axis)
    if not roles["reduce"] or not roles["out"]:
        missing = "reduction" if roles["out"] else "output"
        return f"Einsum '{equation}' is not a matrix product: this weight has no {missing} axis"
    return Arrangement(shape, tuple(roles["out"]), tuple(roles["reduce"]), (), tuple(roles["group"]))


def _einsum_role(axis_label: str, other: str, result: str) -> str | None:
    if axis_label == ".":
        return "group"
    if axis_label in result:
        return "group" if axis_label in other else "out"
    return "reduce" if axis_label in other else None


def _pair(family: str, left: Arrange, right: Arrange) -> tuple[Slot, ...]:
    return (Slot(0, family, left), Slot(1, family, right))


_CONV = (Slot(1, "Conv", conv),)
_CONV_TRANSPOSE = (Slot(1, "ConvTranspose", conv_transpose),)
_MATMUL = _pair("MatMul", matmul_left, matmul_right)
_GEMM = _pair("Gemm", gemm_left, gemm_right)
_FUSED = _pair("MatMul", fused_left, fused_right)
_RECURRENT = (Slot(1, "Recurrent", recurrent), Slot(2, "Recurrent", recurrent))
_EMBED = tuple(Slot(index, "Embedding", table) for index in (2, 3, 4))
_QLINEAR_MATMUL = (Slot(0, "MatMul", matmul_left, 1, 2), Slot(3, "MatMul", matmul_right, 4, 5))
_MATMUL_INTEGER = (Slot(0, "MatMul", matmul_left, None, 2), Slot(1, "MatMul", matmul_right, None, 3))

FACTS: dict[tuple[str, str], tuple[Slot, ...]] = {
    ("", "Conv"): _CONV,
    ("", "DeformConv"): _CONV,
    ("", "ConvTranspose"): _CONV_TRANSPOSE,
    ("", "Gemm"): _GEMM,
    ("", "MatMul"): _MATMUL,
    ("", "Einsum"): (Slot(0, "Einsum", einsum(0)), Slot(1, "Einsum", einsum(1))),
    ("", "LSTM"): _RECURRENT,
    ("", "GRU"): _RECURRENT,
    ("", "RNN"): _RECURRENT,
    ("", "Gather"): (Slot(0, "Embedding", table),),
    ("", "ConvInteger"): (Slot(1, "Conv", conv, None, 3),),
    ("", "MatMulInteger"): _MATMUL_INTEGER,
    ("", "QLinearConv"): (Slot(3, "Conv", conv, 4, 5),),
    ("", "QLinearMatMul"): _QLINEAR_MATMUL,
    (MICROSOFT, "Attention"): (Slot(1, "Attention", matmul_right),),
    (MICROSOFT, "LongformerAttention"): (Slot(1, "Attention", matmul_right), Slot(4, "Attention", matmul_right)),
    (MICROSOFT, "QAttention"): (Slot(1, "Attention", matmul_right, 4, 7),),
    (MICROSOFT, "FusedConv"): _CONV,
    (MICROSOFT, "NhwcFusedConv"): _CONV,
    (MICROSOFT, "QLinearConv"): (Slot(3, "Conv", conv, 4, 5),),
    (MICROSOFT, "ConvTransposeWithDynamicPads"): _CONV_TRANSPOSE,
    (MICROSOFT, "FusedGemm"): _GEMM,
    (MICROSOFT, "GemmFastGelu"): _MATMUL,
    (MICROSOFT, "FusedMatMul"): _FUSED,
    (MICROSOFT, "TransposeMatMul"): _FUSED,
    (MICROSOFT, "FusedMatMulActivation"): _FUSED,
    (MICROSOFT, "MatMulInteger16"): _pair("MatMul", matmul_left, matmul_right),
    (MICROSOFT, "MatMulIntegerToFloat"): (
        Slot(0, "MatMul", matmul_left, 2, 4),
        Slot(1, "MatMul", matmul_right, 3, 5),
    ),
    (MICROSOFT, "DynamicQuantizeMatMul"): (Slot(1, "MatMul", matmul_right, 2, 3),),
    (MICROSOFT, "QLinearMatMul"): _QLINEAR_MATMUL,
    (MICROSOFT, "QGemm"): (Slot(0, "Gemm", gemm_left, 1, 2), Slot(3, "Gemm", gemm_right, 4, 5)),
    (MICROSOFT, "DynamicQuantizeLSTM"): (
        Slot(1, "Recurrent", recurrent_turned, 8, 9),
        Slot(2, "Recurrent", recurrent_turned, 10, 11),
    ),
    (MICROSOFT, "EmbedLayerNormalization"): _EMBED,
    (MICROSOFT, "QEmbedLayerNormalization"): _EMBED,
}

_PACKED = "its numbers are packed in blocks of {} with their own scales, which cannot be masked one by one"

# weight inputs that are listed but cannot be pruned, with the reason
REFUSED: dict[tuple[str, str], tuple[tuple[int, ...], str]] = {
    (MICROSOFT, "MatMulNBits"): ((1,), _PACKED.format("few-bit integers")),
    (MICROSOFT, "MatMulBnb4"): ((1,), _PACKED.format("4-bit floats")),
    (MICROSOFT, "MatMulFpQ4"): ((1,), _PACKED.format("4-bit numbers")),
    (MICROSOFT, "GatherBlockQuantized"): ((0,), _PACKED.format("few-bit integers")),
    ("", "GatherND"): ((0,), "a lookup table read by GatherND, whose axes depend on its indices"),
    ("", "GatherElements"): ((0,), "a lookup table read by GatherElements, whose axes depend on its indices"),
    (MICROSOFT, "MoE"): ((2, 5, 8), "the axis order of MoE expert weights differs between runtime versions"),
    (MICROSOFT, "QMoE"): ((2, 5, 8), _PACKED.format("few-bit integers")),
    (MICROSOFT, "GemmFloat8"): ((0, 1), "8-bit floats are not supported"),
}


def slots_of(domain: str, operator: str) -> tuple[Slot, ...]:
    return FACTS.get(("" if domain == "ai.onnx" else domain, operator), ())


# operators of com.microsoft that the table does not list because they have no weight matrix
_WITHOUT_WEIGHTS = frozenset(
    (
        "BiasAdd",
        "BiasGelu",
        "BiasDropout",
        "BiasSoftmax",
        "DequantizeLinear",
        "DynamicQuantizeLSTM",
        "FastGelu",
        "Gelu",
        "GridSample",
        "GroupNorm",
        "GroupQueryAttention",
        "Inverse",
        "LayerNormalization",
        "MultiHeadAttention",
        "NGramRepeatBlock",
        "Pad",
        "QLinearAdd",
        "QLinearAveragePool",
        "QLinearConcat",
        "QLinearGlobalAveragePool",
        "QLinearLeakyRelu",
        "QLinearMul",
        "QLinearReduceMean",
        "QLinearSigmoid",
        "QLinearSoftmax",
        "QLinearWhere",
        "QuantizeLinear",
        "QuickGelu",
        "RotaryEmbedding",
        "SimplifiedLayerNormalization",
        "SkipGroupNorm",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    )
)


def is_known(domain: str, operator: str) -> bool:
    """Operators of ONNX itself are known: what the table does not list has no weight matrix."""
    if domain in ("", "ai.onnx"):
        return bool(defs.has(operator))
    listed = (domain, operator) in FACTS or (domain, operator) in REFUSED
    return listed or domain == "ai.onnx.ml" or (domain == MICROSOFT and operator in _WITHOUT_WEIGHTS)
