"""Fixed shapes: of the inputs as they are fed, and of every value as inferred or, where that fails, as it came out.

A value has no fixed shape if the number of its elements depends on the data: the operators of `COUNTING` make such
values, and so does whatever came out in two sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx.shape_inference
from onnx import ModelProto, TensorProto, ValueInfoProto
from onnx.helper import make_tensor_value_info, np_dtype_to_tensor_dtype

from onnxsparse.engines.ort.draft import Draft, keep
from onnxsparse.engines.ort.reach import downstream, part
from onnxsparse.engines.ort.runner import Feed, Runner

COUNTING = {"NonZero", "NonMaxSuppression", "Unique", "Compress"}


@dataclass(frozen=True)
class Shaped:
    """The type of a value, and its sizes where they are the same for all data."""

    kind: int
    sizes: tuple[int, ...] | None

    @property
    def is_float(self) -> bool:
        return self.kind == TensorProto.FLOAT


def fix_inputs(draft: Draft, feed: Feed) -> None:
    """Inputs get the sizes of the feed; what is known of other values is forgotten."""
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
    sources = {name for node in model.graph.node if node.op_type in COUNTING for name in node.output if name}
    if not sources:
        return set()
    sized = {value.name for value in model.graph.value_info if _sizes(value) is not None}
    return downstream(model.graph, sources) - sized


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
    runner = Runner(part(model, names), fold=False)
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
