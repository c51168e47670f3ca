"""What workers load, loaded where this is imported: in the process whose children stand in for them (`warm_workers`)."""

from __future__ import annotations

import importlib

from onnxsparse.engines.ort import library

for name in (
    "onnxsparse.engines.ort.building",
    "onnxsparse.engines.ort.differentiation",
    "onnxsparse.engines.ort.trial",
    "onnxsparse.passes.compare_process",
    "onnxsparse.passes.permutation_process",
):
    importlib.import_module(name)
if library.available():
    library.training()
else:
    try:
        importlib.import_module("onnxruntime")
    except ImportError:
        pass  # as much as there is
