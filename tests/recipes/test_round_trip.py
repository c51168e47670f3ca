"""The canonical text: what is written comes back, whatever stands in it."""

from __future__ import annotations

import dataclasses
import re
import string
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxsparse import plugins
from onnxsparse.recipes import Recipe, Stage
from onnxsparse.recipes.modifiers.constant import ConstantPruningModifier
from onnxsparse.recipes.modifiers.magnitude import FROM_PARAM, RISES, GMPruningModifier
from onnxsparse.recipes.modifiers.modifier import Modifier, Scheduled
from onnxsparse.recipes.modifiers.parameters import EpochRangeModifier
from onnxsparse.recipes.modifiers.pruning import Pruning
from onnxsparse.recipes.modifiers.rates import LearningRateModifier
from onnxsparse.recipes.modifiers.training import Training
from onnxsparse.recipes.writing import UnknownModifier

KNOWN = [cls for cls in plugins.ours("modifiers").values() if issubclass(cls, Scheduled)]
ODD = ["2:4", "null", "None", "~", "yes", "1e-3", "0x10", "", " ", "a: b", "#", "- a", "'", '"', "\\", "\n", "\t", "é",
       "\x85", "\u2028", "\U0001f600",
       "eval(n)", "&a", "*a", "!x", "%", "@", "[", "{", "?", "<<", "---", "y", ".inf"]  # fmt: skip
NAMES = st.sampled_from(ODD) | st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
LAYERS = st.lists(NAMES.filter(lambda name: name and not name.startswith("re:")), max_size=3)
PARAMS = st.sampled_from(["__ALL__", "__all_prunable__", ["re:.*conv"], ["re:b\\d+[.]w", "x"]]) | LAYERS
SHARE = st.sampled_from([0.5, 0.85, 1e-07, 0.123456789]) | st.floats(0.01, 0.99)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
NOT_ANYTHING = st.dictionaries(NAMES, ANYTHING, max_size=3)
BOTH = st.booleans()
GAMMA: dict[str, dict[str, Any]] = {
    "ExponentialLR": {"gamma": 0.9},
    "StepLR": {"step_size": 2.0, "gamma": 1e-05},
    "MultiStepLR": {"milestones": [2, 5.5], "gamma": 0.1},
    "CosineAnnealingWarmRestarts": {"lr_min": 0, "cycle_epochs": 2.5},
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "start_epoch": st.sampled_from([0, 1, 0.5, 1.75]),
    "end_epoch": st.sampled_from([6, 7.5, 1e6, -1]),
    "update_frequency": st.sampled_from([-1, 0.01, 0.5, 4]),
    "params": PARAMS, "layers": PARAMS, "mask_type": st.sampled_from(["unstructured", "block4", [1, 4], [-1, 1]]),
    "init_sparsity": SHARE | st.sampled_from([0, FROM_PARAM]), "final_sparsity": SHARE,
    "inter_func": st.sampled_from(RISES),
    "compression_sparsity": SHARE, "forward_sparsity": st.just(0.9), "backward_sparsity": st.just(0.5),
    "learning_rate": SHARE, "init_lr": SHARE, "final_lr": SHARE, "weight_decay": SHARE,
    "lr_func": st.sampled_from(["linear", "cosine", "cyclic_linear"]), "lr_class": st.sampled_from(sorted(GAMMA)),
    "trainable": BOTH, "params_strict": BOTH, "leave_enabled": BOTH, "global_sparsity": BOTH, "strict": BOTH,
    "hardness": SHARE, "temperature": SHARE, "teacher": NAMES.filter(bool), "constant_logging": BOTH,
    "distill_output_keys": st.none() | st.lists(NAMES | st.integers(), max_size=3),
    "teacher_input_keys": st.none() | st.lists(NAMES, max_size=3),
    "param_groups": st.none() | st.lists(st.integers(0, 5), max_size=3),
    "val": SHARE | st.lists(SHARE, max_size=3), "init_val": SHARE, "final_val": SHARE,
    "submodules": st.none() | st.lists(NAMES, max_size=3), "tensorrt": BOTH, "exclude_module_types": st.none() | LAYERS,
    "model_fuse_fn_name": st.none() | NAMES, "model_fuse_fn_kwargs": st.none() | NOT_ANYTHING,
    "scheme": st.sampled_from([None, "tensorrt", {"weights": {"num_bits": 8}, "output_activations": None}]),
    "num_grads": st.integers(1, 9), "fisher_block_size": st.integers(1, 9), "grad_sampler_kwargs": NOT_ANYTHING,
    "param_group_dependency_map": st.dictionaries(NAMES, LAYERS, max_size=3),
    "update_epochs": st.lists(SHARE, max_size=3),
    "available_devices": st.none() | LAYERS, "grads_device": NAMES | st.integers(), "freeze_bn_stats_epoch": st.just(4),
    "student_layer_names": st.none() | LAYERS,
}  # fmt: skip
SPECIAL: dict[tuple[str, str], Any] = {
    ("ACDCPruningModifier", "start_epoch"): 0, ("ACDCPruningModifier", "end_epoch"): 8,
    ("ACDCPruningModifier", "update_frequency"): 2, ("StructuredPruningModifier", "mask_type"): "channel",
    ("StructuredPruningModifier", "param_groups"): [["a", "2:4"], []], ("OBSPruningModifier", "mask_type"): "block4",
    ("RigLPruningModifier", "mask_type"): "unstructured", ("TopKASTPruningModifier", "mask_type"): "unstructured",
    ("LearningRateFunctionModifier", "update_frequency"): -1,
    ("LearningRateFunctionModifier", "end_epoch"): 9.5, ("GradualParamModifier", "end_epoch"): 9.5,
    ("RigLPruningModifier", "end_epoch"): 9.5,
    **{(f"{name}QuantizationModifier", "end_epoch"): -1 for name in ("", "Legacy", "Group")},
    **{(f"{one}Modifier", "scheme"): {"W4A16": ["Linear", "re:.*h"]} for one in ("GroupQuantization", "GPTQ", "AWQ")},
    ("SmoothQuantModifier", "mappings"): [[["a", "2:4"], "re:.*b"], ["c", "1e-3"]],
    ("AWQModifier", "mappings"): [{"smooth_layer": "2:4", "balance_layers": ["yes", "re:c"]}],
    ("AWQModifier", "duo_scaling"): "both",
}  # fmt: skip


