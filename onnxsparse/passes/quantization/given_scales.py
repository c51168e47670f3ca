"""Scales that exist already: read from a quantized file, a calibration cache of TensorRT, or a JSON of one's own.

    a file with QuantizeLinear and DequantizeLinear    of the same network: by the names of values and stored tensors
    TRT-8601-EntropyCalibration2                       then a line `name: 3c010a14` for each value: the bits of a
                                                       float32, in hexadecimal; int8 with the zero point 0
    {"x": {"scale": 0.02, "zero_point": 3, "type": "uint8"}, "w": {"scale": [0.1, 0.2], "axis": 0}}

1. Integers of onnxruntime's `quantize_static` are called `w_quantized`; their scale is that of `w`. So are ours.
2. What a file says of a name that the model does not have is listed; values that it says nothing of need samples.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from onnxsparse.errors import ModelError, OptionError, brief, one_line
from onnxsparse.graph.model import Model
from onnxsparse.math.quantization import Grid, QParams
from onnxsparse.options import Path
from onnxsparse.passes.quantization.fake_quantizers import FakeQuantizers
from onnxsparse.passes.quantization.float_graph import plain_graph
from onnxsparse.passes.quantization.refining import EQUALIZED
from onnxsparse.planning.quantization import Quantization, QuantizedWeight
from onnxsparse.planning.recorded import PREFIX
from onnxsparse.planning.request import path_of

HEADER = re.compile(r"TRT-\d+-\w*Calibration\w*")
LINE = re.compile(r"(?P<name>.+): ?(?P<bits>[0-9a-fA-F]{8})")
LARGEST = 1 << 28
"""Bytes of a cache or JSON that are read."""
STORED = "_quantized"


@dataclass(frozen=True)
class Fitting:
    """What given scales say of one model."""

    params: dict[str, QParams]
    missing: tuple[str, ...]
    """Values that are to be rounded and have no scale."""
    unknown: tuple[str, ...]
    """Names that the model does not round."""


def scales_of(path: Path) -> dict[str, QParams]:
    """Scales and zero points by the names of values and weights."""
    name = path_of(path, "scales")
    try:
        with open(name, "rb") as file:
            start = file.read(4)
            text = start + file.read(LARGEST) if start in (b"TRT-",) or start.lstrip()[:1] == b"{" else b""
    except OSError as error:
        raise OptionError(f"cannot read --scales {name}: {error.strerror}") from error
    if start == b"TRT-":
        found = dict(_cache(text, name))
    elif text:
        found = dict(_json(text, name))
    else:
        found = _pairs(_as_it_was(plain_graph(Model.open(name))[0], name))
    if not found:
        raise OptionError(
            f"--scales {name} has no scales: no pairs of QuantizeLinear and DequantizeLinear, and no lines"
        )
    return found


def _as_it_was(proto: ModelProto, path: str) -> ModelProto:
    """A file whose scales are those of the channels of the float model."""
    told = next((one.value for one in proto.metadata_props if one.key == PREFIX + "quantization"), "")
    if EQUALIZED in told.split(", "):
        raise OptionError(
            f"--scales {path}: its channels were equalized, so its scales fit no other model; quantize that file again "
            "with --refine bias"
        )
    return proto


# -- a calibration cache of TensorRT


def _cache(data: bytes, path: str) -> Iterator[tuple[str, QParams]]:
    header, *lines = data.decode("utf-8", "replace").splitlines()
    if not HEADER.fullmatch(header.strip()):
        raise OptionError(
            f"--scales {path} begins with {brief(header)}, and a calibration cache with TRT-8601-EntropyCalibration2"
        )
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        match = LINE.fullmatch(line.strip())
        if match is None:
            raise OptionError(f"line {number} of --scales {path} is {brief(line)}, and should be `name: 3c010a14`")
        (scale,) = struct.unpack(">f", bytes.fromhex(match["bits"]))
        yield match["name"], _checked(scale, 0, "int8", None, f"'{match['name']}' in line {number} of --scales {path}")


def _checked(scale: Any, zero: Any, kind: str, axis: int | None, where: str) -> QParams:
    numbers, zeros = np.asarray(scale, np.float32), np.asarray(zero)
    grid = Grid(np.dtype(kind).itemsize * 8, kind.startswith("int"))
    if not numbers.size or not np.isfinite(numbers).all() or (numbers <= 0).any():
        raise OptionError(f"the scale of {where} is not a number above zero: {brief(scale)}")
    if zeros.dtype.kind not in "iu" or zeros.min(initial=0) < grid.low or zeros.max(initial=0) > grid.high:
        raise OptionError(f"the zero point of {where} is no integer of {kind}: {brief(zero)}")
    if numbers.ndim > 1 or zeros.shape not in ((), numbers.shape) or (numbers.size > 1) != (axis is not None):
        raise OptionError(f"the scale of {where} is one number, or a list with an axis")
    grid = replace(grid, symmetric=not zeros.any())
    return QParams(numbers, np.broadcast_to(zeros, numbers.shape).astype(np.int32), grid, axis)


# -- JSON


def _json(data: bytes, path: str) -> Iterator[tuple[str, QParams]]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"--scales {path} is no JSON: {one_line(error)[:100]}") from error
    for name, entry in found.items():
        where = f"'{name}' in --scales {path}"
        if (
            not isinstance(entry, dict)
            or not entry.keys() <= {"scale", "zero_point", "type", "axis"}
            or "scale" not in entry
        ):
            raise OptionError(
                f"{where} is {brief(entry)}, and should have scale, and perhaps zero_point, type and axis"
            )
        kind, axis = entry.get("type", "int8"), entry.get("axis")
        if kind not in ("int8", "uint8", "int16", "uint16"):
            raise OptionError(f"the type of {where} is int8, uint8, int16 or uint16, not {brief(kind)}")
        if isinstance(axis, bool) or not isinstance(axis, (int, type(None))):
            raise OptionError(f"the axis of {where} is a whole number, not {brief(axis)}")
        try:
            yield name, _checked(entry["scale"], entry.get("zero_point", 0), kind, axis, where)
        except (ValueError, TypeError, OverflowError) as error:
            raise OptionError(f"the scale or zero point of {where} is no number: {brief(entry)}") from error


# -- a file with QuantizeLinear and DequantizeLinear


def _pairs(proto: ModelProto) -> dict[str, QParams]:
    opset = next((one.version for one in proto.opset_import if one.domain in ("", "ai.onnx")), 1)
    search = FakeQuantizers(proto.graph, opset)
    found: dict[str, QParams] = {}
    for one in search.found:
        names = [tensor.name for tensor in search.known.stored(one.source)] or [one.source]
        found.setdefault(one.source if len(names) > 1 else names[0], one.params)
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        tensor = stored.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if tensor is not None and tensor.data_type in (TensorProto.INT8, TensorProto.UINT8):
            params = search.params(node)
            if isinstance(params, QParams):
                name = tensor.name[: -len(STORED)] if tensor.name.endswith(STORED) else tensor.name
                found.setdefault(name, params)
    return found


# -- what they say of a model


def fitting(proto: ModelProto, quantization: Quantization, scales: Mapping[str, QParams]) -> Fitting:
    """The scales that fit what is rounded in a float graph."""
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    values = {one.name for one in quantization.observed}
    params = {name: scales[name] for name in values if name in scales}
    wide = next((name for name, one in params.items() if one.scale.size > 1), None)
    if wide is not None:
        raise OptionError(f"--scales has several scales for the value '{wide}', and a value has one")
    signed = {one.name: one.grid for one in quantization.observed if one.grid.signed and one.grid.symmetric}
    wrong = [
        name for name in params if name in signed and (not params[name].grid.signed or params[name].zero_point.any())
    ]
    if wrong:
        raise OptionError(
            f"--scales has an unsigned or shifted grid for '{wrong[0]}', and here every value has the zero point 0; "
            "leave --target out, or calibrate anew with --data"
        )
    for weight in quantization.weights:
        if weight.name in scales:
            params[weight.name] = _of_weight(scales[weight.name], tuple(stored[weight.name].dims), weight)
    if not params:
        named = ", ".join(f"'{name}'" for name in [*scales][:3])
        raise OptionError(f"--scales names nothing that is rounded here ({named}): is it of the same network?")
    missing = tuple(one.name for one in quantization.observed if one.name not in params)
    known = {*params, *(one.name for one in quantization.values), *(one.bias for one in quantization.weights)}
    return Fitting(params, missing, tuple(name for name in scales if name not in known))


def _of_weight(params: QParams, shape: tuple[int, ...], weight: QuantizedWeight) -> QParams:
    """The scale of a weight, which has to go along its outputs and fit its grid."""
    name, axis, along = weight.name, params.axis, weight.axis
    if axis is not None and not -len(shape) <= axis < len(shape):
        raise ModelError(f"--scales has the scales of '{name}' along axis {axis}, and it has {len(shape)} axes")
    axis = None if axis is None else axis % len(shape)
    if axis is not None and params.scale.size != shape[axis]:
        raise ModelError(
            f"--scales has {params.scale.size} scales for '{name}', and axis {axis} of it has {shape[axis]} "
            "numbers: is it of the same network?"
        )
    if axis is not None and (along is None or axis != along % len(shape)):
        wanted = "has one scale here" if along is None else f"has them along its outputs, axis {along % len(shape)}"
        raise ModelError(f"--scales has the scales of '{name}' along axis {axis}, and a weight {wanted}")
    if weight.grid.reduced:
        raise OptionError(f"--scales has the scale of '{name}' for 8 bits: leave --reduce-range out, or the scale")
    return replace(params, axis=axis)


__all__ = ["Fitting", "fitting", "scales_of"]
