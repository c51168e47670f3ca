"""Shapes and types of all values of a graph whose inputs are fixed.

1. ONNX's own inference goes first, on a copy without the large constants.
2. What it leaves open (operators of other domains) is read off two runs of the graph on different inputs. A shape that
   differs between them depends on the data and stays unknown.
3. A graph that the runtime cannot run keeps its gaps: whoever needs a shape says so.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto
from onnx.helper import make_tensor_value_info, np_dtype_to_tensor_dtype, tensor_dtype_to_np_dtype

from onnxsparse.engines.ort import library
from onnxsparse.math.values import Array

_SMALL = 1024  # constants up to this many elements may be shapes that the inference computes with


def infer(model: ModelProto) -> None:
    """Replace the `value_info` of the graph by what holds for its fixed inputs."""
    found = {value.name: value for value in _by_onnx(model) if is_fixed(value)}
    missing = [name for name in _written(model.graph) if name not in found]
    if missing:
        found.update((value.name, value) for value in _by_running(model, missing))
    del model.graph.value_info[:]
    outputs = {value.name for value in model.graph.output}
    model.graph.value_info.extend(value for name, value in found.items() if name not in outputs)
    for value in model.graph.output:
        if value.name in found:
            value.CopyFrom(found[value.name])


def is_fixed(value: ValueInfoProto) -> bool:
    """Whether type and all dimensions are known."""
    kind = value.type.tensor_type
    return bool(kind.elem_type) and kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim)


def _written(graph: GraphProto) -> list[str]:
    return [name for node in graph.node for name in node.output if name]


def _by_onnx(model: ModelProto) -> Iterable[ValueInfoProto]:
    try:
        graph = onnx.shape_inference.infer_shapes(_light(model), data_prop=True).graph
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return []
    written = set(_written(model.graph))
    return [value for value in (*graph.value_info, *graph.output) if value.name in written]


def _light(model: ModelProto) -> ModelProto:
    """The model without nodes' old shapes; large constants are inputs of their type and shape."""
    light = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    light.graph.name = "light"
    light.graph.node.extend(model.graph.node)
    light.graph.input.extend(model.graph.input)
    light.graph.output.extend(ValueInfoProto(name=value.name, type=value.type) for value in model.graph.output)
    known = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if np.prod(tensor.dims) <= _SMALL:
            light.graph.initializer.append(tensor)
        elif tensor.name not in known:
            light.graph.input.append(make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return light


def _by_running(model: ModelProto, names: list[str]) -> list[ValueInfoProto]:
    """Types and shapes of the values in two runs, where they agree."""
    probe = ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:], probe.graph.value_info[:]
    probe.graph.output.extend(ValueInfoProto(name=name) for name in names)
    runtime = importlib.import_module("onnxruntime")
    try:
        with library.quiet():
            session = runtime.InferenceSession(
                probe.SerializeToString(), library.options(fold=False), providers=["CPUExecutionProvider"]
            )
            runs = [session.run(names, _feeds(model, fill)) for fill in (0, 1)]
    except Exception:  # the runtime has errors of many kinds, and all mean that it cannot tell
        return []
    return [_described(name, one) for name, one, two in zip(names, *runs) if _alike(one, two)]


def _feeds(model: ModelProto, fill: int) -> dict[str, Array]:
    stored = {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        if value.name not in stored:
            shape = [dim.dim_value for dim in kind.shape.dim]
            feeds[value.name] = np.full(shape, fill, tensor_dtype_to_np_dtype(kind.elem_type))
    return feeds


def _alike(one: Any, two: Any) -> bool:
    return isinstance(one, np.ndarray) and isinstance(two, np.ndarray) and one.shape == two.shape


def _described(name: str, array: Array) -> ValueInfoProto:
    kind = TensorProto.STRING if array.dtype.kind in "OU" else np_dtype_to_tensor_dtype(array.dtype)
    return make_tensor_value_info(name, kind, array.shape)
