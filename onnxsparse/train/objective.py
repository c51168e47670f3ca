"""The training objective: which loss a run has, which outputs and labels it takes, and the classes a model declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto

from onnxsparse.data import BOUNDLESS, LABELS, Data, Stream
from onnxsparse.engines.engine import LossSpec
from onnxsparse.errors import ModelError, OptionError, nearest
from onnxsparse.graph.class_axis import axis_in
from onnxsparse.graph.edit import COUNTING, FLOATS, called, downstream
from onnxsparse.graph.model import Model
from onnxsparse.losses import axes_of_labels, axis_of_labels
from onnxsparse.math.values import Array
from onnxsparse.planning.model_inputs import SAMPLES_FIRST, SampleAxes
from onnxsparse.recipes.modifiers.training import Objective


def goal_of(objective: Objective, labels: Data | Array | None) -> LossSpec:
    """The objective as an engine takes it; the shape of a label is that of the data's, or of a batch's labels."""
    shape: tuple[int, ...] = ()
    if objective.task and labels is not None:
        shape = tuple((labels if isinstance(labels, np.ndarray) else _some(labels)).shape[1:])
    return LossSpec(
        objective.task,
        objective.output,
        shape,
        "int64" if objective.task == "cross-entropy" else "float32",
        objective.kind_of_distillation,
        objective.share,
        objective.softness,
        objective.axis,
        smoothing=objective.smoothing,
        scores=objective.loss == "distill",
    )


def _some(data: Data) -> Array:
    return (data.batch(0, 1) if isinstance(data, Stream) else data.take(np.zeros(1, np.int64)))[LABELS]


def demand_output(model: Model, wanted: str) -> None:
    """The output that a loss is of is there; no name stands for whichever the engine takes."""
    names = [value.name for value in model.proto.graph.output]
    if wanted and wanted not in names:
        raise OptionError(f"the model has no output {wanted!r:.60}{nearest(wanted, names)}")


NAMED = 4


def demand_floats(model: Model) -> None:
    """Some output is made of floats, as many for every sample: nothing else can be brought near the dense model's."""
    graph = model.proto.graph
    makers = {name: node for node in graph.node for name in node.output if name}
    counting, axes = _counting(graph), {dim.dim_param for value in graph.input for dim in _dims(value)}
    reasons = [_no_float(value, makers, counting, axes - {""}) for value in graph.output]
    if all(reasons):
        more = f" and {len(reasons) - NAMED} more" if len(reasons) > NAMED else ""
        raise ModelError(
            f"the model has no float output to learn from: {'; '.join(reasons[:NAMED])}{more}; --until auto "
            "trains the part before its post-processing, and delivers the whole file"
        )


def _counting(graph: GraphProto) -> dict[str, NodeProto]:
    """By the values that depend on it: the operator that counts in the data how many numbers there will be."""
    fed = downstream(graph, [value.name for value in graph.input], sizes=False)
    counting = [node for node in graph.node if node.op_type in COUNTING and any(name in fed for name in node.input)]
    return {name: node for node in reversed(counting) for name in downstream(graph, node.output, sizes=False)}


def _no_float(
    value: ValueInfoProto, makers: Mapping[str, NodeProto], counting: Mapping[str, NodeProto], axes: AbstractSet[str]
) -> str:
    """Why an output is not to be learned from; '' if it is."""
    form, kind = value.type.WhichOneof("value"), value.type.tensor_type.elem_type
    if form not in (None, "tensor_type"):
        return f"'{value.name}' is a {form.replace('_type', '')}"
    if kind not in (TensorProto.UNDEFINED, *FLOATS):
        made = f", from {called(makers[value.name])}" if value.name in makers else ""
        return f"'{value.name}' is {TensorProto.DataType.Name(kind).lower()}{made}"
    sizes = [dim.dim_value or dim.dim_param in axes for dim in _dims(value)]
    if value.name in counting and not (sizes and all(sizes)):
        return f"how many numbers '{value.name}' holds hangs on what {called(counting[value.name])} finds"
    return ""


def _dims(value: ValueInfoProto) -> Sequence[Any]:
    found: Sequence[Any] = value.type.tensor_type.shape.dim
    return found


# -- How many classes the outputs of a model tell apart, and along which axis they lie.


def axes_of(model: Model, axes: SampleAxes = SAMPLES_FIRST) -> dict[str, int]:
    """Along which axis the classes of an output lie, where the graph says it, once its samples are first."""
    found = {}
    for value in model.proto.graph.output:
        axis, front = axis_in(model.proto, value.name), axes.outputs.get(value.name, 0)
        if axis is not None and (axis >= 0 or not front or axis == -1) and axis != front:
            found[value.name] = axis + 1 if 0 <= axis < front else axis
    return found


def declared_classes(model: Model, goal: LossSpec) -> int:
    """How many classes an output tells apart, where the model declares it; otherwise that is found out later."""
    for value in model.proto.graph.output:
        kind = value.type.tensor_type
        if value.name == goal.output or (not goal.output and kind.elem_type in FLOATS):
            sizes = [None, *(dim.dim_value or None for dim in kind.shape.dim[1:])]
            axes = axes_of_labels(sizes, (None, *goal.label_shape))
            sure = len(axes) == 1 or None not in sizes[1:]
            return sizes[axes[0]] or BOUNDLESS if axes and sure else BOUNDLESS
    return BOUNDLESS


def classes_seen(outputs: Mapping[str, Array], goal: LossSpec, labels: Array) -> int:
    """How many classes the logits tell apart, as they come out."""
    logits = outputs[goal.output] if goal.output else next(iter(outputs.values()))
    axis = axis_of_labels((None, *logits.shape[1:]), (None, *labels.shape[1:]))
    return BOUNDLESS if axis is None else int(logits.shape[axis])
