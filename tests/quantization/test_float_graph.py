"""The float graph that is quantized computes what the model did, and says what was changed in it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.helper import make_node, make_opsetid

from onnxsparse.engines.inference import Session
from onnxsparse.errors import ModelError
from onnxsparse.graph.model import Model
from onnxsparse.passes.quantization import float_graph as module
from onnxsparse.passes.quantization.float_graph import float_graph
from tests.messages import refusing
from tests.quantization.odd_graphs import CASES, IMAGE, Case, conv, drawn, image, model_of

pytest.importorskip("onnxruntime")


def ready(model: ModelProto) -> tuple[ModelProto, list[str]]:
    return float_graph(Model.open(model))


def arrays(proto: ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def operators(proto: ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def test_batch_normalization_goes_into_the_layer_and_zeros_stay() -> None:
    model = model_of(CASES["batch_normalization"]())
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "W")
    held = numpy_helper.to_array(weight) * (drawn([8, 3, 3, 3], 9) > 0)
    weight.CopyFrom(numpy_helper.from_array(held, "W"))
    proto, notes = ready(model)
    assert operators(proto) == ["Conv", "Relu", "Conv"]
    assert notes == ["1 BatchNormalization was folded into the layer before"]
    assert np.array_equal(arrays(proto)["W"] == 0, held == 0)
    assert not {"s", "t", "m", "v"} & set(arrays(proto))
    assert proto.graph.node[0].output[0] == "n"


def test_a_chain_of_constants_per_channel_goes_with_it() -> None:
    proto, notes = ready(model_of(CASES["scaled_conv"]()))
    assert operators(proto) == ["Conv", "Relu", "Conv"]
    assert notes == ["4 operations with constants per channel were folded into the layer before"]


SCALES = {"W": [8, 3, 3, 3], "V": [8, 8, 3, 3], "s": [8, 1, 1], "k": [8, 8, 8], "z": np.zeros([8, 1, 1], np.float32)}


@pytest.mark.parametrize(
    "body",
    [
        conv("x", "W", "a") + "y = Mul(a, k)\n",
        conv("x", "W", "a") + "y = Div(a, z)\n",
        conv("x", "W", "a") + "b = Mul(a, s)\ny = Add(a, b)\n",
        conv("x", "W", "a") + "y = Div(s, a)\n",
        conv("x", "W", "a") + "b = Mul(a, s)\n" + conv("x", "W", "c") + "y = Add(b, c)\n",
    ],
    ids=["a number for each place", "divided by zero", "read by another", "turned", "a shared weight"],
)
def test_what_is_no_scaling_of_one_layer_stays(body: str) -> None:
    model = model_of(image(body, SCALES))
    proto, notes = ready(model)
    assert operators(proto) == operators(model)
    assert not notes


def test_a_matmul_with_something_added_is_a_gemm() -> None:
    proto, _ = ready(model_of(CASES["matmul_and_add"]()))
    assert operators(proto) == ["Gemm", "Relu", "MatMul"]
    assert set(arrays(proto)) >= {"W", "V"}


def test_views_of_weights_are_done_where_nothing_else_reads_them() -> None:
    for name, shape in (("view_of_weight", (6, 5)), ("reshaped_weight", (6, 5)), ("half_storage", (6, 5))):
        proto, _ = ready(model_of(CASES[name]()))
        assert operators(proto) == ["MatMul"]
        assert arrays(proto)["W"].shape == shape
        assert arrays(proto)["W"].dtype == np.float32
    proto, _ = ready(model_of(CASES["tied_table"]()))
    assert operators(proto) == ["Gather", "Transpose", "MatMul"]


def test_a_transpose_says_its_order() -> None:
    """onnxruntime-training 1.19 ends the process where one between two pairs does not."""
    text = "g (int64[N] x) => (float[?,?] y) { e = Gather(T, x)\nt = Transpose(T)\ny = MatMul(e, t)\n }"
    case = Case(text, {"T": [20, 6]}, {"x": np.arange(10)})
    proto, _ = ready(model_of(case))
    turned = next(node for node in proto.graph.node if node.op_type == "Transpose")
    assert [(one.name, list(one.ints)) for one in turned.attribute] == [("perm", [1, 0])]
    np.testing.assert_array_equal(*(Session(one).run(dict(case.feeds))["y"] for one in (model_of(case), proto)))


def test_constants_identities_functions_and_inputs() -> None:
    proto, _ = ready(model_of(CASES["constant_bias"]()))
    assert operators(proto) == ["Conv"]
    assert set(arrays(proto)) == {"W", "b"}
    proto, _ = ready(model_of(CASES["identities"]()))
    assert list(proto.graph.node[0].input) == ["x", "W"]
    proto, notes = ready(model_of(CASES["function"]()))
    assert operators(proto) == ["MatMul", "Relu", "MatMul", "Relu"]
    assert not proto.functions
    assert notes == ["1 local function was inlined"]
    proto, _ = ready(model_of(CASES["weight_is_input"]()))
    assert [value.name for value in proto.graph.input] == ["x"]


def test_an_old_opset_is_raised_and_the_record_stays() -> None:
    model = model_of(CASES["old"]())
    model.metadata_props.add(key="onnxsparse.pattern", value="2:4")
    proto, notes = ready(model)
    assert [entry.version for entry in proto.opset_import if not entry.domain] == [13]
    assert any("raised from 9 to 13" in note for note in notes)
    assert [(one.key, one.value) for one in proto.metadata_props] == [("onnxsparse.pattern", "2:4")]


def test_what_cannot_be_converted_is_named() -> None:
    model = model_of(image(conv("x", "W", "y"), {"W": [8, 3, 3, 3]}, opset=9))
    model.graph.node.append(make_node("Upsample", ["y"], ["z"]))  # without its scales
    with refusing(ModelError):
        ready(model)


def test_large_tensors_never_go_through_the_converter(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    real = module.upgraded

    def measured(proto: ModelProto, opset: int) -> ModelProto:
        sizes.append(proto.ByteSize())
        return real(proto, opset)

    monkeypatch.setattr(module, "upgraded", measured)
    body = "a = Flatten(x)\ny = Gemm(a, W)\n"
    case = Case(f"g (float[N,3,8,8] x) => (float[?,?] y) {{ {body} }}", {"W": [192, 300]}, IMAGE, 11)
    model = model_of(case)
    proto, _ = ready(model)
    assert sizes
    assert sizes[0] < 4096 < model.ByteSize()
    assert [value.name for value in proto.graph.input] == ["x"]
    np.testing.assert_array_equal(Session(model).run(dict(IMAGE))["y"], Session(proto).run(dict(IMAGE))["y"])


def test_a_quantized_model_is_refused() -> None:
    model = model_of(CASES["conv"]())
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.1), "scale"))
    model.graph.node.insert(0, make_node("QuantizeLinear", ["x", "scale"], ["q"]))
    with refusing(ModelError):
        ready(model)


def test_weights_of_other_types_stay_as_they_are() -> None:
    for name, kind in (("half", TensorProto.FLOAT16), ("double", TensorProto.DOUBLE)):
        proto, notes = ready(model_of(CASES[name]()))
        assert proto.graph.initializer[0].data_type == kind
        assert not notes


def test_the_model_itself_is_not_changed() -> None:
    model = model_of(CASES["batch_normalization"]())
    model.opset_import.append(make_opsetid("ai.onnx.ml", 2))
    before = model.SerializeToString(deterministic=True)
    ready(model)
    assert model.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(model)
