"""The names and module types that the nodes of a graph answer to, where a quantization scheme speaks of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxsparse.errors import OptionError
from onnxsparse.graph.torch_match import KEY
from onnxsparse.math.quantization import ACTIVATIONS, SYMMETRIC_ACTIVATIONS
from onnxsparse.passes.quantization.placement import quantization_of
from onnxsparse.planning.graph_layers import GraphLayers, missed
from onnxsparse.planning.quantization import LayerScheme, Scheme

ATTENTION = "bert.encoder.layer.0.attention"


def node(operator: str, inputs: str, output: str, name: str = "", **metadata: str) -> NodeProto:
    made = helper.make_node(operator, inputs.split(), [output], name)
    for key, value in metadata.items():
        made.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    return made


def attention() -> ModelProto:
    """One head, as torch's older exporter writes it, and a layer as the newer one does."""
    path = "/bert/encoder/layer.0/attention"
    scopes = "['', 'bert', 'bert.pooler', 'bert.pooler.dense', 'linear']"
    classes = "['m.Bert', 'm.BertModel', 'm.BertPooler', 'torch.nn.modules.linear.Linear', 'aten.linear.default']"
    nodes = [
        node("Gather", "table ids", "h", "/bert/embeddings/word_embeddings/Gather"),
        node("MatMul", "h onnx::MatMul_1", "q", f"{path}/self/query/MatMul"),
        node("MatMul", "h onnx::MatMul_2", "k", f"{path}/self/key/MatMul"),
        node("MatMul", "q k", "qk", f"{path}/self/MatMul"),
        node("Div", "qk root", "scaled", f"{path}/self/Div"),
        node("Add", "scaled mask", "masked", f"{path}/self/Add"),
        node("Softmax", "masked", "p", f"{path}/self/Softmax"),
        node("MatMul", "p k", "pv", f"{path}/self/MatMul_1"),
        node("MatMul", "pv val_3", "pooled", "node_MatMul_9", name_scopes=scopes, class_hierarchy=classes),
        node("Sigmoid", "pooled", "gate", "node_sigmoid", class_hierarchy="['m.Bert', 'm.QuickGELU', 'aten.mul']"),
        node("MatMul", "gate other", "out"),
    ]
    shapes = {"table": (5, 4), "root": ()}
    stored = ("table", "onnx::MatMul_1", "onnx::MatMul_2", "root", "val_3", "other")
    tensors = [numpy_helper.from_array(np.ones(shapes.get(name, (4, 4)), np.float32), name) for name in stored]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [4])]
    inputs.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, [4, 4]))
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, [4, 4])]
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, tensors))
    row = ["other", "", "same", "numbers", [4, 4], 0]
    model.metadata_props.add(key=KEY, value=json.dumps({"matched": {"classifier.weight": [row]}}))
    return model


def test_a_weight_in_a_constant_node_is_stored() -> None:
    """Not a second computed value: then a product would be one of attention, and no Linear."""
    model, constant = attention(), attention()
    (kept,) = (one for one in constant.graph.initializer if one.name == "onnx::MatMul_1")
    constant.graph.node.insert(0, helper.make_node("Constant", [], [kept.name], value=kept))
    constant.graph.initializer.remove(kept)
    (plain,), (found,) = (
        [GraphLayers(one).known_as(node) for node in one.graph.node if node.output[0] == "q"]
        for one in (model, constant)
    )
    assert found == plain
    assert "Linear" in found[1]


def of(scheme: Scheme, *, default: str = "-") -> str:
    """By node in the order of the graph, whether it is quantized as all are, otherwise, or not."""
    model = attention()
    layers = GraphLayers(model)
    found = [scheme.of(*layers.known_as(one)) for one in model.graph.node]
    return "".join("." if one is None else default if one == LayerScheme() else "x" for one in found)


@pytest.mark.parametrize(
    ("entry", "left"),
    [
        ("bert.embeddings", ".----------"),
        ("Embedding", ".----------"),
        (f"{ATTENTION}.self.query", "-.---------"),
        (ATTENTION, "-.......---"),
        ("re:.*attention.self$", "---.....---"),
        ("re:.*attention.self.(query|key)", "-..--------"),
        ("Linear", "-..-----.-."),
        ("QuantizableMatMul", "---.---.---"),
        ("MatMulLeftInput_QK", "---.-------"),
        ("MatMulRightInput_PV", "-------.---"),
        ("Softmax", "------.----"),
        ("bert.pooler", "--------.--"),
        ("node_MatMul_9", "--------.--"),
        ("QuickGELU", "---------.-"),
        ("classifier", "----------."),
        ("other", "----------."),
    ],
)
def test_nodes_are_known_by_names_and_types_of_torch(entry: str, left: str) -> None:
    assert of(Scheme(ignore=(entry,))) == left


