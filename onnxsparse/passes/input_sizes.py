"""Choosing sizes for the dynamic dimensions of a model's inputs, where there is no data to say them.

1. What the user says stands, and so does what the first layers need: channels of a convolution, columns of a matrix
   product or of a recurrent layer. One sample at a time.
2. Other dimensions of pictures are near 224, then 320 and others, all multiples of the product of the strides; those of
   sequences are modest lengths, likewise.
3. A dimension whose name is a sum (`past + length`) is that of its parts.
4. Each choice is held against the graph: shapes are inferred with it, believing `value_info` where that can be, and
   layers behind a Flatten or Reshape must take what they get. Where none of the usual sizes fits, others are tried.
What it does not do: promise that the model runs. There are a few choices, for whoever runs it to try in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx.shape_inference
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.planning.macs import LARGEST_GRAPH
from onnxsparse.planning.model_inputs import SampleAxes

PICTURES = (224, 320, 256, 640, 384, 512, 299, 192, 160, 128, 96, 64, 48, 32, 28)
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16000)
LARGEST_STRIDE, FEWEST_STEPS = 64, 4
CHOICES, TRIES, WORK = 8, 12, 30_000
"""How many are handed on; how many others are tried at least, and how many nodes are looked at for that."""

SEEN, MOST_SEEN = 24, 4096
"""How many of the sizes that stand in a graph are tried, and up to which size."""
_LONG, _WIDE = ("seq", "len", "time", "token", "frame", "past", "step"), ("height", "width")
"""Parts of names of dimensions that are lengths, and sides of pictures, whatever the input."""

_KEEPING = {"Identity", "Cast", "Sub", "Add", "Div", "Mul", "Relu", "BatchNormalization", "Clip", "Dropout", "Pad"}
_WEIGHT = {"Conv": 1, "Gemm": 1, "MatMul": 1, "GRU": 1, "LSTM": 1, "RNN": 1}

Sizes = dict[str, int]
Dims = Sequence[int]


@dataclass(frozen=True)
class Choice:
    """Shapes of all inputs, and what was chosen for dimensions that nobody had said."""

    shapes: dict[str, list[int]]
    chosen: Sizes


def choices(model: Model, axes: SampleAxes) -> list[Choice]:
    """Shapes to try, the best ones first; there is always one."""
    return _Choosing(model, axes).choices()


class _Choosing:
    def __init__(self, model: Model, axes: SampleAxes) -> None:
        graph = model.proto.graph
        self.proto, self.given = model.proto, dict(model.sizes)
        self.stored = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
        self.stored.update({name: dims for node in graph.node for name, dims in _constant(node)})
        self.inputs = [value for value in graph.input if value.name not in self.stored]
        for value in self.inputs:
            if not value.type.tensor_type.HasField("shape"):
                raise OptionError(f"the model does not say the shape of its input '{value.name}'; pass --data")
        self.axes = axes
        self.known = self._known()

    def choices(self) -> list[Choice]:
        open_dims = self._open()
        usual = list(self._usual(open_dims))
        if len(usual) == 1 or len(self.proto.graph.node) > LARGEST_GRAPH:
            return [self._choice(one) for one in usual[:CHOICES]]
        tries = max(TRIES, WORK // max(1, len(self.proto.graph.node)))
        others = list(_others(open_dims, self._seen()))[:tries]
        for believing, strict in ((True, True), (False, True), (False, False)):
            found = [one for one in usual if self._fits(one, believing, strict)]
            found = found or [one for one in others if self._fits(one, believing, strict)]
            if found:
                return [self._choice(one) for one in found[:CHOICES]]
        return [self._choice(one) for one in usual[:CHOICES]]

    # -- dimensions

    def _dims(self) -> Iterator[tuple[ValueInfoProto, int, str]]:
        """Every dimension of an input that has no size, by its name or as INPUT.AXIS."""
        for value in self.inputs:
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                if dim.dim_value <= 0:
                    yield value, axis, _name(value, axis)

    def _known(self) -> Sizes:
        """Sizes that are given, that the first layers need, and one sample."""
        found: Sizes = {}
        for value, axis, name in self._dims():
            given = self.given.get(f"{value.name}.{axis}", self.given.get(name))
            if given is not None:
                found[f"{value.name}.{axis}"] = given
        open_dims = {one for value, axis, name in self._dims() for one in (name, f"{value.name}.{axis}")}
        for name in self.given:
            if name not in open_dims:
                raise OptionError(f"--dim {name[:80]}: the file fixes the size of that dimension")
        needed = self._needed()
        for value, axis, name in self._dims():
            if (value.name, axis) in needed:
                found.setdefault(name, needed[value.name, axis])
        for value, axis, name in self._dims():
            if axis == self.axes.inputs.get(value.name, 0) and not self._is_long(value):
                found.setdefault(name, 1)
        return found

    def _is_long(self, value: ValueInfoProto) -> bool:
        """Whether an input of one axis holds one long sample: numbers, and no input has an axis more."""
        kind = value.type.tensor_type
        ranks = [len(one.type.tensor_type.shape.dim) for one in self.inputs]
        first = kind.shape.dim[0].dim_param
        floats = kind.elem_type in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
        return max(ranks) == 1 and floats and not first.lower().startswith(("batch", "n"))

    def _open(self) -> dict[str, bool]:
        """The dimensions that are left to choose, and whether each is one of a picture."""
        found: dict[str, bool] = {}
        for value, axis, name in self._dims():
            if name not in self.known and f"{value.name}.{axis}" not in self.known:
                found[name] = found.get(name, False) or _is_side(value, name)
        parts = dict.fromkeys([*found, *self.known], 1)
        return {name: side for name, side in found.items() if "+" not in name or _sum(name, parts) is None}

    def _needed(self) -> dict[tuple[str, int], int]:
        """Sizes of axes that the first layers behind an input fix."""
        readers: dict[str, list[NodeProto]] = {}
        for node in self.proto.graph.node:
            for name in node.input:
                readers.setdefault(name, []).append(node)
        found: dict[tuple[str, int], int] = {}
        for value in self.inputs:
            rank = len(value.type.tensor_type.shape.dim)
            for axis, size in self._asked(value.name, list(range(rank)), readers, 0):
                found.setdefault((value.name, axis), size)
        return found

    def _asked(
        self, name: str, order: list[int], readers: Mapping[str, list[NodeProto]], depth: int
    ) -> Iterator[tuple[int, int]]:
        """Axes of an input with their sizes; `order` says where the axes of a value made from it come from."""
        for node in readers.get(name, ()) if depth < 8 else ():
            if node.op_type in _WEIGHT and len(node.input) > 1 and node.input[0] == name:
                dims = self.stored.get(node.input[1])
                axis, size = _taken(node, dims) if dims else (0, 0)
                if size and -len(order) <= axis < len(order):
                    yield order[axis], size
            elif node.op_type == "Transpose":
                turn = next((list(one.ints) for one in node.attribute if one.name == "perm"), [])
                turned = [order[axis] for axis in turn or range(len(order))[::-1] if axis < len(order)]
                yield from self._asked(node.output[0], turned, readers, depth + 1)
            elif node.op_type in _KEEPING and node.input[0] == name:
                yield from self._asked(node.output[0], order, readers, depth + 1)

    # -- sizes

    def _usual(self, open_dims: Mapping[str, bool]) -> Iterator[Sizes]:
        stride = min(_stride(self.proto.graph), LARGEST_STRIDE * 8)
        step = min(stride, LARGEST_STRIDE)
        pictures = list(dict.fromkeys(_up(size, step) for size in PICTURES))
        lengths = list(dict.fromkeys(_up(size, stride) for size in LENGTHS))
        lengths.sort(key=lambda size: size < FEWEST_STEPS * stride)
        pairs = [(picture, lengths[0]) for picture in pictures] + [(pictures[0], length) for length in lengths[1:]]
        seen = []
        for picture, length in pairs:
            made = {name: picture if is_picture else length for name, is_picture in open_dims.items()}
            if made not in seen:
                seen.append(made)
                yield made

    def _seen(self) -> list[int]:
        """Sizes that stand in the graph: a table of positions is as long as what it is added to."""
        found = [size for dims in self.stored.values() if len(dims) > 1 for size in dims]
        return [size for size in dict.fromkeys(found) if 1 < size <= MOST_SEEN][:SEEN]

    def _choice(self, sizes: Sizes) -> Choice:
        return Choice({value.name: self._shape(value, sizes) for value in self.inputs}, sizes)

    def _shape(self, value: ValueInfoProto, sizes: Sizes) -> list[int]:
        known = {**sizes, **self.known}
        found = []
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            name = _name(value, axis)
            chosen = known.get(f"{value.name}.{axis}", known.get(name)) or _sum(name, known)
            found.append(dim.dim_value if dim.dim_value > 0 else chosen or 1)
        return found

    # -- holding against the graph

    def _fits(self, sizes: Sizes, believing: bool, strict: bool) -> bool:
        made = ModelProto()
        made.CopyFrom(self.proto)
        for value in made.graph.input:
            if value.name not in self.stored:
                for dim, size in zip(value.type.tensor_type.shape.dim, self._shape(value, sizes)):
                    dim.dim_value = size
        if not believing:
            del made.graph.value_info[:]
            for value in made.graph.output:
                value.type.tensor_type.ClearField("shape")
        try:
            inferred = onnx.shape_inference.infer_shapes(made, strict_mode=strict, data_prop=True)
        except Exception:  # whatever the inference makes of it
            return False
        return self._is_sound(inferred.graph)

    def _is_sound(self, graph: GraphProto) -> bool:
        dims = {value.name: _sizes_of(value) for value in (*graph.input, *graph.value_info, *graph.output)}
        dims.update(self.stored)
        made = (dims[name] for node in graph.node for name in node.output if name in dims)
        return all(size > 0 for sizes in made for size in sizes if size is not None) and all(
            _is_fed(node, dims) for node in graph.node
        )


def _name(value: ValueInfoProto, axis: int) -> str:
    """What a dimension is called, where that is a name: some exporters call all of them `?`."""
    name = value.type.tensor_type.shape.dim[axis].dim_param
    return name if any(map(str.isalnum, name)) else f"{value.name}.{axis}"


def _constant(node: NodeProto) -> Iterator[tuple[str, list[int]]]:
    if node.op_type == "Constant":
        for attribute in node.attribute:
            if attribute.name == "value":
                yield node.output[0], list(attribute.t.dims)


def _taken(node: NodeProto, dims: Dims) -> tuple[int, int]:
    """The axis that a layer sums over, and its size by the weight's."""
    given = {one.name: one.i for one in node.attribute}
    if node.op_type == "Conv":
        return 1, dims[1] * (given.get("group") or 1)
    if node.op_type in ("GRU", "LSTM", "RNN"):
        return 2, dims[2]
    if node.op_type == "Gemm":
        return (0 if given.get("transA") else 1), dims[1 if given.get("transB") else 0]
    return -1, dims[-2] if len(dims) > 1 else dims[0]


