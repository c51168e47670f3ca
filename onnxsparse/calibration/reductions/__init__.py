"""Reductions: what each use of a weight sums up, as rows of inputs in the order of its matrix.

`reduction_of` gives the reduction of a node, or why it has none. A new operator is a line in `_MAKERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Optional, Union

from onnxsparse.calibration.reductions.convolutions import convolution
from onnxsparse.calibration.reductions.placing import Placed, placed
from onnxsparse.calibration.reductions.products import DOTS, Terms, product
from onnxsparse.calibration.reductions.recurrent import recurrent
from onnxsparse.calibration.reductions.reduction import Operand, Reduction, Values
from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.operators import MICROSOFT, implicit_result
from onnxsparse.graph.weights import Use

__all__ = ["Reduction", "reduction_of", "together"]


@dataclass(frozen=True, eq=False)
class _Node:
    """A use with what is known of its node."""

    use: Use
    placed: Placed
    stored: Values

    @property
    def own(self) -> Attributes:
        return Attributes(self.use.source, {})

    def operand(self, index: int, scale: int | None = None, zero_point: int | None = None, axis: int = 0) -> Operand:
        return Operand(self.name(index), self.name(scale), self.name(zero_point), axis, self.stored)

    def name(self, index: int | None) -> str:
        names = self.use.source.input
        return names[index] if index is not None and index < len(names) else ""

    @property
    def result(self) -> str:
        """The first output, if it is the plain sum."""
        return "" if self.own.text("activation") else self.use.source.output[0]


def reduction_of(uses: Sequence[Use], stored: Values | None = None) -> Reduction | str:
    """What the uses of one node sum up, or why that cannot be told.

    `stored`: constants of the model by name, such as scales and zero points. Those that are not there have to be given
    among the values, as `Reduction.inputs` says.
    """
    first = uses[0]
    by_caller = next((one.name for one in first.source.attribute if one.ref_attr_name), "")
    if by_caller:
        return f"its attribute '{by_caller}' is that of a function's caller"
    if first.family == "Embedding":
        return "a lookup table sums nothing up"
    places = [placed(use) for use in uses]
    wrong = next((one for one in places if isinstance(one, str)), "")
    found = [one for one in places if isinstance(one, Placed)]
    if wrong or not all(one.same(found[0]) for one in found):
        return wrong or "its inputs and hidden states have their gates in different orders"
    if first.family == "Recurrent":
        return recurrent(sorted(uses, key=lambda use: use.slot), found[0], stored or {})
    if len(uses) > 1:
        return "two inputs of its node are weights"
    make = _MAKERS.get((first.source.domain.replace("ai.onnx", ""), first.op))
    return make(_Node(first, found[0], stored or {})) if make else f"what {first.op} sums up is not known here"


def together(uses: Sequence[Use]) -> list[tuple[Use, ...]]:
    """The uses of any nodes in the sets that have one reduction each: W and R of a recurrent layer are one."""
    sets: dict[object, list[Use]] = {}
    for use in uses:
        what = (use.rows, use.along) if use.family == "Recurrent" else use.key
        sets.setdefault((*use.reader, what), []).append(use)
    return [tuple(found) for found in sets.values()]


# -- convolutions


def _convolution(scale: int | None = None, zero_point: int | None = None) -> _Make:
    def make(node: _Node) -> Reduction:
        last = node.use.op.startswith("Nhwc") or bool(node.own.integer("channels_last"))
        result = "" if node.use.op.startswith("QLinear") else node.result
        return convolution(node.use, node.placed, node.operand(0, scale, zero_point), result, last)

    return make


def _dynamic_pads(node: _Node) -> Reduction | str:
    pads = node.name(2)
    if pads and pads not in node.stored:
        return "its pads are known only at run time"
    return convolution(node.use, node.placed, node.operand(0), node.result, pads=node.stored[pads] if pads else None)


# -- products


@dataclass(frozen=True)
class _Pair:
    """Two operands of a product: where each is, and its scale and zero point."""

    left: _Inputs = (0, None, None)
    right: _Inputs = (1, None, None)
    batches: bool = True
    plain: bool = True
    """Whether the first output is the sum, and not made of it by rounding or an activation."""
    rounded_by: int | None = None
    """The input that says by its presence that the output is rounded."""

    def __call__(self, node: _Node) -> Reduction:
        turned = [bool(node.own.integer(name)) for name in ("transA", "transB", "transBatchA", "transBatchB")]
        dots = DOTS if self.batches else ""
        left, right = _term("mk", dots, turned[0], turned[2]), _term("kn", dots, turned[1], turned[3])
        on_left = node.use.slot == self.left[0]
        terms = Terms(right, left, f"{dots}mn") if on_left else Terms(left, right, f"{dots}mn")
        along = "n" if on_left else "m"
        axis = -1 if terms.activation.endswith(along) else -2
        index, scale, zero_point = self.right if on_left else self.left
        source = node.operand(index, scale, zero_point, axis)
        result = node.result if self.plain and not node.name(self.rounded_by) else ""
        return product(node.use, node.placed, source, terms, node.own.number("alpha", 1.0), result, along)


def _term(labels: str, dots: str, turned: bool, batch_turned: bool) -> str:
    """The axes of an operand: the matrix transposed, its first axis before those of the batch."""
    if batch_turned:
        return f"{labels[1]}{dots}{labels[0]}" if turned else f"{labels[0]}{dots}{labels[1]}"
    return dots + (labels[::-1] if turned else labels)


def _einsum(node: _Node) -> Reduction | str:
    equation = node.own.text("equation").replace(" ", "")
    terms, arrow, result = equation.partition("->")
    result = result if arrow else implicit_result(terms)
    operands = terms.split(",")
    if DOTS in terms and DOTS not in result:
        return f"Einsum '{equation}' sums over the axes that its dots stand for"
    found = Terms(operands[1 - node.use.slot], operands[node.use.slot], result)
    return product(node.use, node.placed, node.operand(1 - node.use.slot), found, 1.0, node.result, "")


def _attention(scale: int | None = None, zero_point: int | None = None) -> _Make:
    """The projection of the inputs to queries, keys and values."""

    def make(node: _Node) -> Reduction:
        terms = Terms(f"{DOTS}mk", "kn", f"{DOTS}mn")
        return product(node.use, node.placed, node.operand(0, scale, zero_point), terms, 1.0, "", "")

    return make


def _longformer(node: _Node) -> Reduction | str:
    if node.use.slot == 4:
        return "LongformerAttention's global queries are taken of some tokens only"
    return _attention()(node)


_Inputs = tuple[int, Optional[int], Optional[int]]
_Make = Callable[[_Node], Union[Reduction, str]]
_QUANTIZED = ((0, 1, 2), (3, 4, 5))

_MAKERS: dict[tuple[str, str], _Make] = {
    ("", "Conv"): _convolution(),
    ("", "ConvTranspose"): _convolution(),
    ("", "DeformConv"): lambda _: "DeformConv reads its inputs between the places of a grid",
    ("", "ConvInteger"): _convolution(None, 2),
    ("", "QLinearConv"): _convolution(1, 2),
    ("", "Gemm"): _Pair(batches=False),
    ("", "MatMul"): _Pair(),
    ("", "Einsum"): _einsum,
    ("", "MatMulInteger"): _Pair((0, None, 2), (1, None, 3)),
    ("", "QLinearMatMul"): _Pair(*_QUANTIZED, plain=False),
    (MICROSOFT, "Attention"): _attention(),
    (MICROSOFT, "LongformerAttention"): _longformer,
    (MICROSOFT, "QAttention"): _attention(3, 6),
    (MICROSOFT, "FusedConv"): _convolution(),
    (MICROSOFT, "NhwcFusedConv"): _convolution(),
    (MICROSOFT, "QLinearConv"): _convolution(1, 2),
    (MICROSOFT, "ConvTransposeWithDynamicPads"): _dynamic_pads,
    (MICROSOFT, "FusedGemm"): _Pair(batches=False),
    (MICROSOFT, "GemmFastGelu"): _Pair(plain=False),
    (MICROSOFT, "FusedMatMul"): _Pair(),
    (MICROSOFT, "TransposeMatMul"): _Pair(),
    (MICROSOFT, "FusedMatMulActivation"): _Pair(),
    (MICROSOFT, "MatMulInteger16"): _Pair(),
    (MICROSOFT, "MatMulIntegerToFloat"): _Pair((0, 2, 4), (1, 3, 5)),
    (MICROSOFT, "DynamicQuantizeMatMul"): _Pair(),
    (MICROSOFT, "QLinearMatMul"): _Pair(*_QUANTIZED, plain=False),
    (MICROSOFT, "QGemm"): _Pair(*_QUANTIZED, batches=False, rounded_by=7),
}
