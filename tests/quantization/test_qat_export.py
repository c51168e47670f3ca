"""Fake-quantized models become models with integers that compute the same, judged by the runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, load, save

import onnxsparse as osp
from onnxsparse.dialects.sparseml.qat_export import export_qat
from onnxsparse.engines.ort import library
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.math.quantization import Grid, QParams, rescaled
from onnxsparse.passes.quantization.qat_export import Facts, converted
from tests.cases import for_each
from tests.messages import refusing
from tests.quantization.fake_quantized import Net, arrays, operators, run

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4, 6, 6)).astype(np.float32)
W = (RNG.standard_normal((8, 4, 3, 3)) * (RNG.random((8, 4, 3, 3)) > 0.6)).astype(np.float32)
B = RNG.standard_normal(8).astype(np.float32)
STEPS = (np.abs(W).max((1, 2, 3)) / 127).astype(np.float32)
Form = Callable[[Net], tuple[str, str]]


def integers(weight: np.ndarray, scale: Any, low: int = -128, high: int = 127) -> np.ndarray:
    """By the definition of QuantizeLinear with the zero point 0."""
    scale = np.reshape(np.float32(scale), (-1, *(1,) * (weight.ndim - 1)))
    found: np.ndarray = np.clip(np.rint(weight / scale), low, high).astype(np.int8)
    return found


def converts(model: ModelProto, feeds: dict[str, np.ndarray] | None = None, target: str = "", off: float = 0) -> Facts:
    """Convert a model, and compare: biases may be off by half a step each, and other values by `off`."""
    before, feeds = model.SerializeToString(), feeds or {"x": X}
    made, facts = converted(model, target)
    assert model.SerializeToString() == before
    halves = [float(arrays(made)[f"{name}_scale"].max()) / 2 for name in facts.biases]
    assert arrays(made).keys() <= {name for node in made.graph.node for name in node.input}
    wanted = run(model, feeds)
    for optimized in (False, True):
        for one, other in zip(wanted, run(made, feeds, optimized)):
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=sum(halves) + off + 1e-5)
    converts.made = made  # type: ignore[attr-defined]
    return facts


def made() -> ModelProto:
    """What the last conversion made."""
    return converts.made  # type: ignore[attr-defined, no-any-return]


FORMS: dict[str, Form] = {
    "pairs": lambda net: (net.pair("x", 0.02, 3, np.uint8), net.pair("w", STEPS)),
    "one scale": lambda net: (net.pair("x", 0.02), net.pair("w", STEPS.max())),
    "unsigned weight": lambda net: (net.pair("x", 0.02), net.pair("w", STEPS.max(), 128, np.uint8)),
    "fewer integers": lambda net: (
        net.pair("x", 0.04, 60, np.uint8, (0, 127)), net.pair("w", STEPS, limits=(-127, 127))
    ),
    "plain operators": lambda net: (net.plain("x", 0.03, 0, 255, 4, zero=100), net.plain("w", STEPS, -127, 127, 4)),
    "clipped first": lambda net: (
        net.plain("x", 0.03, -128, 127, 4, first=True), net.plain("w", STEPS, -8, 7, 4, first=True)
    ),
    "straight through": lambda net: (net.straight_through("x", 0.03, -128, 127), net.plain("w", STEPS, -127, 127, 4)),
    "FakeQuant": lambda net: (net.fake_quant("x", 0.02, 0, 255, 4, zero=99), net.fake_quant("w", STEPS, -127, 127, 4)),
}  # fmt: skip


@for_each("name", FORMS)
def test_every_form_of_a_convolution(name: str) -> None:
    if name == "FakeQuant" and not library.available():
        pytest.skip("only onnxruntime-training has the operator")
    net = Net()
    net.constant(W, "w")
    x, w = FORMS[name](net)
    facts = converts(net.model(net.node("Conv", x, w, net.constant(B, "b"))))
    stored = arrays(made())
    assert stored["w"].dtype == np.int8
    assert stored["b"].dtype == np.int32
    low, high = (-8, 7) if name == "clipped first" else (-127, 127)
    scale = STEPS if facts.weights[0].per_channel else STEPS.max()
    assert np.array_equal(stored["w"], integers(W, scale, low, high))
    assert facts.weights[0].zeros == (stored["w"] == 0).sum() >= (W == 0).sum()
    assert not facts.left
    clips = ["Clip"] if name == "fewer integers" else []
    assert sorted(operators(made())) == [*clips, "Conv", *["DequantizeLinear"] * 3, "QuantizeLinear"]


@settings(max_examples=25, deadline=None)
@given(
    scale=st.floats(2**-10, 1, width=32), zero=st.integers(0, 255), seed=st.integers(0, 99), signed=st.booleans(),
    many=st.booleans(),
)  # fmt: skip
def test_any_scale_and_zero_point(scale: float, zero: int, seed: int, signed: bool, many: bool) -> None:
    numbers = np.random.default_rng(seed)
    weight = (numbers.standard_normal((5, 7)) * (numbers.random((5, 7)) > 0.5)).astype(np.float32)
    feed = numbers.standard_normal((4, 7)).astype(np.float32)
    scales = (np.abs(weight).max(1) / 100 + 1e-3).astype(np.float32) if many else np.float32(scale)
    net = Net()
    net.constant(weight, "w")
    kind, middle = (np.int8, zero - 128) if signed else (np.uint8, zero)
    ends = net.pair("x", scale, middle, kind), net.pair("w", scales, 0 if many else middle, np.int8 if many else kind)
    model = net.model(net.node("Gemm", *ends, net.constant(np.ones(5, np.float32)), transB=1))
    facts = converts(model, {"x": feed})
    stored = arrays(made())
    zero_point = stored["w_zero_point"].reshape(-1, 1)
    assert facts.weights[0].zeros == (stored["w"] == zero_point).sum() >= (weight == 0).sum()


@settings(max_examples=50, deadline=None)
@given(
    factors=st.lists(st.sampled_from([0.0, -1.0, 1.0]) | st.floats(2**-10, 2**10, width=32), min_size=4, max_size=4),
    seed=st.integers(0, 99), axis=st.sampled_from([None, 0, 1]), alike=st.booleans(),
)  # fmt: skip
def test_factors_go_into_scales_and_integers_stay(
    factors: list[float], seed: int, axis: int | None, alike: bool
) -> None:
    integers = np.random.default_rng(seed).integers(-127, 128, (4, 4)).astype(np.int8)
    scale = np.float32(0.01) if axis is None else np.linspace(0.01, 0.1, 4, dtype=np.float32)
    params = QParams(np.asarray(scale), np.zeros(np.shape(scale), np.int32), Grid(), axis)
    before = params.dequantize(integers)
    factor = np.float32(factors[:1] * 4 if alike else factors).reshape((4, 1) if axis != 1 else (1, 4))
    after = before * factor
    found = rescaled(params, before, after)
    assert found is not None
    assert np.array_equal(found.quantize(after), integers * np.sign(factor).astype(np.int8))
    np.testing.assert_allclose(found.fake(after), after, rtol=1e-6)


# -- normalizations


def normalization(net: Net, x: str, factor: Any, count: int = 8) -> str:
    variance = np.linspace(0.5, 2, count, dtype=np.float32)
    scale = np.asarray(factor, np.float32) * np.sqrt(variance + 1e-5)
    numbers = (scale, np.linspace(-1, 1, count), np.linspace(1, -1, count), variance)
    return net.node("BatchNormalization", x, *(net.constant(one) for one in numbers))


FACTORS = np.array([1, -2, 0.5, 0.01, 3, -0.25, 1, 1], np.float32)


@for_each("divided", [True, False])
def test_a_normalization_is_folded_into_scales(divided: bool) -> None:
    """As torch trains it: the rounded weight has the factor, and the output is divided by it."""
    net = Net()
    net.constant(W, "w")
    at = net.node("Conv", net.pair("x", 0.02, 3, np.uint8), net.pair("w", STEPS, limits=(-127, 127)))
    if divided:
        at = net.node("Div", at, net.constant(np.reshape(FACTORS, (1, 8, 1, 1))))
        at = net.node("Add", at, net.constant(np.reshape(B, (1, 8, 1, 1))))
    at = net.node("Relu", normalization(net, at, FACTORS))
    converts(net.model(net.pair(at, 0.1, 0, np.uint8)))
    assert "BatchNormalization" not in operators(made())
    assert "Div" not in operators(made())
    signs = 1 if divided else np.sign(FACTORS).astype(np.int8)[:, None, None, None]
    assert np.array_equal(arrays(made())["w"], integers(W, STEPS, -127, 127) * signs)
    assert arrays(made())["w_bias"].dtype == np.int32


def test_a_channel_without_a_factor_has_no_integers() -> None:
    net = Net()
    net.constant(W, "w")
    at = net.node("Conv", net.pair("x", 0.02), net.pair("w", STEPS))
    converts(net.model(normalization(net, at, [0, 1, 1, 1, 1, 1, 1, 0])))
    assert "BatchNormalization" not in operators(made())
    stored = arrays(made())["w"]
    assert not stored[[0, 7]].any()
    assert np.array_equal(stored[1:7], integers(W, STEPS)[1:7])


def test_a_sign_that_cannot_turn_leaves_the_normalization() -> None:
    net = Net()
    low = W.copy()
    low[0, 0, 0, 0] = -200 * STEPS[0]
    net.constant(low, "w")
    at = net.node("Conv", net.pair("x", 0.02), net.pair("w", STEPS))
    facts = converts(net.model(normalization(net, at, -np.ones(8))))
    assert "BatchNormalization" in operators(made())
    assert "cannot carry" in facts.left["w"]


def test_normalizations_behind_other_products() -> None:
    net = Net()
    flat = net.pair(net.node("Flatten", "x"), 0.02)
    at = net.node("Gemm", flat, net.pair(net.constant(RNG.standard_normal((144, 8))), 0.05), net.constant(B))
    facts = converts(net.model(normalization(net, at, FACTORS)))
    assert "BatchNormalization" not in operators(made())
    assert facts.weights[0].per_channel
    net = Net()
    net.constant(np.moveaxis(W, 0, 1), "w")
    at = net.node("ConvTranspose", net.pair("x", 0.02), net.pair("w", STEPS.max()), strides=[2, 2])
    facts = converts(net.model(normalization(net, at, FACTORS)))
    assert "BatchNormalization" not in operators(made())


def test_a_normalization_behind_rounded_values_stays() -> None:
    net = Net()
    net.constant(W, "w")
    at = net.node("Conv", net.pair("x", 0.02), net.pair("w", STEPS))
    converts(net.model(normalization(net, net.pair(at, 0.1), FACTORS)))
    assert "BatchNormalization" in operators(made())
    assert operators(made()).count("QuantizeLinear") == 2


# -- where pairs stand


def test_repeated_pairs_are_one_and_others_stay() -> None:
    net = Net()
    net.constant(W, "w")
    once = net.pair("x", 0.02, 3, np.uint8)
    again = net.pair(once, 0.02, 3, np.uint8)
    other = net.pair(again, 0.03, 0, np.int8)
    ends = net.node("Conv", again, net.pair("w", STEPS)), net.node("Conv", other, net.pair("w", STEPS))
    facts = converts(net.model(net.node("Add", *ends)))
    assert facts.repeated == 1
    assert operators(made()).count("QuantizeLinear") == 2
    assert [one.name for one in facts.weights] == ["w"]
    assert operators(made()).count("DequantizeLinear") == 3


def test_one_value_on_two_grids_and_outputs_that_are_rounded() -> None:
    net = Net()
    net.constant(W, "w")
    one, other, same = net.pair("x", 0.02), net.pair("x", 0.05), net.pair("x", 0.02)
    at = net.node("Add", net.node("Add", one, other), same)
    end = net.pair(net.node("Conv", at, net.pair("w", STEPS)), 0.1, to="y")
    facts = converts(net.model(end, one))
    assert len(facts.values) == 3
    assert operators(made()).count("Identity") == 0
    assert [entry.name for entry in made().graph.output] == [end, one]


def test_a_weight_that_others_read_in_floats_keeps_its_name_for_them() -> None:
    net = Net()
    net.constant(W, "w")
    rounded = net.node("Conv", net.pair("x", 0.02), net.pair("w", STEPS))
    facts = converts(net.model(net.node("Add", rounded, net.node("Conv", "x", "w"))))
    stored = arrays(made())
    assert np.array_equal(stored["w"], W)
    assert stored[facts.weights[0].name].dtype == np.int8


def test_masks_and_factors_in_front_of_a_weight_are_multiplied_in() -> None:
    net = Net()
    mask = (RNG.random(W.shape) > 0.5).astype(np.float32)
    weight = net.node("Mul", net.constant(W, "conv.weight"), net.constant(mask, "conv.mask"))
    net.node("Conv", net.pair("x", 0.02), net.pair(weight, STEPS), to="y")
    facts = converts(net.model("y"))
    (name,) = [one.name for one in facts.weights]
    stored = arrays(made())
    assert np.array_equal(stored[name], integers(W * mask, STEPS))
    assert all(stored[name][mask == 0] == 0)
    assert "Mul" not in operators(made())


def test_a_transposed_weight_a_table_and_products_of_values() -> None:
    net = Net()
    net.constant(RNG.standard_normal((20, 16)), "table")
    net.constant(RNG.standard_normal((12, 16)), "w")
    rows = net.pair(net.node("Gather", net.pair("table", 0.02), "i"), 0.02, 5, np.uint8)
    weight = net.node("Transpose", net.pair("w", np.full(12, 0.02)), perm=[1, 0])
    at = net.pair(net.node("Add", net.node("MatMul", rows, weight), net.constant(RNG.standard_normal(12))), 0.1)
    end = net.node("MatMul", at, net.node("Transpose", at, perm=[0, 2, 1]))
    facts = converts(net.model(end), {"i": np.arange(12).reshape(3, 4)})
    assert {one.name: one.per_channel for one in facts.weights} == {"table": False, "w": True}
    assert arrays(made())["table"].dtype == arrays(made())["w"].dtype == np.int8


def test_values_that_are_not_negative_need_no_clip() -> None:
    net = Net()
    net.constant(W, "w")
    at = net.node("Relu", net.node("Conv", net.pair("x", 0.02, 60, np.uint8, (0, 127)), net.pair("w", STEPS)))
    at = net.node("MaxPool", at, kernel_shape=[2, 2])
    facts = converts(net.model(net.pair(at, 0.01, 0, np.uint8, (0, 127))))
    assert operators(made()).count("Clip") == 1
    zero = next(array for name, array in arrays(made()).items() if name.startswith(f"{at}_zero_point"))
    assert zero.dtype == np.int8
    assert not facts.left


# -- biases


def test_a_bias_that_does_not_fit_stays_float() -> None:
    net = Net()
    net.constant(W, "w")
    bias = net.constant(B * 1e9, "b")
    facts = converts(net.model(net.node("Conv", net.pair("x", 0.02), net.pair("w", STEPS), bias)))
    assert arrays(made())["b"].dtype == np.float32
    assert "32 bits" in facts.left["b"]


def test_the_scale_of_an_empty_channel_has_room_for_its_bias() -> None:
    net = Net()
    weight, steps = W.copy(), STEPS.copy()
    weight[3], steps[3] = 0, np.finfo(np.float32).eps
    net.constant(weight, "w")
    bias = net.constant(np.full(8, 100.0), "b")
    converts(net.model(net.node("Conv", net.pair("x", 0.02), net.pair("w", steps), bias)))
    assert arrays(made())["b"].dtype == np.int32


def test_a_rounded_bias_is_a_bias() -> None:
    net = Net()
    net.constant(W, "w"), net.constant(B, "b")
    facts = converts(net.model(net.node("Conv", net.pair("x", 0.02), net.pair("w", STEPS), net.pair("b", 0.05))))
    assert [one.name for one in facts.weights] == ["w"]
    assert facts.biases == ("b",)
    assert arrays(made())["b"].dtype == np.int32


# -- targets, and what is refused


def symmetric(zero: int, kind: Any) -> ModelProto:
    net = Net()
    net.constant(W, "w")
    return net.model(net.node("Conv", net.pair("x", 0.02, zero, kind), net.pair("w", STEPS.max(), 128, np.uint8)))


def test_ampere_wants_the_zero_point_0() -> None:
    for zero, kind in ((0, np.int8), (128, np.uint8)):
        converts(symmetric(zero, kind), target="ampere")
        zeros = [array for name, array in arrays(made()).items() if "zero_point" in name]
        assert all(one.dtype == np.int8 and not one.any() for one in zeros)
        assert len(zeros) == 2
    with pytest.raises(ModelError, match=r"zero point 0, and x \(uint8, 3\) are otherwise"):
        converted(symmetric(3, np.uint8), "ampere")


@for_each("scale", [np.nan, np.inf, 0.0, -0.1])
def test_a_scale_has_to_be_above_zero(scale: float) -> None:
    net = Net()
    with pytest.raises(ModelError, match="is not a number above zero"):
        converted(net.model(net.pair("x", scale)))


def test_what_is_not_fake_quantized_is_said() -> None:
    net = Net()
    with pytest.raises(ModelError, match="has no fake quantization"):
        converted(net.model(net.node("Relu", "x")))
    net = Net()
    scale = net.node("ReduceMax", net.node("Abs", "x"), keepdims=0)
    rounded = net.node("QuantizeLinear", "x", scale, net.constant(0, dtype=np.int8))
    with pytest.raises(ModelError, match="known only at run time"):
        converted(net.model(net.node("DequantizeLinear", rounded, scale, net.constant(0, dtype=np.int8))))


def test_rounding_that_is_no_quantization_stays() -> None:
    net = Net()
    net.constant(W, "w")
    at = net.node("Conv", net.pair("x", 0.02), net.pair("w", STEPS))
    at = net.node("Mul", net.node("Round", net.node("Div", at, net.constant(0.1))), net.constant(0.2))
    at = net.node("Round", net.node("Clip", at, net.constant(-1.0), net.node("ReduceMax", at, keepdims=0)))
    facts = converts(net.model(net.node("Mul", at, net.constant(0.5))), off=0.2)
    assert operators(made()).count("Round") == 2
    assert facts.left


def test_a_model_that_has_integers_already_stays_as_good() -> None:
    net = Net()
    net.constant(W, "w")
    model = net.model(net.node("Conv", net.pair("x", 0.02), net.pair("w", STEPS), net.constant(B, "b")))
    converts(model)
    once = made()
    converts(once)
    assert arrays(once).keys() == arrays(made()).keys()


@for_each("opset", [10, 11, 12, 13, 21])
def test_opsets(opset: int) -> None:
    net = Net(opset)
    net.constant(W, "w")
    scale = STEPS if opset >= 13 else STEPS.max()
    at = net.node("Conv", net.pair("x", 0.02, 3, np.uint8), net.pair("w", scale), net.constant(B, "b"))
    facts = converts(net.model(at, ir_version=5 if opset < 12 else 10 if opset > 20 else 8))
    assert any("opset was raised" in note for note in facts.notes) == (opset < 13)


def test_initializers_that_are_inputs_of_an_old_file() -> None:
    net = Net(13)
    net.constant(W, "w")
    model = net.model(net.node("Conv", net.pair("x", 0.02), net.pair("w", STEPS)), ir_version=3)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, W.shape))
    converts(model)
    assert [entry.name for entry in made().graph.input] == ["x"]


def test_a_record_holds_for_the_integers(digits_cnn: Path, tmp_path: Path) -> None:
    """A pruned file that was trained with fake quantization and its metadata: the zeros are where they were."""
    sparse = osp.prune(digits_cnn, target="ampere").model
    assert sparse is not None
    fake = fake_quantized(sparse)
    model, facts = converted(fake)
    result = osp.verify(model)
    assert result.report.ok
    names = {one.name for one in facts.weights}
    assert names == {row.name for row in result.report.rows}
    assert {array.dtype for name, array in arrays(model).items() if name in names} == {np.dtype(np.int8)}


def test_the_data_file_of_the_export_is_not_replaced(digits_cnn: Path, tmp_path: Path) -> None:
    path = tmp_path / "exported.onnx"
    save(fake_quantized(load(digits_cnn)), path, save_as_external_data=True, location="weights", size_threshold=0)
    with refusing(OptionError):
        export_qat(path, output=tmp_path / "weights", overwrite=True)
    assert export_qat(path, output=path, overwrite=True).report.ok


def fake_quantized(model: ModelProto) -> ModelProto:
    """A copy of a model with pairs at the inputs of its layers."""
    net, copy = Net(), ModelProto()
    copy.CopyFrom(model)
    held = arrays(copy)
    nodes = [*copy.graph.node]
    for node in nodes:
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            for slot in (0, 1):
                name = node.input[slot]
                node.input[slot] = net.pair(name, np.abs(held[name]).max() / 127 if name in held else 0.05)
    made = net.model("x").graph
    order = {name: node for node in made.node for name in node.output}
    del copy.graph.node[:]
    for node in nodes:
        for name in node.input:
            if name in order:
                copy.graph.node.extend([order[order[name].input[0]], order[name]])
        copy.graph.node.append(node)
    copy.graph.initializer.extend(made.initializer)
    return copy
