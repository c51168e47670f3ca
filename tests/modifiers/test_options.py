"""The options of the modifiers: what each takes, from Python too, and how it says what it does not take."""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any

import pytest

from onnxsparse import plugins
from onnxsparse.errors import OptionError
from onnxsparse.recipes.modifiers.modifier import REQUIRED, Scheduled
from tests.cases import for_each

KNOWN = {name: cls for name, cls in plugins.ours("modifiers").items() if issubclass(cls, Scheduled)}
TIMES: dict[str, Any] = {"start_epoch": 0, "end_epoch": 5, "update_frequency": 1}
GRADUAL: dict[str, Any] = {**TIMES, "init_sparsity": 0.05, "final_sparsity": 0.8, "params": ["a"]}
LEAST: dict[str, dict[str, Any]] = {
    "EpochRangeModifier": {"start_epoch": 0, "end_epoch": 3},
    "GMPruningModifier": GRADUAL,
    "MagnitudePruningModifier": GRADUAL,
    "GlobalMagnitudePruningModifier": GRADUAL,
    "MovementPruningModifier": GRADUAL,
    "OBSPruningModifier": GRADUAL,
    "MFACPruningModifier": GRADUAL,
    "StructuredPruningModifier": {name: value for name, value in GRADUAL.items() if name != "params"},
    "ConstantPruningModifier": {"params": "__ALL__"},
    "ACDCPruningModifier": {**TIMES, "compression_sparsity": 0.9, "params": ["a"]},
    "RigLPruningModifier": {**TIMES, "final_sparsity": 0.9, "params": ["a"]},
    "TopKASTPruningModifier": {**TIMES, "forward_sparsity": 0.9, "backward_sparsity": 0.5, "params": ["a"]},
    "PowerpropagationModifier": {"start_epoch": 0, "end_epoch": 5, "params": ["a"]},
    "LayerThinningModifier": {"param_group_dependency_map": {"a,b": ["c"]}},
    "LayerPruningModifier": {"layers": ["a"]},
    "SetLearningRateModifier": {"learning_rate": 0.1},
    "LearningRateModifier": {"start_epoch": 0, "lr_class": "ExponentialLR", "lr_kwargs": {"gamma": 0.9}},
    "LearningRateFunctionModifier": {
        "start_epoch": 0, "end_epoch": 5, "lr_func": "linear", "init_lr": 0.1, "final_lr": 0,
    },
    "SetWeightDecayModifier": {"weight_decay": 0},
    "TrainableParamsModifier": {"params": "__ALL__"},
    "SetParamModifier": {"params": ["a"], "val": 1},
    "GradualParamModifier": {**TIMES, "params": ["a"], "init_val": 0, "final_val": 1},
    "SparsificationLoggingModifier": {"start_epoch": 0},
    "DistillationModifier": {},
    "PerLayerDistillationModifier": {},
    "QuantizationModifier": {},
    "LegacyQuantizationModifier": {},
    "GroupQuantizationModifier": {"scheme": "W8A8"},
    "AWQModifier": {},
    "GPTQModifier": {},
    "SmoothQuantModifier": {},
    "SparseGPTModifier": {},
    "WandaPruningModifier": {},
}  # fmt: skip


def made(name: str, **more: Any) -> Any:
    return KNOWN[name](**{**LEAST[name], **more})


def test_every_modifier_is_here() -> None:
    assert set(LEAST) == set(KNOWN)


@for_each("name", KNOWN)
def test_what_has_to_be_given_is_asked_for(name: str) -> None:
    modifier = made(name)
    assert all(getattr(modifier, field.name) is not REQUIRED for field in dataclasses.fields(modifier))
    for option in LEAST[name]:
        default = next(field.default for field in dataclasses.fields(modifier) if field.name == option)
        if default is REQUIRED:
            with pytest.raises(OptionError, match=f"{option}: it has to be given"):
                KNOWN[name](**{key: value for key, value in LEAST[name].items() if key != option})


@for_each("name", KNOWN)
def test_what_is_not_run_says_what_is_missing(name: str) -> None:
    modifier = made(name)
    assert inspect.getdoc(modifier)
    if modifier.missing:
        with pytest.raises(OptionError, match=f"{modifier.tag or name}.*nothing runs it yet: {modifier.missing}"):
            modifier.act()
        assert type(modifier).act is Scheduled.act


@for_each("name", KNOWN)
def test_every_modifier_runs_or_says_why_not(name: str) -> None:
    assert (KNOWN[name].act is Scheduled.act) == bool(KNOWN[name].missing)


def test_numbers_become_what_is_declared() -> None:
    modifier = made("GMPruningModifier", init_sparsity=0, mask_type=[1, 4], update_frequency="1e-1")
    assert modifier == made("GMPruningModifier", init_sparsity=0.0, mask_type=(1, 4), update_frequency=0.1)
    assert isinstance(modifier.init_sparsity, float)
    assert modifier.params == ("a",)


@pytest.mark.parametrize("params", [None, [], ()])
def test_no_params_are_all_that_can_be_pruned(params: object) -> None:
    assert made("GMPruningModifier", params=params).params == ()


def test_a_rate_that_moves_at_every_step_has_no_frequency() -> None:
    assert made("LearningRateFunctionModifier", update_frequency=1) == made("LearningRateFunctionModifier")


@for_each("name", ["QuantizationModifier", "LegacyQuantizationModifier"])
def test_epochs_of_quantization_that_never_come(name: str) -> None:
    modifier = made(name, start_epoch=2, freeze_bn_stats_epoch=-1, disable_quantization_observer_epoch=3)
    later = modifier.advanced(5)
    assert (later.freeze_bn_stats_epoch, later.disable_quantization_observer_epoch) == (-1, 8)


