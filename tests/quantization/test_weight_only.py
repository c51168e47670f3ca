"""Weights alone in 8 or 4 bits: what the runtime computes of the file, blocks of scales, tables, zeros, and records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import onnxsparse as osp
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.math.quantization import QParams, of_weight
from onnxsparse.passes.quantization.float_graph import float_graph
from onnxsparse.passes.quantization.qdq import write_qdq
from onnxsparse.passes.quantization.weight_only import layer_scheme, params_of, raised, scales_of, weights_of
from onnxsparse.planning.quantization import Quantization, QuantizedWeight, Scheme
from tests.messages import refusing

ort = pytest.importorskip("onnxruntime")

Arrays = dict[str, np.ndarray]
LAYERS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "MatMul": ("MatMul", (40, 24), (3, 40), {}),
    "MatMul, its last block shorter, an odd size": ("MatMul", (37, 5), (3, 37), {}),
    "MatMul of several matrices": ("MatMul", (2, 40, 6), (2, 3, 40), {}),
    "MatMul with fewer inputs than a block": ("MatMul", (7, 5), (3, 7), {}),
    "Gemm": ("Gemm", (40, 24), (3, 40), {}),
    "Gemm, turned around": ("Gemm", (9, 40), (3, 40), {"transB": 1}),
    "Conv": ("Conv", (6, 40, 3, 3), (1, 40, 5, 5), {}),
    "Conv with fewer inputs than a block": ("Conv", (6, 4, 3, 3), (1, 4, 5, 5), {}),
    "Conv in groups": ("Conv", (6, 2, 3, 3), (1, 4, 5, 5), {"group": 2}),
    "ConvTranspose": ("ConvTranspose", (40, 3, 2, 2), (1, 40, 4, 4), {}),
    "a table": ("Gather", (50, 40), (3, 4), {}),
    "the columns of a table": ("Gather", (40, 50), (3,), {"axis": 1}),
    "a table of vectors": ("Gather", (11, 3, 20), (2, 2), {}),
}


def drawn(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Every third number is zero."""
    numbers = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    numbers.reshape(-1)[::3] = 0
    return numbers


