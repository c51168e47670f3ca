"""Multiply-accumulates of every weight for one run of the model.

A weight element is used once for every output position of its node: the elements of the node's output divided by its
output channels. Shapes come from ONNX shape inference on the model without its weights; a dimension that is not known
counts as 1, and then the figures are shares, not totals. Sizes of dynamic dimensions may be given: `Model.sizes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx.shape_inference
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from onnxsparse.graph.attributes import label
from onnxsparse.graph.layout import size_of
from onnxsparse.graph.model import Model
from onnxsparse.graph.rewire import containers
from onnxsparse.graph.weights import Use, Weight

LARGEST_GRAPH = 20_000
Dims = tuple[int, ...]


@dataclass(frozen=True)
class Shapes:
    """Known output shapes by name, unknown dimensions as 1; `exact` when none was unknown behind the first axis."""

    dims: dict[str, Dims]
    exact: bool
    guessed: frozenset[str] = frozenset()
    """Names of those of which a dimension behind the first is unknown."""


def infer(model: Model, deep: bool = False) -> Shapes:
    """The shapes of all activations, as far as they can be known without running anything.

    `deep` follows the numbers that shapes are made of, too, for one sample.
    """
    if len(model.proto.graph.node) > LARGEST_GRAPH:
        return Shapes({}, False)
    try:
        proto = sized(model.proto, model.sizes)
        inferred = onnx.shape_inference.infer_shapes(single(proto) if deep else proto, data_prop=deep)
    except Exception:  # whatever the inference makes of an odd graph, the report can do without
        return Shapes({}, False)
    return _collected(inferred)


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
    """The same model for one sample, where it takes any number."""
    made = ModelProto()
    made.CopyFrom(proto)
    for info in made.graph.input:
        dims = info.type.tensor_type.shape.dim
        if dims and dims[0].dim_value <= 0:
            dims[0].dim_value = 1
    return made


def _collected(proto: ModelProto) -> Shapes:
    dims: dict[str, Dims] = {}
    exact, guessed = True, set()
    for container in containers(proto):
        if isinstance(container, GraphProto):
            for info in (*container.value_info, *container.output, *container.input):
                dims[info.name], known = _dims(info)
                exact = exact and known
                guessed.update([] if known else [info.name])
    return Shapes(dims, exact, frozenset(guessed))


def _dims(info: ValueInfoProto) -> tuple[Dims, bool]:
    shape = info.type.tensor_type.shape.dim
    known = all(dim.HasField("dim_value") for dim in shape[1:])
    return tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else 1 for dim in shape), known


def of_weights(model: Model, weights: list[Weight]) -> tuple[dict[int, int], bool]:
    """Multiply-accumulates by id of the weight, where shapes are known, and whether no dimension was a guess."""
    shapes = infer(model)
    nodes = {label(node): node for container in containers(model.proto) for node in container.node}
    counts = {id(weight): _of_weight(weight, nodes, shapes) for weight in weights}
    used = [weight for weight in weights if any(use.family != "Embedding" for use in weight.uses)]
    complete = all(counts[id(weight)] for weight in used)
    return {key: count for key, count in counts.items() if count}, shapes.exact and complete


def _of_weight(weight: Weight, nodes: dict[str, NodeProto], shapes: Shapes) -> int:
    return sum(_of_use(weight, use, nodes.get(use.node), shapes) for use in weight.uses if use.family != "Embedding")


def _of_use(weight: Weight, use: Use, node: NodeProto | None, shapes: Shapes) -> int:
    _, out, reduce, taps = use.shape4
    made = shapes.dims.get(node.output[0]) if node is not None and node.output else None
    if node is None or not made:
        return 0
    if use.family == "ConvTranspose":
        taken = shapes.dims.get(node.input[0])
        return size_of(taken) * out * taps if taken else 0
    if use.family == "Recurrent":
        return weight.tensor.size * size_of([made[0], *made[2:-1]])
    if use.family == "Attention":
        return weight.tensor.size * size_of(made[:-1])
    return size_of(made) * reduce * taps