@st.composite
def scheduled(draw: Any, cls: Any = None) -> Modifier:
    """Any modifier with any options that it takes."""
    cls = cls or draw(st.sampled_from(KNOWN))
    options: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        special = SPECIAL.get((cls.name, field.name))
        if special is not None:
            options[field.name] = special
        elif field.name in VALUES:
            options[field.name] = draw(VALUES[field.name])
    if "lr_class" in options:
        options.update(lr_kwargs=GAMMA[options["lr_class"]])
    return cls(**options)


UNKNOWN = st.builds(UnknownModifier.of, st.text(string.ascii_letters, min_size=30, max_size=30), NOT_ANYTHING)
LISTS = st.lists(scheduled() | st.builds(Pruning, NAMES) | st.builds(Training, seed=st.integers(0, 9)), max_size=5)
METADATA = st.none() | st.dictionaries(NAMES, ANYTHING, max_size=3)
STAGES = st.builds(Stage, NAMES.filter(lambda name: name not in ("", "stages", "__metadata__")), LISTS.map(tuple))


def comes_back(recipe: Recipe, strict: bool = True) -> None:
    text = str(recipe)
    again = Recipe.load(text, strict=strict)
    assert again == recipe
    assert str(again) == text


@settings(max_examples=150, deadline=None)
@given(LISTS, METADATA)
def test_what_is_written_comes_back(modifiers: list[Modifier], metadata: dict[str, Any] | None) -> None:
    comes_back(Recipe(tuple(modifiers), metadata=metadata))


@pytest.mark.parametrize("cls", KNOWN, ids=lambda cls: cls.name)
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_of_every_kind(cls: type, data: Any) -> None:
    comes_back(Recipe((data.draw(scheduled(cls)),)))


@settings(max_examples=50, deadline=None)
@given(st.lists(STAGES, min_size=1, max_size=3, unique_by=lambda stage: stage.name))
def test_stages_come_back(stages: list[Stage]) -> None:
    comes_back(Recipe((), tuple(stages)))


