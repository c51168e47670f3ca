"""One value behind several nodes, or behind several inputs of one node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, helper, numpy_helper
from onnx.helper import make_node

from onnxsparse.engines.ort import library, value_shapes
from onnxsparse.math.values import Array
from tests.engines.ort.rewrites.harness import Case, check, gradient_error
from tests.engines.ort.rewrites.numbers import floats

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
MS = "com.microsoft"


@dataclass
class Chain(Case):
    """Several nodes that read `x`, `in0` = x * w and stored tensors by name, and write `y`."""

    nodes: list[NodeProto] = field(default_factory=list)
    stored: dict[str, Array] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        model = super().model()
        del model.graph.node[1:]
        model.graph.node.extend(self.nodes)
        model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in self.stored.items())
        model.opset_import.append(helper.make_opsetid(MS, 1))
        return model

    def trained(self) -> list[str]:
        return ["w", *(name for name in self.stored if name.startswith("t"))]


def chain(*nodes: NodeProto, **stored: Array) -> Chain:
    return Chain("Identity", [floats(3, 3)], nodes=list(nodes), stored=stored)


def norm(value: str, scale: str, bias: str, to: str) -> NodeProto:
    return make_node("LayerNormalization", [value, scale, bias], [to])


def joined(one: str, two: str, to: str) -> NodeProto:
    return make_node("Concat", [one, two], [to], axis=0)


@pytest.mark.parametrize("scale", ["s", "ts"])
@pytest.mark.parametrize("bias", ["b", "tb", "s"])
def test_a_norm_is_read_twice(scale: str, bias: str) -> None:
    stored = {name: floats(3) for name in {scale, bias}}
    check(chain(norm("in0", scale, bias, "a"), norm("a", scale, bias, "y"), **stored))


def test_a_norm_of_small_operators_is_scaled_by_one_tensor_twice() -> None:
    """The engine makes one operator of it before it writes gradients."""

    def root(value: str, to: str) -> list[NodeProto]:
        return [
            make_node("Pow", [value, "power"], [f"{to}1"]),
            make_node("ReduceMean", [f"{to}1"], [f"{to}2"], axes=[-1]),
            make_node("Add", [f"{to}2", "small"], [f"{to}3"]),
            make_node("Sqrt", [f"{to}3"], [f"{to}4"]),
            make_node("Div", [value, f"{to}4"], [f"{to}5"]),
            make_node("Mul", [f"{to}5", "s"], [to]),
        ]

    numbers = {"power": np.array(2, np.float32), "small": np.array(1e-3, np.float32)}
    check(chain(*root("in0", "a"), *root("a", "y"), s=floats(3), **numbers))


def test_one_tensor_is_scale_and_bias() -> None:
    check(chain(norm("in0", "ts", "ts", "y"), ts=floats(3)))


@pytest.mark.parametrize("op", ["BiasGelu", "FastGelu"])
def test_a_bias_is_read_twice(op: str) -> None:
    nodes = [make_node(op, ["in0", "b"], ["a"], domain=MS), make_node(op, ["a", "b"], ["y"], domain=MS)]
    check(chain(*nodes, b=floats(3)))


@pytest.mark.parametrize("other", ["x", "in0", "b", "tb"])
def test_something_is_joined_twice(other: str) -> None:
    stored = {other: floats(2, 3)} if other in ("b", "tb") else {}
    case = chain(joined("in0", other, "a"), joined("a", other, "y"), **stored)
    model = check(case)
    assert {tensor.name for tensor in model.graph.initializer} >= {"w", *stored}


def test_the_engine_does_not_build_it_otherwise() -> None:
    case = chain(joined("in0", "x", "a"), joined("a", "x", "y"))
    model = case.model()
    value_shapes.infer(model)
    with pytest.raises(RuntimeError, match="Duplicate definition"):
        gradient_error(model, model, case)


def test_one_state_begins_both() -> None:
    inputs: list[Any] = [floats(3, 2, 3), floats(1, 16, 3), floats(1, 16, 4), floats(1, 32)]
    case = Case("LSTM", [*inputs, None, floats(1, 2, 4)], {"hidden_size": 4}, outputs=("y", "h", "c"))

    class Shared(Case):
        def model(self) -> onnx.ModelProto:
            model = super().model()
            model.graph.node[-1].input.append("in5")
            return model

    check(Shared(**vars(case)))
    check(Shared(**{**vars(case), "fixed": (5,)}))
