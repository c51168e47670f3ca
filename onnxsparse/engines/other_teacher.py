"""Distillation from another ONNX model: the teacher's logits for the inputs of a batch.

1. Its inputs are those of the model in training by name, or in order where the names differ; its outputs are those of
   the same names, or for a single one its first of floats.
2. Rows that are probabilities are taken by their logarithms: softmax gives them back.
3. A file that was made for one sample is asked about one after the other.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxsparse.errors import MissingExtraError, ModelError
from onnxsparse.graph.model import Model
from onnxsparse.math.values import Array

SURE = 1e-3
SMALLEST = 1e-30


class OtherTeacher:
    """A model in onnxruntime."""

    def __init__(self, path: str, held: bytes | None = None) -> None:
        """`held` is the file in memory, where something was added to it."""
        self._path, self._session = path, _session(path, held)
        self._inputs = [value.name for value in self._session.get_inputs()]
        self._floats = [value.name for value in self._session.get_outputs() if value.type == "tensor(float)"]
        if not self._floats:
            raise ModelError(f"the teacher {path} has no output of floats")
        self._by_one = False

    def __call__(self, feed: Mapping[str, Array], shapes: Mapping[str, Sequence[int]]) -> dict[str, Array]:
        """What it says to inputs by name, for which the outputs of the model in training have these shapes."""
        names = outputs_for(list(shapes), self._floats, self._path)
        found = dict(zip(shapes, self._asked(self._given(feed), names)))
        for name, shape in shapes.items():
            if found[name].shape != tuple(shape):
                raise ModelError(
                    f"the teacher {self._path} gives {list(found[name].shape)} where the model gives {list(shape)}; it "
                    "has to be made for the same task"
                )
        return {name: _before_squashing(one) for name, one in found.items()}

    def values(self, feed: Mapping[str, Array], names: Sequence[str]) -> dict[str, Array]:
        """What it gives by these names, for inputs by name."""
        return dict(zip(names, self._asked(self._given(feed), names)))

    def _given(self, feed: Mapping[str, Array]) -> Mapping[str, Array]:
        named = all(name in feed for name in self._inputs)
        return {name: feed[name] for name in self._inputs} if named else dict(zip(self._inputs, feed.values()))

    def _asked(self, feed: Mapping[str, Array], names: Sequence[str]) -> list[Array]:
        if not self._by_one:
            try:
                return self._run(feed, names)
            except Exception as error:  # whatever the runtime makes of a batch that the file was not made for
                self._by_one = True
                try:
                    return self._one_by_one(feed, names)
                except Exception:
                    raise ModelError(f"the teacher {self._path} does not take the data: {_line(error)}") from error
        return self._one_by_one(feed, names)

    def _one_by_one(self, feed: Mapping[str, Array], names: Sequence[str]) -> list[Array]:
        count = max((len(array) for array in feed.values() if array.ndim), default=1)
        cut = [
            {
                name: array[row : row + 1] if array.ndim and len(array) == count else array
                for name, array in feed.items()
            }
            for row in range(count)
        ]
        return [np.concatenate(parts) for parts in zip(*(self._run(one, names) for one in cut))]

    def _run(self, feed: Mapping[str, Array], names: Sequence[str]) -> list[Array]:
        found: list[Array] = self._session.run(list(names), dict(feed))
        return found


def outputs_for(asked: Sequence[str], floats: Sequence[str], path: str) -> list[str]:
    """The outputs of a teacher for outputs of the model."""
    if len(asked) == 1:
        return [asked[0] if asked[0] in floats else floats[0]]
    missing = next((name for name in asked if name not in floats), None)
    if missing is not None:
        raise ModelError(f"the teacher {path} gives no output {missing:.60} (it gives {', '.join(floats)[:100]})")
    return list(asked)


def demand_outputs(path: str, asked: Sequence[str]) -> None:
    """A teacher in a file has the outputs that are learned, where these are several."""
    if len(asked) < 2:
        return
    kinds = {value.name: value.type.tensor_type.elem_type for value in Model.open(path).proto.graph.output}
    outputs_for(asked, [name for name, kind in kinds.items() if kind == TensorProto.FLOAT], path)


def _session(path: str, held: bytes | None) -> Any:
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise MissingExtraError(
            "a teacher that is a file needs onnxruntime: pip install 'onnxsparse[runtime]'"
        ) from error
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return runtime.InferenceSession(held or path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime has kinds of its own for what is wrong with a file
        raise ModelError(f"the teacher {path} cannot be opened: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _before_squashing(found: Array) -> Array:
    rows = found.reshape(len(found), -1) if found.ndim else found.reshape(1, -1)
    probabilities = bool((rows >= 0).all()) and bool((np.abs(rows.sum(1) - 1) < SURE).all())
    return np.log(np.maximum(found, SMALLEST)) if probabilities and rows.shape[1] > 1 else found
