"""2:4:transposable on models: weights along both axes, edges, groups, plans, masks, training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse import cli
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.torch import library as torch_library
from onnxsparse.patterns.transposable import mn_2d_best, mn_2d_greedy
from tests.cases import for_each

PATTERN = "2:4:transposable"
HAS_TORCH = pytest.mark.skipif(not torch_library.available(), reason="needs torch")
HAS_ORT = pytest.mark.skipif(not ort_library.available(), reason="needs onnxruntime-training")
ENGINES = [pytest.param("ort", marks=HAS_ORT), pytest.param("torch", marks=HAS_TORCH)]


def model_of(nodes: list[Any], stored: dict[str, Any], *outputs: str) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", *outputs)]
    return helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors))


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def stored(model: Any) -> dict[str, Any]:
    return {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}


def one_convolution(*shape: int, group: int = 1) -> onnx.ModelProto:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], group=group)]
    return model_of(nodes, {"w": random(*shape)}, "y")


@for_each("pattern, calculator", [(PATTERN, mn_2d_best), (f"{PATTERN}-greedy", mn_2d_greedy)])
@for_each("shape, group", [((32, 16, 3, 3), 1), ((32, 8, 3, 3), 2), ((34, 18, 1, 1), 1)])
def test_a_convolution_is_chosen_tap_by_tap_and_group_by_group(
    pattern: str, calculator: Any, shape: tuple[int, ...], group: int
) -> None:
    model = one_convolution(*shape, group=group)
    result = osp.prune(model, pattern=pattern, allow="small")
    dense, sparse = stored(model)["w"], stored(result.model)["w"]
    for part in np.split(np.arange(shape[0]), group):
        for tap in np.ndindex(*shape[2:]):
            keep = calculator(dense[(part, slice(None), *tap)], 4, 2)
            assert np.array_equal(sparse[(part, slice(None), *tap)], dense[(part, slice(None), *tap)] * keep)
    row = result.report.row("w")
    blocks = group * (shape[0] // group // 4) * (shape[1] // 4) * int(np.prod(shape[2:]))
    assert row.ragged == dense.size - 16 * blocks
    assert osp.verify(result.model).report.ok
    assert osp.verify(result.model, pattern=PATTERN, allow="small").report.ok


def test_a_weight_that_is_used_along_both_axes_fits() -> None:
    """One product with it and one with its transpose: 2:4 along one axis alone cannot hold in both."""
    nodes = [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("Gemm", ["h", "w"], ["y"], transB=1)]
    model = model_of(nodes, {"w": random(32, 48)}, "y")
    assert "two axes" in osp.prune(model, pattern="2:4").report.row("w").reason
    result = osp.prune(model, pattern=PATTERN)
    assert result.report.row("w").status == "pruned"
    assert osp.verify(result.model).report.ok
    broken = stored(result.model)["w"].copy()
    broken[:3, 5] = 1  # a column of a block, which only one of the two products sums over
    damaged = model_of(nodes, {"w": broken * (np.arange(48) == 5)}, "y")
    row = osp.verify(damaged, pattern=PATTERN).report.row("w")
    assert (row.status, row.violations) == ("violated", 2)  # seen along both uses
    assert "1 groups hold more than 2 non-zeros, first at [0, 5]" in row.reason


def test_blocks_that_a_graph_tears_are_refused() -> None:
    nodes = [
        helper.make_node("Split", ["w", "cut"], ["a", "b"], axis=1),
        helper.make_node("MatMul", ["x", "a"], ["y"]),
        helper.make_node("MatMul", ["x", "b"], ["z"]),
    ]
    for first, status in ((16, "pruned"), (18, "dense")):
        model = model_of(nodes, {"w": random(32, 48), "cut": np.array([first, 48 - first])}, "y", "z")
        row = osp.prune(model, pattern=PATTERN).report.row("w")
        assert row.status == status
        assert status == "pruned" or "torn" in row.reason


def test_verify_looks_at_columns_too() -> None:
    numbers = np.zeros((32, 16), np.float32)
    numbers[:4, 0] = numbers[8:11, 4] = 1
    model = model_of([helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)], {"w": numbers}, "y")
    assert osp.verify(model, pattern="2:4").report.ok
    row = osp.verify(model, pattern=PATTERN).report.row("w")
    assert (row.status, row.violations) == ("violated", 2)
    assert row.places == ((0, 0), (8, 4))


def test_plans_masks_and_folding_are_the_same_zeros(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(one_convolution(32, 16, 3, 3), model)
    wanted = stored(osp.prune(model, pattern=PATTERN).model)["w"]
    osp.plan(model, output=tmp_path / "plan.yaml", pattern=PATTERN)
    assert f"pattern: {PATTERN}" in (tmp_path / "plan.yaml").read_text().replace("'", "")
    planned = osp.prune(model, plan=tmp_path / "plan.yaml", output=tmp_path / "planned.onnx")
    assert np.array_equal(stored(onnx.load(planned.path))["w"], wanted)
    assert osp.verify(tmp_path / "planned.onnx", plan=tmp_path / "plan.yaml").report.ok
    masked = osp.insert_masks(model, pattern=PATTERN).model
    assert osp.verify(masked, pattern=PATTERN).report.ok
    assert np.array_equal(stored(osp.fold_masks(masked).model)["w"], wanted)


def test_it_is_what_the_device_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sparse.onnx"
    onnx.save(one_convolution(32, 16, 3, 3), tmp_path / "model.onnx")
    assert cli.main(["prune", str(tmp_path / "model.onnx"), "-o", str(path), "--pattern", PATTERN]) == 0
    assert cli.main(["verify", str(path), "--target", "ampere:asp"]) == 0
    assert cli.main(["verify", str(path), "--pattern", PATTERN]) == 0
    assert cli.main(["list", "patterns"]) == 0
    assert "N:M:transposable-greedy" in capsys.readouterr().out


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("pattern", [PATTERN, f"{PATTERN}-greedy"])
def test_training_keeps_the_zeros_or_moves_them(pattern: str, engine: str, digits_cnn: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"data": {"x": random(64, 1, 8, 8)}, "pattern": pattern, "engine": engine, "steps": 16}
    asked["init"] = "plain"
    pruned = stored(osp.prune(digits_cnn, pattern=pattern).model)["deep.weight"]
    for regrow in ("none", "gradient"):
        path = tmp_path / f"{regrow}.onnx"
        osp.finetune(digits_cnn, output=path, regrow=regrow, updates=4, **asked)
        assert osp.verify(path).report.ok
        assert osp.verify(path, pattern=PATTERN).report.ok
        tuned = stored(onnx.load(path))["deep.weight"]
        assert not np.array_equal(tuned, pruned)
        assert np.array_equal(tuned != 0, pruned != 0) == (regrow == "none")
        assert 0.5 <= np.mean(tuned == 0) < 0.53


@pytest.mark.parametrize("engine", ENGINES)
def test_a_recipe_names_it(engine: str, digits_cnn: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    result = osp.finetune(
        digits_cnn,
        data={"x": random(32, 1, 8, 8)},
        output=tmp_path / "first.onnx",
        pattern=PATTERN,
        steps=2,
        engine=engine,
    )
    saved = next(tmp_path.glob("first*.yaml"))
    recipe.write_text(saved.read_text())
    again = osp.finetune(
        digits_cnn,
        data={"x": random(32, 1, 8, 8)},
        output=tmp_path / "again.onnx",
        recipe=recipe,
        engine=engine,
    )
    assert PATTERN in recipe.read_text()
    assert [row.pattern for row in again.report.rows] == [row.pattern for row in result.report.rows]
    assert osp.verify(tmp_path / "again.onnx", pattern=PATTERN).report.ok
