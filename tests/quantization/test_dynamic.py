"""Dynamic quantization: integer products by the range of each run, as the runtime fuses and computes them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import onnxsparse as osp
from onnxsparse.graph.model import Model
from onnxsparse.math.quantization import ACTIVATIONS, from_range
from onnxsparse.passes.quantization.dynamic import dynamic_weights, write_dynamic
from onnxsparse.passes.quantization.float_graph import float_graph
from onnxsparse.passes.quantization.weight_only import params_of
from onnxsparse.planning.quantization import ONNXRUNTIME, Quantization

ort = pytest.importorskip("onnxruntime")

LAYERS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "MatMul": ("MatMul", (40, 24), (2, 3, 40), {}),
    "MatMul of several matrices": ("MatMul", (2, 40, 6), (2, 3, 40), {}),
    "Gemm": ("Gemm", (40, 24), (3, 40), {}),
    "Gemm, turned around": ("Gemm", (24, 40), (3, 40), {"transB": 1}),
}


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model(nodes: list[Any], shape: tuple[int, ...], stored: dict[str, np.ndarray]) -> onnx.ModelProto:
    graph = make_graph(
        nodes, "g", [make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )  # fmt: skip
    return onnx.shape_inference.infer_shapes(make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8))


def layer(name: str, bias: bool) -> onnx.ModelProto:
    op, shape, x, attributes = LAYERS[name]
    own = bias and op != "MatMul"
    nodes = [make_node(op, ["x", "w", *(["b"] if own else [])], ["y"], "layer", **attributes)]
    return model(nodes, x, {"w": drawn(*shape), **({"b": drawn(24, seed=2)} if own else {})})


def rounded(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, Quantization, Any]:
    made, _ = float_graph(Model.open(proto))
    found = dynamic_weights(made, ONNXRUNTIME)
    params = params_of(made, found)
    write_dynamic(made, found, params)
    return made, found, params


def ran(proto: onnx.ModelProto, x: np.ndarray, optimized: Path | None = None) -> np.ndarray:
    options = ort.SessionOptions()
    if optimized is None:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    else:
        options.optimized_model_filepath = str(optimized)
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {"x": x})[0]
    return found


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_products_are_those_of_rounded_inputs_and_weights(name: str, bias: bool, tmp_path: Path) -> None:
    proto, x = layer(name, bias), drawn(*LAYERS[name][2], seed=1)
    made, found, params = rounded(proto)
    onnx.checker.check_model(made, full_check=True)
    assert not found.left
    tensor = next(one for one in proto.graph.initializer if one.name == "w")
    tensor.CopyFrom(numpy_helper.from_array(params["w"].fake(numpy_helper.to_array(tensor)), "w"))
    wanted = ran(proto, from_range(x.min(), x.max(), ACTIVATIONS).fake(x))
    np.testing.assert_allclose(ran(made, x), wanted, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(ran(made, x, tmp_path / "optimized.onnx"), wanted, rtol=1e-4, atol=1e-3)


def test_the_runtime_fuses_each_product_into_one_node(tmp_path: Path) -> None:
    """Two layers that read one value share its rounding; one with a value of its own takes that in."""
    nodes = [
        make_node("MatMul", ["x", "q"], ["queries"], "queries"),
        make_node("MatMul", ["x", "k"], ["keys"], "keys"),
        make_node("Add", ["queries", "keys"], ["sum"], "sum"),
        make_node("MatMul", ["sum", "w"], ["product"], "last"),
        make_node("Add", ["product", "b"], ["y"], "bias"),
    ]
    stored = {"q": drawn(16, 16), "k": drawn(16, 16, seed=1), "w": drawn(16, 8, seed=2), "b": drawn(8, seed=3)}
    made, _, _ = rounded(model(nodes, (2, 5, 16), stored))
    assert Counter(node.op_type for node in made.graph.node)["DynamicQuantizeLinear"] == 2
    ran(made, drawn(2, 5, 16), tmp_path / "optimized.onnx")
    found = operators(tmp_path / "optimized.onnx")
    assert found["MatMulIntegerToFloat"] == 2
    assert found["DynamicQuantizeMatMul"] == 1
    assert not found["MatMul"]


def test_weights_keep_name_and_shape_and_zeros_are_exact() -> None:
    proto = layer("Gemm, turned around", True)
    result = osp.prune(proto, pattern="2:4", allow=["small", "output"])
    made = osp.quantize(result.model, dynamic=True).model
    dense = numpy_helper.to_array(next(one for one in result.model.graph.initializer if one.name == "w"))
    integers = numpy_helper.to_array(next(one for one in made.graph.initializer if one.name == "w"))
    assert integers.dtype == np.int8
    assert integers.shape == dense.shape
    assert not integers[dense == 0].any()
    assert osp.verify(made).report.ok


def test_what_stays_in_float_and_why() -> None:
    nodes = [
        make_node("MatMul", ["left", "x"], ["a"], "left operand"),
        make_node("Gemm", ["a", "w"], ["b"], "turned", transA=1),
        make_node("Unsqueeze", ["b", "axes"], ["c"]),
        make_node("LSTM", ["c", "W", "R"], ["", "h"], "recurrent", hidden_size=4),
        make_node("Conv", ["h", "kernel"], ["y"], "convolution"),
    ]
    stored = {
        "left": drawn(8, 6), "w": drawn(8, 8), "axes": np.array([0]), "W": drawn(1, 16, 8), "R": drawn(1, 16, 4),
        "kernel": drawn(3, 8, 1),
    }  # fmt: skip
    proto = model(nodes, (6, 8), stored)
    _, found, _ = rounded(proto)
    assert not found.weights
    assert len(found.left) == 4
    words = " ".join(found.left.values())
    for word in ("left operand", "turned around", "LSTM", "convolution"):
        assert word in words


def test_a_weight_that_is_read_otherwise_too_keeps_its_floats() -> None:
    nodes = [
        make_node("MatMul", ["x", "w"], ["a"], "product"),
        make_node("Add", ["a", "w"], ["y"], "sum"),
    ]
    proto = model(nodes, (16, 16), {"w": drawn(16, 16)})
    made, _, _ = rounded(proto)
    x = drawn(16, 16, seed=1)
    np.testing.assert_allclose(ran(made, x), ran(proto, x), atol=0.3)
    kinds = {one.name: one.data_type for one in made.graph.initializer}
    assert kinds["w"] == TensorProto.FLOAT
    assert kinds["w_quantized"] == TensorProto.INT8


@pytest.mark.parametrize("turned", [0, 1])
def test_a_weight_of_several_products_is_rounded_once(turned: int) -> None:
    """Also where one of them adds it, too, and reads floats for that."""
    nodes = [
        make_node("Gemm", ["x", "w", "w"], ["a"], "first"),
        make_node("Relu", ["a"], ["r"], "relu"),
        make_node("Gemm", ["r", "w"], ["y"], "second", transB=turned),
    ]
    proto, x = model(nodes, (16, 16), {"w": drawn(16, 16)}), drawn(16, 16, seed=1)
    for one in (
        proto,
        model([make_node("MatMul", ["x", "w"], ["a"]), nodes[1], nodes[2]], (16, 16), {"w": drawn(16, 16)}),
    ):
        made, found, _ = rounded(one)
        assert not found.left
        wanted = ran(one, x)
        np.testing.assert_allclose(ran(made, x), wanted, atol=0.03 * np.abs(wanted).max())
