"""How large activations are: the longest side in space of each, for one sample.

1. Shapes are inferred; then again with the numbers that shapes are made of; then, where onnxruntime is installed and
   all sizes of the inputs are known, the model is run once on zeros and looked into.
2. What is inside of a body or a function is seen by the first two only.
What it does not do: guess a size that the model leaves to its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Union

import numpy as np
from onnx import ModelProto
from onnx.helper import tensor_dtype_to_np_dtype

from onnxsparse.engines.inference import Session
from onnxsparse.errors import OptionError, nearest
from onnxsparse.graph.model import Model
from onnxsparse.passes.macs import Shapes, infer, named, open_dims, open_dims_of, single, sized
from onnxsparse.passes.sample_axes import pairs_of

Dims = Union[Mapping[str, int], Sequence[str], str, None]
"""Sizes by the names of dimensions, or texts NAME=SIZE."""


def sides(model: Model, names: Sequence[str]) -> dict[str, float]:
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


def set_sizes(model: Model, dims: Dims) -> None:
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
