"""Depthwise convolutions stay dense by default, under every pattern; what was pruned before is what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxsparse as osp

RULES = [
    {"pattern": "unstructured", "sparsity": 0.5},
    {"pattern": "block:2x1", "sparsity": 0.5},
    {"pattern": "filter", "sparsity": 0.5},
    {"pattern": "2:4"},
    {"pattern": "2:4:transposable"},
]


def network(path: Path, transposed: bool = False) -> Path:
    """A depthwise convolution between two others: all are large enough, and neither is the first or the last."""
    op = "ConvTranspose" if transposed else "Conv"
    random = np.random.default_rng(5)
    shapes = {"wide": (48, 16, 3, 3), "deep": (48, 1, 3, 3), "point": (64, 48, 1, 1), "tail": (8, 64, 3, 3)}
    stored = [numpy_helper.from_array(random.standard_normal(s, np.float32), name) for name, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "wide"], ["a"]),
        helper.make_node(op, ["a", "deep"], ["b"], group=48),
        helper.make_node("Conv", ["b", "point"], ["c"]),
        helper.make_node("Conv", ["c", "tail"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 16, 16]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)), path)
    return path


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["pattern"])
def test_it_stays_dense_under_every_pattern_unless_it_is_allowed(
    rule: dict[str, Any], transposed: bool, tmp_path: Path
) -> None:
    model = network(tmp_path / "m.onnx", transposed)
    row = osp.prune(model, **rule).report.row("deep")
    assert (row.status, row.words) == ("dense", ("depthwise",))
    fits = rule["pattern"] in ("unstructured", "filter")
    assert ("--allow depthwise" in row.advice) == fits, row.advice
    allowed = osp.prune(model, allow="depthwise", **rule).report.row("deep")
    assert allowed.status == ("pruned" if fits else "dense")


def test_inspect_says_it_and_a_plan_says_it(tmp_path: Path) -> None:
    model = network(tmp_path / "m.onnx")
    assert osp.inspect(model).report.row("deep").words == ("depthwise",)
    osp.plan(model, output=tmp_path / "plan.yaml", pattern="unstructured", sparsity=0.5)
    assert "depthwise (a depthwise convolution)" in (tmp_path / "plan.yaml").read_text()


def test_amba_keeps_its_own_rule(tmp_path: Path) -> None:
    report = osp.prune(network(tmp_path / "m.onnx"), target="amba", level=50).report
    assert report.row("deep").status == "pruned"


def test_a_plan_of_before_with_depthwise_rows_gives_the_same_bytes(tmp_path: Path) -> None:
    """Written as the versions before wrote it: the entry has a pattern, so the weight is pruned, whatever its kind."""
    model = network(tmp_path / "m.onnx")
    rule: dict[str, Any] = {"pattern": "unstructured", "sparsity": 0.5}
    osp.plan(model, output=tmp_path / "plan.yaml", allow="depthwise", **rule)
    by_plan = osp.prune(model, plan=tmp_path / "plan.yaml", output=tmp_path / "a.onnx")
    osp.prune(model, allow="depthwise", output=tmp_path / "b.onnx", **rule)
    assert by_plan.report.row("deep").status == "pruned"
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


@pytest.mark.parametrize("strict", [False, True])
def test_a_file_pruned_before_still_holds(strict: bool, tmp_path: Path) -> None:
    """By its own record, by its plan, and by its rule, without a word of --allow; and the layer is really looked at."""
    model, rule = network(tmp_path / "m.onnx"), {"pattern": "unstructured", "sparsity": 0.5}
    osp.plan(model, output=tmp_path / "plan.yaml", allow="depthwise", **rule)
    osp.prune(model, allow="depthwise", output=tmp_path / "a.onnx", **rule)
    for how in ({}, {"plan": tmp_path / "plan.yaml"}, rule):
        report = osp.verify(tmp_path / "a.onnx", strict=strict, **how).report
        assert (report.ok, report.row("deep").status) == (True, "holds")
    broken = onnx.load(tmp_path / "a.onnx")
    (weight,) = (one for one in broken.graph.initializer if one.name == "deep")
    weight.CopyFrom(numpy_helper.from_array(np.ones((48, 1, 3, 3), np.float32), "deep"))
    assert osp.verify(broken, **rule).report.row("deep").status == "violated"
    assert osp.verify(network(tmp_path / "dense.onnx"), **rule).report.row("deep").status == "unchecked"


def test_masks_of_the_users_own_are_taken(tmp_path: Path) -> None:
    keep = np.arange(48 * 9).reshape(48, 1, 3, 3) % 2
    assert osp.prune(network(tmp_path / "m.onnx"), masks={"deep": keep}).report.row("deep").zeros == 216


def test_finetune_follows_the_default(tmp_path: Path) -> None:
    from onnxsparse.graph.model import Model
    from onnxsparse.planning.request import planned
    from onnxsparse.recipes.modifiers.pruning import Pruning
    from onnxsparse.recipes.modifiers.training import Training
    from onnxsparse.train.task import sparsity_options

    asked = sparsity_options(Pruning(pattern="unstructured", sparsity="0.5"), None, None, Training())
    plan, _ = planned(Model.open(network(tmp_path / "m.onnx")), None, None, asked)
    assert [row.name for row in plan.planned] == ["wide", "point", "tail"]


def test_recipes_and_configurations_of_other_tools_keep_their_own_rule(tmp_path: Path) -> None:
    from onnxsparse.graph.model import Model
    from onnxsparse.recipes.plan_by_epochs import by_epochs
    from onnxsparse.train.stepped_model import LoopOptions, SteppedModel

    model = network(tmp_path / "m.onnx")
    recipe = osp.Recipe.load(
        "modifiers:\n- !GMPruningModifier\n  start_epoch: 0\n  end_epoch: 1\n  update_frequency: 1\n"
        "  init_sparsity: 0\n  final_sparsity: 0.5\n  params: __ALL_PRUNABLE__\n"
    )
    rows = by_epochs(Model.open(model), recipe.modifiers).plan.planned  # type: ignore[arg-type]
    assert [row.name for row in rows] == ["wide", "deep", "point", "tail"]
    assert "deep" in SteppedModel.of(str(model), LoopOptions()).names().values()
