"""Functions that are flat or jump: the gradient is that of what is left beside them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxsparse.engines.ort import library, rewrites, value_shapes
from onnxsparse.math.values import Array
from tests.engines.ort.rewrites.harness import Case, check, engine_gradients, outputs

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")

X = np.array([[-2.5, -1.7, -0.5, -1e-9, 0.0], [0.4, 0.5, 1.5, 3e10, 1e-18]], np.float32)


def with_a_product(op: str, x: Array, **given: int) -> ModelProto:
    """y = f(w x) w x, whose gradient has one part only."""
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["v"]),
        helper.make_node(op, ["v"], ["step"], **given),
        helper.make_node("Mul", ["v", "step"], ["y"]),
    ]
    kind = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
    end = helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)
    stored = [numpy_helper.from_array(np.ones_like(x), "w")]
    graph = helper.make_graph(nodes, "g", [kind], [end], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("op", ["Floor", "Ceil", "Round", "Sign", "Hardmax"])
def test_steps_are_flat(op: str) -> None:
    model, case = with_a_product(op, X), Case(op, [X])
    plain = outputs(model, case)[0]
    value_shapes.infer(model)
    assert not rewrites.apply(model, {"w"})
    np.testing.assert_array_equal(outputs(model, case)[0], plain)
    value = outputs(case.model(), case)[0]
    np.testing.assert_allclose(engine_gradients(model, case, {"y": np.ones_like(X)})["w"], value * X, rtol=1e-6)


def test_hardmax_along_the_first_axis() -> None:
    model, case = with_a_product("Hardmax", X, axis=0), Case("Hardmax", [X])
    plain = outputs(model, case)[0]
    value_shapes.infer(model)
    assert not rewrites.apply(model, {"w"})
    np.testing.assert_array_equal(outputs(model, case)[0], plain)


def test_mod() -> None:
    a = np.array([[-2.3, -0.7, 0.2], [0.95, 1.4, 7.1]], np.float32)
    check(Case("Mod", [a, np.array([0.6, -0.45, 0.33], np.float32)], {"fmod": 1}), exact=1e-7)
    check(Case("Mod", [a, np.array(0.6, np.float32)], {"fmod": 1}, fixed=(1,)), exact=1e-7)


def test_mod_next_to_a_whole_number_of_turns() -> None:
    """a / b rounds to 3, and the remainder is nearly b."""
    b = np.float32(0.1)
    a = np.nextafter(np.float32(3 * b), np.float32(0)).reshape(1)
    check(Case("Mod", [a, np.array(b)], {"fmod": 1}), tolerance=np.inf, exact=0)


def test_mod_of_whole_numbers_only_is_refused() -> None:
    case = Case("Mod", [X, np.array(2, np.float32)], {"fmod": 0})
    model = case.model()
    value_shapes.infer(model)
    assert "fmod=0" in rewrites.apply(model, {"w"})[0]
