"""ONNX files as trainable torch modules, and back: `to_module` and `write_back`."""

from __future__ import annotations

import os
from typing import Any

from onnx import ModelProto

from onnxsparse.engines.torch import convert, writeback
from onnxsparse.graph.model import Model, Source
from onnxsparse.graph.output import Staged

__all__ = ["to_module", "write_back"]


def to_module(source: Source | Model, *, train_bn: bool = False) -> Any:
    """An ONNX file (or ModelProto, or opened Model) as a `torch.fx.GraphModule`, ready to train.

    Its inputs and outputs are those of the model, in order; one output comes alone, several as a tuple. Its parameters
    are the weights, biases, look-up tables and scales of the file, under the file's names; all else are buffers.
    Batch normalizations keep their statistics unless `train_bn`; Dropout does nothing. `module.onnx_names` says which
    tensor of the file each parameter is.
    """
    return convert.to_module(source, train_bn=train_bn)


def write_back(
    module: Any, source: Source | Model, *, output: str | os.PathLike[str] | None = None, overwrite: bool = False
) -> ModelProto | None:
    """The model that `module` was made from, with the module's numbers: written to `output`, else returned.

    Nothing but the numbers changes: names, order, storage and metadata are those of `source`, which stays as it is.
    In a Model that the caller opened they become edits, and nothing is returned.
    """
    model = source if isinstance(source, Model) else Model.open(source)
    writeback.write_back(module, model)
    if output is None and model is source:
        return None
    if output is None:
        return model.take_proto()
    with Staged(overwrite) as staged:
        model.save(os.fspath(output), overwrite, staged)
        staged.commit()
    return None
