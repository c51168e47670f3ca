"""Observers: the ranges that they choose, and one pass over a graph with values that share their scale."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxsparse.calibration import observers
from onnxsparse.calibration.observers import observed
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.math.quantization import ACTIVATIONS, SYMMETRIC_ACTIVATIONS, from_range
from onnxsparse.planning.quantization import Quantization, QuantizedValue
from tests.messages import refusing

EVERY = [entry.syntax.partition("[")[0] for entry in observers.available()]
GRIDS = [ACTIVATIONS, SYMMETRIC_ACTIVATIONS]


def normal(count=20000, seed=0):
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def chosen(text, numbers, grid, batches=4):
    observer = observers.parse(text)
    statistics = observer.statistics()
    for batch in np.split(numbers, batches):
        statistics.add(batch)
    return observer.range(statistics, grid)


def error(text, numbers, grid):
    return float(np.square(from_range(*chosen(text, numbers, grid), grid).fake(numbers) - numbers).mean())


@pytest.mark.parametrize("grid", GRIDS, ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("text", EVERY)
def test_a_range_lies_within_what_was_seen(text, grid):
    for numbers in (normal(), np.maximum(normal(), 0), -np.abs(normal()), normal() * 1e-6, normal() * 1e6 + 3e6):
        low, high = chosen(text, numbers, grid)
        least, most = min(numbers.min(), 0), max(numbers.max(), 0)
        assert 1.000001 * least <= low < high <= 1.000001 * most


@pytest.mark.parametrize("grid", GRIDS, ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("text", EVERY)
def test_one_number_alone_is_quantized_exactly(text, grid):
    for number in (0.0, 3.0, -2.5):
        numbers = np.full(8, number, np.float32)
        low, high = chosen(text, numbers, grid)
        assert np.allclose(from_range(low, high, grid).fake(numbers), numbers, rtol=0.01), (text, number)


def test_min_max_is_the_whole_range():
    numbers = normal()
    assert chosen("minmax", numbers, ACTIVATIONS) == (float(numbers.min()), float(numbers.max()))


def test_a_moving_average_follows_the_batches():
    numbers = np.array([0, 1, 0, 3, 0, 2], np.float32)
    assert chosen("moving-average:constant=0.5", numbers, ACTIVATIONS, 3) == (0.0, 2.0)
    assert chosen("moving-average:constant=1", numbers, ACTIVATIONS, 3) == (0.0, 2.0)
    assert chosen("moving-average:constant=0.25", numbers[[2, 3, 0, 1, 4, 5]], ACTIVATIONS, 3) == (0.0, 2.375)


@pytest.mark.parametrize("percent", [99.99, 99.9, 99.0, 90.0])
def test_a_percentile_leaves_a_share_out(percent):
    numbers = normal()
    low, high = chosen(f"percentile:{percent}", numbers, ACTIVATIONS)
    outside = (1 - percent / 100) * numbers.size
    assert abs((numbers < low).sum() - outside / 2) <= 2
    assert abs((numbers > high).sum() - outside / 2) <= 2
    side = chosen(f"percentile:{percent}", numbers, SYMMETRIC_ACTIVATIONS)[1]
    assert abs((np.abs(numbers) > side).sum() - outside) <= 2


def test_the_words_of_a_percentile():
    assert observers.parse("percentile:99.9") == observers.parse("percentile:percent=99.9")
    assert observers.parse("percentile").text == "percentile:percent=99.99"
    assert chosen("percentile:100", normal(), ACTIVATIONS) == chosen("minmax", normal(), ACTIVATIONS)
    for text in ("percentile:x", "percentile:30", "percentile:101", "moving-average:constant=0", "minmaxx"):
        with refusing(OptionError):
            observers.parse(text)


@pytest.mark.parametrize("grid", GRIDS, ids=["asymmetric", "symmetric"])
def test_the_least_mean_square_is_no_worse_than_any_other(grid):
    for numbers in (normal(), np.maximum(normal(), 0) ** 3, np.append(normal(19999), np.float32(40))):
        errors = {text: error(text, numbers, grid) for text in EVERY}
        assert errors["mse"] <= 1.02 * min(errors.values()), errors


@pytest.mark.parametrize("text", ["entropy", "percentile"])
def test_an_outlier_is_clipped(text):
    numbers = np.append(normal(199999), np.float32(1000))
    assert chosen(text, numbers, SYMMETRIC_ACTIVATIONS, 1)[1] < 500
    assert chosen("minmax", numbers, SYMMETRIC_ACTIVATIONS, 1)[1] == 1000


def graph():
    """y = relu(x), z = -x."""
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in "xyz"]
    made = helper.make_graph(nodes, "g", values[:1], values[2:])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def quantization(**like):
    return Quantization(tuple(QuantizedValue(name, ACTIVATIONS, (), like.get(name, "")) for name in "xyz"))


def feeds(*rows):
    return [{"x": np.array([row], np.float32)} for row in rows]


@pytest.mark.parametrize("text", EVERY)
def test_a_graph_is_observed(text):
    pytest.importorskip("onnxruntime")
    found = observed(graph(), quantization(), feeds([1, -1, 4], [2, -3, 0]), text)
    assert set(found) == {"x", "y", "z"}
    assert int(found["y"].zero_point) == 0
    assert 0 < int(found["x"].zero_point) < 255
    if text == "minmax":
        assert np.isclose(found["x"].scale, 7 / 255)
        assert np.isclose(found["y"].scale, 4 / 255)


@pytest.mark.parametrize("text", EVERY)
def test_values_that_share_a_scale_are_one(text):
    pytest.importorskip("onnxruntime")
    found = observed(graph(), quantization(y="z", z="x"), feeds([1, -1, 4], [2, -3, 0]), text)
    assert found["x"] is found["y"] is found["z"]
    if text == "minmax":
        assert np.isclose(found["x"].scale, 8 / 255)  # x has -3 to 4, z has -4 to 3


@pytest.mark.parametrize("text", EVERY)
def test_a_value_that_is_always_zero_has_fine_steps(text):
    """The bias of the layer that reads it is rounded by them."""
    pytest.importorskip("onnxruntime")
    found = observed(graph(), quantization(), feeds([-1, -1, -4], [-2, -3, 0]), text)
    assert np.isclose(found["y"].scale, 1 / 255)
    assert int(found["y"].zero_point) == 0


def test_a_value_without_numbers_is_refused():
    pytest.importorskip("onnxruntime")
    with refusing(ModelError):
        observed(graph(), quantization(), feeds([np.nan] * 3))
