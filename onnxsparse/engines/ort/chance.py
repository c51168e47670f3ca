"""Random numbers of the file: in training they follow from the seed and the samples, and from nothing else.

1. Dropout that is told to train (its third input is true) draws, keeps what is drawn, and scales it.
2. The dense model takes standard normal and uniform numbers as inputs, in place of its random nodes. They are drawn by
   Philox: the seed is the key; the samples and the name of the value are the counter. So a batch of other samples has
   other numbers, and a run that is resumed or repeated has the same.
3. What cannot be fed so (Multinomial, random nodes in the bodies of others) draws by a seed of its own. A run that is
   resumed does not repeat that, and it is noted.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.helper import get_attribute_value, make_attribute

from onnxsparse.engines.ort.draft import Draft, called, keep
from onnxsparse.engines.ort.fold import RANDOM
from onnxsparse.engines.ort.rounding import stored_everywhere
from onnxsparse.engines.ort.scopes import scopes
from onnxsparse.engines.ort.writer import Writer
from onnxsparse.math.values import Array

NORMAL, UNIFORM = "onnxsparse.normal:", "onnxsparse.uniform:"
_NORMALS, _UNIFORMS = ("RandomNormal", "RandomNormalLike"), ("RandomUniform", "RandomUniformLike")


def settle_chance(draft: Draft) -> None:
    """Write dropouts out that draw, and say where chance is, in a draft of float32."""
    _write_dropouts(draft)
    main = [node for node in draft.graph.node if node.op_type in RANDOM - {"Multinomial"}]
    if main:
        draft.note(
            f"the model draws random numbers ({_listed(main)}): in training they follow from the seed and the samples"
        )
    own = [node for graph in scopes(draft.graph) for node in graph.node if node.op_type in RANDOM]
    others = [node for node in own if node not in main]
    for node in others:
        if all(attribute.name != "seed" for attribute in node.attribute):
            node.attribute.append(make_attribute("seed", 0.0))
    if others:
        draft.note(f"the random numbers of {_listed(others)} are not the same again when a run is resumed")


def _listed(nodes: Sequence[NodeProto]) -> str:
    return ", ".join(called(node) for node in nodes[:3]) + (", ..." if len(nodes) > 3 else "")


def _write_dropouts(draft: Draft) -> None:
    stored = dict(stored_everywhere(draft.graph))
    for graph in scopes(draft.graph):
        writer, nodes, changed = Writer(graph, draft.opset), list[NodeProto](), False
        for node in graph.node:
            writer.nodes = []
            if node.op_type == "Dropout" and _is_on(node, stored):
                changed |= _write_dropout(node, writer)
            nodes += writer.nodes or [node]
        if changed:
            keep(graph.node, nodes)


def _is_on(node: NodeProto, stored: Mapping[str, TensorProto]) -> bool:
    flag = stored.get(node.input[2]) if len(node.input) > 2 else None
    return flag is not None and bool(numpy_helper.to_array(flag).reshape(-1)[0])


def _write_dropout(node: NodeProto, writer: Writer) -> bool:
    """x mask / (1 - ratio), where the mask is true for 1 - ratio of all elements."""
    x, one = node.input[0], writer.constant(1.0)
    ratio = node.input[1] if len(node.input) > 1 and node.input[1] else writer.constant(0.5)
    left = writer.node("Sub", one, writer.cast(ratio, TensorProto.FLOAT))
    drawn = writer.node("RandomUniformLike", x, dtype=TensorProto.FLOAT)
    mask = node.output[1] if len(node.output) > 1 and node.output[1] else None
    kept = writer.cast(writer.node("Less", drawn, left, to=mask), TensorProto.FLOAT)
    factor = writer.node("Div", kept, left)
    writer.node("Mul", x, factor, to=node.output[0])
    return True


def take_as_inputs(model: ModelProto) -> None:
    """Inputs of standard random numbers in place of the random nodes, where their shape is fixed."""
    graph = model.graph
    shapes = {value.name: value.type.tensor_type.shape.dim for value in (*graph.value_info, *graph.output)}
    writer, nodes = Writer(graph, 0), list[NodeProto]()
    for node in graph.node:
        dims = shapes.get(node.output[0]) if node.op_type in RANDOM else None
        writer.nodes = []
        if dims is not None and all(dim.HasField("dim_value") for dim in dims):
            _write(node, [dim.dim_value for dim in dims], writer)
        nodes += writer.nodes or [node]
    keep(graph.node, nodes)


def _write(node: NodeProto, shape: Sequence[int], writer: Writer) -> None:
    given, name = {one.name: get_attribute_value(one) for one in node.attribute}, node.output[0]
    if node.op_type in _NORMALS:
        noise = writer.node(
            "Mul", writer.input(NORMAL + name, "float32", shape), writer.constant(given.get("scale", 1.0))
        )
        writer.node("Add", noise, writer.constant(given.get("mean", 0.0)), to=name)
    elif node.op_type in _UNIFORMS:
        low, high = given.get("low", 0.0), given.get("high", 1.0)
        noise = writer.node("Mul", writer.input(UNIFORM + name, "float32", shape), writer.constant(high - low))
        writer.node("Add", noise, writer.constant(low), to=name)
    elif node.op_type == "Bernoulli":
        hit = writer.node("Less", writer.input(UNIFORM + name, "float32", shape), node.input[0])
        writer.cast(hit, given.get("dtype", TensorProto.FLOAT), to=name)


def wanted(names: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Those among the inputs of a dense model that take random numbers, and their shapes."""
    return {name: tuple(shape) for name, shape in names.items() if name.startswith((NORMAL, UNIFORM))}


def drawn(shapes: Mapping[str, Sequence[int]], feed: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """The random numbers that go with some samples."""
    if not shapes:
        return {}
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(feed):
        digest.update(np.ascontiguousarray(feed[name]).tobytes())
    samples = int.from_bytes(digest.digest(), "little")
    return {name: _numbers(name, shape, samples, seed) for name, shape in shapes.items()}


def _numbers(name: str, shape: Sequence[int], samples: int, seed: int) -> Array:
    counter = np.array([0, 0, zlib.crc32(name.encode()), samples], np.uint64)
    generator = np.random.Generator(np.random.Philox(key=seed, counter=counter))
    if name.startswith(NORMAL):
        return generator.standard_normal(tuple(shape), np.float32)
    return generator.random(tuple(shape), np.float32)
