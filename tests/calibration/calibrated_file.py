"""Calibrates a file and writes it: `python calibrated_file.py MODEL SAMPLES OUT SPARSITY [OPTION=VALUE ...]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from onnxsparse.calibration import workers
from onnxsparse.graph.model import Model
from onnxsparse.options import SparsityOptions
from onnxsparse.passes.calibrate import calibrated
from onnxsparse.passes.calibration_asked import Asked
from onnxsparse.passes.delivery import deliver
from onnxsparse.planning.model_inputs import sample_axes
from onnxsparse.planning.request import planned


def calibrate(model: Path, data: Path, out: Path, sparsity: float, **options: Any) -> bytes:
    """The bytes of the file that comes out."""
    opened = Model.open(model)
    plan, _ = planned(opened, None, None, SparsityOptions(pattern="unstructured", sparsity=sparsity, allow=["output"]))
    found = calibrated(opened, plan, Asked(str(data), **options), sample_axes(opened, None, None))
    deliver(opened, found.plan, found.numbers, found.tags, str(out), True)
    return out.read_bytes()


def _value(text: str) -> Any:
    return int(text) if text.isdigit() else {"True": True}.get(text, text)


if __name__ == "__main__":
    model, data, out, sparsity, *options = sys.argv[1:]
    given = {name: _value(value) for name, value in (option.split("=", 1) for option in options)}
    if "small" in given:
        workers.SMALL = float(given.pop("small"))
    calibrate(Path(model), Path(data), Path(out), float(sparsity), **given)