def _is_fed(node: NodeProto, dims: Mapping[str, Sequence[int | None]]) -> bool:
    """Whether a layer gets what its weight asks for, and a Reshape as many elements as it gives."""
    first = dims.get(node.input[0]) if node.input else None
    if not first:
        return True
    if node.op_type in _WEIGHT and len(node.input) > 1:
        weight = dims.get(node.input[1])
        if not weight or None in weight:
            return True
        axis, size = _taken(node, [one or 0 for one in weight])
        return not -len(first) <= axis < len(first) or first[axis] in (None, size)
    if node.op_type in ("Reshape", "Flatten"):
        after = dims.get(node.output[0])
        if not after or None in first or None in after:
            return True
        return math.prod(one or 0 for one in first) == math.prod(one or 0 for one in after)
    return True


def _sizes_of(value: ValueInfoProto) -> list[int | None]:
    return [dim.dim_value if dim.HasField("dim_value") else None for dim in value.type.tensor_type.shape.dim]


def _stride(graph: GraphProto) -> int:
    """The product of the strides along the path where it is largest; what enlarges again counts against it."""
    found: dict[str, int] = {}
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        own = next((max(one.ints, default=1) for one in node.attribute if one.name == "strides"), 1)
        total = max((found.get(name, 1) for name in node.input), default=1)
        if node.op_type == "Conv" or node.op_type.endswith("Pool"):
            total = min(total * own, 1 << 20)
        elif node.op_type in ("ConvTranspose", "Resize", "Upsample"):
            total = max(1, round(total / (own if node.op_type == "ConvTranspose" else _enlarged(node, stored))))
        found.update(dict.fromkeys(node.output, total))
    return max(found.values(), default=1)


