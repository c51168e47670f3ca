"""Multiply-accumulates (MACs) of every weight for one run of the model, and the sizes of activations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

import numpy as np
import onnx.shape_inference
from onnx import GraphProto, ModelProto, NodeProto, TensorShapeProto
from onnx.helper import tensor_dtype_to_np_dtype

from onnxsparse.engines.inference import Session
from onnxsparse.errors import OptionError, nearest
from onnxsparse.graph.attributes import label
from onnxsparse.graph.edit import containers
from onnxsparse.graph.layout import size_of
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Use, Weight
from onnxsparse.planning.model_inputs import pairs_of

# -- Multiply-accumulates of every weight for one run of the model.
#
# A weight element is used once for every output position of its node: the elements of the node's output divided by its
# output channels.
#
# 1. Shapes come from ONNX shape inference on the model without its weights, for one sample where the file takes any
#    number; where that does not say all, the numbers that shapes are made of are followed, too.
# 2. Sizes of dynamic dimensions may be given: `Model.sizes`.
# 3. A layer of which a size is not known has no count. A dimension that counted as 1 made 3 million of a thousand.


LARGEST_GRAPH = 20_000
BATCH = re.compile(r"batch|^bs?$|^n$", re.IGNORECASE)
LENGTH = re.compile(r"seq|length|time|frame|height|width", re.IGNORECASE)
Dims = tuple[int, ...]


@dataclass(frozen=True)
class Shapes:
    """Shapes by name, as far as their rank is known; a size that is not is 0."""

    dims: dict[str, Dims]

    def known(self, name: str) -> Dims | None:
        """A shape of which every size is known."""
        found = self.dims.get(name)
        return None if found is None or 0 in found else found


def infer(model: Model, deep: bool = False, samples: int = 1) -> Shapes:
    """The shapes of all activations, as far as they can be known without running anything.

    `deep` follows the numbers that shapes are made of, too; `samples` are what goes in where the file takes any number.
    """
    if len(model.proto.graph.node) > LARGEST_GRAPH:
        return Shapes({})
    try:
        proto = single(sized(model.proto, model.sizes), samples)
        return _collected(onnx.shape_inference.infer_shapes(proto, data_prop=deep))
    except Exception:  # whatever the inference makes of an odd graph, the report can do without
        return Shapes({})


def sized(proto: ModelProto, sizes: Mapping[str, int]) -> ModelProto:
    """The model with the given sizes in place of its dynamic dimensions."""
    if not sizes:
        return proto
    made = ModelProto()
    made.CopyFrom(proto)
    for info in made.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            given = sizes.get(f"{info.name}.{axis}", sizes.get(named(dim)) if named(dim) else None)
            if given is not None:
                dim.dim_value = given
    for info in (*made.graph.output, *made.graph.value_info):  # what was inferred for the old sizes
        info.type.tensor_type.ClearField("shape")
    return made


def fixed_batch(model: Model) -> int:
    """The first size of all inputs, where the file fixes it and it is the same one; else 1."""
    stored = {tensor.name for tensor in model.proto.graph.initializer}
    shapes = [
        one.type.tensor_type.shape for one in sized(model.proto, model.sizes).graph.input if one.name not in stored
    ]
    firsts = {max(shape.dim[0].dim_value, 0) if len(shape.dim) > 1 else 0 for shape in shapes}
    return firsts.pop() or 1 if len(firsts) == 1 else 1


def single(proto: ModelProto, samples: int = 1) -> ModelProto:
    """The same model for one sample, where it takes any number; also where that number is named along another axis."""
    made = ModelProto()
    made.CopyFrom(proto)
    counted = samples_of(made)
    for info in made.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.dim_value <= 0 and (named(dim) in counted if named(dim) else axis == 0):
                dim.dim_value = samples
    return made


def samples_of(proto: ModelProto) -> set[str]:
    """The names of the dimensions that count samples: those of first axes, and whatever is called a batch.

    None is one that is named as a length, or that also is another axis of an input whose first has another name.
    """
    shapes = [info.type.tensor_type.shape.dim for info in proto.graph.input]
    firsts = {named(shape[0]) for shape in shapes if shape and named(shape[0])}
    inner = {named(dim) for shape in shapes for dim in shape[1:] if named(dim)}
    mixed = inner if len(firsts) > 1 else set()
    batches = {name for name in firsts | inner if BATCH.search(name)}
    return batches | {name for name in firsts - mixed if not LENGTH.search(name)}


def named(dim: TensorShapeProto.Dimension) -> str:
    """The name of a dimension; a question mark is none (two are not alike), nor are bytes that are no text."""
    name: object = dim.dim_param
    return name if isinstance(name, str) and name != "?" else ""


def open_dims_of(model: Model, samples: bool = False) -> list[str]:
    """Dimensions of the inputs that nobody has said, by name or as INPUT.AXIS; with `samples` what counts them, too."""
    proto = sized(model.proto, model.sizes)
    return open_dims(proto if samples else single(proto))


def open_dims(proto: ModelProto) -> list[str]:
    """Dynamic dimensions of the inputs."""
    stored = {tensor.name for tensor in proto.graph.initializer}
    found = [
        named(dim) or f"{info.name}.{axis}"
        for info in proto.graph.input
        if info.name not in stored
        for axis, dim in enumerate(info.type.tensor_type.shape.dim)
        if dim.dim_value <= 0
    ]
    return list(dict.fromkeys(found))


def _collected(proto: ModelProto) -> Shapes:
    dims: dict[str, Dims] = {}
    for container in containers(proto):
        if isinstance(container, GraphProto):
            for info in (*container.value_info, *container.output, *container.input):
                if info.type.tensor_type.HasField("shape"):
                    dims[info.name] = tuple(max(dim.dim_value, 0) for dim in info.type.tensor_type.shape.dim)
    return Shapes(dims)


def of_weights(model: Model, weights: list[Weight]) -> tuple[dict[Weight, int], bool]:
    """Multiply-accumulates of each weight, where sizes are known, and whether they are of all weights."""
    used = [weight for weight in weights if any(use.family != "Embedding" for use in weight.uses)]
    found = counted(model, used, deep=False)
    missing = [weight for weight in used if weight not in found]
    if missing and not open_dims_of(model):  # else the sizes are the user's to say
        found.update(counted(model, missing, deep=True))
    return found, all(weight in found for weight in used)


def counted(model: Model, weights: Sequence[Weight], deep: bool) -> dict[Weight, int]:
    """Multiply-accumulates of each weight, as far as shapes are inferred."""
    nodes = {label(node): node for container in containers(model.proto) for node in container.node}
    recurrent = any(use.family == "Recurrent" for weight in weights for use in weight.uses)
    shapes, others = infer(model, deep), infer(model, deep, samples=2) if recurrent else Shapes({})
    counts = {weight: _of_weight(weight, nodes, shapes, others) for weight in weights}
    return {weight: count for weight, count in counts.items() if count}


def _of_weight(weight: Weight, nodes: dict[str, NodeProto], shapes: Shapes, others: Shapes) -> int | None:
    """None where a size is not known."""
    uses = [use for use in weight.uses if use.family != "Embedding"]
    counts = [_of_use(weight, use, nodes.get(use.node), shapes, others) for use in uses]
    return None if None in counts else sum(filter(None, counts))


def _of_use(weight: Weight, use: Use, node: NodeProto | None, shapes: Shapes, others: Shapes) -> int | None:
    _, out, reduce, taps = use.shape4
    made = shapes.known(node.output[0]) if node is not None and node.output else None
    if node is None or made is None:
        return None
    if use.family == "ConvTranspose":
        taken = shapes.known(node.input[0])
        return None if taken is None else size_of(taken) * out * taps
    if use.family == "Recurrent":
        if not _has_steps(node, shapes, others):
            return None
        return weight.tensor.size * size_of([made[0], *made[2:-1]])
    if use.family == "Attention":
        return weight.tensor.size * size_of(made[:-1])
    return size_of(made) * reduce * taps


def _has_steps(node: NodeProto, shapes: Shapes, others: Shapes) -> bool:
    """Whether it is known how many steps a sequence has, along an axis where other layers may count samples.

    What is 1 for one sample and 2 for two is no length but what nobody has said.
    """
    axis = int(any(attribute.name == "layout" and attribute.i for attribute in node.attribute))
    one, two = shapes.dims.get(node.input[0], ()), others.dims.get(node.input[0], ())
    return len(one) == len(two) > axis and one[axis] == two[axis] > 0


# -- How large activations are: the longest side in space of each, for one sample.
#
# 1. Shapes are inferred; then again with the numbers that shapes are made of; then, where onnxruntime is installed and
#    all sizes of the inputs are known, the model is run once on zeros and looked into.
# 2. What is inside of a body or a function is seen by the first two only.
# What it does not do: guess a size that the model leaves to its inputs.


NamedSizes = Union[Mapping[str, int], Sequence[str], str, None]
"""Sizes by the names of dimensions, or texts NAME=SIZE."""


def longest_sides(model: Model, names: Sequence[str]) -> dict[str, float]:
    """The sides of the activations of these names, as far as they can be known."""
    found: dict[str, float] = {}
    for deep in (False, True):
        shapes = infer(model, deep)
        found.update({name: side for name in names if (side := _side(shapes, name)) is not None})
        if all(name in found for name in names):
            return found
    missing = [name for name in dict.fromkeys(names) if name not in found]
    return {**found, **({} if open_dims_of(model) else _seen(model, missing))}


def _side(shapes: Shapes, name: str) -> float | None:
    dims = shapes.dims.get(name)
    return None if dims is None or len(dims) < 3 or 0 in dims[2:] else float(max(dims[2:]))


def set_sizes(model: Model, dims: NamedSizes) -> None:
    """Sizes for dynamic dimensions of the inputs, by name or as INPUT.AXIS; any other name is refused."""
    given = pairs_of(dims, "--dim", "NAME=SIZE such as height=224")
    sizes = given if isinstance(dims, Mapping) else {name: _size(text) for name, text in given.items()}
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or not 0 < size < 1 << 31:
            raise OptionError(f"--dim {name!s:.80}: a size is a whole number from 1, not {size!r:.40}")
        _demand_open(model.proto, str(name), int(size))
    model.sizes.update({str(name): int(size) for name, size in sizes.items()})


def _size(text: str) -> int | str:
    """A size as it is on the command line, as a number; what is none stays a text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else text


