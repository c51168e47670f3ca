"""Recipes without tags: the form of SparseML 1.6 to 1.8 and of llm-compressor, a name and its options by stages."""

from __future__ import annotations

import pytest

from onnxsparse.errors import PlanError
from onnxsparse.recipes import Recipe
from tests.cases import for_each


def stage(name: str, options: str = "") -> str:
    return f"test_stage:\n  run_type: oneshot\n  some_modifiers:\n    {name}:\n" + "".join(
        f"      {line}\n" for line in options.strip("\n").split("\n")
    )


WEIGHTS = "{num_bits: 4, type: int, symmetric: true, strategy: group, group_size: 128, observer: mse}"
GROUPS = f"config_groups: {{group_0: {{targets: [Linear], weights: {WEIGHTS}, input_activations: null}}}}"
SPARSE = "sparsity: 0.5\nsequential_update: false\nmask_structure: '2:4'\ntargets: ['re:model.layers.\\d+$']"
MAPPINGS = "mappings: [[['re:.*q_proj', 're:.*k_proj'], 're:.*layernorm'], [['re:.*fc1'], 're:.*norm']]"
LEVELS = "targets: [a]\ninit_sparsity: 0\nfinal_sparsity: 0.5\nstart: 0\nend: 5"
NOT_RUN = {
    "QuantizationModifier": [
        f"{GROUPS}\nignore: [lm_head]", "targets: Linear\nscheme: FP8_DYNAMIC\nignore: ['re:.*head']",
        "scheme: W4A16", "targets: [Linear]\nscheme: {W8A8: [Linear]}\nkv_cache_scheme: {num_bits: 8, type: float}",
        "post_oneshot_calibration: true\nscheme_overrides: {Embedding: {input_activations: null}}\nstart: 1",
    ],
    "LegacyQuantizationModifier": ["ignore: [SiLU]\nscheme_overrides: {Linear: {weights: {num_bits: 8}}}",
                                   "post_oneshot_calibration: false"],
    "GPTQModifier": [f"{GROUPS}\nblock_size: 128\ndampening_frac: 0.01\nsequential_update: false",
                     "scheme: W8A8\ntargets: Linear\nactorder: weight"],
    "SmoothQuantModifier": [f"smoothing_strength: 0.8\n{MAPPINGS}\nignore: [a]"],
    "LogarithmicEqualizationModifier": [MAPPINGS],
    "OutputDistillationModifier": ["targets: ['re:layers.\\d+$']\ncomparison: square_head\nstart: 0\norig_scale: 1.0"],
    "AWQModifier": ["targets: [Linear]\nscheme: W4A16\nduo_scaling: both\nmappings: [{smooth_layer: a}]"],
    "AutoRoundModifier": ["targets: [Linear]\nscheme: W4A16\niters: 200"],
    "SparseGPTModifier": [
        SPARSE, f"{SPARSE}\nsparsity_profile: OWL\nowl_m: 5\nowl_lmbda: 0.02\npreserve_sparsity_mask: true",
        "sparsity: [0.5, 0.6]\nblock_size: 128\npercdamp: 0.01\nquantize: false\ntarget_ids: [attention_mask]",
        "sparsity: 0.5\nprunen: 2\nprunem: 4\nquantize: {QuantizationModifier: {ignore: [a]}}",
    ],
    "WandaPruningModifier": [SPARSE, f"{SPARSE}\nsparsity_profile: owl\nowl_m: 5\nowl_lmbda: 0.05"],
    "MagnitudePruningModifier": [
        f"{LEVELS}\nupdate_scheduler: multi_step\nscheduler_args: {{steps: [[1, 0.3], [2, 0.5]]}}",
        f"{LEVELS}\nupdate_scheduler: polynomial",
    ],
}  # fmt: skip


@for_each("name, options", [(name, options) for name, several in NOT_RUN.items() for options in several])
def test_what_nothing_runs_is_read_and_named_as_that(name: str, options: str) -> None:
    recipe = Recipe.load(stage(name, options))
    (left,) = recipe.not_applied
    assert left.tag == name
    assert left.reason
    assert "known" not in left.reason
    with pytest.raises(PlanError, match=f"asks for what nothing runs yet: .*!{name} \\("):
        recipe.driven()
    assert Recipe.load(str(recipe)) == recipe
    assert str(Recipe.load(str(recipe))) == str(recipe)
    assert ("- !" in str(recipe)) == (name in ("SparseGPTModifier", "WandaPruningModifier"))
    assert Recipe.load(stage(name, options), strict=False).driven().modifiers == ()
    assert recipe.notes == ()