def _enlarged(node: NodeProto, stored: Mapping[str, TensorProto]) -> float:
    """By how much a Resize enlarges; twice, where only the run knows."""
    for name in node.input[1:]:
        tensor = stored.get(name)
        if tensor is not None and tensor.data_type == TensorProto.FLOAT and len(tensor.dims) and tensor.dims[0] > 2:
            return max(float(numpy_helper.to_array(tensor).max()), 1.0)
    return 2.0


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def _is_side(value: ValueInfoProto, name: str) -> bool:
    """Whether a dimension is a side of a picture, and no length: by its name, or by the axes of the input."""
    lower = name.lower()
    if any(word in lower for word in _WIDE):
        return True
    return len(value.type.tensor_type.shape.dim) > 3 and not any(word in lower for word in _LONG)


def _sum(name: str, known: Mapping[str, int]) -> int | None:
    """The size of a dimension whose name is a sum of others'."""
    parts = [part.strip() for part in name.split("+")]
    sizes = [int(part) if part.isascii() and part.isdigit() else known.get(part) for part in parts]
    return sum(size or 0 for size in sizes) if len(parts) > 1 and None not in sizes else None


def _others(names: Iterable[str], seen: Sequence[int]) -> Iterator[Sizes]:
    """Sizes beside the usual ones, the same for all."""
    known = list(names)
    tried = dict.fromkeys([*seen, *range(8, 264, 8), *range(1, 257), *range(264, 1025, 8), 784, *range(257, 1025)])
    for size in tried:
        yield dict.fromkeys(known, size)
