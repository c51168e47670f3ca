"""Reads a model with plain loops: every stored tensor, and what differs between two models but for weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from graphs.fields import repeated

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Stored:
    """A tensor in a file: where, under which name, and the message that holds it."""

    place: str
    name: str
    tensor: TensorProto | AttributeProto

    def values(self, folder: Path | None = None) -> Array:
        """As stored, but bfloat16 widened to float32, and 4-bit integers to 8 bits."""
        if isinstance(self.tensor, AttributeProto):
            return np.array(self.tensor.floats, dtype=np.float32)
        return read(self.tensor, folder)


def read(stored: TensorProto, folder: Path | None = None) -> Array:
    if stored.data_type == TensorProto.BFLOAT16:
        bits = (
            np.frombuffer(stored.raw_data, np.uint16)
            if stored.raw_data
            else np.array(stored.int32_data).astype(np.uint16)
        )
        return (bits.astype(np.uint32) << 16).view(np.float32).reshape(tuple(stored.dims))
    if stored.data_location != TensorProto.EXTERNAL:
        array = numpy_helper.to_array(stored)
        short = {TensorProto.INT4: np.int8, TensorProto.UINT4: np.uint8}.get(stored.data_type)
        return array if short is None else array.astype(np.int32).astype(short)
    entry = {pair.key: pair.value for pair in stored.external_data}
    assert folder is not None
    kind = helper.tensor_dtype_to_np_dtype(stored.data_type)
    start, count = int(entry.get("offset", 0)), int(np.prod(stored.dims))
    content = (folder / entry["location"]).read_bytes()[start : start + count * kind.itemsize]
    return np.frombuffer(content, kind).reshape(tuple(stored.dims))


def _in_nodes(nodes: Sequence[NodeProto], place: str) -> Iterator[Stored]:
    for number, node in enumerate(nodes):
        here = f"{place}/node[{number}]"
        for attribute in node.attribute:
            name = node.output[0] if node.op_type == "Constant" and node.output else attribute.t.name
            if attribute.type == AttributeProto.TENSOR:
                yield Stored(f"{here}/{attribute.name}", name, attribute.t)
            elif node.op_type == "Constant" and attribute.name == "value_floats":
                yield Stored(f"{here}/{attribute.name}", name, attribute)
            for inner in [attribute.g] * (attribute.type == AttributeProto.GRAPH) + list(attribute.graphs):
                yield from _in_graph(inner, f"{here}/{attribute.name}")


def _in_graph(graph: GraphProto, place: str) -> Iterator[Stored]:
    for number, stored in enumerate(graph.initializer):
        yield Stored(f"{place}/initializer[{number}]", stored.name, stored)
    yield from _in_nodes(graph.node, place)


def stored_tensors(model: onnx.ModelProto) -> list[Stored]:
    """All initializers and constants, also in bodies and functions, in file order."""
    found = list(_in_graph(model.graph, "graph"))
    for number, function in enumerate(model.functions):
        found += _in_nodes(function.node, f"functions[{number}]:{function.name}")
    return found


def find(model: onnx.ModelProto, name: str, shape: tuple[int, ...]) -> Stored:
    """The stored tensor of that name (any, if empty) and shape."""
    fitting = [
        one
        for one in stored_tensors(model)
        if (one.name == name or not name)
        and (isinstance(one.tensor, AttributeProto) or tuple(one.tensor.dims) == shape)
    ]
    if len(fitting) != 1:
        raise LookupError(f"{len(fitting)} tensors are called {name!r} with shape {shape}")
    return fitting[0]


VALUE_FIELDS = ("float_data", "double_data", "int32_data", "int64_data", "uint64_data")


def blank(stored: Stored) -> None:
    """Forget the values, keep how many there are and in which field."""
    if isinstance(stored.tensor, AttributeProto):
        stored.tensor.floats[:] = [0.0] * len(stored.tensor.floats)
        return
    if stored.tensor.HasField("raw_data"):
        stored.tensor.raw_data = bytes(len(stored.tensor.raw_data))
    for field in VALUE_FIELDS:
        items = getattr(stored.tensor, field)
        items[:] = [0] * len(items)


def _without_our_metadata(model: onnx.ModelProto) -> None:
    left = [(entry.key, entry.value) for entry in model.metadata_props if not entry.key.startswith("onnxsparse.")]
    del model.metadata_props[:]
    for key, value in left:
        model.metadata_props.add(key=key, value=value)


def differences(before: onnx.ModelProto, after: onnx.ModelProto, names: Sequence[str]) -> list[str]:
    """Paths of all that differs, but for the values of the named tensors and `onnxsparse.*` metadata."""
    pair = []
    for one in (before, after):
        copy = onnx.ModelProto()
        copy.CopyFrom(one)
        for stored in stored_tensors(copy):
            if stored.name in names:
                blank(stored)
        _without_our_metadata(copy)
        pair.append(copy)
    if pair[0].SerializeToString(deterministic=True) == pair[1].SerializeToString(deterministic=True):
        return []
    return list(_unlike(pair[0], pair[1], "model")) or ["model: unknown fields or field order"]


def _unlike(a: Message, b: Message, place: str) -> Iterator[str]:
    fields = {field.name: field for one in (a, b) for field, _ in one.ListFields()}
    for name, field in fields.items():
        left, right = getattr(a, name), getattr(b, name)
        if field.type == field.TYPE_MESSAGE:
            lists = (list(left), list(right)) if repeated(field) else ([left], [right])
            if len(lists[0]) != len(lists[1]):
                yield f"{place}.{name}: {len(lists[0])} became {len(lists[1])}"
            for number, (one, other) in enumerate(zip(*lists)):
                yield from _unlike(one, other, f"{place}.{name}[{number}]")
        elif (list(left) if repeated(field) else left) != (list(right) if repeated(field) else right):
            yield f"{place}.{name}"


def set_values(model: onnx.ModelProto, stored: Stored, values: Array) -> None:
    """Overwrite a float tensor of the model in place (raw, or a list of floats)."""
    if isinstance(stored.tensor, AttributeProto):
        stored.tensor.floats[:] = [float(v) for v in values.ravel()]
        return
    kept = stored.tensor.name
    stored.tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), kept))


Places = dict[str, Array]


def all_values(model: onnx.ModelProto, folder: Path | None = None) -> Places:
    """Stored values by place, for all tensors that numpy can hold."""
    return {one.place: one.values(folder) for one in stored_tensors(model)}


Change = Callable[[Array], Array]
