"""`finetune --recipe` with a QuantizationModifier: which layers are integers, when they become so, and what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import onnxsparse as osp
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.torch import library as torch_library
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.recipes.flags import recipe_of
from onnxsparse.recipes.plan_by_epochs import by_epochs

pytestmark = pytest.mark.skipif(
    not (ort_library.available() or torch_library.available()), reason="needs an engine that trains"
)

GMP = """
- !EpochRangeModifier {start_epoch: 0, end_epoch: 3}
- !GMPruningModifier {start_epoch: 0, end_epoch: 1, update_frequency: 0.5, init_sparsity: 0.5, final_sparsity: 0.75,
    params: [wide, deep]}
"""
FRAME_ONLY = """
- !EpochRangeModifier {start_epoch: 0, end_epoch: 1}
"""
GROUPS = """
- !SetLearningRateModifier {learning_rate: 0.01, param_groups: [0, 1]}
- !SetLearningRateModifier {learning_rate: 0.1, param_groups: [2]}
"""


def tuned(model: Path, tmp_path: Path, options: str, more: str = GMP, strict: bool = True) -> Any:
    """The result of three epochs, each of a step or two."""
    images = np.random.default_rng(0).standard_normal((48, 1, 8, 8), np.float32)
    recipe = osp.Recipe.load(f"modifiers:{more}- !QuantizationModifier {{{options}}}\n", strict=strict)
    data = {onnx.load(model).graph.input[0].name: images}
    return osp.finetune(model, output=tmp_path / "out.onnx", data=data, recipe=recipe)


def integers(path: Path) -> dict[str, Any]:
    """The stored weights that are integers."""
    kinds = (TensorProto.INT8, TensorProto.UINT8)
    stored = onnx.load(path).graph.initializer
    return {one.name: numpy_helper.to_array(one) for one in stored if one.data_type in kinds and len(one.dims) > 1}


@pytest.fixture(scope="module")
def pruned(digits_cnn: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """What pruning and quantization with the newer options come to."""
    folder = tmp_path_factory.mktemp("quantized")
    options = "start_epoch: 1.5, ignore: [head, SiLU], disable_quantization_observer_epoch: 2"
    return folder / "out.onnx", tuned(digits_cnn, folder, options)


def test_what_is_pruned_is_exactly_the_zero_point(pruned: tuple[Path, Any]) -> None:
    path, result = pruned
    found = integers(path)
    assert set(found) == {"stem.weight", "wide.weight", "deep.weight", "residual.weight"}
    assert min(float((found[name] == 0).mean()) for name in ("wide.weight", "deep.weight")) >= 0.75
    assert osp.verify(path).report.ok
    assert [note for note in result.report.notes if "'SiLU' is no layer and no module type" in note]


def test_what_is_ignored_is_in_float(pruned: tuple[Path, Any]) -> None:
    (head,) = (one for one in onnx.load(pruned[0]).graph.initializer if one.name == "head.weight")
    assert head.data_type == TensorProto.FLOAT


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            "start_epoch: 1, ignore: [hed]",
            r"line 5: !QuantizationModifier: ignore: 'hed' is no layer .*did you mean head",
        ),
        ("start_epoch: 1, submodules: [deap]", r"submodules: 'deap' is no layer"),
        ("start_epoch: 1, scheme_overrides: {Conv1d: default}", r"scheme_overrides: 'Conv1d' is no layer .*Conv2d"),
        (
            "start_epoch: 1, scheme: {weights: {num_bits: 16}}",
            r"line 5: !QuantizationModifier: weights have 2 to 8 bits",
        ),
    ],
)
def test_what_is_refused_before_anything_runs(digits_cnn: Path, tmp_path: Path, options: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        tuned(digits_cnn, tmp_path, options)
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    "modifier",
    [
        "QuantizationModifier {start_epoch: 0, scheme: tensorrt}",
        "SetLearningRateModifier {start_epoch: 0, learning_rate: 0.001}",
    ],
)
def test_a_recipe_that_prunes_nothing_keeps_the_zeros_of_a_sparse_model(
    digits_cnn: Path, tmp_path: Path, modifier: str
) -> None:
    sparse = osp.prune(digits_cnn, target="ampere").model
    assert sparse is not None
    images = np.random.default_rng(0).standard_normal((48, 1, 8, 8), np.float32)
    data = {sparse.graph.input[0].name: images}
    recipe = osp.Recipe.load(f"modifiers:{FRAME_ONLY}- !{modifier}\n")
    result = osp.finetune(sparse, output=tmp_path / "out.onnx", data=data, recipe=recipe)
    proto = onnx.load(tmp_path / "out.onnx")
    for name in ("wide.weight", "residual.weight", "deep.weight", "head.weight"):
        before, after = (
            next(numpy_helper.to_array(one) for one in model.graph.initializer if one.name == name)
            for model in (sparse, proto)
        )
        assert not after[before == 0].any()
    records = [
        {one.key: one.value for one in model.metadata_props if one.key != "onnxsparse.quantization"}
        for model in (sparse, proto)
    ]
    assert records[0] == records[1]
    verified = osp.verify(tmp_path / "out.onnx").report
    assert verified.ok
    assert [row.pattern for row in result.report.rows] == ["dense", "2:4", "2:4", "2:4", "2:4"]
    assert any("the zeros of 4 weights are held" in note for note in result.report.notes)
    assert "!ConstantPruningModifier" in (tmp_path / "out.recipe.yaml").read_text()
    if modifier.startswith("Quantization"):  # what is reported is of the integers
        assert {row.dtype for row in result.report.rows} == {"int8"}
        for one in ("bytes_dense", "bytes_sparse", "zeros"):
            assert getattr(result.report.totals, one) == getattr(verified.totals, one)
        assert result.report.next_step == verified.next_step
        assert "--int8" in result.report.next_step
        assert result.report.verdict == verified.verdict
        assert not any("float32 weights" in note for note in result.report.notes)
        assert any("int8 goes into 3 of 4 pruned layers" in note for note in result.report.notes)


def test_weights_left_in_float_are_named(digits_cnn: Path, tmp_path: Path) -> None:
    result = tuned(digits_cnn, tmp_path, "start_epoch: 0, ignore: [head]", FRAME_ONLY)
    assert "float: the scheme ignores it" in result.report.row("head.weight").reason
    assert not any("left in float" in note for note in result.report.notes)


def test_masks_of_n_of_m_count_numbers(digits_cnn: Path) -> None:
    options = "start_epoch: 0, end_epoch: 1, init_sparsity: 0, final_sparsity: 0.5, update_frequency: 0.5"
    recipe = osp.Recipe.load(f"modifiers:\n- !GMPruningModifier {{{options}, mask_type: '2:4', params: [deep]}}\n")
    (row,) = by_epochs(Model.open(str(digits_cnn)), recipe.modifiers).plan.planned
    assert row.drop == row.weight.tensor.size // 2


def test_rates_of_groups_that_are_not_there(digits_cnn: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"param_groups \[2\] are not there: .*read the recipe with strict=False"):
        tuned(digits_cnn, tmp_path, "start_epoch: 1", GMP + GROUPS)
    lenient = recipe_of({}, osp.Recipe.load(f"modifiers:{GROUPS}", strict=False))
    assert [one.param_groups for one in lenient.modifiers if one.name == "SetLearningRateModifier"] == [(0, 1)]
    assert [note for note in lenient.notes if "it is left out: all parameters of a run are in group 0" in note]