def test_levels_by_name() -> None:
    levels = {0.5: ["a"], "0.8": ["b", "c"]}
    modifier = made("GMPruningModifier", params=[], final_sparsity=levels)
    assert modifier.final_sparsity == {0.5: ("a",), 0.8: ("b", "c")}


@for_each(
    ("name", "wrong", "says"),
    [
        ("GMPruningModifier", {"final_sparsity": 1}, "final_sparsity: it is a number between 0 and 1, not 1"),
        ("GMPruningModifier", {"final_sparsity": 0.0}, "final_sparsity: it is a number between"),
        ("GMPruningModifier", {"final_sparsity": {0.5: ["a"]}}, r"params has to be \[\]"),
        ("GMPruningModifier", {"init_sparsity": "most"}, "init_sparsity: it is a number from 0 to 1 or __FROM_PARAM__"),
        ("GMPruningModifier", {"init_sparsity": -0.1}, "init_sparsity: it is a number from 0 to 1"),
        ("GMPruningModifier", {"inter_func": "quad"}, "inter_func: 'quad' is not known .known: linear, cubic, inv"),
        ("GMPruningModifier", {"inter_func": "cubical"}, "did you mean cubic"),
        ("GMPruningModifier", {"end_epoch": -2}, "end_epoch: it is -1 or a number from 0"),
        ("GMPruningModifier", {"start_epoch": 3, "end_epoch": 2}, "end_epoch: 2.0 lies before the start_epoch of 3.0"),
        ("GMPruningModifier", {"update_frequency": -2}, "update_frequency: it is -1 or a number from 0"),
        ("GMPruningModifier", {"update_frequency": "soon"}, "update_frequency: 'soon' is no number"),
        ("GMPruningModifier", {"params": "conv"}, "params: 'conv' is neither __ALL__ nor __ALL_PRUNABLE__"),
        ("GMPruningModifier", {"mask_type": "filter"}, "filter is for !StructuredPruningModifier"),
        ("GMPruningModifier", {"mask_type": "unstructurd"}, "did you mean unstructured"),
        ("GMPruningModifier", {"mask_type": 124}, "mask_type: 124 is no text or list"),
        ("GMPruningModifier", {"mask_type": "4:4", "final_sparsity": 0.5}, "4:4 keeps all"),
        ("GMPruningModifier", {"mask_type": "2:4"}, "final_sparsity: mask_type 2:4 means 0.5, not 0.8"),
        ("GMPruningModifier", {"mask_type": [4]}, r"a block is \[outputs, inputs\]"),
        ("GMPruningModifier", {"mask_type": [0, 4]}, r"a block is \[outputs, inputs\]"),
        ("GMPruningModifier", {"phased": True}, "!ACDCPruningModifier"),
        ("GMPruningModifier", {"score_type": "movement"}, "!MovementPruningModifier"),
        ("StructuredPruningModifier", {"mask_type": "2:4"}, "mask_type: it is filter or channel here, not 2:4"),
        ("ACDCPruningModifier", {"end_epoch": 5.5}, "end_epoch: phases last whole epochs"),
        ("ACDCPruningModifier", {"compression_sparsity": 1}, "compression_sparsity: it is a number between"),
        ("LearningRateModifier", {"lr_class": "StepsLR"}, "did you mean StepLR"),
        ("LearningRateModifier", {"lr_class": "StepLR"}, "lr_kwargs: StepLR needs step_size"),
        ("LearningRateModifier", {"lr_kwargs": {"gama": 1}}, "ExponentialLR has no 'gama' .did you mean gamma"),
        (
            "LearningRateModifier",
            {"lr_class": "MultiStepLR", "lr_kwargs": {"milestones": [3, 9]}, "end_epoch": 9},
            "the milestone 9 does not lie between",
        ),
        ("LearningRateFunctionModifier", {"init_lr": 2}, "init_lr: it is a number from 0 to 1"),
        ("LearningRateFunctionModifier", {"end_epoch": 0}, "end_epoch: it has to come after"),
        ("SetLearningRateModifier", {"learning_rate": 0}, "learning_rate: it is a number above 0"),
        ("SetWeightDecayModifier", {"weight_decay": float("nan")}, "weight_decay: it is a number from 0"),
        ("SetWeightDecayModifier", {"weight_decay": 1e300}, "weight_decay: 1e.300 is no number that a parameter can"),
        ("SetParamModifier", {"val": float("nan")}, "val: nan is no number that a parameter can have"),
        ("SetParamModifier", {"val": (0, 1e39)}, r"val: 1e\+39 is no number"),
        ("GradualParamModifier", {"final_val": -math.inf}, "final_val: -inf is no number"),
        ("DistillationModifier", {"hardness": 1.5}, "hardness: it is a number from 0 to 1"),
        ("DistillationModifier", {"temperature": 0}, "temperature: it is a number above 0"),
        ("QuantizationModifier", {"end_epoch": 5}, "end_epoch: quantization does not end"),
        ("QuantizationModifier", {"scheme": "tensorrtt"}, "did you mean tensorrt"),
        ("QuantizationModifier", {"start_epoch": 4, "freeze_bn_stats_epoch": 3}, "freeze_bn_stats_epoch: 3.0 lies bef"),
    ],
)  # fmt: skip
def test_wrong_options_are_said_by_name(name: str, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        made(name, **wrong)
    assert "\n" not in str(caught.value)
