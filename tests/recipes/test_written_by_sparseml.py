"""Recipes as SparseML 1.8 writes them beside its checkpoints, `str(manager)`, and recipes that it can read back."""

from __future__ import annotations

import pytest

from onnxsparse.errors import OptionError, PlanError
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.checking import check
from tests.cases import for_each

WEIGHTS = {"num_bits": 8, "symmetric": True, "strategy": "tensor", "kwargs": {}}
QUANTIZED = """\
version: 1.1.0

__metadata__:

modifiers:
    - !QuantizationModifier
        end_epoch: -1.0
        ignore: ['LayerNorm']
        scheme: {'input_activations': %s, 'weights': %s, 'output_activations': %s, 'target_hardware': %s}
        scheme_overrides: {'Embedding': {'input_activations': %s, 'weights': %s, 'output_activations': None}}
        start_epoch: 2.0
        strict: True
"""


def quantized(nothing: str) -> Recipe:
    return Recipe.load(QUANTIZED % (nothing, WEIGHTS, nothing, nothing, nothing, WEIGHTS))


@for_each("nothing", ["'null'", "'None'", "None", "null", '"null"'])
def test_a_part_of_a_scheme_that_is_not_there_is_a_text(nothing: str) -> None:
    recipe = quantized(nothing)
    (modifier,) = recipe.modifiers
    weights = {"num_bits": 8, "symmetric": True, "strategy": "tensor", "kwargs": {}}
    absent = {"input_activations": None, "weights": weights, "output_activations": None}
    assert vars(modifier)["scheme"] == {**absent, "target_hardware": None}
    assert vars(modifier)["scheme_overrides"] == {"Embedding": absent}
    assert recipe == quantized("null")
    assert Recipe.load(str(recipe)) == recipe
    assert "'null'" not in str(recipe)


def scheme(text: str) -> str:
    return f"modifiers:\n- !QuantizationModifier\n  scheme: {text}\n"


@for_each(
    ("text", "says"),
    [
        ("'null'", "scheme: 'null' is no scheme"),
        ("{weights: some}", "scheme: weights is null or has num_bits"),
        ("{weights: {num_bit: 4}}", "scheme: weights has no 'num_bit' (did you mean num_bits"),
    ],
)
def test_other_texts_in_a_scheme_are_still_refused(text: str, says: str) -> None:
    with pytest.raises(PlanError) as caught:
        Recipe.load(scheme(text))
    assert says in str(caught.value)


def test_what_a_scheme_does_not_know_is_passed_over_and_kept() -> None:
    recipe = Recipe.load(scheme("{weights: {num_bits: 4, group_size: 128}}"))
    assert "{'num_bits': 4, 'group_size': 128}" in str(recipe)


@for_each("text", ["ignore: null", "ignore: []", "ignore: None", "strict: true"])
def test_nothing_is_ignored(text: str) -> None:
    assert Recipe.load(f"modifiers:\n- !QuantizationModifier\n  {text}\n") == Recipe.load(
        "modifiers:\n- !QuantizationModifier\n"
    )


# -- metadata of stages

STAGES = """\
version: 1.1.0

stage_0:
  __metadata__:%s

  stage_0_modifiers:
      - !EpochRangeModifier
          end_epoch: 3.0
          start_epoch: 0.0


stage_1:
  __metadata__:%s

  stage_1_modifiers:
      - !ConstantPruningModifier
          end_epoch: 8.0
          params: __ALL__
          start_epoch: 3.0
          update_frequency: -1
"""
SAID = "\n    task: sorting"


def test_metadata_of_a_stage_that_has_none() -> None:
    recipe = Recipe.load(STAGES % (" None", " None"))
    assert [stage.metadata for stage in recipe.stages] == [None, None]
    assert recipe == Recipe.load(STAGES % ("", ""))
    assert Recipe.load(str(recipe)) == recipe
    assert "__metadata__" not in str(recipe)


@for_each("texts", [(SAID, " None"), (SAID, "")])
def test_metadata_of_one_stage_alone(texts: tuple[str, str]) -> None:
    recipe = Recipe.load(STAGES % texts)
    assert {stage.name: stage.metadata for stage in recipe.stages} == {"stage_0": {"task": "sorting"}, "stage_1": {}}
    assert Recipe.load(str(recipe)) == recipe


def test_metadata_of_a_recipe_without_stages_that_has_none() -> None:
    assert Recipe.load("__metadata__: None\nmodifiers: []\n").metadata is None
    assert Recipe.load("__metadata__: {}\nmodifiers: []\n").metadata == {}


# -- patterns that are none

PATTERNS = """\
modifiers:
    - !GMPruningModifier
        end_epoch: 3.0
        final_sparsity: 0.8
        init_sparsity: 0.05
        params: ['re:*.block.q.weight', 're:head.*']
        start_epoch: 0.0
        update_frequency: 0.5

    - !LayerPruningModifier
        layers: ['re:(']
"""


def test_a_pattern_that_is_none_is_read_and_written() -> None:
    recipe = Recipe.load(PATTERNS)
    assert Recipe.load(str(recipe)) == recipe
    assert "'re:*.block.q.weight'" in str(recipe)


def test_a_pattern_that_is_none_is_found_by_the_check_without_a_model() -> None:
    found = [str(one) for one in check(Recipe.load(PATTERNS)) if one.level == "wrong"]
    first, second = found
    assert first.startswith("wrong: line 2: !GMPruningModifier: params: re:*.block.q.weight is no regular expression: ")
    assert first.endswith("nothing to repeat at position 0; any text is `.*`")
    assert second.startswith("wrong: line 10: !LayerPruningModifier: layers: re:( is no regular expression: missing )")


def test_a_pattern_that_is_none_is_refused_where_it_is_looked_up() -> None:
    modifier = Recipe.load(PATTERNS).modifiers[0]
    with pytest.raises(OptionError, match=r"line 2: .*params: re:\*\.block\.q\.weight is no regular expression"):
        modifier.act().bind([])  # type: ignore[attr-defined]
