"""The gradient graph of a training graph, by the engine's own tool."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Sequence

import onnx
from onnx import ModelProto

from onnxsparse.engines.ort import library

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
        frozen_params=list(frozen),
        optimizer=optimizer,
        artifact_directory=folder,
        additional_output_names=list(outputs),
    )
