"""Activations and functions of one value at a time: the value and gradient of each, kinks and edges included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from onnxsparse.engines.ort import library, rewrites, value_shapes
from onnxsparse.math.values import Array
from tests.engines.ort.rewrites.harness import Case, check, engine_gradients, outputs

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")


def uniform(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> Array:
    random = np.random.Generator(np.random.Philox(key=seed))
    return random.uniform(low, high, shape).astype(np.float32)


ACTIVATIONS: list[tuple[str, dict[str, Any]]] = [
    ("HardSigmoid", {}),
    ("HardSigmoid", {"alpha": 0.4, "beta": 0.3}),
    ("HardSwish", {}),
    ("Elu", {}),
    ("Elu", {"alpha": 0.3}),
    ("Celu", {}),
    ("Celu", {"alpha": 2.5}),
    ("Selu", {}),
    ("Selu", {"alpha": 1.5, "gamma": 1.2}),
    ("Softplus", {}),
    ("Softsign", {}),
    ("Mish", {}),
    ("ThresholdedRelu", {}),
    ("ThresholdedRelu", {"alpha": 0.1}),
    ("Shrink", {}),
    ("Shrink", {"lambd": 0.3, "bias": 0.2}),
]


@pytest.mark.parametrize(("op", "given"), ACTIVATIONS, ids=str)
def test_activations(op: str, given: dict[str, Any]) -> None:
    check(Case(op, [uniform(3, 4, low=-4.0, high=4.0)], given, opset=18))


@pytest.mark.parametrize("op", ["Softplus", "Mish", "Elu", "Selu", "Celu", "Softsign"])
def test_large_inputs_do_not_overflow(op: str) -> None:
    x = np.array([-300.0, -90.0, 90.0, 300.0], np.float32)
    case = Case(op, [x], opset=18)
    model = check(case, tolerance=np.inf)
    gradient = engine_gradients(model, case, {"y": np.ones_like(x)})["w"] / x
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("op", "slope"),
    [("Softplus", 0.5), ("Mish", 0.6), ("Elu", 1.0), ("Celu", 1.0), ("Softsign", 1.0), ("HardSwish", 0.5)],
)
def test_the_derivative_at_zero(op: str, slope: float) -> None:
    """A pruned row gives exact zeros: the gradient has to get past them."""
    assert zero_gradient(Case(op, [np.zeros(4, np.float32)], opset=18)) == pytest.approx(slope)


def test_prelu_learns_at_zero() -> None:
    assert zero_gradient(Case("PRelu", [np.zeros(4, np.float32), np.full(4, 0.25, np.float32)])) == 0.25


def zero_gradient(case: Case) -> float:
    """dy/dx where x = 0: a subtraction moves the input there, as a product with 0 would have no gradient."""
    moved = Case(case.op, [np.ones(4, np.float32), *case.inputs[1:]], case.attributes, opset=case.opset)
    model = moved.model()
    tried = next(node for node in model.graph.node if node.name == "tried")
    model.graph.node.insert(1, helper.make_node("Sub", ["in0", "x"], ["at_zero"]))
    tried.input[0] = "at_zero"
    value_shapes.infer(model)
    assert not rewrites.apply(model, set(moved.trained()))
    gradient = engine_gradients(model, moved, {"y": np.ones(4, np.float32)})["w"]
    assert np.ptp(gradient) == 0
    return float(gradient[0])


@pytest.mark.parametrize("slope", [(4,), (3, 4), (1,), (3, 1), (2, 3, 4), ()], ids=str)
@pytest.mark.parametrize("fixed", [(), (1,)], ids=["trained", "fixed"])
def test_prelu(slope: tuple[int, ...], fixed: tuple[int, ...]) -> None:
    check(Case("PRelu", [uniform(2, 3, 4), uniform(*slope, seed=1)], fixed=fixed))


@pytest.mark.parametrize("op", ["Tan", "Atan", "Sinh", "Cosh", "Asinh"])
def test_functions_of_any_number(op: str) -> None:
    check(Case(op, [uniform(3, 4, low=-1.2, high=1.2)]))


@pytest.mark.parametrize("op", ["Asin", "Acos", "Atanh"])
def test_functions_up_to_one(op: str) -> None:
    check(Case(op, [uniform(3, 4, low=-0.8, high=0.8)]))


def test_acosh() -> None:
    check(Case("Acosh", [uniform(3, 4, low=1.3, high=3.0)]))


@pytest.mark.parametrize("op", ["Asin", "Acos"])
def test_the_edge_of_a_domain_is_no_trap(op: str) -> None:
    x = np.array([-1.0, 1.0, 0.5], np.float32)
    case = Case(op, [x])
    model = check(case, tolerance=np.inf)
    assert np.isfinite(engine_gradients(model, case, {"y": np.ones_like(x)})["w"]).all()


def test_a_large_arc_tangent_keeps_its_value() -> None:
    check(Case("Atan", [np.array([-3e9, -1e-3, 1e-20, 7e4], np.float32)]), tolerance=np.inf, exact=1e-7)


@pytest.mark.parametrize("given", [{}, {"alpha": 1.7}], ids=str)
def test_swish_is_written_with_what_older_runtimes_have(given: dict[str, float]) -> None:
    x = uniform(3, 4)
    model = Case("Swish", [x], given, opset=24).model()
    value_shapes.infer(model)
    assert not rewrites.apply(model, {"w"})
    model.opset_import[0].version = 21
    expected = x / (1 + np.exp(-given.get("alpha", 1.0) * x))
    np.testing.assert_allclose(outputs(model, Case("Swish", [x]))[0], expected, rtol=1e-5)
    gradient = engine_gradients(model, Case("Swish", [x]), {"y": np.ones_like(x)})["w"]
    assert np.abs(gradient).min() > 0
