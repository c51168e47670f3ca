"""A layer is named alike everywhere: in files that exporters wrote (tests/exports), and where names clash."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import onnxsparse as osp
from onnxsparse.acts.params import find
from onnxsparse.dialects.msbench import build_sparse_scheduler
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.recipes.checking import WRONG, check
from onnxsparse.recipes.plan_by_epochs import params_of
from tests.cases import for_each
from tests.messages import refusing

EXPORTS = Path(__file__).resolve().parent / "exports"
ALLOW = ["stem", "small", "depthwise", "basis"]
LEVEL = {"pattern": "unstructured", "sparsity": 0.5, "allow": ALLOW}

NAMES = [
    # Keras 2
    ("keras2", "net/conv", "net/conv/Conv2D/ReadVariableOp:0"),
    ("keras2", "net/conv/Conv2D", "net/conv/Conv2D/ReadVariableOp:0"),
    ("keras2", "net.backbone.conv", "net/backbone/conv/Conv2D/ReadVariableOp:0"),
    ("keras2", "backbone/block2_conv", "net/backbone/block2_conv/Conv2D/ReadVariableOp:0"),
    ("keras2", "net/block1_conv", "net/block1_conv/Conv2D_weights_fused_bn"),
    ("keras2", "net/depthwise", "const_fold_opt__37"),
    ("keras2", "net/hidden", "net/hidden/MatMul/ReadVariableOp:0"),
    # Keras 3
    ("keras", "net_1/conv_1", "net_1/conv_1/convolution/ReadVariableOp:0"),
    ("keras", "net_1/conv_1/convolution", "net_1/conv_1/convolution/ReadVariableOp:0"),
    ("keras", "net_1/backbone_1/conv_1", "net_1/backbone_1/conv_1/convolution/ReadVariableOp:0"),
    ("keras", "backbone_1/conv_1", "net_1/backbone_1/conv_1/convolution/ReadVariableOp:0"),
    ("keras", "net_1.hidden_1", "net_1/hidden_1/Cast/ReadVariableOp:0"),
    ("keras", "net_1/head_1", "net_1/head_1/Cast/ReadVariableOp:0"),
    ("keras", "net_1/depthwise_1", "const_fold_opt__29"),
    # the exporter folds the normalization into the convolution, and calls the node as the normalization
    ("keras", "net_1/block1_conv_1", "net_1/block1_conv_1/convolution/merged_input:0"),
    ("keras", "net_1/block1_norm_1/batchnorm", "net_1/block1_conv_1/convolution/merged_input:0"),
    # variable scopes of TensorFlow 1
    ("tf1", "mnist_net_1/conv0_1/conv_1", "mnist_net_1/conv0_1/conv_1/kernel/read:0"),
    ("tf1", "mnist_net_1/conv0_1/conv_1/BiasAdd", "mnist_net_1/conv0_1/conv_1/kernel/read:0"),
    ("tf1", "mnist_net_1.conv0_0.conv_1", "mnist_net_1/conv0_0/conv_1/kernel/read:0"),
    ("tf1", "conv0_0/conv_1", "mnist_net_1/conv0_0/conv_1/kernel/read:0"),
    ("tf1", "mnist_net_1/fc", "mnist_net_1/fc/kernel/read:0"),
    # torch, by both exporters
    ("torch_script", "stem", "stem.weight"),
    ("torch_script", "/stem/Conv", "stem.weight"),
    ("torch_script", "sections.1.0", "onnx::Conv_170"),
    ("torch_script", "sections.1.0.weight", "onnx::Conv_170"),
    ("torch_script", "/sections.1/sections.1.0", "onnx::Conv_170"),
    ("torch_script", "attn.qkv", "onnx::MatMul_172"),
    ("torch_script", "attn/MatMul_3", "attn.back"),
    ("torch_script", "attn.mix", "attn.mix"),
    ("torch_dynamo", "stem", "stem.weight"),
    ("torch_dynamo", "sections.1.0", "sections.1.0.weight"),
    ("torch_dynamo", "node_Conv_115", "sections.1.0.weight"),
    ("torch_dynamo", "node_MatMul_20", "val_19"),
    ("torch_dynamo", "node_linear_2", "head.weight"),
    # Paddle: names without a path
    ("paddle", "Conv.1", "conv2d_1.w_0"),
    ("paddle", "MatMul.0", "linear_0.w_0"),
    ("paddle", "linear_1.w_0", "linear_1.w_0"),
]


def export(name: str) -> str:
    return str(EXPORTS / f"{name}.onnx")


def pruned(source: object, **names: object) -> set[str]:
    report = osp.plan(source, **LEVEL, **names).report  # type: ignore[arg-type]
    return {row.name for row in report.rows if row.pattern != "dense"}


def by_recipe(source: object, *names: str) -> set[str]:
    return {param.name for param in find(params_of(Model.open(source)), list(names), "here")}  # type: ignore[arg-type]


def dense_by_msbench(source: object, **kwargs: str) -> tuple[set[str], list[str]]:
    """The layers that a configuration leaves dense, and all notes."""
    config = {"scheduler": {"type": "AmbaLevelPruneScheduler", "kwargs": {"sparsity_table": [50], **kwargs}}}
    scheduler = build_sparse_scheduler(config)
    model = scheduler.prepare_sparse_model(source)
    scheduler.prune_model(model, 0)
    open_masks = {key for key, mask in model.masks().items() if mask.all()}
    left = open_masks | {site.key for site in model.sites if site.key not in model.masks()}
    return {model.names()[key] for key in left}, scheduler.notes


@for_each(("name", "said", "tensor"), NAMES)
def test_a_layer_of_an_export_by_name(name: str, said: str, tensor: str) -> None:
    source = export(name)
    everything = pruned(source)
    assert tensor in everything
    assert pruned(source, include=said) == {tensor}
    assert everything - pruned(source, exclude=said) == {tensor}
    assert by_recipe(source, said) == {tensor}


@pytest.mark.parametrize(("name", "said", "tensor"), [NAMES[at] for at in (2, 5, 7, 14, 16, 23, 31, 34)])
def test_a_layer_of_an_export_in_a_configuration(name: str, said: str, tensor: str) -> None:
    assert dense_by_msbench(export(name), no_prune_layer=said)[0] == {tensor}
    assert dense_by_msbench(export(name), no_prune_keyword=said)[0] == {tensor}


def test_names_of_the_exports_that_the_guide_of_recipes_promises() -> None:
    whole = {f"mnist_net_1/conv0_{a}/conv_{b}/kernel/read:0" for a in (0, 1) for b in (0, 1)}
    assert by_recipe(export("tf1"), "re:.*/conv_[0-9]$") == whole
    assert by_recipe(export("tf1"), "re:.*/conv") >= whole
    assert pruned(export("tf1"), include="*/conv_1") == {one for one in whole if "/conv_1/" in one}


@pytest.mark.parametrize(
    ("name", "params", "found"),
    [
        ("tf1", "[mnist_net_1/conv0_1/conv_1, mnist_net_1/fc]", ""),
        ("torch_script", "[attn.qkv, 're:attn$']", ""),
        ("torch_script", "[attn]", "fits 2 layers: /attn/MatMul_2 (attn.mix), /attn/MatMul_3 (attn.back)"),
        ("keras", "[net_1/conv_2]", "no parameter or layer of the model (did you mean net_1/conv_1"),
    ],
)
def test_recipe_check_finds_what_names_do_not_mean(name: str, params: str, found: str) -> None:
    recipe = osp.Recipe.load(
        "modifiers:\n- !GMPruningModifier {init_sparsity: 0.0, final_sparsity: 0.5, start_epoch: 0, end_epoch: 2, "
        f"update_frequency: 1, params: {params}}}\n"
    )
    wrong = [one.text for one in check(recipe, model=export(name)) if one.level == WRONG]
    assert len(wrong) == bool(found)
    assert not found or found in wrong[0]


CLASH = r"attn fits 2 layers: /attn/MatMul_2 \(attn\.mix\), /attn/MatMul_3 \(attn\.back\); name one of them"


@pytest.mark.parametrize("option", ["include", "exclude"])
@pytest.mark.parametrize("said", ["attn", "/attn", "attn/"])
def test_a_plain_name_of_two_layers_is_an_error_that_lists_them(option: str, said: str) -> None:
    with pytest.raises(OptionError, match=rf"^{option}=./?{CLASH.replace('attn fits', 'attn/?. fits')}, or all by"):
        pruned(export("torch_script"), **{option: said})


def test_a_plain_name_of_two_layers_in_recipes_and_configurations() -> None:
    with pytest.raises(OptionError, match=rf"^here: {CLASH}, or all by `re:`"):
        by_recipe(export("torch_script"), "attn")
    with pytest.raises(OptionError, match=rf"^no_prune_layer {CLASH}; no_prune_keyword"):
        dense_by_msbench(export("torch_script"), no_prune_layer="attn")


def test_globs_expressions_and_keywords_may_fit_many() -> None:
    own = {"attn.mix", "attn.back"}
    inside = own | {"onnx::MatMul_172", "onnx::MatMul_173"}
    source = export("torch_script")
    assert pruned(source, include="re:^attn$") == own
    assert pruned(source, include="attn*") == inside
    assert pruned(source, include="sections.*") == {"onnx::Conv_167", "onnx::Conv_170"}
    assert by_recipe(source, "re:attn$") == own
    assert dense_by_msbench(source, no_prune_keyword="attn")[0] == inside


def test_the_weights_of_one_node_are_one_layer() -> None:
    """A recurrent layer has two."""
    both = {"onnx::LSTM_191", "onnx::LSTM_192"}
    for said in ("rnn", "/rnn", "rnn/LSTM", "/rnn/LSTM"):
        assert pruned(export("torch_script"), include=said) == both
        assert by_recipe(export("torch_script"), said) == both
    assert pruned(export("torch_dynamo"), include="node_lstm__2") == {"val_67", "val_68"}


def product(*nodes: tuple[str, str]) -> onnx.ModelProto:
    """Matrices one after the other: the name of each node, and of the weight that it reads."""
    random = np.random.default_rng(0)
    stored = {name: random.standard_normal((32, 32)).astype(np.float32) for _, name in nodes}
    made = [make_node("MatMul", [f"x{n}", weight], [f"x{n + 1}"], node) for n, (node, weight) in enumerate(nodes)]
    ends = [make_tensor_value_info(name, TensorProto.FLOAT, ["N", 32]) for name in ("x0", f"x{len(nodes)}")]
    kept = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    return make_model(
        make_graph(made, "net", ends[:1], ends[1:], kept), opset_imports=[make_opsetid("", 17)], ir_version=8
    )


def test_what_is_called_so_comes_before_the_layer_of_that_path() -> None:
    model = product(("net/a", "w0"), ("net/a/MatMul", "w1"), ("net/b/dense", "net/a/MatMul"))
    assert pruned(model, include="net/a") == {"w0"}
    assert pruned(model, include="net/a/MatMul") == {"net/a/MatMul"}
    assert by_recipe(model, "net/a") == {"w0"}
    assert by_recipe(model, "net/a/MatMul") == {"net/a/MatMul"}
    assert pruned(model, include="net/b") == {"net/a/MatMul"}


def test_a_weight_that_several_read_is_one_layer() -> None:
    model = product(("/a/first", "w0"), ("/b/second", "w0"), ("/b/c/third", "w1"))
    assert pruned(model, include="a") == pruned(model, include="b") == {"w0"}
    assert by_recipe(model, "b") == {"w0"}


def test_nodes_of_one_name_are_two_layers_whose_tensors_are_named() -> None:
    model = product(("dense", "w0"), ("dense", "w1"))
    with refusing(OptionError):
        pruned(model, exclude="dense")
    assert pruned(model, exclude="w0") == {"w1"}


def test_the_end_of_a_path_that_fits_two_layers_lists_them() -> None:
    model = product(("/net/left/fc/MatMul", "w0"), ("/right/left/fc/MatMul", "w1"), ("/other/MatMul", "w2"))
    for call in (lambda: pruned(model, include="left.fc"), lambda: by_recipe(model, "left/fc.weight")):
        with refusing(OptionError):
            call()
    with refusing(OptionError):
        pruned(model, include="fc")


def test_an_operator_is_every_layer_of_it() -> None:
    source = export("paddle")
    assert pruned(source, include="MatMul") == {"linear_0.w_0", "linear_1.w_0"}
    assert pruned(source, include=["Conv", "MatMul.0"]) == {"conv2d_0.w_0", "conv2d_1.w_0", "linear_0.w_0"}


@pytest.mark.parametrize(
    ("name", "said", "found"),
    [
        ("torch_script", "sections.1.0", "onnx_Conv_170"),
        ("torch_script", "/attn/qkv", "onnx_MatMul_172"),
        ("torch_script", "stem", "stem.weight"),
        ("tf1", "mnist_net_1/conv0_1/conv_1", "mnist_net_1_conv0_1_conv_1_kernel_read_0"),
        ("keras2", "net/block1_conv", "net_block1_conv_Conv2D_weights_fused_bn"),
    ],
)
def test_a_module_made_of_a_file_knows_its_layers(name: str, said: str, found: str) -> None:
    pytest.importorskip("torch")
    from onnxsparse.train.module_trainee import params_of as params_of_module

    params = [param for param, _, _ in params_of_module(osp.torch.to_module(export(name)))]
    assert [param.name for param in find(params, [said], "here")] == [found]


def test_a_module_made_of_a_file_tells_its_layers_apart() -> None:
    pytest.importorskip("torch")
    from onnxsparse.train.module_trainee import params_of as params_of_module

    params = [param for param, _, _ in params_of_module(osp.torch.to_module(export("torch_script")))]
    with pytest.raises(OptionError, match=rf"^here: {CLASH}"):
        find(params, ["attn"], "here")
