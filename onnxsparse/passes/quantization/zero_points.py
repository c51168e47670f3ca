"""Proof that zeros stay zeros: in a written model with integers, every pruned place is the zero point of its weight.

1. The file that was written is opened again. Each weight is read through the DequantizeLinear before its readers, by
   the scale and the zero point that stand in the file.
2. What the file records of its pruning is verified on the integers, where it held in the float model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from onnx import ModelProto, numpy_helper

from onnxsparse.errors import ProofError
from onnxsparse.graph.model import Model
from onnxsparse.math.quantization import QParams
from onnxsparse.math.values import Array
from onnxsparse.passes.verify import Verify
from onnxsparse.planning.quantization import QuantizedWeight
from onnxsparse.planning.recorded import readable
from onnxsparse.planning.rule import Rule
from onnxsparse.report.rows import Report

Zeros = Mapping[str, Array]
"""Where each weight is zero, packed in bits, by name."""


def zeros_of(proto: ModelProto, weights: Iterable[QuantizedWeight]) -> Zeros:
    """The zeros of a float graph."""
    names = {weight.name for weight in weights}
    stored = (tensor for tensor in proto.graph.initializer if tensor.name in names)
    return {tensor.name: np.packbits(numpy_helper.to_array(tensor) == 0) for tensor in stored}


def demand_zeros(
    written: Model, weights: Iterable[QuantizedWeight], params: Mapping[str, QParams], zeros: Zeros
) -> None:
    """Each of them is the zero point in the model that was written."""
    proto = written.copy_proto()
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    made = {name: node for node in proto.graph.node for name in node.output}
    for weight in weights:
        reader, slot = weight.readers[0]
        integers, scale, zero_point = (
            numpy_helper.to_array(stored[name]) for name in made[made[reader].input[slot]].input
        )
        known = replace(params[weight.name], scale=scale, zero_point=zero_point)
        was_zero = np.unpackbits(zeros[weight.name], count=integers.size).astype(bool).reshape(integers.shape)
        if known.dequantize(integers)[was_zero].any():
            raise ProofError(f"a zero of '{weight.name}' is not the zero point in the result; nothing was written")


def demand_record(written: Model, before: Model) -> None:
    """What is recorded of the pruning holds in the integers, if it did in the float model."""
    known = readable(written)
    if known is None or not known.pruned:
        return
    held = Verify("the result", Rule.make())(written)
    if not held.ok and Verify("the model", Rule.make())(before).ok:
        raise ProofError(f"the recorded zeros do not hold in the integers: {_first_fault(held)}; nothing was written")


def _first_fault(report: Report) -> str:
    rows = [f"'{row.name}': {row.reason}" for row in report.rows if row.status == "violated"]
    return (*rows, *report.faults, "see `onnxsparse verify`")[0]
