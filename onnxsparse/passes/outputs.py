"""The distance between two models: both are run on the same inputs, and all their outputs are compared."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxsparse.errors import MissingExtraError, ModelError, OptionError, nearest
from onnxsparse.values import Array

Feed = dict[str, Array]
MOST_ELEMENTS = 1 << 28


@dataclass(frozen=True)
class Distance:
    """One output: how far the sparse model's is from the dense one's over all samples."""

    output: str
    relative: float
    largest: float
    cosine: float
    agreement: float | None


class Session:
    """A model loaded in onnxruntime on one CPU thread, with its inputs' names, types and shapes."""

    def __init__(self, source: str | ModelProto) -> None:
        runtime = _runtime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        blob = source if isinstance(source, str) else source.SerializeToString()
        try:
            self._session = runtime.InferenceSession(blob, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime raises types of its own for each kind of refusal
            raise ModelError(f"onnxruntime does not load {_called(source)}: {_one_line(error)}") from error
        self.inputs = [(entry.name, entry.type, list(entry.shape)) for entry in self._session.get_inputs()]
        self.outputs = [entry.name for entry in self._session.get_outputs()]

    def run(self, feed: Feed) -> dict[str, Any]:
        try:
            return dict(zip(self.outputs, self._session.run(None, feed)))
        except Exception as error:  # as above
            raise ModelError(f"onnxruntime cannot run the model on {self._sizes(feed)}: {_one_line(error)}") from error

    def _sizes(self, feed: Feed) -> str:
        dynamic = any(not isinstance(size, int) for _, _, shape in self.inputs for size in shape)
        hint = " (pass --data, or --dim NAME=SIZE for the dynamic dimensions)" if dynamic else ""
        return ", ".join(f"{name} {list(array.shape)}" for name, array in feed.items()) + hint


def _runtime() -> Any:
    try:
        return importlib.import_module("onnxruntime")
    except ImportError:
        raise MissingExtraError("comparing outputs needs onnxruntime: pip install 'onnxsparse[runtime]'") from None


def _called(source: str | ModelProto) -> str:
    return source if isinstance(source, str) else "the model"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def compare_outputs(dense: Session, sparse: Session, feeds: Iterator[Feed]) -> list[Distance]:
    """The distance of every output that both models have."""
    shared = [name for name in dense.outputs if name in sparse.outputs]
    if not shared:
        raise OptionError("the two models have no output of the same name; compare a model with its own sparse form")
    sums = {name: _Sums() for name in shared}
    for feed in feeds:
        left, right = dense.run(feed), sparse.run(feed)
        for name in shared:
            sums[name].add(left[name], right[name], name)
    return [sums[name].distance(name) for name in shared]


class _Sums:
    def __init__(self) -> None:
        self.far = self.left = self.right = self.dot = 0.0
        self.largest, self.same, self.rows = 0.0, 0, 0

    def add(self, left: Any, right: Any, name: str) -> None:
        if not (isinstance(left, np.ndarray) and isinstance(right, np.ndarray)):
            return  # a sequence or a map: there is no distance between these
        first, second = left, right
        if first.shape != second.shape:
            raise OptionError(
                f"output '{name}' has shape {list(first.shape)} in one model and {list(second.shape)} in the other"
            )
        if first.dtype.kind not in "fiub" or not first.size:
            return
        with np.errstate(all="ignore"):  # a model that overflows is far away, not an error
            self._measure(first.astype(np.float64).reshape(-1), second.astype(np.float64).reshape(-1))
        if first.dtype.kind in "iub":
            self.same, self.rows = self.same + int((first == second).sum()), self.rows + first.size
        elif first.ndim >= 2 and first.shape[-1] > 1:
            self.same += int((first.argmax(-1) == second.argmax(-1)).sum())
            self.rows += first.size // first.shape[-1]

    def _measure(self, a: Array, b: Array) -> None:
        self.far += float(((a - b) ** 2).sum())
        self.left, self.right = self.left + float((a * a).sum()), self.right + float((b * b).sum())
        self.dot += float((a * b).sum())
        self.largest = max(self.largest, float(np.abs(a - b).max()))

    def distance(self, name: str) -> Distance:
        relative = (self.far / self.left) ** 0.5 if self.left else float(self.far > 0)
        norms = (self.left * self.right) ** 0.5
        cosine = self.dot / norms if norms else float(self.left == self.right)
        return Distance(name, relative, self.largest, cosine, self.same / self.rows if self.rows else None)


_NUMPY = {
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


def random_feeds(session: Session, samples: int, seed: int, dims: dict[str, int]) -> Iterator[Feed]:
    """Inputs drawn from a counter-based generator: normal numbers, small counts for integers."""
    for sample in range(samples):
        generator = np.random.Generator(np.random.Philox(key=seed, counter=sample))
        yield {name: _drawn(generator, name, kind, shape, dims) for name, kind, shape in session.inputs}


def _drawn(generator: np.random.Generator, name: str, kind: str, shape: list[Any], dims: dict[str, int]) -> Array:
    dtype = _NUMPY.get(kind)
    if dtype is None:
        raise OptionError(f"input '{name}' is of type {kind}, which cannot be made up; pass --data")
    sizes = [_size(dims, name, axis, size) for axis, size in enumerate(shape)]
    if math.prod(sizes) > MOST_ELEMENTS:
        raise OptionError(f"input '{name}' of shape {sizes} is too large to make up; pass --data or a smaller --dim")
    if dtype.startswith("float"):
        return generator.standard_normal(sizes).astype(dtype)
    return generator.integers(0, 2, sizes).astype(dtype)


def _size(dims: dict[str, int], name: str, axis: int, size: Any) -> int:
    """A fixed size, or the one given for a dynamic dimension by its name or as INPUT.AXIS."""
    if isinstance(size, int) and size > 0:
        return size
    return dims.get(str(size), dims.get(f"{name}.{axis}", 1))


def file_feeds(session: Session, loaded: Any, path: str, samples: int | None) -> Iterator[Feed]:
    """Inputs from arrays named as the inputs, or from one array for the only one; first axis = samples."""
    arrays = _arrays(session, loaded, path)
    count = min([len(array) for array in arrays.values()] + ([samples] if samples else []))
    for start in range(count):
        yield {name: array[start : start + 1] for name, array in arrays.items()}


def _arrays(session: Session, loaded: Any, path: str) -> Feed:
    names = [name for name, _, _ in session.inputs]
    if isinstance(loaded, np.ndarray):
        if len(names) != 1:
            raise OptionError(
                f"{path} is one array, but the model has inputs {', '.join(names)}; pass an .npz with their names"
            )
        loaded = {names[0]: loaded}
    for name in names:
        if name not in loaded:
            raise OptionError(
                f"{path} has no array '{name}'{nearest(name, loaded) or ' (it has ' + ', '.join(loaded) + ')'}"
            )
    return {name: _fitted(loaded[name], name, kind, path) for name, kind, _ in session.inputs}


def _fitted(array: Array, name: str, kind: str, path: str) -> Array:
    if not isinstance(array, np.ndarray) or array.ndim == 0 or not len(array):
        raise OptionError(f"array '{name}' of {path} has no samples along its first axis")
    wanted = _NUMPY.get(kind)
    if wanted and array.dtype != np.dtype(wanted):
        raise OptionError(f"array '{name}' of {path} is {array.dtype}, the model takes {wanted}; convert it first")
    return array
