"""Weights whose bytes are in other files."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from onnx import TensorProto, helper

from .case import Array, Built, Use, add, case, expect, feed, graph, model, node, output_info, weights

RIGHT = Use("MatMul", (0,), (1,))


def outside(name: str, values: Array, location: str, offset: int, length: int, with_length: bool = True) -> TensorProto:
    """A tensor whose bytes are in another file."""
    stored = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(values.dtype), dims=values.shape)
    stored.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": str(offset)}
    if with_length:
        entries["length"] = str(length)
    for key, value in entries.items():
        stored.external_data.add(key=key, value=value)
    return stored


def _external(parts: Sequence[tuple[str, str, int, bool]], sizes: dict[str, int]) -> Built:
    """Each part is (tensor, file, offset, length written); the bytes between are 0xEE and must stay so."""
    files = {name: bytearray(b"\xee" * size) for name, size in sizes.items()}
    tensors, nodes, wanted, at = [], [], [], "x"
    for number, (name, location, offset, with_length) in enumerate(parts):
        w = weights(16, 16, seed=number)
        files[location][offset : offset + w.nbytes] = w.tobytes()
        tensors.append(outside(name, w, location, offset, w.nbytes, with_length))
        nodes.append(node("MatMul", f"{at} {name}", f"y{number}"))
        wanted.append(expect(name, w, RIGHT, storage="external"))
        at = f"y{number}"
    whole = graph(nodes, {"x": feed(4, 16)}, [(at, 2)], tensors)
    return Built(
        model(whole), {"x": feed(4, 16)}, tuple(wanted), {name: bytes(content) for name, content in files.items()}
    )


EXTERNALS = {
    "external_one_file": ([("a", "w.bin", 0, True), ("b", "w.bin", 1024, True)], {"w.bin": 2048}),
    "external_many_files": ([("a", "a", 0, True), ("b", "b.data", 0, True)], {"a": 1024, "b.data": 1024}),
    "external_gaps_and_reversed": ([("a", "w.bin", 8192, True), ("b", "w.bin", 4096, True)], {"w.bin": 12000}),
    "external_unaligned": ([("a", "w.bin", 3, True), ("b", "w.bin", 1031, True)], {"w.bin": 3000}),
    "external_without_length": ([("a", "w.bin", 0, False)], {"w.bin": 1024}),
}
for _case_name, (_parts, _sizes) in EXTERNALS.items():
    add(_case_name, "external", functools.partial(_external, _parts, _sizes))


@case
def external_bytes_shared_by_two_tensors() -> Built:
    """Two tensors that name the same bytes: both pruned alike along the same axis."""
    built = _external([("a", "w.bin", 0, True)], {"w.bin": 1024})
    twin = built.model.graph.initializer.add()
    twin.CopyFrom(built.model.graph.initializer[0])
    twin.name = "b"
    built.model.graph.node.append(node("MatMul", "y0 b", "y1"))
    built.model.graph.output[0].CopyFrom(output_info("y1", 2))
    return Built(
        built.model,
        built.feeds,
        (*built.expected, expect("b", built.expected[0].real, RIGHT, storage="external")),
        built.files,
    )
