"""What a model takes, as the data has to give it."""

from __future__ import annotations

from dataclasses import replace

from onnx import ValueInfoProto
from onnx.helper import tensor_dtype_to_np_dtype

from onnxsparse.data import Field
from onnxsparse.data.field import to_front
from onnxsparse.errors import ModelError
from onnxsparse.graph.model import Model
from onnxsparse.passes.sample_axes import SampleAxes


def fields_of(model: Model, axes: SampleAxes | None = None) -> list[Field]:
    """The inputs that are to be fed: those that no initializer stands for; with the samples first in their shapes."""
    graph = model.proto.graph
    stored = {tensor.name for tensor in graph.initializer} | {one.values.name for one in graph.sparse_initializer}
    found = [_field(value) for value in graph.input if value.name not in stored]
    return found if axes is None else [_laid_out(field, axes) for field in found]


def _laid_out(field: Field, axes: SampleAxes) -> Field:
    axis, is_state = axes.inputs.get(field.name, 0), field.name in axes.states
    shape = to_front(field.shape, axis) if axis and field.shape is not None else field.shape
    steps = bool(axes.states) and not is_state
    return replace(field, shape=shape, axis=axis, given=field.name in axes.given, steps=steps, optional=is_state)


def _field(value: ValueInfoProto) -> Field:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        raise ModelError(f"input '{value.name}' of the model is no tensor, which training data cannot hold")
    shape = None
    if kind.HasField("shape"):
        shape = tuple(dim.dim_value if dim.dim_value > 0 else None for dim in kind.shape.dim)
    return Field(value.name, _dtype(value, kind.elem_type), shape)


def _dtype(value: ValueInfoProto, kind: int) -> str:
    try:
        return str(tensor_dtype_to_np_dtype(kind).name)
    except KeyError:
        raise ModelError(f"input '{value.name}' of the model has an element type that is not known") from None