def test_overrides_reach_the_layers_that_they_mean() -> None:
    four = LayerScheme(inputs=None)
    assert of(Scheme(overrides={"Linear": four, "bert.encoder": LayerScheme()})) == "--------x-x"
    assert of(Scheme(only=("bert.pooler", "classifier"))) == "........-.-"


def test_what_products_of_attention_give_is_rounded_where_that_is_asked_for() -> None:
    behind = {"MatMulOutput_QK": LayerScheme(None, SYMMETRIC_ACTIVATIONS), "MatMulOutput_PV": LayerScheme(None, None)}
    model, scheme = attention(), Scheme(overrides=behind, ignore=("BMMOutput_PV",), strict=True)
    found = [GraphLayers(model).of(one, scheme) for one in model.graph.node if one.output[0] in ("qk", "pv", "q")]
    assert found == [LayerScheme(), LayerScheme(outputs=SYMMETRIC_ACTIVATIONS), LayerScheme()]
    assert missed(scheme, model) == []


def test_sides_of_a_product_that_are_asked_for_are_rounded_though_the_module_around_them_is_ignored() -> None:
    sides = {"MatMulLeftInput_QK": LayerScheme(), "MatMulRightInput_QK": LayerScheme()}
    model = attention()
    (scores, other) = (one for one in model.graph.node if one.output[0] in ("qk", "pv"))
    scheme = Scheme(overrides=sides, ignore=("QuantizableMatMul",))
    assert GraphLayers(model).of(scores, scheme) == LayerScheme()
    assert GraphLayers(model).of(other, scheme) is None
    assert GraphLayers(model).of(scores, Scheme(overrides=sides, ignore=("MatMulLeftInput_QK",))) is None


def test_what_a_graph_cannot_show_may_be_ignored_and_is_said() -> None:
    scheme = Scheme(ignore=("BertLayerNorm", "bert.pooler", "Linear"), strict=True)
    (said,) = missed(scheme, attention())
    assert said.startswith("ignore: 'BertLayerNorm' is no layer")
    with pytest.raises(OptionError, match=r"^ignore: 'bert\.poler' is .*did you mean .*bert\.pooler"):
        missed(Scheme(ignore=("bert.poler",), strict=True), attention())


def test_a_record_that_cannot_be_read_names_nothing() -> None:
    model = attention()
    for text in ("{", "[]", '{"matched": {"a": 1}}', '{"matched": {"a": [[]]}}'):
        model.metadata_props[0].value = text
        assert len(list(GraphLayers(model).all())) == len(model.graph.node)


def gated(newer: bool) -> ModelProto:
    """A linear layer with its bias apart, and x * sigmoid(x) behind it: modules `fc` and `act`, by either exporter."""
    fc, act = "['', 'fc', 'linear']", "['', 'act', 'silu']"
    linear = "['m.Net', 'torch.nn.modules.linear.Linear', 'aten.linear.default']"
    silu = "['m.Net', 'torch.nn.modules.activation.SiLU', 'aten.silu.default']"
    nodes = [
        node("MatMul", "x w", "product", name_scopes=fc, class_hierarchy=linear),
        node("Add", "product b", "sum", name_scopes=fc, class_hierarchy=linear),
        node("Sigmoid", "sum", "gate", name_scopes=act, class_hierarchy=silu),
        node("Mul", "sum gate", "y", name_scopes=act, class_hierarchy=silu),
    ]
    if not newer:
        for one, name in zip(nodes, ("/fc/MatMul", "/fc/Add", "/act/Sigmoid", "/act/Mul")):
            one.name = name
            del one.metadata_props[:]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in ("x", "y")]
    tensors = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in (("w", (4, 4)), ("b", 4))]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(
    ("overrides", "rounded"),
    [
        ({}, {"x": {"product"}}),
        ({"Linear": LayerScheme()}, {"x": {"product"}}),
        ({"fc": LayerScheme(outputs=ACTIVATIONS)}, {"x": {"product"}, "sum": {"gate", "y"}}),
        ({"act": LayerScheme()}, {"x": {"product"}, "sum": {"gate", "y"}}),
        ({"SiLU": LayerScheme()}, {"x": {"product"}, "sum": {"gate", "y"}}),
        ({"SiLU": LayerScheme(inputs=None, outputs=ACTIVATIONS)}, {"x": {"product"}}),
        ({"Linear": LayerScheme(inputs=None)}, {}),
    ],
)
@pytest.mark.parametrize("newer", [False, True])
def test_of_a_module_what_comes_in_and_goes_out_is_rounded(
    newer: bool, overrides: dict[str, LayerScheme], rounded: dict[str, set[str]]
) -> None:
    found = quantization_of(gated(newer), Scheme(overrides=overrides))
    assert {one.name: {reader for reader, _ in one.readers} for one in found.values} == rounded
