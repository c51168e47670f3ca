"""SparseML's conversion of an export of quantization-aware training, by its name and arguments.

    quantize_torch_qat_export("fake_quantized.onnx", "int8.onnx")

What comes out has QuantizeLinear and DequantizeLinear around integers, where SparseML wrote ConvInteger and
MatMulInteger: onnxruntime, TensorRT and OpenVINO make their own integer kernels of these pairs.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import onnx
from onnx import ModelProto

from onnxsparse.api import Result, load
from onnxsparse.errors import OptionError, brief
from onnxsparse.options import Path
from onnxsparse.passes.delivery import called, target_of
from onnxsparse.passes.quantization.qat_delivery import delivered
from onnxsparse.passes.sources import taken


def export_qat(
    source: Any, *, output: Path | None = None, target: str | None = None, overwrite: bool = False
) -> Result:
    """Convert a fake-quantized model to one with integers, with a report of every weight.

    Arguments:
        source: the model: a path, its bytes, a ModelProto, or another model in memory; it is never changed.
        output: the int8 model to write; without it `Result.model` has it in memory.
        target: `ampere` demands int8 with the zero point 0 everywhere, and leaves biases in float.
        overwrite: replace the output if it exists.
    """
    source = taken(source)
    path = target_of(output, source, overwrite)
    return Result(*delivered(load(source), called(source), target or "", path, overwrite))


def quantize_qat_export(
    model: ModelProto | Path,
    output_file_path: Path | None = None,
    inplace: bool = True,
    use_qlinearconv: bool = False,
) -> ModelProto:
    """Convert a fake-quantized model to one with integers, as SparseML's `quantize_torch_qat_export` is called.

    Arguments:
        model: a ModelProto, or the path of one.
        output_file_path: where to write the result, replacing what is there.
        inplace: whether a ModelProto that is given becomes the result.
        use_qlinearconv: has no meaning here; runtimes make QLinearConv of pairs of nodes where outputs are rounded.
    """
    if not isinstance(model, (ModelProto, str, os.PathLike)):
        raise OptionError(f"model is a ModelProto or a path, not {brief(model)}")
    if use_qlinearconv:
        text = "use_qlinearconv has no meaning: QuantizeLinear and DequantizeLinear are written, which runtimes fuse"
        warnings.warn(text, stacklevel=2)
    result = export_qat(model, output=output_file_path, overwrite=True)
    made = result.proto if result.path is None else onnx.load(result.path)
    assert made is not None
    if isinstance(model, ModelProto) and inplace:
        model.CopyFrom(made)
        return model
    return made


quantize_torch_qat_export = quantize_qat_export
"""SparseML's name."""