def _demand_open(proto: ModelProto, name: str, size: int) -> None:
    """Refuse a name that no dynamic dimension has, and another size than the one that the file fixes."""
    stored = {tensor.name for tensor in proto.graph.initializer}
    shapes = {one.name: one.type.tensor_type.shape.dim for one in proto.graph.input if one.name not in stored}
    places = {f"{one}.{axis}": dim for one, shape in shapes.items() for axis, dim in enumerate(shape)}
    known = [key for key, dim in places.items() if dim.dim_value <= 0]
    known += [named(dim) for dim in places.values() if named(dim)]
    if name in known or (name in places and places[name].dim_value == size):
        return
    there = open_dims(single(proto))
    counting = [one for one in open_dims(proto) if one not in there]
    said = f"they are {', '.join(there[:20]) or 'all of a fixed size'}"
    said += f", and that of the samples, {', '.join(counting[:5])}" if counting else ""
    if name in places:
        others = f"; dynamic are {', '.join([*there[:20], *counting[:5]])}" if there or counting else ""
        raise OptionError(f"--dim {name[:80]}: the model fixes it at {places[name].dim_value}{others}")
    raise OptionError(f"--dim {name[:80]}: no input has such a dimension{nearest(name, known)}; {said}")


def _seen(model: Model, names: Iterable[str]) -> dict[str, float]:
    """Sides of what comes out when the model is run; nothing where it cannot be."""
    opened = Model.open(model.path) if model.path is not None else Model.open(model.proto)
    proto = single(sized(opened.take_proto(), model.sizes))
    made = {name for node in proto.graph.node for name in node.output}
    del proto.graph.output[:]
    for name in names:
        if name in made:
            proto.graph.output.add(name=name)
    if not proto.graph.output:
        return {}
    try:
        outputs = Session(proto).run(_zeros(proto))
    except Exception:  # no runtime, a model that it does not take, or one that is too large for its form in memory
        return {}
    return {name: float(max(value.shape[2:])) for name, value in outputs.items() if value.ndim > 2}


def _zeros(proto: ModelProto) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    stored = {tensor.name for tensor in proto.graph.initializer}
    found = {}
    for info in proto.graph.input:
        kind = info.type.tensor_type
        if info.name not in stored:
            shape = tuple(dim.dim_value for dim in kind.shape.dim)
            found[info.name] = np.zeros(shape, tensor_dtype_to_np_dtype(kind.elem_type))
    return found
