"""What is a parameter of an ONNX model, and by which names."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from onnxsparse.acts.params import find
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import FLOAT_KINDS
from onnxsparse.graph.torch_match import Match, Matched, record_match
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.plan_by_epochs import by_epochs, params_of
from tests.cases import for_each
from tests.messages import refusing

SHAPES = {
    "embed.weight": (20, 8), "fc.weight": (8, 8), "fc.bias": (8,), "conv": (6, 8, 1), "bn.scale": (6,), "bn.bias": (6,),
    "bn.mean": (6,), "bn.var": (6,), "rnn.w": (1, 4, 6), "rnn.r": (1, 4, 4), "onnx::MatMul_7": (4, 3), "eps": (),
}  # fmt: skip


def model() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    stored = [
        numpy_helper.from_array(np.asarray(random.uniform(0.1, 1, shape), np.float32), name)
        for name, shape in SHAPES.items()
    ]
    nodes = [
        make_node("Gather", ["embed.weight", "ids"], ["e"], "/embed/Gather"),
        make_node("Gemm", ["e", "fc.weight", "fc.bias"], ["f"], "/blocks/fc/Gemm", transB=1),
        make_node("Add", ["f", "eps"], ["g"], "/Add"),
        make_node("Unsqueeze", ["g", "axis"], ["h"], "/Unsqueeze"),
        make_node("Conv", ["h", "conv"], ["c"], "/blocks/conv/Conv"),
        make_node("BatchNormalization", ["c", "bn.scale", "bn.bias", "bn.mean", "bn.var"], ["n"], "/bn/BatchNorm"),
        make_node("Transpose", ["n"], ["t"], "/Transpose", perm=[2, 0, 1]),
        make_node("RNN", ["t", "rnn.w", "rnn.r"], ["", "r"], "/rnn/RNN", hidden_size=4),
        make_node("MatMul", ["r", "onnx::MatMul_7"], ["y"], "/head/MatMul"),
    ]
    graph = make_graph(
        nodes,
        "net",
        [make_tensor_value_info("ids", TensorProto.INT64, ["N"])],
        [make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [*stored, numpy_helper.from_array(np.array([2]), "axis")],
    )
    return make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)


def names(wanted: Any, opened: Model | None = None) -> set[str]:
    return {one.name for one in find(params_of(opened or Model.over(model())), wanted, "here")}


def test_all_and_all_that_can_be_pruned() -> None:
    assert names("__ALL__") == set(SHAPES) - {"bn.mean", "bn.var", "eps"}
    assert names("__ALL_PRUNABLE__") == {"embed.weight", "fc.weight", "conv", "onnx::MatMul_7"}


@for_each(
    ("wanted", "found"),
    [
        ("fc.weight", {"fc.weight"}),
        ("fc", {"fc.weight"}),
        ("blocks/fc", {"fc.weight"}),
        ("/blocks/fc", {"fc.weight"}),
        ("blocks.fc", {"fc.weight"}),
        ("/blocks/conv/Conv", {"conv"}),
        ("head", {"onnx::MatMul_7"}),
        ("re:.*/conv", {"conv"}),
        ("re:fc", {"fc.weight", "fc.bias"}),
        ("re:rnn", {"rnn.w", "rnn.r"}),
        ("head.weight", {"onnx::MatMul_7"}),
        ("blocks/fc.weight", {"fc.weight"}),
    ],
)
def test_names(wanted: str, found: set[str]) -> None:
    assert names([wanted]) == found


def test_names_of_torch_as_they_are_recorded() -> None:
    opened = Model.over(model())
    match = Match({"classifier.weight": Matched("onnx::MatMul_7", "", "transposed", "numbers", (3, 4))})
    record_match(opened, match)
    assert names(["classifier.weight"], opened) == {"onnx::MatMul_7"}
    assert names(["classifier"], opened) == {"onnx::MatMul_7"}
    assert names(["re:class"], opened) == {"onnx::MatMul_7"}


def test_what_cannot_train_says_why() -> None:
    made = model()
    for one in made.graph.initializer:
        if one.name == "conv":
            one.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(one).astype(np.float64), one.name))
    made.graph.node.insert(0, make_node("Cast", ["conv"], ["conv_float"], "cast", to=TensorProto.FLOAT))
    next(node for node in made.graph.node if node.op_type == "Conv").input[1] = "conv_float"
    whole = {one.name: one.refusal for one in params_of(Model.over(made))}
    assert (whole["fc.weight"], bool(whole["conv"])) == ("", "float64" not in FLOAT_KINDS)
    masked = model()
    masked.graph.initializer.append(numpy_helper.from_array(np.ones((8, 8), np.float32), "mask"))
    masked.graph.node.insert(1, make_node("Mul", ["fc.weight", "mask"], ["masked"], "mask"))
    next(node for node in masked.graph.node if node.op_type == "Gemm").input[1] = "masked"
    opened = Model.over(masked)
    assert "fc.weight" not in names("__ALL_PRUNABLE__", opened)
    with refusing(OptionError):
        names(["fc.weight"], opened)


def test_what_is_no_parameter_is_said() -> None:
    with refusing(OptionError):
        names(["bn.var"])
    with refusing(OptionError):
        names(["fc.wieght"])


def nested(*layers: str) -> onnx.ModelProto:
    """Layers as an exporter writes them that says the path of a module in a list twice, and renames their weights."""
    random = np.random.default_rng(0)
    numbers = [random.standard_normal((4, 4)).astype(np.float32) for _ in layers]
    stored = [numpy_helper.from_array(one, f"onnx::MatMul_{n}") for n, one in enumerate(numbers)]
    nodes = [
        make_node("MatMul", [f"x{n}", f"onnx::MatMul_{n}"], [f"x{n + 1}"], f"/{layer}/MatMul")
        for n, layer in enumerate(layers)
    ]
    ends = [make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in ("x0", f"x{len(layers)}")]
    graph = make_graph(nodes, "net", ends[:1], ends[1:], stored)
    return make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)


LAYERS = ("features/features.0", "net/layer/layer.1/inter", "net/layer/layer.1/list/list.0/list.0.2", "net/other/inter")


@pytest.mark.parametrize(
    ("wanted", "number"),
    [
        ("features.0", 0), ("features.0.weight", 0), ("features/0", 0), ("features.features.0", 0),
        ("net.layer.1.inter", 1), ("layer/1/inter", 1), ("layer.1.inter.weight", 1), ("layer.1.list.0.2", 2),
        ("other.inter", 3),
    ],
)  # fmt: skip
def test_a_layer_is_found_by_its_module(wanted: str, number: int) -> None:
    assert names([wanted], Model.over(nested(*LAYERS))) == {f"onnx::MatMul_{number}"}


@pytest.mark.parametrize("wanted", ["inter", "features.0.bias", "2.weight", "eatures.0"])
def test_what_could_be_several_layers_is_none(wanted: str) -> None:
    with refusing(OptionError) as caught:
        names([wanted], Model.over(nested(*LAYERS)))
    assert "the exporter renamed some weights (4, such as onnx::MatMul_0): `onnxsparse inspect -v`" in str(caught.value)
    assert "record_match" in str(caught.value)


def test_the_path_of_a_module_is_suggested() -> None:
    with refusing(OptionError):
        names(["feature.0.weight"], Model.over(nested(*LAYERS)))


def test_all_names_that_mean_nothing_are_said() -> None:
    with refusing(OptionError):
        names(["nope", "fc.weight", "fc.wieght"])
    with refusing(OptionError):
        names([f"nope{n}" for n in range(23)])


GRADUAL = (
    "!GMPruningModifier {init_sparsity: 0.0, final_sparsity: 0.5, start_epoch: 0, end_epoch: 2, update_frequency: 1, "
    "params: %s}"
)


@pytest.mark.parametrize(
    ("params", "along"),
    [
        ("__ALL__", {"fc.bias", "bn.scale", "bn.bias"}), ("['re:bn', fc]", {"bn.scale", "bn.bias"}),
        ("[fc, fc.bias]", set()),
        ("['re:bn', bn.scale]", {"bn.bias"}), ("__ALL_PRUNABLE__", set()),
    ],
)  # fmt: skip
def test_scales_and_biases_that_are_pruned_along(params: str, along: set[str]) -> None:
    (modifier,) = Recipe.load(f"modifiers:\n- {GRADUAL % params}\n").modifiers
    act = modifier.act()  # type: ignore[attr-defined]
    act.bind(params_of(Model.over(model())))
    assert {param.name for param in act.scales_and_biases()} == along
    assert bool(act.warning) == bool(along)
    assert not along or "`params: __ALL_PRUNABLE__` means the weights" in act.warning


def test_a_plan_says_what_each_weight_comes_to() -> None:
    constant = "- !ConstantPruningModifier {params: __ALL__}\n"
    text = f"modifiers:\n- {GRADUAL % '[fc, fc.bias]'}\n{constant}"
    made = by_epochs(Model.over(model()), Recipe.load(text).modifiers)  # type: ignore[arg-type]
    rows = {row.name: row for row in made.plan.rows}
    assert (rows["fc.weight"].drop, rows["fc.weight"].keep) == (32, None)
    assert (rows["conv"].pattern, rows["conv"].reason) == (None, "the recipe holds its zeros, of which it has none")
    only = by_epochs(Model.over(model()), Recipe.load(f"modifiers:\n- {GRADUAL % '[fc]'}\n").modifiers)  # type: ignore[arg-type]
    rest = {row.name: row.reason for row in only.plan.rows if row.pattern is None}
    assert set(rest.values()) == {"no modifier of the recipe prunes it"}
    assert len(only.masked) == 1
    assert len(made.masked) == len(SHAPES) - 3
