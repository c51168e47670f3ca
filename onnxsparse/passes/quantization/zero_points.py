"""Proof that zeros stay zeros: in a written model with integers, every pruned place is the zero point of its weight.

1. The file that was written is opened again. The integers of each weight have the name of its tensor, or that with
   `_quantized` behind it where something else still reads the floats. Their zero points are those in the file.
2. What the file records of its pruning is verified on the integers, where it held in the float model. Whether a device
   has kernels for such integers is another question, whose answer is only said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from onnx import ModelProto, numpy_helper

from onnxsparse.errors import ProofError
from onnxsparse.graph.edit import FLOATS
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.math.quantization import QParams
from onnxsparse.math.values import Array
from onnxsparse.passes.verify import expect, held_to
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
    grids = {node.input[0]: node.input[1:] for node in proto.graph.node if node.op_type == "DequantizeLinear"}
    for weight in weights:
        name = weight.name if stored[weight.name].data_type not in FLOATS else f"{weight.name}_quantized"
        integers, known = StoredTensor(stored[name]).array(), params[weight.name]
        if name in grids:
            scale, *zero = (StoredTensor(stored[one]).array() for one in grids[name] if one)
            known = replace(known, scale=scale, zero_point=zero[0] if zero else np.zeros(scale.shape, np.int32))
        was_zero = np.unpackbits(zeros[weight.name], count=integers.size).astype(bool).reshape(integers.shape)
        if known.dequantize(integers)[was_zero].any():
            raise ProofError(f"a zero of '{weight.name}' is not the zero point in the result; nothing was written")


def demand_record(written: Model, before: Model) -> list[str]:
    """What is recorded of the pruning holds in the integers, if it did in the float model.

    Returns what is to be said where the device has no use for it any more.
    """
    known = readable(written)
    if known is None or not known.pruned:
        return []
    promised, was = expect(written, Rule.make(), None), expect(before, Rule.make(), None)
    held = held_to(written, "the result", replace(promised, rule=Rule.make()))
    if not held.ok and held_to(before, "the model", replace(was, rule=Rule.make())).ok:
        raise ProofError(f"the recorded zeros do not hold in the integers: {_first_fault(held)}; nothing was written")
    used = held_to(written, "the result", promised)
    if held.ok and not used.ok and held_to(before, "the model", was).ok:
        return [f"the zeros hold, but are of no use to {promised.rule.text}: {_first_fault(used)}"]
    return []


def _first_fault(report: Report) -> str:
    rows = [f"'{row.name}': {row.reason}" for row in report.rows if row.status == "violated"]
    return (*rows, *report.faults, "see `onnxsparse verify`")[0]
