"""What keeps a quantized model near the float one: equal channels, rounding by Gram matrices, corrected biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import make_node, make_tensor_value_info

import onnxsparse as osp
from onnxsparse.calibration.collecting import Stepwise, collect
from onnxsparse.calibration.observers import observed
from onnxsparse.calibration.reductions import Reduction, reduction_of
from onnxsparse.calibration.statistics import Gram, Moments
from onnxsparse.errors import OptionError
from onnxsparse.graph.edit import copied
from onnxsparse.graph.model import Model
from onnxsparse.math.quantization import Grid, of_weight
from onnxsparse.passes.quantization.bias_correction import correct_biases
from onnxsparse.passes.quantization.equalization import channel_ranges, equalize
from onnxsparse.passes.quantization.placement import quantization_of
from onnxsparse.passes.quantization.qdq import write_qdq
from onnxsparse.passes.quantization.rounding import integers_by_gram, round_weights
from onnxsparse.passes.quantization.weight_only import params_of
from onnxsparse.planning.quantization import ONNXRUNTIME, LayerScheme, Quantization, Scheme
from tests.messages import refusing
from tests.quantization.test_quantize import drawn, model, ran, stored

FLOAT = TensorProto.FLOAT
SAMPLES = np.cumsum(np.cumsum(drawn(32, 3, 8, 8, seed=5), -1), -2) / 4
"""Smooth, as images are: neighbours say nearly the same."""
ACTIVATIONS = {"Relu": [], "LeakyRelu": [], "PRelu": ["slope"], None: [], "Sigmoid": [], "Clip": ["zero", "six"]}


def pair(activation: Any = "Relu", second: str = "conv", outside: bool = False, spread: float = 3.0) -> onnx.ModelProto:
    """Two layers, of whose channels some are far wider than others; half of the weights between them are zero."""
    wide = np.exp(np.random.default_rng(1).normal(0, spread, 8)).astype(np.float32)
    kernel = drawn(8, 3, 3, 3) * wide[:, None, None, None]
    arrays: dict[str, Any] = {"w1": kernel, "b1": drawn(8, seed=1) * wide, "slope": np.float32([[[0.3]]])}
    arrays |= {"zero": np.float32(0), "six": np.float32(6)}
    nodes = [make_node("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 1, 1, 1])]
    if activation:
        nodes.append(make_node(activation, ["a", *ACTIVATIONS[activation]], ["h"]))
    inner = "h" if activation else "a"
    if second == "conv":
        arrays |= {"w2": drawn(6, 8, 3, 3, seed=2) / wide[:, None, None], "b2": drawn(6, seed=3)}
        nodes.append(make_node("Conv", [inner, "w2", "b2"], ["y"]))
    elif second == "grouped":
        arrays |= {"w2": drawn(6, 4, 3, 3, seed=2) / wide.reshape(2, 4).mean(0)[:, None, None], "b2": drawn(6, seed=3)}
        nodes.append(make_node("Conv", [inner, "w2", "b2"], ["y"], group=2))
    elif second == "depthwise":
        arrays |= {"w2": drawn(8, 1, 3, 3, seed=2) / wide[:, None, None, None], "b2": drawn(8, seed=3)}
        nodes.append(make_node("Conv", [inner, "w2", "b2"], ["y"], group=8))
    else:
        arrays |= {"w2": drawn(6, 8, 16, seed=2) / wide[:, None], "b2": drawn(6, seed=3)}
        arrays["w2"] = arrays["w2"].reshape(6, -1) if second == "gemm" else arrays["w2"].reshape(6, -1).T.copy()
        nodes.append(make_node("MaxPool", [inner], ["p"], kernel_shape=[2, 2], strides=[2, 2]))
        nodes.append(make_node("Flatten", ["p"], ["f"]))
        nodes.append(make_node("Gemm", ["f", "w2", "b2"], ["y"], transB=int(second == "gemm")))
    mask = np.random.default_rng(4).random(arrays["w2"].shape) < 0.5
    arrays["w2"] = np.where(mask, np.float32(0), arrays["w2"]).astype(np.float32)
    outputs = [make_tensor_value_info("y", FLOAT, None)] + [make_tensor_value_info(inner, FLOAT, None)] * outside
    read = {name for node in nodes for name in node.input}
    return model(
        nodes,
        [make_tensor_value_info("x", FLOAT, ["N", 3, 8, 8])],
        outputs,
        {name: array for name, array in arrays.items() if name in read},
    )


def feeds() -> list[dict[str, np.ndarray]]:
    return [{"x": SAMPLES[:16]}, {"x": SAMPLES[16:]}]


def scaled(proto: onnx.ModelProto, quantization: Quantization) -> dict[str, Any]:
    return {**observed(proto, quantization, feeds()), **params_of(proto, quantization)}


def distance(proto: onnx.ModelProto, quantization: Quantization, params: Any, dense: onnx.ModelProto) -> float:
    rounded = copied(proto)
    write_qdq(rounded, quantization, params)
    found, wanted = ran(rounded, "x", SAMPLES), ran(dense, "x", SAMPLES)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


# -- cross-layer equalization


@pytest.mark.parametrize("second", ["conv", "grouped", "depthwise", "gemm", "gemm by columns"])
@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "PRelu", None])
def test_equalization_is_exact_and_brings_the_integers_nearer(activation: Any, second: str) -> None:
    dense, proto = pair(activation, second), pair(activation, second)
    quantization = quantization_of(proto, ONNXRUNTIME)
    before = distance(proto, quantization, scaled(proto, quantization), dense)
    notes = equalize(proto, quantization, channel_ranges(proto, quantization, feeds()))
    assert len(notes) == 1
    np.testing.assert_array_equal(ran(proto, "x", SAMPLES), ran(dense, "x", SAMPLES))
    for name, array in stored(proto).items():
        np.testing.assert_array_equal(array == 0, stored(dense)[name] == 0)
    after = distance(proto, quantization, scaled(proto, quantization), dense)
    assert after < 0.7 * before


@pytest.mark.parametrize("proto", [pair("Clip"), pair("Sigmoid"), pair(outside=True)], ids=["clip", "sigmoid", "read"])
def test_what_a_factor_would_change_is_left(proto: onnx.ModelProto) -> None:
    quantization = quantization_of(proto, ONNXRUNTIME)
    before = proto.SerializeToString()
    assert not equalize(proto, quantization, channel_ranges(proto, quantization, feeds()))
    assert proto.SerializeToString() == before


def test_equal_channels_stay_as_they_are() -> None:
    proto = pair(spread=0.0)
    for tensor in proto.graph.initializer:
        if tensor.name in ("w1", "b1"):
            one = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(np.repeat(one[:1], 8, 0), tensor.name))
        if tensor.name == "w2":
            one = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(np.ones_like(one), tensor.name))
    quantization = quantization_of(proto, ONNXRUNTIME)
    assert not equalize(proto, quantization, channel_ranges(proto, quantization, feeds()))


def test_with_one_scale_for_a_weight_its_rows_count() -> None:
    scheme = Scheme(LayerScheme(per_channel=False))
    proto, dense = pair(), pair()
    quantization = quantization_of(proto, scheme)
    before = distance(proto, quantization, scaled(proto, quantization), dense)
    equalize(proto, quantization, channel_ranges(proto, quantization, feeds()))
    assert distance(proto, quantization, scaled(proto, quantization), dense) < 0.5 * before


# -- Gram matrices


def layer(node: onnx.NodeProto, weight: np.ndarray) -> Reduction:
    """What a layer whose weight is `w` sums up."""
    ends = [make_tensor_value_info("x", FLOAT, None)], [make_tensor_value_info("y", FLOAT, None)]
    proto = model([node], *ends, {"w": weight})
    (found,) = Model.over(proto).flow.weights
    reduction = reduction_of(found.uses)
    assert isinstance(reduction, Reduction)
    return reduction


def test_a_gram_matrix_adds_up_whatever_the_split() -> None:
    reduction = layer(make_node("Conv", ["x", "w"], ["y"], group=2), drawn(6, 2, 3, 3))
    inputs, whole, parts, saved = drawn(12, 4, 9, 9), Gram(), Gram(), Gram()
    whole.add(reduction.rows({"x": inputs}))
    for batch in np.split(inputs[::-1], [1, 5]):
        part = Gram()
        part.add(reduction.rows({"x": batch}))
        parts.merge(part)
    rows = np.stack(reduction.rows({"x": inputs})).astype(np.float64)
    np.testing.assert_allclose(whole.products, rows.transpose(0, 2, 1) @ rows, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(parts.products, whole.products, rtol=1e-5, atol=1e-4)
    saved.restore(parts.state())
    np.testing.assert_array_equal(saved.products, parts.products)
    assert parts.count == whole.count == 12 * 49


# -- rounding


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [0, 8])
def test_rounding_by_a_gram_matrix_lessens_the_error_and_holds_the_zeros(bits: int, block: int) -> None:
    mixed = drawn(400, 32) @ drawn(32, 32, seed=1)
    weight = np.where(drawn(16, 32, seed=2) > 0.4, 0, drawn(16, 32, seed=3)).astype(np.float32)
    reduction, gram = layer(make_node("Gemm", ["x", "w"], ["y"], transB=1), weight), Gram()
    gram.add(reduction.rows({"x": mixed}))
    params = of_weight(weight, Grid(bits, narrow=True), 1 if block else 0, block)
    integers = integers_by_gram(weight, params, reduction, gram)
    nearest = params.quantize(weight)
    assert integers.dtype == nearest.dtype
    assert not integers[weight == 0].any()
    assert np.abs(integers.astype(int)).max() <= params.grid.high
    errors = [np.square(mixed @ (params.dequantize(one) - weight).T).sum() for one in (integers, nearest)]
    assert errors[0] < 0.8 * errors[1]


@pytest.mark.parametrize("second", ["conv", "grouped", "depthwise", "gemm", "gemm by columns"])
def test_a_graph_is_rounded_layer_by_layer(second: str) -> None:
    dense, proto = pair(second=second, spread=0.1), pair(second=second, spread=0.1)
    scheme = Scheme(LayerScheme(weights=Grid(5, narrow=True)))
    quantization = quantization_of(proto, scheme)
    params = scaled(proto, quantization)
    before = distance(proto, quantization, params, dense)
    params = round_weights(proto, quantization, params, feeds())
    assert distance(proto, quantization, params, dense) < 0.95 * before
    for name in ("w1", "w2"):
        numbers = stored(proto)[name]
        assert not numbers[stored(dense)[name] == 0].any()
        np.testing.assert_array_equal(params[name].fake(numbers), numbers)


# -- biases


def test_corrected_biases_keep_the_means_of_the_layers() -> None:
    dense, proto = pair(spread=0.5), pair(spread=0.5)
    quantization = quantization_of(proto, Scheme(LayerScheme(weights=Grid(5, narrow=True))))
    params = scaled(proto, quantization)

    def means(graph: onnx.ModelProto) -> np.ndarray:
        rounded = copied(graph)
        write_qdq(rounded, quantization, params)
        return collect(rounded, ["y"], feeds(), lambda _: Moments())["y"].mean

    wanted = collect(dense, ["y"], feeds(), lambda _: Moments())["y"].mean
    before = np.abs(means(proto) - wanted).max()
    assert correct_biases(proto, quantization, params, feeds()) == 2
    assert np.abs(means(proto) - wanted).max() < 0.05 * before
    for name in ("w1", "w2"):
        np.testing.assert_array_equal(stored(proto)[name], stored(dense)[name])


# -- piece by piece


def test_pieces_compute_what_the_whole_does() -> None:
    proto = pair()
    run = Stepwise(proto, feeds())
    assert run.run_to("x")[0] is not None
    inner = np.concatenate(run.run_to("h"))
    np.testing.assert_array_equal(inner, np.maximum(np.concatenate(Stepwise(proto, feeds()).run_to("a")), 0))
    np.testing.assert_allclose(np.concatenate(run.run_to("y")), ran(proto, "x", SAMPLES), rtol=1e-4, atol=1e-4)


def test_what_is_changed_on_the_way_is_seen_by_later_pieces() -> None:
    proto = pair()
    run = Stepwise(proto, feeds())
    for inner in run.run_to("h"):
        inner[:] = 0
    outputs = np.concatenate(run.run_to("y"))
    np.testing.assert_allclose(outputs, outputs * 0 + stored(proto)["b2"][:, None, None], rtol=1e-6)


# -- the command


@pytest.mark.parametrize(
    ("refine", "told"),
    [
        (None, ["equalized", "corrected"]),
        ("none", []),
        ("bias", ["corrected"]),
        ("equalize", ["equalized"]),
        ("rounding,bias", ["rounded by", "corrected"]),
    ],
)
def test_what_is_refined_is_said(refine: Any, told: list[str]) -> None:
    report = osp.quantize(pair(), data=SAMPLES, refine=refine).report
    words = ["equalized", "rounded by", "corrected"]
    assert [word for word in words if any(word in note for note in report.notes)] == told


def test_defaults_are_nearer_than_nothing() -> None:
    asked = {"data": SAMPLES, "eval_data": {"x": SAMPLES}, "metrics": "distance"}
    plain, usual = (osp.quantize(pair(), refine=one, **asked).report.details["metrics"] for one in ("none", None))
    assert usual["distance"] < 0.5 * plain["distance"]


def test_weights_alone_are_rounded_where_there_are_samples() -> None:
    asked = {"scheme": "w4", "eval_data": {"x": SAMPLES}, "metrics": "distance"}
    plain = osp.quantize(pair(spread=0.1), **asked).report.details["metrics"]
    refined = osp.quantize(pair(spread=0.1), data=SAMPLES, **asked).report.details["metrics"]
    assert refined["distance"] < 0.95 * plain["distance"]


def test_words_that_are_none() -> None:
    for options in ({"refine": "equalise"}, {"dynamic": True, "refine": "bias"}):
        with refusing(OptionError):
            osp.quantize(pair(), data=SAMPLES, **options)


def test_scales_of_equalized_channels_fit_no_other_model(tmp_path: Path) -> None:
    path = tmp_path / "int8.onnx"
    osp.quantize(pair(), output=path, data=SAMPLES)
    with refusing(OptionError):
        osp.quantize(pair(), scales=path)
    osp.quantize(pair(), output=path, data=SAMPLES, refine="bias", overwrite=True)
    osp.quantize(pair(), scales=path)