def test_the_penalty_of_layers_has_a_tag() -> None:
    text = "modifiers:\n- !ASRegModifier\n  start_epoch: 0.0\n  end_epoch: 8.0\n  layers: ['a']\n  alpha: 0.1\n"
    recipe = Recipe.load(text)
    assert [one.tag for one in recipe.not_applied] == ["ASRegModifier"]
    assert recipe.max_epochs == 8
    assert Recipe.load(str(recipe)) == recipe


MAGNITUDE = "targets: ['re:.*weight']\ninit_sparsity: 0.0\nfinal_sparsity: 0.5\nstart: 1\nend: 4"


def magnitude(more: str = "", tag: str = "MagnitudePruningModifier") -> str:
    lines = "params: ['re:.*weight']\ninit_sparsity: 0.0\nfinal_sparsity: 0.5\nstart_epoch: 1\nend_epoch: 4"
    text = "".join(f"      {line}\n" for line in f"{lines}\nupdate_frequency: -1\n{more}".strip("\n").split("\n"))
    return f"test_stage:\n  some_modifiers:\n  - !{tag}\n{text}"


@for_each(
    "newer, other",
    [
        ("", magnitude()),
        ("update_scheduler: linear", magnitude("inter_func: linear")),
        ("update_scheduler: polynomial_decay\nscheduler_args: {exponent: 3}", magnitude()),
        ("scheduler_args: {exponent: 9}", magnitude()),
        ("mask_structure: 'block_1,4'\nleave_enabled: false", magnitude("mask_type: [1, 4]\nleave_enabled: false")),
        ("apply_globally: true", magnitude(tag="GlobalMagnitudePruningModifier")),
        ("apply_globally: false", magnitude()),
    ],
)
def test_magnitude_pruning_without_an_update_acts_at_every_step(newer: str, other: str) -> None:
    recipe = Recipe.load(stage("MagnitudePruningModifier", f"{MAGNITUDE}\n{newer}"))
    assert recipe == Recipe.load(other)
    assert recipe.driven().modifiers


@for_each(
    "text",
    [
        "stages:\n  a_stage:\n    x_modifiers:\n      ConstantPruningModifier: {targets: __ALL__, start: 0}\n",
        "a_stage:\n  x_modifiers:\n    - ConstantPruningModifier: {targets: __ALL__, start: 0}\n",
        '{"a_stage": {"x_modifiers": {"ConstantPruningModifier": {"targets": "__ALL__", "start": 0.0}}}}\n',
    ],
)
def test_stages(text: str) -> None:
    recipe = Recipe.load(text)
    assert [one.name for one in recipe.stages] == ["a_stage"]
    assert recipe == Recipe.load(
        "a_stage:\n  x_modifiers:\n  - !ConstantPruningModifier {params: __ALL__, start_epoch: 0}"
    )


def test_what_a_modifier_does_not_know_is_passed_over_and_said() -> None:
    recipe = Recipe.load(stage("WandaPruningModifier", f"{SPARSE}\ninit_sparsity: 0.0\nflavour: sour"))
    said = [note.removeprefix("the recipe: ") for note in recipe.notes]
    assert said == [f"!WandaPruningModifier has no option {name}; passed over" for name in ("init_sparsity", "flavour")]


@for_each(
    "name, options, says",
    [
        ("SparseGPTModifier", "sparsty: 0.5", "line 5: !SparseGPTModifier has no option 'sparsty' (did you mean spars"),
        ("GPTQModifier", "dampening_fraq: 1", "has no option 'dampening_fraq' (did you mean dampening_frac"),
        ("SparseGPTModifier", "sparsity: 1.5", "sparsity: it is a number from 0 to 1"),
        ("HolographicModifier", "a: 1", "unknown modifier !HolographicModifier"),
    ],
)
def test_mistakes_are_refused_and_kept_where_that_is_asked_for(name: str, options: str, says: str) -> None:
    with pytest.raises(PlanError) as caught:
        Recipe.load(stage(name, options))
    assert says in str(caught.value)
    (left,) = Recipe.load(stage(name, options), strict=False).not_applied
    assert left.tag == name
    assert left.reason.startswith(("it is not understood: ", "no modifier of that name is known"))
    lenient = Recipe.load(stage(name, options), strict=False)
    assert Recipe.load(str(lenient), strict=False) == lenient
