"""How many classes the outputs of a model tell apart, and along which axis they lie."""

from __future__ import annotations

from collections.abc import Mapping

from onnxsparse.data import BOUNDLESS
from onnxsparse.engines.spec import LossSpec
from onnxsparse.graph.class_axis import axis_in
from onnxsparse.graph.edit import FLOATS
from onnxsparse.graph.model import Model
from onnxsparse.losses import axes_of_labels, axis_of_labels
from onnxsparse.math.values import Array
from onnxsparse.passes.sample_axes import SAMPLES_FIRST, SampleAxes


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
