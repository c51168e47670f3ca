"""Multiply-accumulates of every weight for one run of the model.

A weight element is used once for every output position of its node: the elements of the node's output divided by its
output channels.

1. Shapes come from ONNX shape inference on the model without its weights, for one sample where the file takes any
   number; where that does not say all, the numbers that shapes are made of are followed, too.
2. Sizes of dynamic dimensions may be given: `Model.sizes`.
3. A layer of which a size is not known has no count. A dimension that counted as 1 made 3 million of a thousand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import onnx.shape_inference
from onnx import GraphProto, ModelProto, NodeProto

from onnxsparse.graph.attributes import label
from onnxsparse.graph.layout import size_of
from onnxsparse.graph.model import Model
from onnxsparse.graph.rewire import containers
from onnxsparse.graph.weights import Use, Weight

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


def infer(model: Model, deep: bool = False, one: bool = True) -> Shapes:
    """The shapes of all activations, as far as they can be known without running anything.

    `deep` follows the numbers that shapes are made of, too; `one` is for one sample where the file takes any number.
    """
    if len(model.proto.graph.node) > LARGEST_GRAPH:
        return Shapes({})
    try:
        proto = sized(model.proto, model.sizes)
        return _collected(onnx.shape_inference.infer_shapes(single(proto) if one else proto, data_prop=deep))
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
            given = sizes.get(f"{info.name}.{axis}", sizes.get(dim.dim_param) if dim.dim_param else None)
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
    firsts = {shape.dim[0].dim_value if len(shape.dim) > 1 else 0 for shape in shapes}
    return firsts.pop() or 1 if len(firsts) == 1 else 1


def single(proto: ModelProto) -> ModelProto:
    """The same model for one sample, where it takes any number; also where that number is named along another axis."""
    made = ModelProto()
    made.CopyFrom(proto)
    counted = samples_of(made)
    for info in made.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.dim_value <= 0 and (dim.dim_param in counted if dim.dim_param else axis == 0):
                dim.dim_value = 1
    return made


def samples_of(proto: ModelProto) -> set[str]:
    """The names of the dimensions that count samples: those of first axes, and whatever is called a batch.

    None is one that is named as a length, or that also is another axis of an input whose first has another name.
    """
    shapes = [info.type.tensor_type.shape.dim for info in proto.graph.input]
    firsts = {shape[0].dim_param for shape in shapes if shape and shape[0].dim_param}
    inner = {dim.dim_param for shape in shapes for dim in shape[1:] if dim.dim_param}
    mixed = inner if len(firsts) > 1 else set()
    named = {name for name in firsts | inner if BATCH.search(name)}
    return named | {name for name in firsts - mixed if not LENGTH.search(name)}


def _collected(proto: ModelProto) -> Shapes:
    dims: dict[str, Dims] = {}
    for container in containers(proto):
        if isinstance(container, GraphProto):
            for info in (*container.value_info, *container.output, *container.input):
                if info.type.tensor_type.HasField("shape"):
                    dims[info.name] = tuple(max(dim.dim_value, 0) for dim in info.type.tensor_type.shape.dim)
    return Shapes(dims)


def of_weights(model: Model, weights: list[Weight]) -> tuple[dict[int, int], bool]:
    """Multiply-accumulates by id of the weight, where sizes are known, and whether they are of all weights."""
    nodes = {label(node): node for container in containers(model.proto) for node in container.node}
    used = [weight for weight in weights if any(use.family != "Embedding" for use in weight.uses)]
    recurrent = any(use.family == "Recurrent" for weight in used for use in weight.uses)
    steps = infer(model, one=False) if recurrent else Shapes({})
    found: dict[int, int] = {}
    for deep in (False, True):
        missing = [weight for weight in used if id(weight) not in found]
        shapes = infer(model, deep) if missing else Shapes({})
        counts = {id(weight): _of_weight(weight, nodes, shapes, steps) for weight in missing}
        found.update({key: count for key, count in counts.items() if count})
    return found, all(id(weight) in found for weight in used)


def _of_weight(weight: Weight, nodes: dict[str, NodeProto], shapes: Shapes, steps: Shapes) -> int | None:
    """None where a size is not known."""
    uses = [use for use in weight.uses if use.family != "Embedding"]
    counts = [_of_use(weight, use, nodes.get(use.node), shapes, steps) for use in uses]
    return None if None in counts else sum(filter(None, counts))


def _of_use(weight: Weight, use: Use, node: NodeProto | None, shapes: Shapes, steps: Shapes) -> int | None:
    _, out, reduce, taps = use.shape4
    made = shapes.known(node.output[0]) if node is not None and node.output else None
    if node is None or made is None:
        return None
    if use.family == "ConvTranspose":
        taken = shapes.known(node.input[0])
        return None if taken is None else size_of(taken) * out * taps
    if use.family == "Recurrent":
        if not _has_steps(node, steps):
            return None
        return weight.tensor.size * size_of([made[0], *made[2:-1]])
    if use.family == "Attention":
        return weight.tensor.size * size_of(made[:-1])
    return size_of(made) * reduce * taps


def _has_steps(node: NodeProto, steps: Shapes) -> bool:
    """Whether it is known how many steps a sequence has: along the first axis, where other layers count samples."""
    layout = any(attribute.name == "layout" and attribute.i for attribute in node.attribute)
    shape = steps.dims.get(node.input[0], ())
    return len(shape) > layout and shape[int(layout)] > 0
