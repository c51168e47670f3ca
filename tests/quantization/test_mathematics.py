"""Scales, zero points and rounding, against what they are defined by, and against QuantizeLinear in the runtime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper

from onnxsparse.math.quantization import (
    ACTIVATIONS,
    SYMMETRIC_ACTIVATIONS,
    WEIGHTS,
    Grid,
    from_range,
    of_bias,
    of_weight,
    widened_for_bias,
)
from onnxsparse.planning.quantization import Quantization, QuantizedValue, QuantizedWeight

GRIDS = [
    WEIGHTS,
    ACTIVATIONS,
    SYMMETRIC_ACTIVATIONS,
    Grid(4, narrow=True),
    Grid(4, signed=False, symmetric=False),
    Grid(reduced=True, narrow=True),
    Grid(symmetric=False),
    Grid(signed=False),
]
NUMBERS = st.floats(-1e6, 1e6, width=32)


@settings(max_examples=200, deadline=None)
@given(low=NUMBERS, high=NUMBERS, grid=st.sampled_from(GRIDS))
def test_zero_and_the_range_lie_on_the_grid(low: float, high: float, grid: Grid) -> None:
    low, high = min(low, high), max(low, high)
    params = from_range(low, high, grid)
    assert params.fake(np.zeros(1, np.float32))[0] == 0.0
    ends = np.array([min(low, 0.0), max(high, 0.0)], np.float32)
    assert np.all(np.abs(params.fake(ends) - ends) <= params.scale * 1.001 + 1e-30)
    assert grid.low <= params.zero_point <= grid.high


@settings(max_examples=100, deadline=None)
@given(
    numbers=hnp.arrays(
        np.float32, st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=st.floats(-9, 9, width=32)
    ),
    axis=st.sampled_from([None, 0, 1, -1]),
)
def test_a_weight_is_off_by_half_a_step_at_most_and_its_zeros_stay(numbers: np.ndarray, axis: int | None) -> None:
    params = of_weight(numbers, WEIGHTS, axis)
    rounded = params.fake(numbers)
    steps = params.scale[:, None] if axis == 0 else params.scale
    assert np.all(np.abs(rounded - numbers) <= steps * 0.5001 + 1e-37)
    assert np.all(rounded[numbers == 0] == 0)
    assert np.array_equal(params.fake(rounded), rounded)


def test_blocks_have_scales_of_their_own() -> None:
    numbers = np.array([[1.2, 2, 30, 40, 500]], np.float32)
    params = of_weight(numbers, Grid(4, narrow=True), axis=1, block=2)
    assert params.scale.shape == (1, 3)
    assert np.allclose(params.scale, np.array([[2, 40, 500]]) / 7)
    assert np.array_equal(params.quantize(numbers), [[4, 7, 5, 7, 7]])


@pytest.mark.parametrize("grid", [WEIGHTS, ACTIVATIONS, SYMMETRIC_ACTIVATIONS], ids=lambda grid: grid.text)
def test_the_runtime_rounds_alike(grid: Grid) -> None:
    runtime = pytest.importorskip("onnxruntime")
    generator = np.random.Generator(np.random.Philox(3))
    numbers = (generator.standard_normal(4096) * 3).astype(np.float32)
    params = from_range(-4.0, 5.0, grid)
    numbers[:300] = (np.arange(300) - 150.5) * params.scale  # halves
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(grid.dtype), [None])],
        [
            numpy_helper.from_array(params.scale, "s"),
            numpy_helper.from_array(params.zero_point.astype(grid.dtype), "z"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    found = runtime.InferenceSession(model.SerializeToString()).run(None, {"x": numbers})[0]
    assert np.array_equal(np.clip(found, grid.low, grid.high), params.quantize(numbers))


def test_a_channel_of_zeros_has_a_scale_that_its_bias_can_be_rounded_by() -> None:
    weight = np.array([[0.5, -0.25], [0, 0]], np.float32)
    inputs = from_range(0, 4, ACTIVATIONS)
    params = of_weight(weight, WEIGHTS, 0)
    bias = np.array([0.1, 0.3], np.float32)
    assert np.allclose(of_bias(inputs, params).fake(bias), bias, atol=1e-4)


@settings(max_examples=100, deadline=None)
@given(size=st.floats(1e-30, 1), bias=st.floats(-1e4, 1e4))
def test_a_bias_fits_into_32_bits(size: float, bias: float) -> None:
    inputs = from_range(0, 1, ACTIVATIONS)
    biases = np.array([bias], np.float32)
    params = widened_for_bias(of_weight(np.array([[size]], np.float32), WEIGHTS, 0), inputs, biases)
    products = of_bias(inputs, params)
    assert np.all(np.abs(products.fake(biases) - biases) <= products.scale * 0.51 + np.abs(biases) * 1e-6)
    assert np.all(np.abs(products.quantize(biases).astype(np.float64)) <= 2**30 + 1024)


def test_what_is_rounded_has_a_text_form() -> None:
    made = Quantization(
        (QuantizedValue("x", ACTIVATIONS, (("y", 0), ("z", 0))),),
        (
            QuantizedWeight("w", WEIGHTS, 0, (("y", 1),), "x", "b"),
            QuantizedWeight("v", WEIGHTS, None, (("z", 1),), "x"),
        ),
        {"t": "no reason"},
    )
    assert Quantization.from_json(made.to_json()) == made
    fewer = made.without(["y"])
    assert fewer.values[0].readers == (("z", 0),)
    assert [one.name for one in fewer.weights] == ["v"]
    assert set(fewer.left) == {"t", "y"}
