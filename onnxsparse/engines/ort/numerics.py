"""Integer division by zero, quantization round trips and random numbers, which a training graph cannot have."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx.shape_inference
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper
from onnx.helper import make_attribute, make_node

from onnxsparse.engines.ort.draft import Draft
from onnxsparse.engines.rounding import clip_round_trips, stored_everywhere
from onnxsparse.graph.attributes import attributes
from onnxsparse.graph.edit import RANDOM, SIZES, FreshNames, Writer, called, keep, reads, scopes
from onnxsparse.math.values import Array

# -- Whole numbers divided by zero end the process, and so does the least of them divided by -1: the copy does not.
#
# 1. Divided by zero it divides by one: where the user's file ends the process, what the copy gives is nobody's loss.
#    Instead of dividing by -1 it divides by one, and changes the sign of what comes out.
# 2. Divisors that are stored and hold neither, and those that hang on sizes, stay as they are.
# 3. Only for the types that the runtime divides, and where the operator set has what is needed.

FIRST_WHERE = 9
GUARDED: dict[int, type[np.signedinteger[Any]]] = {TensorProto.INT32: np.int32, TensorProto.INT64: np.int64}


def guard_divisions(draft: Draft) -> None:
    """Guard Div and Mod of whole numbers, those in bodies too: the runtime (1.19.2) divides as the processor does, and
    the process ends with SIGFPE."""
    every = list(scopes(draft.graph))
    if draft.opset < FIRST_WHERE or not any(_divides(node) for graph in every for node in graph.node):
        return
    kinds, settled, names = _types(draft.model), _settled(draft), FreshNames.of(draft.graph)
    for graph in reversed(every):
        nodes: list[NodeProto] = []
        for node in graph.node:
            kind = GUARDED.get(kinds.get(node.input[1], 0)) if _divides(node) else None
            guarded = kind is not None and node.input[1] not in settled
            nodes += _guarded(node, kind, names) if guarded and kind is not None else [node]
        if len(nodes) > len(graph.node):
            keep(graph.node, nodes)


def _divides(node: NodeProto) -> bool:
    return node.op_type in ("Div", "Mod") and node.domain in ("", "ai.onnx") and len(node.input) == 2


def _guarded(node: NodeProto, kind: type[np.signedinteger[Any]], names: FreshNames) -> list[NodeProto]:
    """The division with the nodes around it; its result has the name that it had."""
    divisor, result = node.input[1], node.output[0]
    words = ("zero", "one", "minus", "is_zero", "is_minus", "is_bad", "divisor")
    zero, one, minus, is_zero, is_minus, is_bad, safe = (names(f"{divisor}.{word}") for word in words)
    numbers = ((zero, 0), (one, 1), (minus, -1))
    node.input[1] = safe
    found = [
        *(
            make_node("Constant", [], [n], value=numpy_helper.from_array(np.array(number, kind)))
            for n, number in numbers
        ),
        make_node("Equal", [divisor, zero], [is_zero]),
        make_node("Equal", [divisor, minus], [is_minus]),
        make_node("Or", [is_zero, is_minus], [is_bad]),
        make_node("Where", [is_bad, one, divisor], [safe]),
        node,
    ]
    if node.op_type == "Mod":  # what is left over from a division by one is nothing, and by -1 too
        return found
    quotient, turned = names(f"{result}.quotient"), names(f"{result}.turned")
    node.output[0] = quotient
    ends = [make_node("Neg", [quotient], [turned]), make_node("Where", [is_minus, turned, quotient], [result])]
    return [*found, *ends]


def _types(model: ModelProto) -> dict[str, int]:
    """The types of values as far as they are known."""
    try:
        model = onnx.shape_inference.infer_shapes(model)
    except Exception:  # inference is a help, not a check
        return {}
    found: dict[str, int] = {}
    for graph in scopes(model.graph):
        found.update({tensor.name: tensor.data_type for tensor in graph.initializer})
        values: list[ValueInfoProto] = [*graph.input, *graph.value_info, *graph.output]
        found.update({value.name: value.type.tensor_type.elem_type for value in values})
    return found


def _settled(draft: Draft) -> set[str]:
    """What is safe for certain, or is a size: not what a sample decides, and nothing but sizes may hang on it."""
    moving = {value.name for value in draft.graph.input}
    sized: set[str] = set()
    for node in draft.graph.node:
        if node.op_type not in SIZES and moving & set(reads(node)):
            moving.update(node.output)
        elif node.op_type in SIZES or sized & set(reads(node)):
            sized.update(node.output)
    stored = {tensor.name for graph in scopes(draft.graph) for tensor in graph.initializer if _is_safe(tensor)}
    constants = (
        (node, entry.t) for graph in scopes(draft.graph) for node in graph.node for entry in node.attribute
        if node.op_type == "Constant" and entry.name == "value"
    )  # fmt: skip
    stored |= {node.output[0] for node, tensor in constants if _is_safe(tensor)}
    return sized | (stored - {value.name for value in draft.graph.input})


def _is_safe(tensor: TensorProto) -> bool:
    """Whether a stored divisor holds neither zero nor -1."""
    if tensor.data_type not in GUARDED:
        return False
    array: Array = numpy_helper.to_array(tensor)
    return bool(array.all() and (array != -1).all())


# -- Values that the file rounds to whole numbers and back are only clipped (see `rounding`).


def without_rounding(draft: Draft) -> None:
    """Clip in place of every pair that is understood: the engine (1.19.2) has no gradient for QuantizeLinear."""
    count = clip_round_trips(draft.graph, draft.opset)
    if count:
        draft.note(
            f"{count} value{'s are' if count > 1 else ' is'} rounded to whole numbers and back in the file "
            "(QuantizeLinear): the copy keeps to the same range and does not round, so losses and metrics of the "
            "training are those without rounding"
        )


# -- Random numbers of the file: in training they follow from the seed and the samples, and from nothing else.
#
# 1. Dropout that is told to train (its third input is true) draws, keeps what is drawn, and scales it.
# 2. The dense model takes standard normal and uniform numbers as inputs, in place of its random nodes. They are drawn
#    by Philox: the seed is the key; the samples and the name of the value are the counter. So a batch of other samples
#    has other numbers, and a run that is resumed or repeated has the same.
# 3. What cannot be fed so (Multinomial, random nodes in the bodies of others) draws by a seed of its own. A run that is
#    resumed does not repeat that, and it is noted.

NORMAL, UNIFORM = "onnxsparse.normal:", "onnxsparse.uniform:"
_NORMALS, _UNIFORMS = ("RandomNormal", "RandomNormalLike"), ("RandomUniform", "RandomUniformLike")


def settle_random(draft: Draft) -> None:
    """Write dropouts out that draw, and say which nodes are random, in a draft of float32: the random numbers of the
    engine (1.19.2), even with a seed, are others after a checkpoint is loaded."""
    _write_dropouts(draft)
    main = [node for node in draft.graph.node if node.op_type in RANDOM - {"Multinomial"}]
    if main:
        draft.note(
            f"the model draws random numbers ({_named(main)}): in training they follow from the seed and the samples"
        )
    own = [node for graph in scopes(draft.graph) for node in graph.node if node.op_type in RANDOM]
    others = [node for node in own if node not in main]
    for node in others:
        if all(attribute.name != "seed" for attribute in node.attribute):
            node.attribute.append(make_attribute("seed", 0.0))
    if others:
        draft.note(f"the random numbers of {_named(others)} are not the same again when a run is resumed")


def _named(nodes: Sequence[NodeProto]) -> str:
    return ", ".join(called(node) for node in nodes[:3]) + (", ..." if len(nodes) > 3 else "")


def _write_dropouts(draft: Draft) -> None:
    stored = dict(stored_everywhere(draft.graph))
    for graph in scopes(draft.graph):
        writer = Writer(graph, draft.opset)
        writer.replace(partial(_write_dropout, stored=stored, writer=writer))


def _write_dropout(node: NodeProto, stored: Mapping[str, TensorProto], writer: Writer) -> None:
    """A Dropout that is told to train: x mask / (1 - ratio), where the mask is true for 1 - ratio of all elements."""
    flag = stored.get(node.input[2]) if node.op_type == "Dropout" and len(node.input) > 2 else None
    if flag is None or not numpy_helper.to_array(flag).reshape(-1)[0]:
        return
    x, one = node.input[0], writer.constant(1.0)
    ratio = node.input[1] if node.input[1] else writer.constant(0.5)
    left = writer.node("Sub", one, writer.cast(ratio, TensorProto.FLOAT))
    random = writer.node("RandomUniformLike", x, dtype=TensorProto.FLOAT)
    mask = node.output[1] if len(node.output) > 1 and node.output[1] else None
    kept = writer.cast(writer.node("Less", random, left, to=mask), TensorProto.FLOAT)
    writer.node("Mul", x, writer.node("Div", kept, left), to=node.output[0])


def random_as_inputs(model: ModelProto) -> None:
    """Inputs of standard random numbers in place of the random nodes, where their shape is fixed."""
    graph = model.graph
    dims = {value.name: value.type.tensor_type.shape.dim for value in (*graph.value_info, *graph.output)}
    shapes = {
        name: [dim.dim_value for dim in known]
        for name, known in dims.items()
        if all(dim.HasField("dim_value") for dim in known)
    }
    writer = Writer(graph, 0)
    writer.replace(lambda node: _write_random(node, shapes.get(node.output[0]), writer))


def _write_random(node: NodeProto, shape: Sequence[int] | None, writer: Writer) -> None:
    if shape is None or node.op_type not in RANDOM:
        return
    given, name = attributes(node), node.output[0]
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


def random_inputs(names: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Those among the inputs of a dense model that take random numbers, and their shapes."""
    return {name: tuple(shape) for name, shape in names.items() if name.startswith((NORMAL, UNIFORM))}


def draw_random(shapes: Mapping[str, Sequence[int]], feed: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """The random numbers that go with some samples."""
    if not shapes:
        return {}
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(feed):
        digest.update(np.ascontiguousarray(feed[name]).tobytes())
    samples = int.from_bytes(digest.digest(), "little")
    return {name: _random_numbers(name, shape, samples, seed) for name, shape in shapes.items()}


def _random_numbers(name: str, shape: Sequence[int], samples: int, seed: int) -> Array:
    counter = np.array([0, 0, zlib.crc32(name.encode()), samples], np.uint64)
    generator = np.random.Generator(np.random.Philox(key=seed, counter=counter))
    if name.startswith(NORMAL):
        return generator.standard_normal(tuple(shape), np.float32)
    return generator.random(tuple(shape), np.float32)
