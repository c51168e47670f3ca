"""LayerThinningModifier on ONNX models: channels that are zero are held at zero, and are not in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse.engines.inference import Session
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.modifiers import layer_thinning
from onnxsparse.recipes.plan_by_epochs import by_epochs
from tests.engine_marks import ENGINES

SLOW = [
    pytest.param(*one.values, marks=[*one.marks, pytest.mark.slow]) if "ort" in one.values else one for one in ENGINES
]
MAP = {
    "stem.weight,left.weight": [
        "stem.bias", "norm.weight", "norm.running_mean", "left.weight", "left.bias", "deep.weight", "wide.weight",
    ],
    "wide.weight": ["wide.bias", "folded.weight", "folded.running_var", "head.weight"],
}  # fmt: skip
FRAME = """modifiers:
- !EpochRangeModifier {start_epoch: 0.0, end_epoch: 3.0}
- !LearningRateFunctionModifier {start_epoch: 0.0, end_epoch: 3.0, lr_func: linear, init_lr: 0.05, final_lr: 0.01}
"""
PRUNED = """
- !StructuredPruningModifier
    start_epoch: 0.0
    end_epoch: 1.0
    update_frequency: 0.5
    init_sparsity: 0.1
    final_sparsity: 0.5
    params: [stem.weight, left.weight, wide.weight]
    param_groups: [[stem.weight, left.weight]]
    mask_type: filter
