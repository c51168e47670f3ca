"""A short way to write small ONNX graphs for tests of channel classes, and what must be found in them."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray

onnxruntime.set_default_logger_severity(4)


@dataclasses.dataclass(frozen=True)
class Reduction:
    """The axis of a stored tensor that its reader sums over.

    `splits`: that axis is cut into so many independent parts (groups of a ConvTranspose). `zero`: what is stored for
    zero. `scale`: the stored tensor that the numbers are multiplied with, once it has the shape `spread`.
    """

    axis: int
    splits: int = 1
    zero: float = 0.0
    scale: str = ""
    spread: tuple[int, ...] = ()

    def rows(self, stored: Array, scale: Array | None = None) -> Array:
        """The numbers as (rows, K), times the scale if it is given."""
        real = stored.astype(np.float64) - self.zero
        last = np.moveaxis(real if scale is None else real * scale.reshape(self.spread), self.axis, -1)
        cut = last.reshape(*last.shape[:-1], self.splits, last.shape[-1] // self.splits)
        return np.moveaxis(cut, -2, 0).reshape(-1, cut.shape[-1])


@dataclasses.dataclass(frozen=True)
class Trap:
    """A model, inputs for it, and which weights have a reduction axis that can be permuted, or provably cannot.

    `must_move`: the order along that axis can be chosen (all of it or in blocks) so that 2:4 keeps more.
    `must_stay`: no order but the stored one leaves the outputs as they are. What is in neither is only judged.
    """

    name: str
    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    must_move: tuple[str, ...]
    must_stay: tuple[str, ...]
    reductions: Mapping[str, Reduction]
    external: bool = False


class Net:
    """Nodes and stored tensors in the order they are added; names of activations are made up."""

    def __init__(self, opset: int = 17, ir: int = 8, constants: bool = False, dtype: type = np.float32) -> None:
        self.opset, self.ir, self.constants, self.dtype = opset, ir, constants, np.dtype(dtype)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.feeds: dict[str, Array] = {}
        self.reductions: dict[str, Reduction] = {}
        self.functions: list[onnx.FunctionProto] = []
        self.domains: dict[str, int] = {}
        self._count = 0

    # -- what goes in

    def input(self, name: str, *shape: int, dims: Sequence[int | str] | None = None) -> str:
        values = generator(name).standard_normal(shape).astype(self.dtype)
        return self.feed(name, values, dims)

    def feed(self, name: str, values: Array, dims: Sequence[int | str] | None = None) -> str:
        kind = helper.np_dtype_to_tensor_dtype(values.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, kind, dims or values.shape))
        self.feeds[name] = values
        return name

    def image(self, channels: int, size: int = 6) -> str:
        return self.input("x", 2, channels, size, size)

    def tokens(self, count: int, high: int = 11) -> str:
        return self.feed("x", generator("x").integers(0, high, (2, count)))

    # -- what is stored

    def store(self, name: str, values: Array) -> str:
        tensor = numpy_helper.from_array(np.asarray(values, order="C"), name)
        if self.constants:
            self.nodes.append(helper.make_node("Constant", [], [name], name=f"constant_{name}", value=tensor))
        else:
            self.initializers.append(tensor)
        return name

    def weight(self, name: str, *shape: int, axis: int | None = None, splits: int = 1, around: float = 0.0) -> str:
        """Random numbers; `axis` is what the reader sums over."""
        spread = 1.0 if axis is None else 1 / math.sqrt(max(math.prod(shape) / max(shape[0 if axis else -1], 1), 1))
        drawn = around + generator(name).standard_normal(shape) * (0.3 if axis is None else spread)
        if axis is not None:
            self.reductions[name] = Reduction(axis, splits)
        return self.store(name, drawn.astype(self.dtype))

    def number(self, value: float) -> str:
        """A scalar of rank 0."""
        return self.store(self.name("number"), np.array(value, self.dtype))

    def ints(self, *values: int) -> str:
        return self.store(self.name("ints"), np.array(values, np.int64))

    # -- nodes

    def name(self, stem: str = "t") -> str:
        self._count += 1
        return f"{stem}_{self._count}"

    def __call__(self, op: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        return self.many(op, 1, *inputs, domain=domain, **attributes)[0]

    def many(self, op: str, outputs: int, *inputs: str, domain: str = "", **attributes: object) -> list[str]:
        names = [self.name(op.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=f"n_{names[0]}", domain=domain, **attributes))
        if domain:
            self.domains[domain] = 1
        return names

    def conv(
        self, x: str, name: str, cin: int, cout: int, k: int = 1, group: int = 1, bias: bool = True, **more: object
    ) -> str:
        stored = [self.weight(name, cout, cin // group, k, k, axis=1)]
        stored += [self.weight(f"{name}_b", cout)] if bias else []
        more.setdefault("pads", [k // 2] * 4)
        return self("Conv", x, *stored, group=group, **more)

    def conv_transpose(self, x: str, name: str, cin: int, cout: int, group: int = 1) -> str:
        stored = self.weight(name, cin, cout // group, 2, 2, axis=0, splits=group), self.weight(f"{name}_b", cout)
        return self("ConvTranspose", x, *stored, group=group, strides=[2, 2])

    def linear(self, x: str, name: str, cin: int, cout: int, bias: bool = True) -> str:
        product = self("MatMul", x, self.weight(name, cin, cout, axis=0))
        return self("Add", product, self.weight(f"{name}_b", cout)) if bias else product

    def gemm(self, x: str, name: str, cin: int, cout: int) -> str:
        return self("Gemm", x, self.weight(name, cout, cin, axis=1), self.weight(f"{name}_b", cout), transB=1)

    def relu(self, x: str) -> str:
        return self("Relu", x)

    def reshape(self, x: str, *shape: int) -> str:
        return self("Reshape", x, self.ints(*shape))

    def transpose(self, x: str, *perm: int) -> str:
        return self("Transpose", x, perm=list(perm))

    def split(self, x: str, *sizes: int, axis: int = 1) -> list[str]:
        return self.many("Split", len(sizes), x, self.ints(*sizes), axis=axis)

    def slice(self, x: str, start: int, end: int, axis: int = 1, step: int = 1) -> str:
        return self("Slice", x, self.ints(start), self.ints(end), self.ints(axis), self.ints(step))

    def concat(self, *parts: str, axis: int = 1) -> str:
        return self("Concat", *parts, axis=axis)

    def batch_norm(self, x: str, name: str, channels: int) -> str:
        stored = [self.weight(f"{name}_{part}", channels, around=1.0) for part in ("scale", "bias", "mean")]
        variance = self.store(f"{name}_var", generator(f"{name}_var").uniform(0.5, 2, channels).astype(self.dtype))
        return self("BatchNormalization", x, *stored, variance)

    def layer_norm(self, x: str, name: str, *shape: int, axis: int = -1) -> str:
        stored = self.weight(f"{name}_scale", *shape, around=1.0), self.weight(f"{name}_bias", *shape)
        return self("LayerNormalization", x, *stored, axis=axis)

    # -- the whole

    def build(self, *outputs: str) -> onnx.ModelProto:
        """The model; what its outputs are is asked of the runtime."""
        outs = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", self.inputs, outs, self.initializers)
        imports = [helper.make_opsetid("", self.opset)]
        imports += [helper.make_opsetid(domain, version) for domain, version in self.domains.items()]
        model = helper.make_model(
            graph, opset_imports=imports, ir_version=self.ir, functions=self.functions, producer_name="tests"
        )
        for info, made in zip(model.graph.output, session(model).get_outputs()):
            info.CopyFrom(helper.make_tensor_value_info(info.name, KINDS[made.type], made.shape))
        return model

    def trap(self, *outputs: str, move: str = "", stay: str = "") -> Trap:
        """`move` and `stay`: names of weights, separated by spaces."""
        model = self.build(*outputs)
        return Trap("", model, self.feeds, tuple(move.split()), tuple(stay.split()), self.reductions)


KINDS = {
    "tensor(float)": TensorProto.FLOAT,
    "tensor(float16)": TensorProto.FLOAT16,
    "tensor(double)": TensorProto.DOUBLE,
    "tensor(int64)": TensorProto.INT64,
    "tensor(int32)": TensorProto.INT32,
    "tensor(int8)": TensorProto.INT8,
    "tensor(uint8)": TensorProto.UINT8,
    "tensor(bool)": TensorProto.BOOL,
}


def generator(name: str) -> np.random.Generator:
    """The same numbers for the same name, whatever else is in the graph."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """The graph as it stands, in one thread."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
