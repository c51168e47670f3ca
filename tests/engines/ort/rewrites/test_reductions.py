"""Reductions in all the forms that opsets 13 to 20 have for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from onnxsparse.engines.ort import library, rewrites, value_shapes
from onnxsparse.math.values import Array
from tests.engines.ort.rewrites.harness import Case, check, engine_gradients

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")

OPERATORS = (
    "ReduceSum", "ReduceMean", "ReduceLogSumExp", "ReduceL2", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare",
    "ReduceL1", "ReduceLogSum",
)  # fmt: skip
AXES: Any = (None, [0], [-2], [0, 2], [-1, 0], [0, 1, 2])
X = np.random.Generator(np.random.Philox(key=1)).uniform(0.3, 1.5, (2, 3, 4)).astype(np.float32)


def forms(op: str) -> Iterator[Case]:
    for axes in AXES:
        for keepdims in (0, 1):
            yield form(op, axes, 18 if axes and len(axes) == 2 else 17, keepdims=keepdims)
    yield form(op, [1], 13, keepdims=0)
    yield form(op, [1], 20, keepdims=0)
    yield form(op, [1], 20)


def form(op: str, axes: list[int] | None, opset: int, **given: Any) -> Case:
    inputs: list[Array | None] = [X if op in ("ReduceProd", "ReduceLogSum") else (X - 0.8).astype(np.float32)]
    if axes is not None and (opset >= 18 or op == "ReduceSum"):
        inputs.append(np.array(axes, np.int64))
    elif axes is not None:
        given["axes"] = axes
    return Case(op, inputs, given, opset=opset)


@pytest.mark.parametrize("op", OPERATORS)
def test_reductions(op: str) -> None:
    for case in forms(op):
        check(case)


@pytest.mark.parametrize("op", OPERATORS)
def test_reductions_of_nothing(op: str) -> None:
    check(form(op, [], 18, noop_with_empty_axes=1))


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceProd"])
def test_a_scalar_is_its_own_sum(op: str) -> None:
    check(Case(op, [np.array(-1.5, np.float32)]))


def test_a_scalar_is_not_its_own_square() -> None:
    model = Case("ReduceSumSquare", [np.array(-1.5, np.float32)]).model()
    value_shapes.infer(model)
    assert "scalar" in rewrites.apply(model, {"w"})[0]


def test_products_with_zeros() -> None:
    x = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0], [1.0, 2.0, 4.0]], np.float32)
    case = Case("ReduceProd", [x], {"axes": [1], "keepdims": 0})
    model = check(case, tolerance=np.inf)
    gradient = engine_gradients(model, case, {"y": np.ones(3, np.float32)})["w"]
    np.testing.assert_array_equal(gradient, [[0, 0, 0], [0, 0, 0], [8, 8, 8]])


def test_the_gradient_of_equal_elements_goes_to_one_of_them() -> None:
    case = Case("ReduceMax", [np.ones((2, 3), np.float32)], {"axes": [1], "keepdims": 0})
    gradient = engine_gradients(check(case, tolerance=np.inf), case, {"y": np.ones(2, np.float32)})["w"]
    np.testing.assert_array_equal(gradient.sum(axis=1), [1, 1])
