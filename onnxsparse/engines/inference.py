"""Inference: running a model for its outputs, on given or random inputs, in onnxruntime on one CPU thread.

1. One thread, so that sums are taken in one order and outputs repeat bit for bit.
2. What the runtime refuses is a `ModelError` of one line: its own messages begin with a place in its C++ sources.
It does without the library of onnx, for processes that may die of an odd graph and should start quickly.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from onnxsparse.errors import MissingExtraError, ModelError, OptionError
from onnxsparse.math.values import Array

Feed = dict[str, Array]
MOST_ELEMENTS = 1 << 28
_OWN_SOURCES = re.compile(r"\S*/\S+\.(?:cc|h):\d+ \S.*? was false\. ?")
_FATAL = 4
"""A severity above that of its errors: onnxruntime prints those to stderr as well as raising them."""


class Session:
    """A model loaded in onnxruntime on one CPU thread, with its inputs' names, types and shapes."""

    def __init__(self, source: Any, optimized: bool = True, called: str = "") -> None:
        try:
            runtime: Any = importlib.import_module("onnxruntime")
        except ImportError:
            raise MissingExtraError("comparing outputs needs onnxruntime: pip install 'onnxsparse[runtime]'") from None
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL
        if not optimized:
            options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        blob = source if isinstance(source, str) else source.SerializeToString()
        try:
            self._session = runtime.InferenceSession(blob, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime raises types of its own for each kind of refusal
            called = called or (source if isinstance(source, str) else "the model")
            raise ModelError(f"onnxruntime does not load {called}: {_one_line(error)}") from error
        self.inputs = [(entry.name, entry.type, list(entry.shape)) for entry in self._session.get_inputs()]
        self.outputs = [entry.name for entry in self._session.get_outputs()]
        self.output_types = {entry.name: entry.type for entry in self._session.get_outputs()}

    def run(self, feed: Feed) -> dict[str, Any]:
        try:
            return dict(zip(self.outputs, self._session.run(None, feed)))
        except Exception as error:  # as above
            raise ModelError(f"onnxruntime cannot run the model on {sizes_of(feed)}: {_one_line(error)}") from error


def sizes_of(feed: Mapping[str, Array]) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in feed.items())


def _one_line(error: Exception) -> str:
    """What the runtime says, without the place in its own sources: that stands before what is wrong, and is long."""
    return _OWN_SOURCES.sub("", " ".join(str(error).split()))[:300]


# -- random inputs

NUMPY_TYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int16)": "int16",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}

Step = tuple[Feed, bool]
"""What a run is fed, and whether a sequence begins with it."""


def random_feeds(
    session: Session, samples: int, seed: int, shapes: Mapping[str, Sequence[int]], states: Mapping[str, str]
) -> Iterator[Step]:
    """Inputs drawn from a counter-based generator: normal numbers, small counts for integers.

    With states the samples are the steps of one sequence, which begins with zeros.
    """
    for sample in range(samples):
        generator = np.random.Generator(np.random.Philox(key=seed, counter=sample))
        drawn = {name: _drawn(generator, name, kind, shapes[name]) for name, kind, _ in session.inputs}
        yield {name: np.zeros_like(array) if name in states else array for name, array in drawn.items()}, not sample


def _drawn(generator: np.random.Generator, name: str, kind: str, sizes: Sequence[int]) -> Array:
    dtype = NUMPY_TYPES.get(kind)
    if dtype is None:
        raise OptionError(f"input '{name}' is of type {kind}, which cannot be made up; pass --data")
    if math.prod(sizes) > MOST_ELEMENTS:
        raise OptionError(
            f"input '{name}' of shape {list(sizes)} is too large to make up; pass --data or a smaller --dim"
        )
    if dtype.startswith("float"):
        return generator.standard_normal(sizes).astype(dtype)
    return generator.integers(0, 2, sizes).astype(dtype)
