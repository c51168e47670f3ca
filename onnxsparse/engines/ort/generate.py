"""The gradient graph of a training graph, by the engine's own tool.

Stored vectors of up to eight numbers that are equal are one to the engine before it writes gradients, and one that
several nodes read may not have several (see `rewrites.aliases`). As parameters that do not train they stay apart.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Sequence

import onnx
from onnx import ModelProto, TensorProto

from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.rewrites.aliases import EAGER, FUSED
from onnxsparse.engines.ort.rewrites.rewrite import operator

SHARED = 8
BLOCKS = "onnxruntime.training.onnxblock.optim"


def generate(
    model: ModelProto,
    trained: Sequence[str],
    frozen: Iterable[str],
    outputs: Sequence[str],
    folder: str | os.PathLike[str],
    decay: float | None = None,
) -> None:
    """Write the artifacts of a graph whose first output is the loss into a folder; with the engine's own AdamW of a
    weight decay where one is given."""
    training = library.training()
    optimizer = None if decay is None else importlib.import_module(BLOCKS).AdamW(weight_decay=decay)
    onnx.IR_VERSION = library.LAST_IR  # type: ignore[assignment]
    model.ir_version = min(max(model.ir_version, 8), library.LAST_IR)
    training.artifacts.generate_artifacts(
        model,
        requires_grad=list(trained),
        frozen_params=_apart(model, trained, list(frozen)),
        optimizer=optimizer,
        artifact_directory=folder,
        additional_output_names=list(outputs),
    )


def _apart(model: ModelProto, trained: Sequence[str], frozen: list[str]) -> list[str]:
    """The frozen parameters, and the small vectors that have to be ones."""
    known = {*trained, *frozen}
    read = {name for node in model.graph.node if operator(node) in EAGER | FUSED for name in node.input}
    small = [one for one in model.graph.initializer if one.data_type == TensorProto.FLOAT and len(one.dims) == 1]
    return frozen + [one.name for one in small if 1 < one.dims[0] <= SHARED and one.name in read - known]
