"""Looking at a model: every weight, how it lies in memory for each use, and how many zeros it has."""

from __future__ import annotations

import numpy as np

from onnxsparse.graph.weights import Use, Weight
from onnxsparse.passes.matrices import weight_param
from onnxsparse.report.rows import UseRow


def use_rows(weight: Weight) -> tuple[UseRow, ...]:
    return tuple(use_row(use) for use in weight.uses)


def use_row(use: Use) -> UseRow:
    group, out, reduce, _ = use.runs
    return UseRow(
        op=use.op,
        node=use.node,
        slot=use.slot,
        reduction=use.stored_axes(reduce),
        out=use.stored_axes(out),
        groups=use.shape4[0] if group else 1,
        matrix=use.shape4,
    )


def count_zeros(weight: Weight) -> int | None:
    """Zeros of a weight, as the hardware would see them; None where its numbers cannot be read."""
    if not weight.tensor.readable or weight.tensor.size == 0:
        return None
    if not weight.uses:
        return _plain_zeros(weight)
    param = weight_param(weight)
    return sum(int(np.count_nonzero(param.over(flat, start, stop).is_zero())) for start, stop, flat in param.slabs())


def _plain_zeros(weight: Weight) -> int:
    numbers = weight.tensor.read()
    if weight.tensor.kind == "bfloat16":
        numbers = numbers & np.uint16(0x7FFF)
    return int(numbers.size - np.count_nonzero(numbers))
