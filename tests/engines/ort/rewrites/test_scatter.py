"""Scattering with a reduction, and picking by constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxsparse.engines.ort import library, rewrites, value_shapes
from onnxsparse.math.values import Array
from tests.engines.ort.rewrites.harness import Case, check

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")

RANDOM = np.random.Generator(np.random.Philox(key=4))
X = RANDOM.uniform(0.5, 1.5, (2, 3, 4)).astype(np.float32)
ROWS = np.array([[0, 1], [1, 2], [0, 1], [0, -2], [-1, 0]])
ELEMENTS = np.array([[[0, 0, 1, -1], [0, 2, 1, 1], [0, 0, 0, -3]]])


def uniform(*shape: int) -> Array:
    return RANDOM.uniform(0.5, 1.5, shape).astype(np.float32)


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_scattering_combines(reduction: str) -> None:
    check(Case("ScatterND", [X, ROWS, uniform(5, 4)], {"reduction": reduction}, opset=18))
    check(Case("ScatterND", [X, np.array([[1], [1]]), uniform(2, 3, 4)], {"reduction": reduction}, opset=18))
    given: dict[str, Any] = {"reduction": reduction, "axis": 1}
    check(Case("ScatterElements", [X, ELEMENTS, uniform(1, 3, 4)], given, opset=18))
    given = {"reduction": reduction, "axis": -1}
    check(Case("ScatterElements", [X, ELEMENTS, uniform(1, 3, 4)], given, opset=18, fixed=(2,)))


def test_indices_of_every_run_are_refused() -> None:
    case = Case("ScatterND", [X, ROWS, uniform(5, 4)], {"reduction": "add"}, opset=18)
    model = case.model()
    stored = next(tensor for tensor in model.graph.initializer if tensor.name == "in1")
    model.graph.initializer.remove(stored)
    model.graph.input.add(name="in1").type.tensor_type.elem_type = stored.data_type
    for size in stored.dims:
        model.graph.input[-1].type.tensor_type.shape.dim.add(dim_value=size)
    value_shapes.infer(model)
    assert "not constant" in rewrites.apply(model, set(case.trained()))[0]


def test_a_crowded_place_is_refused() -> None:
    case = Case("ScatterND", [X, np.zeros((65, 2), np.int64), uniform(65, 4)], {"reduction": "add"}, opset=18)
    model = case.model()
    value_shapes.infer(model)
    assert "more than 64" in rewrites.apply(model, set(case.trained()))[0]


@pytest.mark.parametrize("given", [{}, {"axis": 1}, {"axis": -1}], ids=str)
def test_compress(given: dict[str, int]) -> None:
    check(Case("Compress", [X, np.array([True, False, True])], given))


@pytest.mark.parametrize("batch", [0, 1])
def test_reversed_sequences(batch: int) -> None:
    lengths = np.array([1, 3] if batch == 0 else [2, 1, 2])
    check(Case("ReverseSequence", [X, lengths], {"batch_axis": batch, "time_axis": 1 - batch}))
