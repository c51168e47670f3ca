"""Running a graph in memory on one thread, with any of its values as outputs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto
from onnx.helper import tensor_dtype_to_np_dtype

from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.refusals import short
from onnxsparse.errors import ModelError
from onnxsparse.math.values import Array

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
