"""Layers that learn from layers of a teacher: which values of the graphs a recipe means by the names of layers.

1. A layer is named as recipes name it, by its weight; its value is what the operator gives, with the bias that is added
   behind a matrix product. A module of several nodes (`model.0`) gives the one result that others read.
2. Without names the layers are all convolutions and matrix products of the model, and of the teacher.
3. A layer that is skipped learns nothing while it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto, NodeProto

from onnxsparse.acts.layers import result_of
from onnxsparse.engines.layer_terms import LayerTerm
from onnxsparse.errors import OptionError, nearest
from onnxsparse.graph.edit import bypass
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Weight
from onnxsparse.planning.names import Named, NamedWeights, NameFilter, named

OPERATORS = ("Conv", "Gemm", "MatMul")


@dataclass(frozen=True)
class LayerPairs:
    """What a recipe says: names of layers, and how they count; the teacher is the model itself, or a file."""

    where: str
    students: tuple[str, ...] | None
    teachers: tuple[str, ...] | None
    gain: float
    normalize: bool
    project: bool
    epsilon: float
    teacher: str = ""


@dataclass(frozen=True)
class Layer:
    """What an operator with a weight gives."""

    value: str
    channels: int
    axis: int


def terms_that_stay(terms: Sequence[LayerTerm], model: Model, bypasses: Mapping[str, str]) -> tuple[LayerTerm, ...]:
    """Those of layers that are not skipped."""
    gone = _gone(model, bypasses) if bypasses else set[str]()
    return tuple(term for term in terms if term.student not in gone)


def _gone(model: Model, bypasses: Mapping[str, str]) -> set[str]:
    """The values that skipped layers do not give."""
    proto, graph = ModelProto(), model.proto.graph
    proto.graph.node.extend(graph.node)
    proto.graph.output.extend(graph.output)
    bypass(proto, bypasses)
    made = {(name, node.op_type) for node in proto.graph.node for name in node.output}
    return {name for node in graph.node for name in node.output if (name, node.op_type) not in made}


def terms_of(said: LayerPairs, model: Model) -> tuple[LayerTerm, ...]:
    """The pairs of values that are meant in a model."""
    other = Model.open(said.teacher) if said.teacher else model
    ours = _layers(model, said.students or said.teachers, f"{said.where}: student_layer_names")
    theirs = _layers(other, said.teachers or said.students, f"{said.where}: teacher_layer_names")
    if len(ours) != len(theirs) or not ours:
        raise OptionError(
            f"{said.where}: {len(ours)} layers of the model and {len(theirs)} of the teacher are no pairs; name as "
            "many in student_layer_names as in teacher_layer_names"
        )
    for one, two in zip(ours, theirs):
        if one.channels != two.channels and not said.project:
            raise OptionError(
                f"{said.where}: '{one.value}' has {one.channels} channels and '{two.value}' of the teacher "
                f"{two.channels}; take layers of the same sizes, or project_features"
            )
    return tuple(
        LayerTerm(
            one.value, two.value, said.gain, said.normalize, said.epsilon,
            (two.channels, one.channels) if said.project else (), one.axis, said.teacher, (0, place),
        )
        for place, (one, two) in enumerate(zip(ours, theirs))
    )  # fmt: skip


def values_of(model: Model, names: Sequence[str] | None, where: str) -> list[str]:
    """The values that some layers of a model give, or all of them."""
    return [one.value for one in _layers(model, names, where)]


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
