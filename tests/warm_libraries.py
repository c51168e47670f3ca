"""What Pythons load, loaded where this is imported: in the process that `tests/warm.py` has children of."""

from __future__ import annotations

import contextlib
import gc
import importlib

import onnxsparse
from onnxsparse.engines.ort import library, rewrites

MODULES = (
    "onnxsparse.cli",
    "onnxsparse.engines.ort.building",
    "onnxsparse.engines.ort.differentiation",
    "onnxsparse.engines.ort.trial",
    "onnxsparse.passes.compare_process",
    "onnxsparse.passes.permutation_process",
)

for name in MODULES:
    importlib.import_module(name)
for name in onnxsparse.__all__:
    getattr(onnxsparse, name)
if library.available():
    library.training()
    rewrites.known()
for name in ("onnxruntime", "scipy.optimize", "sklearn.datasets"):
    with contextlib.suppress(ImportError):  # where it is installed
        importlib.import_module(name)
gc.freeze()  # children share all of this