def layer(name: str, opset: int = 17) -> tuple[onnx.ModelProto, np.ndarray]:
    op, shape, x, attributes = LAYERS[name]
    looked_up = op == "Gather"
    rows = shape[attributes.get("axis", 0)]
    given = np.arange(np.prod(x)).reshape(x) % rows if looked_up else drawn(x, 1)
    inputs = ["w", "x"] if looked_up else ["x", "w"]
    kind = TensorProto.INT64 if looked_up else TensorProto.FLOAT
    graph = make_graph(
        [make_node(op, inputs, ["y"], "layer", **attributes)], "g", [make_tensor_value_info("x", kind, x)],
        [make_tensor_value_info("y", TensorProto.FLOAT, None)], [numpy_helper.from_array(drawn(shape), "w")],
    )  # fmt: skip
    proto = make_model(graph, opset_imports=[make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(proto), given


def ran(proto: onnx.ModelProto, feeds: Arrays, optimized: bool = False) -> np.ndarray:
    options = ort.SessionOptions()
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, feeds)[0]
    return found


def rounded(proto: onnx.ModelProto, scheme: Scheme) -> tuple[Quantization, dict[str, QParams]]:
    found = weights_of(proto, scheme)
    raised(proto, found)
    params = params_of(proto, found)
    write_qdq(proto, found, params)
    return found, params


def faked(proto: onnx.ModelProto, params: Any) -> onnx.ModelProto:
    """The float model with the numbers that its integers stand for."""
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    for tensor in copy.graph.initializer:
        if tensor.name in params:
            rounded = params[tensor.name].fake(numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    return copy


@pytest.mark.parametrize(("bits", "block"), [(8, None), (8, 16), (4, None), (4, 16)])
@pytest.mark.parametrize("name", LAYERS)
def test_the_runtime_computes_with_the_rounded_weight(name: str, bits: int, block: int | None) -> None:
    proto, x = layer(name)
    made, _ = float_graph(Model.open(proto))
    found, params = rounded(made, Scheme(layer_scheme(bits, block)))
    onnx.checker.check_model(made)
    assert not found.left
    wanted = ran(faked(proto, params), {"x": x})
    np.testing.assert_allclose(ran(made, {"x": x}), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("symmetric", [True, False])
def test_every_zero_is_the_zero_point_in_blocks(symmetric: bool) -> None:
    proto, x = layer("MatMul, its last block shorter, an odd size")
    made, _ = float_graph(Model.open(proto))
    _, params = rounded(made, Scheme(layer_scheme(4, 16, symmetric)))
    wanted = ran(faked(proto, params), {"x": x})
    np.testing.assert_allclose(ran(made, {"x": x}), wanted, rtol=1e-5, atol=1e-5)
    report = osp.inspect(made).report
    assert report.rows[0].zeros >= (drawn((37, 5)) == 0).sum()
    assert (params["w"].fake(drawn((37, 5)))[drawn((37, 5)) == 0] == 0).all()


def test_four_bits_are_half_a_byte_and_the_operator_set_is_told(tmp_path: Path) -> None:
    proto, _ = layer("MatMul")
    result = osp.quantize(proto, scheme="w4", output=tmp_path / "w4.onnx")
    written = onnx.load(tmp_path / "w4.onnx")
    stored = {tensor.name: tensor for tensor in written.graph.initializer}
    assert stored["w"].data_type == TensorProto.INT4
    assert len(stored["w"].raw_data) == 40 * 24 // 2
    assert list(stored["w_scale"].dims) == [2, 24]
    assert any("from 17 to 21" in note for note in result.report.notes)


def test_scales_of_few_bits_leave_no_more_error_than_the_range() -> None:
    numbers = drawn((64, 32))
    grid = layer_scheme(4).weights
    assert grid is not None
    weight = QuantizedWeight("w", grid, 0, block=32)
    errors = [
        np.square(one.fake(numbers) - numbers) for one in (scales_of(numbers, weight), of_weight(numbers, grid, 0, 32))
    ]
    mine, plain = (error.reshape(2, 32, 32).sum(axis=1) for error in errors)
    assert (mine <= plain).all()
    assert mine.sum() < 0.95 * plain.sum()


def test_a_table_is_not_dequantized_as_a_whole() -> None:
    for scheme in ("w8", "w4"):
        proto, x = layer("a table")
        made = osp.quantize(proto, scheme=scheme).model
        first = next(node for node in made.graph.node if "w" in node.input)
        assert first.op_type == "Gather"
        assert next(one.data_type for one in made.graph.initializer if one.name == "w") == TensorProto.INT8
        np.testing.assert_allclose(ran(made, {"x": x}), ran(proto, {"x": x}), atol=0.02)


WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "w8": ({"scheme": "w8"}, "int8"),
    "w4": ({"scheme": "w4", "block": 16}, "int4"),
    "w8 asymmetric": ({"scheme": "w8", "asymmetric": True}, "uint8"),
    "w4 asymmetric": ({"scheme": "w4", "asymmetric": True, "block": 16}, "uint4"),
    "dynamic": ({"dynamic": True}, "int8"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_record_holds_on_the_integers(way: str, tmp_path: Path) -> None:
    proto, _ = layer("Gemm, turned around")
    osp.prune(proto, output=tmp_path / "sparse.onnx", pattern="2:4", allow=["small", "output"])
    options, kind = WAYS[way]
    osp.quantize(tmp_path / "sparse.onnx", output=tmp_path / "out.onnx", **options)
    report = osp.verify(tmp_path / "out.onnx").report
    assert report.ok
    assert [row.status for row in report.rows] == ["holds"]
    assert report.rows[0].dtype == kind


def test_a_weight_that_another_node_reads_keeps_one_tensor() -> None:
    proto, x = layer("MatMul")
    proto.graph.node.append(make_node("ReduceSum", ["w"], ["s"], "sum", keepdims=0))
    proto.graph.output.append(make_tensor_value_info("s", TensorProto.FLOAT, []))
    made = osp.quantize(proto, scheme="w8").model
    floats = [one for one in made.graph.initializer if one.data_type == TensorProto.FLOAT and len(one.dims) == 2]
    assert [one.name for one in floats] == ["w"]
    np.testing.assert_allclose(ran(made, {"x": x}), ran(proto, {"x": x}), atol=0.1)


@pytest.mark.parametrize(("scheme", "near"), [("w8", 0.02), ("w4", 0.3)])
def test_recurrent_weights_are_rounded(scheme: str, near: float) -> None:
    stored = {"W": drawn((1, 32, 40)), "R": drawn((1, 32, 8), 1)}
    graph = make_graph(
        [make_node("LSTM", ["x", "W", "R"], ["y"], "layer", hidden_size=8)], "g",
        [make_tensor_value_info("x", TensorProto.FLOAT, [5, 1, 40])],
        [make_tensor_value_info("y", TensorProto.FLOAT, [5, 1, 1, 8])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )  # fmt: skip
    proto, x = make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8), drawn((5, 1, 40), 2)
    made = osp.quantize(proto, scheme=scheme).model
    np.testing.assert_allclose(ran(made, {"x": x}), ran(proto, {"x": x}), atol=near)
    kind = {"w8": TensorProto.INT8, "w4": TensorProto.INT4}[scheme]
    assert [one.data_type for one in made.graph.initializer if one.name in stored] == [kind, kind]
    by_data = osp.quantize(proto, scheme=scheme, data=drawn((10, 1, 40), 3)).model
    np.testing.assert_array_equal(ran(by_data, {"x": x}), ran(made, {"x": x}))  # the nearest steps all the same


def test_what_is_no_scheme() -> None:
    with refusing(OptionError):
        layer_scheme(5)
    with refusing(OptionError):
        layer_scheme(4, 24)
