"""Importing onnxruntime-training: without torch, silenced, on one thread; its errors in words; running a graph.

1. `onnxruntime.training` 1.19.2 wants torch for two submodules that are not used here; empty stand-ins do.
2. Its C++ side writes log lines to file descriptor 2 whatever its severity is set to; only redirecting that helps.
3. Sessions run on one thread: the same bytes on every run.
4. What it raises is of types of its own and says where in its sources it was: an error of ours is one line of it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import sys
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto
from onnx.helper import tensor_dtype_to_np_dtype

from onnxsparse.engines.ort import library
from onnxsparse.errors import MissingExtraError, ModelError, OnnxSparseError
from onnxsparse.math.values import Array

VERSION = "1.19"
LAST_OPSET, LAST_IR = 21, 10
LAST_PYTHON = (3, 12)
_STAND_INS = ("onnxruntime.training.amp", "onnxruntime.training.optim")


@cache
def training() -> Any:
    """The package `onnxruntime.training`, with `artifacts`, `api` and `onnxblock`."""
    demand()
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


def demand() -> None:
    """An error that says what to install, where the engine is not."""
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


# -- What the engine raises, in words: its own types say where in its sources it was.

LONGEST = 200
SHOWN = 3
_NODE = re.compile(r"running (\w+) node\. Name:'([^']*)'")
_NOISE = (
    r"\[ONNXRuntimeError\] : \d+ : (?:[A-Z_]+ : )?(?:Exception during initialization: )?",
    r".*Status Message: ",
    r".*?/\S+?\.(?:cc|h|cpp|cu):\d+ (?:.*?::.*?\)(?: const)? )?",  # a place in its sources, and a function of C++
)


LOAD = "; if it was made by another version, begin anew in an empty folder"
LOOK = "; correct these samples or leave them out"


@contextmanager
def told(doing: str, advice: str) -> Iterator[None]:
    """An error of the engine becomes one line; our own and those of the system stay as they are."""
    try:
        yield
    except (OnnxSparseError, MemoryError, OSError):
        raise
    except Exception as error:  # the engine raises types of its own for each kind of refusal
        raise ModelError(f"the training engine cannot {doing}: {short(error)}{advice}") from error


def batch_of(rows: Array | None) -> str:
    """A batch in words."""
    if rows is None or not len(rows):
        return "a batch of the data"
    some = ", ".join(map(str, rows[:SHOWN].tolist()))
    return f"the batch of samples {some}{', ...' if len(rows) > SHOWN else ''} (counted from 0)"


def short(error: object) -> str:
    """What an engine's message says, and of which node."""
    text = " ".join(str(error).split())
    node = _NODE.search(text)
    for noise in _NOISE:
        text = re.sub(noise, "", text, count=1)
    name = f" '{node[2]}'" if node and node[2] else ""
    return (f"{node[1]}{name}: " if node else "") + text[:LONGEST]


# -- Running a graph in memory on one thread, with any of its values as outputs.

Feed = Mapping[str, Array]


class Runner:
    """A loaded model; `outputs` are names of values, by default the graph's own outputs."""

    def __init__(self, model: ModelProto, outputs: Sequence[str] | None = None, fold: bool = True) -> None:
        self.types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
        blob = (model if outputs is None else exposing(model, outputs)).SerializeToString()
        runtime = importlib.import_module("onnxruntime")
        try:
            with library.quiet():
                self._session = runtime.InferenceSession(
                    blob, library.options(fold), providers=["CPUExecutionProvider"]
                )
        except Exception as error:  # the runtime raises types of its own for each kind of refusal
            raise ModelError(f"onnxruntime does not load the prepared copy: {short(error)}") from error
        self.inputs = {entry.name for entry in self._session.get_inputs()}
        self.outputs = [entry.name for entry in self._session.get_outputs()]

    def __call__(self, feed: Feed) -> dict[str, Any]:
        given = {name: self._typed(name, array) for name, array in feed.items() if name in self.inputs}
        try:
            with library.quiet():
                return dict(zip(self.outputs, self._session.run(None, given)))
        except Exception as error:  # as above
            sizes = ", ".join(f"{name} {list(array.shape)}" for name, array in given.items())
            raise ModelError(f"onnxruntime cannot run the model on {sizes}: {short(error)}") from error

    def _typed(self, name: str, array: Array) -> Array:
        kind = self.types.get(name, TensorProto.UNDEFINED)
        if kind in (TensorProto.UNDEFINED, TensorProto.STRING):
            return array
        return np.ascontiguousarray(array, tensor_dtype_to_np_dtype(kind)).reshape(array.shape)


def exposing(model: ModelProto, outputs: Sequence[str]) -> ModelProto:
    """A copy of the model with these values as its outputs."""
    copy = ModelProto()
    copy.CopyFrom(model)
    known = {value.name: value for value in model.graph.output}
    del copy.graph.output[:]
    copy.graph.output.extend(known.get(name) or ValueInfoProto(name=name) for name in outputs)
    return copy