"""


def saved(path: Path) -> None:
    """A residual addition, a normalization, a depthwise convolution, and Flatten before the last layer."""
    random, stored = np.random.default_rng(0), []

    def add(name: str, *shape: int, scale: float = 0.3) -> str:
        numbers = random.standard_normal(shape).astype(np.float32) * np.float32(scale)
        stored.append(numpy_helper.from_array(np.abs(numbers) + 1 if name.endswith("var") else numbers, name))
        return name

    def conv(name: str, x: str, *shape: int, **more: Any) -> Any:
        inputs = [x, add(f"{name}.weight", *shape), add(f"{name}.bias", shape[0])]
        return helper.make_node("Conv", inputs, [name], f"/{name}/Conv", pads=[shape[2] // 2] * 4, **more)

    norm = [add(f"norm.{role}", 8, scale=1) for role in ("weight", "bias", "running_mean", "running_var")]
    nodes = [
        conv("stem", "x", 8, 1, 3, 3), helper.make_node("BatchNormalization", ["stem", *norm], ["norm"], "/norm"),
        helper.make_node("Relu", ["norm"], ["act"]), conv("left", "act", 8, 8, 3, 3),
        helper.make_node("Sigmoid", ["left"], ["bent"]), helper.make_node("Add", ["act", "bent"], ["sum"]),
        conv("deep", "sum", 8, 1, 3, 3, group=8), conv("wide", "deep", 6, 8, 1, 1),
        helper.make_node("Relu", ["wide"], ["last"]),
        helper.make_node("AveragePool", ["last"], ["pooled"], kernel_shape=[3, 3], strides=[3, 3]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", add("head.weight", 3, 24), add("head.bias", 3)], ["y"], "/head", transB=1),
    ]  # fmt: skip
    shapes = {"x": ["N", 1, 6, 6], "y": ["N", 3], "sum": ["N", 8, 6, 6], "flat": ["N", 24]}
    x, y, *more = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    graph = helper.make_graph(nodes, "g", [x], [y], stored, value_info=more)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, random = tmp_path_factory.mktemp("thinning"), np.random.default_rng(1)
    saved(path / "model.onnx")
    np.savez(path / "data.npz", x=random.standard_normal((32, 1, 6, 6), np.float32), labels=random.integers(0, 3, 32))
    return path


def thinning(dependents: Any = MAP, more: str = ", update_epochs: [1.0]") -> str:
    return f"- !LayerThinningModifier {{param_group_dependency_map: {json.dumps(dependents)}{more}}}\n"


def tuned(folder: Path, modifiers: str, engine: str, **more: Any) -> Any:
    more = {"loss": "cross-entropy", "batch_size": 8, "overwrite": True, "output": folder / "out.onnx", **more}
    return osp.finetune(
        folder / "model.onnx", data=folder / "data.npz", recipe=FRAME + modifiers, engine=engine, **more
    ).report


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    return {one.name: tuple(one.dims) for one in onnx.load(path).graph.initializer}


def stored(path: Path) -> dict[str, Any]:
    return {one.name: numpy_helper.to_array(one) for one in onnx.load(path).graph.initializer}


def answer(path: Path) -> Any:
    x = np.random.default_rng(2).standard_normal((5, 1, 6, 6), np.float32)
    return Session(onnx.load(path)).run({"x": x})["y"]


SMALL = {
    "stem.weight": (4, 1, 3, 3), "stem.bias": (4,), "norm.weight": (4,), "norm.bias": (4,), "norm.running_mean": (4,),
    "norm.running_var": (4,), "left.weight": (4, 4, 3, 3), "left.bias": (4,), "deep.weight": (4, 1, 3, 3),
    "deep.bias": (4,), "wide.weight": (3, 4, 1, 1), "wide.bias": (3,), "head.weight": (3, 12), "head.bias": (3,),
}  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_the_file_is_smaller_and_computes_the_same(folder: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tuned(folder, PRUNED + thinning(), engine)
    onnx.checker.check_model(folder / "out.onnx", full_check=True)
    assert shapes(folder / "out.onnx") == SMALL
    reasons = {row.name: row.reason for row in report.rows}
    assert reasons["wide.weight"] == "filters 6 -> 3, inputs 8 -> 4"
    assert reasons["deep.weight"] == "no modifier of the recipe prunes it; filters 8 -> 4"
    assert reasons["head.weight"] == "no modifier of the recipe prunes it; inputs 24 -> 12"
    assert report.totals.zeros == 0
    told = " ".join(report.notes)
    assert "4 of 8 channels of stem.weight are taken out of the file" in told
    assert "nothing of the model is called folded.weight, folded.running_var: exporters fold normalizations" in told
    checked = osp.verify(folder / "out.onnx").report
    assert checked.ok
    assert {row.name: row.status for row in checked.rows}["wide.weight"] == "holds"
    assert {row.name: row.shape for row in osp.inspect(folder / "out.onnx").report.rows}["head.weight"] == (3, 12)
    with monkeypatch.context() as patched:
        patched.setattr(layer_thinning, "thin", lambda *_: None)
        tuned(folder, PRUNED + thinning(), engine, output=folder / "masked.onnx")
    masked = stored(folder / "masked.onnx")
    assert masked["stem.weight"].shape == (8, 1, 3, 3)
    gone = (masked["stem.weight"].reshape(8, -1) == 0).all(1)
    for name in ("stem.bias", "norm.weight", "norm.bias", "left.bias", "deep.bias", "deep.weight", "left.weight"):
        assert not masked[name][gone].any()
    assert not masked["left.weight"][:, gone].any()
    assert np.allclose(answer(folder / "masked.onnx"), answer(folder / "out.onnx"), atol=1e-5)


@pytest.mark.parametrize("engine", SLOW)
def test_by_what_is_read(folder: Path, engine: str) -> None:
    """structure_type channel: inputs that nothing needs go with the filters that give them."""
    pruned = PRUNED.replace("filter", "channel").replace(
        "stem.weight, left.weight, wide.weight", "left.weight, wide.weight"
    )
    pruned = pruned.replace("[[stem.weight, left.weight]]", "[[left.weight, wide.weight]]")
    dependents = {"left.weight,wide.weight": ["stem.weight", "left.weight", "norm.bias", "deep.weight"]}
    report = tuned(folder, pruned + thinning(dependents, ", structure_type: channel"), engine)
    assert shapes(folder / "out.onnx") == {
        **SMALL,
        "wide.weight": (6, 4, 1, 1),
        "wide.bias": (6,),
        "head.weight": (3, 24),
    }
    assert {row.name: row.reason for row in report.rows}["wide.weight"] == "inputs 8 -> 4"
    assert osp.verify(folder / "out.onnx").report.ok


@pytest.mark.parametrize("engine", SLOW)
def test_with_numbers_that_are_rounded(folder: Path, engine: str) -> None:
    rounded = "- !QuantizationModifier {start_epoch: 2.0}\n"
    report = tuned(folder, PRUNED + thinning(MAP, "") + rounded, engine)
    found = shapes(folder / "out.onnx")
    assert found["wide.weight"] == (3, 4, 1, 1)
    assert found["wide.weight_scale"] == (3,)
    assert {row.name: row.quantized for row in report.rows}["wide.weight"] == "int8, axis 0"
    onnx.checker.check_model(folder / "out.onnx", full_check=True)
    assert answer(folder / "out.onnx").shape == (5, 3)
    assert osp.verify(folder / "out.onnx").report.ok


@pytest.mark.parametrize("engine", SLOW)
def test_where_a_layer_is_skipped_too(folder: Path, engine: str) -> None:
    tuned(folder, PRUNED + "- !LayerPruningModifier {layers: [/deep/Conv]}\n" + thinning(), engine)
    assert shapes(folder / "out.onnx") == {name: one for name, one in SMALL.items() if "deep" not in name}
    assert osp.verify(folder / "out.onnx").report.ok


@pytest.mark.parametrize("engine", SLOW)
def test_without_zeros_nothing_goes(folder: Path, engine: str) -> None:
    report = tuned(folder, thinning(), engine)
    assert shapes(folder / "out.onnx") == shapes(folder / "model.onnx")
    assert any("no channel is zero in all of the group of wide.weight: nothing is taken out" in n for n in report.notes)


def bound(path: Path, dependents: Any, more: str = "", others: str = "") -> Any:
    recipe = Recipe.load(f"modifiers:\n{others}{thinning(dependents, more)}")
    return by_epochs(Model.open(path), recipe.modifiers)  # type: ignore[arg-type]


WIDE = MAP["wide.weight"]


@pytest.mark.parametrize(
    ("dependents", "why"),
    [
        ({"stem.weight": MAP["stem.weight,left.weight"]}, "left.weight gives the same channels as stem.weight"),
        ({"stem.weight,left.weight": ["norm.weight", "left.weight"]}, "wide.weight is missing among the dependents of"),
        ({"stem.weight,left.weight": ["left.weight", "wide.weight"]}, "norm.weight, of a normalization, is missing"),
        ({"wide.weight": [*WIDE, "stem.weight"]}, "stem.weight does not read the channels of wide.weight"),
        ({"wide.weight": [*WIDE, "left.bias"]}, "left.bias does not read the channels of wide.weight"),
        ({"stem.weight,wide.weight": WIDE}, "wide.weight has other channels than stem.weight"),
        ({"head.weight": []}, "the channels of head.weight cannot be taken out: it is an output of the model"),
        ({"stem.waight": []}, "'stem.waight' is no parameter or layer"),
        ({"stem.bias": []}, "the outputs of stem.bias stay where they are: no layer is known to go by them"),
    ],
)
def test_what_the_graph_does_not_let_go_is_refused_by_name(folder: Path, dependents: Any, why: str) -> None:
    with pytest.raises(OptionError, match=f"LayerThinningModifier: param_group_dependency_map: .*{why}"):
        bound(folder / "model.onnx", dependents)


def test_groups_that_would_be_torn_are_refused(folder: Path) -> None:
    others = (
        "- !GMPruningModifier {start_epoch: 0.0, end_epoch: 1.0, update_frequency: 0.5, init_sparsity: 0.1, "
        "final_sparsity: 0.5, params: [head.weight], mask_type: '2:4'}\n"
    )
    with pytest.raises(OptionError, match=r"'head.weight' is pruned by 2:4, whose groups would be torn"):
        bound(folder / "model.onnx", MAP, others=others)


@pytest.mark.parametrize("engine", SLOW)
def test_a_run_is_resumed_bit_for_bit(folder: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxsparse.train.loop import Run

    class KilledError(Exception):
        pass

    text, count = PRUNED + thinning(), Run._count
    tuned(folder, text, engine, optimizer="adamw")
    whole = stored(folder / "out.onnx")

    def stop(run: Run) -> bool:
        found = count(run)
        if run.step == 5:
            raise KilledError
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Run, "_count", stop)
        with pytest.raises(KilledError):
            tuned(folder, text, engine, optimizer="adamw", checkpoint=folder / engine)
    tuned(folder, text, engine, optimizer="adamw", checkpoint=folder / engine, resume=True)
    again = stored(folder / "out.onnx")
    assert whole.keys() == again.keys()
    assert all(np.array_equal(whole[name], again[name]) for name in whole)
