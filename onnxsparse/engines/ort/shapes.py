"""Shape inference for the copy, whose inputs have the sizes of a batch: by ONNX, and where that fails by running it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.shape_inference
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto
from onnx.helper import make_tensor_value_info, np_dtype_to_tensor_dtype, tensor_dtype_to_np_dtype

from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.draft import Draft
from onnxsparse.engines.ort.library import Feed, Runner
from onnxsparse.graph.edit import COUNTING, extracted, keep, reads
from onnxsparse.math.values import Array

# -- Fixed shapes: of the inputs as they are fed, and of every value as inferred or, where that fails, as it came out.
#
# A value has no fixed shape if the number of its elements depends on the data: the operators of `COUNTING` make such
# values, and so does whatever came out in two sizes. What such values are scattered into has the shape that it had.

SCATTERING = {"ScatterND", "ScatterElements", "Scatter"}


@dataclass(frozen=True)
class Shaped:
    """The type of a value, and its sizes where they are the same for all data."""

    kind: int
    sizes: tuple[int, ...] | None

    @property
    def is_float(self) -> bool:
        return self.kind == TensorProto.FLOAT


def fix_inputs(draft: Draft) -> None:
    """Inputs get the sizes that they are fed with, and what is known of other values is forgotten: most rewrites of
    what the engine (1.19.2) cannot differentiate are made for sizes."""
    feed = draft.samples.many(draft.width)
    fixed = []
    for value in draft.graph.input:
        kind = value.type.tensor_type.elem_type or np_dtype_to_tensor_dtype(feed[value.name].dtype)
        fixed.append(make_tensor_value_info(value.name, kind, list(feed[value.name].shape)))
    keep(draft.graph.input, fixed)
    del draft.graph.value_info[:]
    for value in draft.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


def shapes_of(model: ModelProto, feeds: Sequence[Feed]) -> dict[str, Shaped]:
    """Every tensor of the main graph; `feeds` are run for those that inference leaves open."""
    known = _inferred(model)
    names = [name for node in model.graph.node for name in node.output if name]
    loose = _counted(model)
    open_ = [name for name in names if name not in known or known[name].sizes is None or name in loose]
    for name, seen in _measured(model, open_, feeds).items():
        same = len({one.sizes for one in seen}) == 1
        known[name] = Shaped(seen[0].kind, seen[0].sizes if same and name not in loose else None)
    return known


def _counted(model: ModelProto) -> set[str]:
    """What hangs on a count of data. Inference that knows the sizes nevertheless is not believed here."""
    loose: set[str] = set()
    for node in model.graph.node:
        read = list(node.input[:1]) if node.op_type in SCATTERING else reads(node)
        if node.op_type in COUNTING or any(name in loose for name in read):
            loose |= {name for name in node.output if name}
    return loose - {value.name for value in model.graph.value_info if _sizes(value) is not None}


def _inferred(model: ModelProto) -> dict[str, Shaped]:
    made = _with_inference(model).graph
    values = (*made.input, *made.value_info, *made.output)
    known = {
        value.name: Shaped(value.type.tensor_type.elem_type, _sizes(value))
        for value in values
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type
    }
    known.update({one.name: Shaped(one.data_type, tuple(one.dims)) for one in model.graph.initializer})
    return known


def _with_inference(model: ModelProto) -> ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # inference is a help, not a check: runs tell the rest
        return model


def _sizes(value: ValueInfoProto) -> tuple[int, ...] | None:
    kind = value.type.tensor_type
    if not kind.HasField("shape") or not all(dim.HasField("dim_value") for dim in kind.shape.dim):
        return None
    return tuple(dim.dim_value for dim in kind.shape.dim)


def _measured(model: ModelProto, names: Sequence[str], feeds: Sequence[Feed]) -> dict[str, list[Shaped]]:
    if not names or not feeds:
        return {}
    seen: dict[str, list[Shaped]] = {}
    runner = Runner(extracted(model, names), fold=False)
    for feed in feeds:
        for name, value in runner(feed).items():
            if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
                seen.setdefault(name, []).append(Shaped(np_dtype_to_tensor_dtype(value.dtype), value.shape))
    return seen


def declare(draft: Draft, shapes: Mapping[str, Shaped]) -> None:
    """Write types and sizes of all values and outputs into the graph."""
    graph = draft.graph
    ends = {value.name for value in graph.output} | {value.name for value in graph.input}
    made = {name for node in graph.node for name in node.output if name}
    keep(graph.output, [_declared(value.name, shapes) or value for value in graph.output])
    inner = [_declared(name, shapes) for name in sorted(made - ends)]
    keep(graph.value_info, [value for value in inner if value is not None])


def _declared(name: str, shapes: Mapping[str, Shaped]) -> ValueInfoProto | None:
    shaped = shapes.get(name)
    return None if shaped is None else make_tensor_value_info(name, shaped.kind, shaped.sizes)


# -- Shapes and types of all values of a graph whose inputs are fixed.
#
# 1. ONNX's own inference goes first, on a copy without the large constants.
# 2. What it leaves open (operators of other domains) is read off two runs of the graph on different inputs. A shape
#    that differs between them depends on the data and stays unknown, and so does one that hangs on a count of data.
# 3. A graph that the runtime cannot run keeps its gaps: whoever needs a shape says so.

_SMALL = 1024  # constants up to this many elements may be shapes that the inference computes with


def infer_shapes(model: ModelProto) -> None:
    """Replace the `value_info` of the graph by what holds for its fixed inputs."""
    found = {value.name: value for value in _by_onnx(model) if is_fixed(value)}
    loose = _counted(model)
    missing = [name for name in _written(model.graph) if name not in found and name not in loose]
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
    return [
        _seen_as(name, one)
        for name, one, two in zip(names, *runs)
        if getattr(one, "shape", 1) == getattr(two, "shape", 2)
    ]


def _feeds(model: ModelProto, fill: int) -> dict[str, Array]:
    stored = {tensor.name for tensor in model.graph.initializer}
    feeds = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        if value.name not in stored:
            shape = [dim.dim_value for dim in kind.shape.dim]
            feeds[value.name] = np.full(shape, fill, tensor_dtype_to_np_dtype(kind.elem_type))
    return feeds


def _seen_as(name: str, array: Array) -> ValueInfoProto:
    kind = TensorProto.STRING if array.dtype.kind in "OU" else np_dtype_to_tensor_dtype(array.dtype)
    return make_tensor_value_info(name, kind, array.shape)
