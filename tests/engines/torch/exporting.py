"""Networks of torch, exported in the ways torch has."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.engines.torch.nets import build
from tests.engines.torch.running import Array

UNSUPPORTED = "is not supported"  # by the exporter, at that opset


@dataclass(frozen=True)
class Way:
    """One way to export: `fold` is constant folding, or the optimizer of the newer exporter."""

    net: str
    opset: int
    dynamo: bool
    fold: bool
    training: bool

    def __str__(self) -> str:
        exporter, mode = "dynamo" if self.dynamo else "script", "train" if self.training else "eval"
        return f"{self.net}-{self.opset}-{exporter}-{'fold' if self.fold else 'plain'}-{mode}"


def export(way: Way, path: Path) -> tuple[Any, dict[str, Array]]:
    """Write the network; return it, and an input."""
    net, x = build(way.net)
    net.train(way.training)
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(net, (x,), str(path), input_names=["x"], output_names=["y"], **_options(way))
    finally:
        logging.disable(logging.NOTSET)
    return net, {"x": x.numpy()}


def _options(way: Way) -> dict[str, Any]:
    if way.dynamo:
        return {"dynamo": True, "optimize": way.fold, "opset_version": way.opset, "external_data": False}
    mode = torch.onnx.TrainingMode
    return {
        "dynamo": False,
        "do_constant_folding": way.fold,
        "opset_version": way.opset,
        "training": mode.TRAINING if way.training else mode.EVAL,
        "dynamic_axes": {"x": {0: "n"}},
    }
