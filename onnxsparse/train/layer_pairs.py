"""Layers that learn from layers of a teacher: which values of the graphs a recipe means by the names of layers.

1. A layer is named as recipes name it, by its weight; its value is what the operator gives, with the bias that is added
   behind a matrix product. A module of several nodes (`model.0`) gives the one result that others read.
2. Without names the layers are all convolutions and matrix products of the model, and of the teacher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onnx import NodeProto

from onnxsparse.acts.layers import result_of
from onnxsparse.engines.layer_terms import LayerPairs, LayerTerm
from onnxsparse.errors import OptionError, nearest
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Weight
from onnxsparse.planning.names import Named, NamedWeights, NameFilter, named

OPERATORS = ("Conv", "Gemm", "MatMul")


@dataclass(frozen=True)
class Layer:
    """What an operator with a weight gives."""

    value: str
    channels: int
    axis: int


def terms_of(pairs: Sequence[LayerPairs], model: Model) -> tuple[LayerTerm, ...]:
    """The pairs of values that are meant in a model."""
    return tuple(term for one in pairs for term in _terms(one, model))


def _terms(said: LayerPairs, model: Model) -> list[LayerTerm]:
    other = Model.open(said.teacher) if said.teacher else model
    ours = _layers(model, said.students or said.teachers, f"{said.where}: student_layer_names")
    theirs = _layers(other, said.teachers or said.students, f"{said.where}: teacher_layer_names")
    if len(ours) != len(theirs) or not ours:
        raise OptionError(
            f"{said.where}: {len(ours)} layers of the model and {len(theirs)} of the teacher are no pairs; name as "
            "many in student_layer_names as in teacher_layer_names"
        )
    return [
        LayerTerm(
            one.value, two.value, said.gain, said.normalize, said.epsilon,
            (two.channels, one.channels) if said.project else (), one.axis, said.teacher,
        )
        for one, two in zip(ours, theirs)
    ]  # fmt: skip


def _layers(model: Model, names: Sequence[str] | None, where: str) -> list[Layer]:
    weights = [one for one in model.weights if any(_is_layer(use) for use in one.uses) and not one.refusal]
    known = [named(one) for one in weights]
    if names is None:
        return [_layer(model, one) for one in weights]
    chosen: dict[str, Layer] = {}
    for name in names:
        places = _places(known, name, where)
        found = [_layer(model, weights[place]) for place in places] or _of_module(model, name, where)
        if not found:
            raise OptionError(
                f"{where}: the model has no layer {name:.60}{nearest(name, [x for k in known for x in k.every])}"
            )
        chosen.update({one.value: one for one in found})
    return list(chosen.values())


def _of_module(model: Model, name: str, where: str) -> list[Layer]:
    """A module of several nodes, as exporters of torch name it: its channels are second in images, else last."""
    found = result_of(model, name, where)
    if found is None:
        return []
    value, sizes = found
    axis = 1 if len(sizes) > 3 else -1
    channels = sizes[axis] if sizes else ""
    if not isinstance(channels, int):
        raise OptionError(f"{where}: {name[:60]!r}: how many channels its result '{value}' has is not known")
    return [Layer(value, channels, axis)]


def _places(known: Sequence[Named], name: str, where: str) -> list[int]:
    if not name.startswith("re:"):
        return NamedWeights(known).meant(name, where)
    left = NameFilter((name,)).choose(known)
    return [place for place, one in enumerate(known) if not left[one.tensor]]


def _is_layer(use: Any) -> bool:
    return use.op in OPERATORS and not use.scope


def _layer(model: Model, weight: Weight) -> Layer:
    use = next(use for use in weight.uses if _is_layer(use))
    group, out, _, _ = use.shape4
    value = str(use.source.output[0])
    if use.op == "MatMul":
        value = _with_bias(model, value)
    return Layer(value, group * out, 1 if use.op == "Conv" else -1)


def _with_bias(model: Model, value: str) -> str:
    stored = {tensor.name for tensor in model.proto.graph.initializer}
    readers: list[NodeProto] = [node for node in model.proto.graph.node if value in node.input]
    if len(readers) == 1 and readers[0].op_type == "Add" and any(name in stored for name in readers[0].input):
        return str(readers[0].output[0])
    return value
