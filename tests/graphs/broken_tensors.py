"""Models whose tensors lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Callable

import numpy as np
from onnx import TensorProto

from .broken import FATAL, ODD, Writer, save, small
from .case import feed, node, simple, weights


def _with_weight(change: Callable[[TensorProto], None]) -> Writer:
    def write(folder: Path) -> Path:
        made = small()
        change(made.graph.initializer[0])
        return save(folder, made)

    return write


def _dims(*dims: int) -> Callable[[TensorProto], None]:
    def change(stored: TensorProto) -> None:
        del stored.dims[:]
        stored.dims.extend(dims)

    return change


def _raw(content: bytes) -> Callable[[TensorProto], None]:
    return lambda stored: setattr(stored, "raw_data", content)


def _values(fill: float) -> Callable[[TensorProto], None]:
    def change(stored: TensorProto) -> None:
        w = weights(16, 16)
        w[3, 5] = fill
        stored.raw_data = w.tobytes()

    return change


def _both_fields(stored: TensorProto) -> None:
    stored.float_data.extend([1.0] * 256)


def _short_field(stored: TensorProto) -> None:
    stored.ClearField("raw_data")
    stored.float_data.extend([1.0] * 100)


for _name, _change in {
    "tensor_raw_too_short": _raw(bytes(1000)),
    "tensor_raw_too_long": _raw(bytes(1028)),
    "tensor_raw_not_whole_elements": _raw(bytes(1023)),
    "tensor_raw_empty": _raw(b""),
    "tensor_of_2_to_60": _dims(2**30, 2**30),
    "tensor_of_2_to_64": _dims(2**32, 2**32),
    "tensor_of_2_to_66": _dims(2**33, 2**33),
    "tensor_of_many_dims": _dims(*([2] * 70)),
    "tensor_negative_dim": _dims(-16, 16),
    "tensor_two_negative_dims": _dims(-16, -16),
    "tensor_nan": _values(float("nan")),
    "tensor_infinite": _values(float("inf")),
    "tensor_field_too_short": _short_field,
}.items():
    FATAL[_name] = _with_weight(_change)

for _name, _change in {
    "tensor_in_two_fields": _both_fields,
    "tensor_type_undefined": lambda stored: setattr(stored, "data_type", 0),
    "tensor_type_unheard_of": lambda stored: setattr(stored, "data_type", 999),
    "tensor_type_negative": lambda stored: setattr(stored, "data_type", -5),
    "tensor_type_string": lambda stored: setattr(stored, "data_type", 8),
    "tensor_of_600_dims_of_one": lambda stored: stored.dims.extend([1] * 600),
    "tensor_name_of_control_characters": lambda stored: setattr(stored, "name", "\x1b[31mred\r\n\x00\x07"),
    "tensor_without_name": lambda stored: setattr(stored, "name", ""),
    "tensor_with_segment": lambda stored: stored.segment.MergeFrom(TensorProto.Segment(begin=0, end=2**60)),
    "tensor_doc_of_control_characters": lambda stored: setattr(stored, "doc_string", "\x1b]0;owned\x07" * 100),
}.items():
    ODD[_name] = _with_weight(_change)


def _zero_size(shape: Sequence[int]) -> Writer:
    def write(folder: Path) -> Path:
        w = np.zeros(shape, np.float32)
        nodes = [node("MatMul", "x w", "y"), node("MatMul", "x v", "z")]
        stored = {"w": w, "v": weights(16, 16)}
        return save(folder, simple(nodes, {"x": feed(4, 16)}, [("y", 2), ("z", 2)], stored, []).model)

    return write


ODD["tensor_without_columns"] = _zero_size((16, 0))
ODD["tensor_without_rows"] = _zero_size((0, 8))
