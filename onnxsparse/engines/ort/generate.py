"""The gradient graph of a training graph, by the engine's own tool."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import onnx
from onnx import ModelProto

from onnxsparse.engines.ort import library


def generate(
    model: ModelProto,
    trained: Sequence[str],
    frozen: Iterable[str],
    outputs: Sequence[str],
    folder: str | os.PathLike[str],
) -> None:
    """Write the artifacts of a graph whose first output is the loss into a folder."""
    training = library.training()
    onnx.IR_VERSION = library.LAST_IR  # type: ignore[assignment]
    model.ir_version = min(max(model.ir_version, 8), library.LAST_IR)
    training.artifacts.generate_artifacts(
        model,
        requires_grad=list(trained),
        frozen_params=list(frozen),
        artifact_directory=folder,
        additional_output_names=list(outputs),
    )
