"""What a case is: a model built in code, inputs for it, and the weights that must be found in it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Use:
    """One use of a stored tensor. Axes are those of the stored tensor, slowest first.

    `splits`: the reduction axis is cut into that many independent parts (ConvTranspose groups, a Reshape to batches);
    `out_splits`: the same for the output axis (grouped Conv).
    `layout` replaces the axes where they cannot say it: index array of the stored shape -> (group, out, in, tap).
    """

    op: str
    reduction: tuple[int, ...]
    out: tuple[int, ...]
    taps: tuple[int, ...] = ()
    splits: int = 1
    out_splits: int = 1
    layout: Callable[[Array], Array] | None = None

    def view(self, stored: Array) -> Array:
        """The stored array as (group, out, in, tap)."""
        if self.layout is not None:
            return self.layout(stored)
        taken = self.reduction + self.out + self.taps
        batch = tuple(axis for axis in range(stored.ndim) if axis not in taken)
        groups, outs, taps = (self._count(stored, axes) for axes in (batch, self.out, self.taps))
        ordered = stored.transpose(batch + self.reduction + self.out + self.taps)
        four = ordered.reshape(groups * self.splits, -1, outs, taps).transpose(0, 2, 1, 3)
        if self.out_splits == 1:
            return four
        return four.reshape(groups * self.out_splits, outs // self.out_splits, four.shape[2], taps)

    def rows(self, stored: Array) -> Array:
        """The stored array as (rows, K): along a row runs the sum."""
        seen = self.view(stored)
        return seen.transpose(0, 1, 3, 2).reshape(-1, seen.shape[2])

    @staticmethod
    def _count(stored: Array, axes: Sequence[int]) -> int:
        return math.prod(stored.shape[axis] for axis in axes)


@dataclasses.dataclass(frozen=True)
class Expected:
    """A stored tensor that must appear in every report.

    `real` holds the values as the network uses them (dequantised, widened);
    `zero` what a written zero is in stored form. `reason`: why it stays dense
    whatever the user allows. `word`: what --allow needs to hear. `lenient`: a refusal is no miss.
    """

    name: str
    real: Array
    uses: tuple[Use, ...] = ()
    storage: str = "initializer"
    reason: str | None = None
    word: str | None = None
    lenient: bool = False
    dtype: str = "float32"
    zero: Array = dataclasses.field(default_factory=lambda: np.zeros((), np.float32))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.real.shape)


@dataclasses.dataclass(frozen=True)
class Built:
    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    expected: tuple[Expected, ...]
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    runs: bool = True
    checks: bool = True

    def write(self, folder: Path) -> Path:
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        path = folder / "model.onnx"
        path.write_bytes(self.model.SerializeToString())
        return path


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    family: str
    make: Callable[[], Built]

    def build(self) -> Built:
        return self.make()


REGISTRY: dict[str, Case] = {}


def case(function: Callable[[], Built]) -> Callable[[], Built]:
    """Register a builder under its own name."""
    add(function.__name__, function.__module__.rsplit(".", 1)[-1], function)
    return function


def add(name: str, family: str, make: Callable[[], Built]) -> None:
    if name in REGISTRY:
        raise ValueError(f"two cases are called {name}")
    REGISTRY[name] = Case(name, family, make)


def weights(*shape: int, seed: int = 0) -> Array:
    """Random multiples of 1/16 in float32: exact in every float type, with ties, zeros and a negative zero."""
    drawn = np.random.default_rng([seed, *shape]).normal(0.0, 0.6, shape)
    values: Array = (np.round(drawn * 16) / 16).astype(np.float32)
    return values


def untied(*shape: int, seed: int = 0) -> Array:
    """Random values of which no two have the same magnitude, none zero, exact in float16 up to 1024 elements."""
    generator = np.random.default_rng([seed, *shape])
    count = math.prod(shape)
    magnitudes = (generator.permutation(count) + 1) / 64.0
    values: Array = (magnitudes * generator.choice([-1.0, 1.0], count)).reshape(shape).astype(np.float32)
    return values


def codes(*shape: int, unsigned: bool = False, seed: int = 0) -> Array:
    """Integers over most of the range of int8 or uint8."""
    drawn = np.random.default_rng([seed, *shape]).normal(0, 40, shape).round()
    return (drawn + 128).clip(0, 255).astype(np.uint8) if unsigned else drawn.clip(-127, 127).astype(np.int8)


def feed(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng([seed, *shape]).normal(0, 1, shape).astype(np.float32)


def node(op: str, inputs: str, outputs: str, domain: str = "", **attributes: object) -> onnx.NodeProto:
    """Names separated by spaces; `_` is an input left out."""
    names = ["" if name == "_" else name for name in inputs.split()]
    made = outputs.split()
    return helper.make_node(op, names, made, name=f"{op}_{made[0]}", domain=domain, **attributes)


def tensor(name: str, values: Array) -> TensorProto:
    return numpy_helper.from_array(np.asarray(values, order="C"), name)


def value_info(name: str, values: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values.dtype), values.shape)


def output_info(name: str, rank: int, elem_type: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, [f"{name}_{axis}" for axis in range(rank)])


Outputs = Sequence[tuple[str, int]]


def graph(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    outputs: Sequence[tuple[object, ...]],
    initializers: Sequence[TensorProto] = (),
    name: str = "g",
) -> onnx.GraphProto:
    ins = [value_info(key, values) for key, values in feeds.items()]
    outs = [output_info(*entry) for entry in outputs]  # type: ignore[arg-type]
    return helper.make_graph(list(nodes), name, ins, outs, list(initializers))


def model(
    whole: onnx.GraphProto,
    opset: int = 17,
    ir: int = 8,
    domains: Mapping[str, int] = {},
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return helper.make_model(
        whole, opset_imports=imports, ir_version=ir, functions=list(functions), producer_name="cases"
    )


MICROSOFT = {"com.microsoft": 1}


def simple(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    outputs: Sequence[tuple[object, ...]],
    initializers: Mapping[str, Array],
    expected: Sequence[Expected],
    opset: int = 17,
    ir: int = 8,
    domains: Mapping[str, int] = {},
    runs: bool = True,
) -> Built:
    """A model of one graph whose stored tensors are raw initializers."""
    tensors = [tensor(name, values) for name, values in initializers.items()]
    whole = graph(nodes, feeds, outputs, tensors)
    return Built(model(whole, opset, ir, domains), feeds, tuple(expected), runs=runs)


def expect(name: str, real: Array, *uses: Use, **more: object) -> Expected:
    return Expected(name, np.asarray(real), tuple(uses), **more)  # type: ignore[arg-type]


def names(cases: Sequence[Case]) -> list[str]:
    return [one.name for one in cases]