@settings(max_examples=50, deadline=None)
@given(st.lists(UNKNOWN | scheduled(), max_size=3))
def test_what_nobody_knows_comes_back(modifiers: list[Modifier]) -> None:
    comes_back(Recipe(tuple(modifiers)), strict=False)


EXACT = """version: 1.1.0

__metadata__:
  project: digits
  framework_metadata:
    python_version: '3.11.2'

modifiers:
    - !GMPruningModifier
        end_epoch: 40.0
        final_sparsity: 0.5
        global_sparsity: False
        init_sparsity: 0.0
        inter_func: cubic
        leave_enabled: True
        mask_type: '2:4'
        params: ['re:.*weight', '0.bias']
        phased: False
        score_type: magnitude
        start_epoch: 0.0
        update_frequency: 0.01

    - !EpochRangeModifier
        end_epoch: 70.0
        start_epoch: 0.0

    - !ConstantPruningModifier
        end_epoch: -1.0
        params: __ALL__
        start_epoch: -1.0
"""
GMP = GMPruningModifier(
    start_epoch=0, end_epoch=40, update_frequency=0.01, init_sparsity=0, final_sparsity=0.5, mask_type="2:4",
    params=["re:.*weight", "0.bias"],
)  # fmt: skip


def test_the_form_is_this_one() -> None:
    metadata = {"project": "digits", "framework_metadata": {"python_version": "3.11.2"}}
    recipe = Recipe((ConstantPruningModifier(params="__ALL__"), EpochRangeModifier(0, 70), GMP), metadata=metadata)
    assert str(recipe) == EXACT
    assert Recipe.load(EXACT) == recipe


def test_the_form_of_stages_is_this_one() -> None:
    stages = (
        Stage("stage_0", (EpochRangeModifier(0, 3),), {"a": 1}),
        Stage("stage_1", (EpochRangeModifier(3, 4),), {}),
    )
    text = """version: 1.1.0

stage_0:
  __metadata__:
    a: 1

  stage_0_modifiers:
      - !EpochRangeModifier
          end_epoch: 3.0
          start_epoch: 0.0

stage_1:
  __metadata__: {}

  stage_1_modifiers:
      - !EpochRangeModifier
          end_epoch: 4.0
          start_epoch: 3.0
"""
    assert str(Recipe((), stages)) == text
    assert Recipe.load(text) == Recipe((), stages)


def test_levels_by_name_are_written_as_they_are_read() -> None:
    levels = dataclasses.replace(
        GMP, params=[], mask_type="unstructured", final_sparsity={0.5: ["0.weight"], 0.8: ["a"]}
    )
    assert "final_sparsity: {0.5: ['0.weight'], 0.8: ['a']}\n" in str(Recipe((levels,)))
    comes_back(Recipe((levels,)))


def test_other_readers_of_yaml_see_the_same_values() -> None:
    """Nothing in the text means something else elsewhere: 2:4 is a text, 1e-07 a number."""
    rate = LearningRateModifier(start_epoch=0, lr_class="ExponentialLR", lr_kwargs={"gamma": 1e-07}, init_lr=1e-05)
    plain = yaml.safe_load(re.sub("!(?=[A-Z])", "kind: ", str(Recipe((GMP, rate)))).replace("\n        ", "\n      "))
    first, second = plain["modifiers"]
    assert first["mask_type"] == "2:4"
    assert first["leave_enabled"] is True
    assert second["lr_kwargs"] == {"gamma": 1e-07}
    assert second["init_lr"] == 1e-05


def test_our_own_modifiers_stay_in_front_in_their_order() -> None:
    own = (Training(seed=3), Pruning("2:4"))
    assert Recipe((GMP, *own)).modifiers == (*own, GMP)
    assert Recipe((GMP, *own[::-1])).modifiers == (*own[::-1], GMP)
    comes_back(Recipe((GMP, *own)))


def test_a_recipe_of_our_own_alone_is_saved_in_short() -> None:
    recipe = Recipe((Training(seed=3), Pruning("2:4")))
    assert recipe.to_yaml().startswith("modifiers:\n- !training\n  batch: 32\n")
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe
    assert Recipe((GMP,)).to_yaml() == str(Recipe((GMP,)))
