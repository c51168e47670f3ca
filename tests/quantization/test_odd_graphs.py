"""Small odd graphs are quantized, run in onnxruntime, and stay near what they were; every zero is exact."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

import onnxsparse as osp
from onnxsparse.engines.inference import Session
from onnxsparse.graph.edit import copied
from onnxsparse.graph.model import Model
from onnxsparse.graph.operators import slots_of
from onnxsparse.passes.quantization.float_graph import float_graph
from onnxsparse.passes.quantization.placement import quantization_of
from onnxsparse.passes.quantization.values import key
from onnxsparse.planning.quantization import AMPERE, ONNXRUNTIME, Quantization, Scheme
from tests.quantization.odd_graphs import CASES, Case, drawn, model_of, rows
from tools.bench.bench_quantize_layers import quantized

ort = pytest.importorskip("onnxruntime")
SCHEMES = {"onnxruntime": ONNXRUNTIME, "ampere": AMPERE}


def pruned(model: ModelProto) -> ModelProto:
    """Every third number of the larger tensors is zero."""
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind == "f" and array.ndim > 1:
            held = np.where(np.arange(array.size).reshape(array.shape) % 3 == 0, 0, array).astype(array.dtype)
            tensor.CopyFrom(numpy_helper.from_array(held, tensor.name))
    return model


def made(name: str, scheme: Scheme = ONNXRUNTIME) -> tuple[Case, ModelProto, ModelProto, Quantization]:
    """A case, its float graph, the quantized one, and what was decided."""
    case = CASES[name]()
    model = pruned(model_of(case))
    proto, _ = float_graph(Model.open(model))
    return case, proto, quantized(model, [case.feeds], scheme), quantization_of(proto, scheme)


@cache
def held(name: str, device: str) -> tuple[Case, ModelProto, ModelProto, Quantization]:
    return made(name, SCHEMES[device])


def ran(model: ModelProto, case: Case, optimized: bool = True) -> list[np.ndarray]:
    names = {value.name for value in model.graph.input}
    feed = {name: array for name, array in case.feeds.items() if name in names}
    return [np.asarray(one, np.float64) for one in Session(model, optimized).run(feed).values()]


def distance(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    """The largest over the outputs, in parts of their standard deviations."""
    return max(float(np.sqrt(np.mean((a - b) ** 2)) / (a.std() + 1e-9)) for a, b in zip(one, other))


def kernels(model: ModelProto, folder: Path) -> Counter[str]:
    """The operators that onnxruntime runs."""
    options = ort.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(folder / "fast.onnx"), 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(folder / "fast.onnx").graph.node)


@pytest.mark.parametrize("device", SCHEMES)
@pytest.mark.parametrize("name", CASES)
def test_it_runs_and_is_near(name: str, device: str) -> None:
    case, proto, result, found = held(name, device)
    onnx.checker.check_model(result, full_check=True)
    want = ran(pruned(model_of(case)), case)
    assert distance(want, ran(proto, case)) < 1e-5
    plain = ran(result, case, optimized=False)
    assert distance(want, plain) < case.near
    assert distance(plain, ran(result, case)) < 0.02
    assert Quantization.from_json(found.to_json()) == found


@pytest.mark.parametrize("device", SCHEMES)
@pytest.mark.parametrize("name", CASES)
def test_zeros_stay_and_what_is_left_says_why(name: str, device: str) -> None:
    _, proto, result, found = held(name, device)
    before = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    after = {tensor.name: numpy_helper.to_array(tensor) for tensor in result.graph.initializer}
    for weight in found.weights:
        integers = after.get(f"{weight.name}_quantized", after[weight.name])
        assert integers.dtype == np.int8
        assert not integers[before[weight.name] == 0].any()
    rounded = {reader for weight in found.weights for reader, _ in weight.readers}
    for node in proto.graph.node:
        stored = [slot for slot in slots_of(node.domain, node.op_type) if node.input[slot.index] in before]
        if any(before[node.input[slot.index]].dtype.kind == "f" for slot in stored):
            assert (key(node) in rounded) != bool(found.left.get(key(node)))


# -- the rules


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("residual", {"QLinearConv": 2, "QLinearAdd": 1}),
        ("two_branches_added", {"QLinearConv": 2, "QLinearAdd": 1}),
        ("pools", {"QLinearConv": 2, "NhwcMaxPool": 1, "QLinearAveragePool": 1, "QLinearGlobalAveragePool": 1}),
        ("spatial_pyramid", {"QLinearConv": 1, "NhwcMaxPool": 2, "QLinearConcat": 1}),
        ("dense_blocks", {"QLinearConv": 2, "QLinearConcat": 2}),
        ("clip", {"QLinearConv": 1, "Clip": 0}),
        ("leaky", {"QLinearConv": 1, "QLinearLeakyRelu": 1}),
        ("multiplied", {"QLinearConv": 2, "QLinearMul": 1}),
        ("squeeze_and_excite", {"QLinearConv": 2, "QLinearGlobalAveragePool": 1, "Sigmoid": 1}),
        ("batch_normalization", {"QLinearConv": 1, "BatchNormalization": 0}),
        ("gemm", {"QGemm": 2, "QuantizeLinear": 1}),
        ("gemm_row_bias", {"QGemm": 1}),
        ("matmul_and_add", {"QGemm": 1, "MatMulIntegerToFloat": 1, "Add": 0}),
        ("attention", {"QLinearMatMul": 4, "MatMulIntegerToFloat": 2, "Softmax": 1}),
        ("tied_table", {"MatMulIntegerToFloat": 1}),
        ("dynamic", {"QLinearConv": 1, "QLinearGlobalAveragePool": 1, "QGemm": 1}),
    ],
)
def test_onnxruntime_runs_integer_kernels(name: str, wanted: dict[str, int], tmp_path: Path) -> None:
    _, _, result, _ = made(name)
    found = kernels(result, tmp_path)
    assert {operator: found[operator] for operator in wanted} == wanted


def test_a_value_has_one_pair_however_many_read_it() -> None:
    for name in ("input_read_by_two", "concat_twice", "two_branches_added"):
        for scheme in SCHEMES.values():
            _, _, result, _ = made(name, scheme)
            read = [node.input[0] for node in result.graph.node if node.op_type == "QuantizeLinear"]
            assert len(read) == len(set(read))


def test_tensorrt_gets_integers_around_zero_and_the_shortcut_alone_is_rounded() -> None:
    _, _, result, found = made("residual", AMPERE)
    assert [value.name for value in found.values] == ["x", "h", "r"]
    shortcut = next(value for value in found.values if value.name == "h")
    assert sorted(shortcut.readers) == [("c", 0), ("s", 1)]
    for tensor in result.graph.initializer:
        if tensor.name.endswith("_zero_point"):
            assert tensor.data_type == TensorProto.INT8
            assert not numpy_helper.to_array(tensor).any()


def test_operands_of_a_concat_have_its_scale() -> None:
    for scheme in SCHEMES.values():
        _, _, _, found = made("concat_of_other_ranges", scheme)
        assert {value.name: value.like for value in found.values} == {"x": "", "a": "h", "c": "h", "h": ""}
    _, _, _, found = made("concat_twice")
    assert {value.name: value.like for value in found.values}["a"] == "", "other layers read it, with finer steps"


def test_what_moves_numbers_has_one_scale() -> None:
    _, _, _, found = made("views")
    assert {value.name: value.like for value in found.values} == {"x": "", "a": "", "t": "a", "u": "a", "d": "a"}


def test_the_last_layers_give_floats() -> None:
    _, _, _, found = made("conv_bias_relu_conv")
    assert [value.name for value in found.values] == ["x", "h"]


@pytest.mark.parametrize("name", ["shared_bias", "shared_weight_and_bias"])
def test_a_shared_bias_is_written_for_each_scale(name: str) -> None:
    _case, _proto, result, found = made(name)
    biases = [weight.input for weight in found.weights if weight.bias == "b"]
    assert len(set(biases)) == 2
    kinds = Counter(tensor.data_type for tensor in result.graph.initializer if tensor.name.startswith("b"))
    assert kinds == {TensorProto.FLOAT: 2, TensorProto.INT32: 4}, "numbers, scales and zero points of two"


def test_biases_for_tensorrt_are_floats_on_the_grid_of_the_products() -> None:
    _, _, result, found = made("gemm", AMPERE)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in result.graph.initializer}
    for weight in found.weights:
        steps = arrays[weight.bias] / (arrays[f"{weight.input}_scale"] * arrays[f"{weight.name}_scale"])
        np.testing.assert_allclose(steps, np.rint(steps), atol=1e-2)
        assert np.abs(steps).max() > 100


def test_a_bias_fits_whatever_the_scales() -> None:
    _case, _, result, _ = made("tiny_channels")
    integers = next(tensor for tensor in result.graph.initializer if tensor.name == "b")
    assert integers.data_type == TensorProto.INT32
    assert np.abs(numpy_helper.to_array(integers).astype(np.int64)).max() <= 2**30 * 1.001


def test_what_is_rounded_for_a_layer_alone_stays_float_with_it() -> None:
    proto, _ = float_graph(Model.open(model_of(CASES["residual"]())))
    found = quantization_of(proto, ONNXRUNTIME, {"c": "too sensitive"})
    assert found.left["c"] == "too sensitive"
    assert ("c", 1) not in [reader for weight in found.weights for reader in weight.readers]
    everything = quantization_of(proto, ONNXRUNTIME, {"a": "no", "c": "no", "y": "no"})
    assert not everything.values
    assert not everything.weights


def test_a_layer_in_float_reads_floats() -> None:
    """Between two pairs onnxruntime 1.31 would round its weight, with one scale for all of it."""
    proto, _ = float_graph(Model.open(model_of(CASES["residual"]())))
    found = quantization_of(proto, ONNXRUNTIME, {"c": "too sensitive"})
    assert ("c", 0) not in [reader for value in found.values for reader in value.readers]
    assert ("s", 1) in [reader for value in found.values for reader in value.readers]


def test_layers_left_out_later_keep_the_scale_of_others() -> None:
    _case, proto, _, found = made("spatial_pyramid")
    roots = {value.like for value in found.values if value.like}
    rest = found.without([reader for value in found.values if value.name in roots for reader, _ in value.readers])
    for value in rest.values:
        assert not value.like or value.like in {one.name for one in rest.values}
    assert copied(proto) == proto


def test_an_operator_is_rounded_where_the_scheme_says_so(tmp_path: Path) -> None:
    grid = ONNXRUNTIME.layers.inputs
    asked = Scheme(overrides={"Sigmoid": type(ONNXRUNTIME.layers)(inputs=grid, outputs=grid)})
    _, _, result, _ = made("silu", asked)
    assert kernels(result, tmp_path)["QLinearSigmoid"] == 1


@pytest.mark.parametrize(("opset", "told"), [(20, False), (21, True)])
def test_products_of_a_new_opset_need_a_newer_runtime(opset: int, told: bool) -> None:
    case = rows("a = MatMul(x, W)\nt = Transpose <perm=[1,0]> (a)\ny = MatMul(t, V)\n", {"W": [6, 4], "V": [8, 3]})
    model = model_of(case._replace(opset=opset))
    model.ir_version = 10
    notes = osp.quantize(model, data={"x": drawn([8, 6])}).report.notes
    assert any("onnxruntime runs this from 1.20 on" in note for note in notes) == told
    notes = osp.quantize(model, scheme="w8").report.notes
    assert not any("1.20" in note for note in notes)
