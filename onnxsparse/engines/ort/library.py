"""The training library: imported without torch, silenced, pinned to one thread.

1. `onnxruntime.training` wants torch for two submodules that are not used here; empty stand-ins do.
2. Its C++ side writes log lines to file descriptor 2 whatever its severity is set to; only redirecting that helps.
3. Sessions run on one thread: the same bytes on every run (rule 5 of the house).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import types
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

from onnxsparse.errors import MissingExtraError

VERSION = "1.19"
LAST_OPSET, LAST_IR = 21, 10
LAST_PYTHON = (3, 12)
_STAND_INS = ("onnxruntime.training.amp", "onnxruntime.training.optim")


@cache
def training() -> Any:
    """The package `onnxruntime.training`, with `artifacts`, `api` and `onnxblock`."""
    _demand()
    for name in _STAND_INS:
        sys.modules.setdefault(name, types.ModuleType(name))
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        package = importlib.import_module("onnxruntime.training")
        for part in ("artifacts", "api", "onnxblock"):
            importlib.import_module(f"onnxruntime.training.{part}")
    return package


@cache
def available() -> bool:
    """Whether the training build is what `import onnxruntime` gives."""
    try:
        state = importlib.import_module("onnxruntime.capi._pybind_state")
    except ImportError:
        return False
    return hasattr(state, "Module") and hasattr(state, "CheckpointState")


def _demand() -> None:
    if available():
        return
    raise MissingExtraError(_way(tuple(sys.version_info[:2]), importlib.util.find_spec("onnxruntime") is not None))


def _way(python: tuple[int, ...], other_runtime: bool) -> str:
    """How to get an engine that trains: on a Python without onnxruntime-training, torch."""
    if python > LAST_PYTHON:
        named = ".".join(map(str, python))
        return (
            f"there is no onnxruntime-training for Python {named}: pip install 'onnxsparse[torch]', which trains, too"
        )
    if other_runtime:
        return (
            "the installed onnxruntime cannot train, and the two cannot live side by side: pip uninstall onnxruntime, "
            "then pip install 'onnxsparse[ort]'; or pip install 'onnxsparse[torch]', which trains, too"
        )
    return "fine-tuning needs onnxruntime-training or torch: pip install 'onnxsparse[ort]', or 'onnxsparse[torch]'"


def options(fold: bool = True) -> Any:
    """Session options: one thread, no noise; without `fold` the graph runs as it is."""
    runtime = importlib.import_module("onnxruntime")
    made = runtime.SessionOptions()
    made.intra_op_num_threads = made.inter_op_num_threads = 1
    made.log_severity_level = 4
    if not fold:
        made.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return made


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """File descriptor 2 leads nowhere while the block runs; Python's own stderr is flushed before."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
