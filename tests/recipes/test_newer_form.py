"""Recipes without tags: the form of SparseML 1.6 to 1.8 and of llm-compressor, a name and its options by stages."""

from __future__ import annotations

from typing import Any

import pytest

from onnxsparse.errors import PlanError
from onnxsparse.math.quantization import SYMMETRIC_ACTIVATIONS, Grid
from onnxsparse.planning.quantization import LayerScheme
from onnxsparse.recipes import Recipe
from tests.cases import for_each


def stage(name: str, options: str = "") -> str:
    return f"test_stage:\n  run_type: oneshot\n  some_modifiers:\n    {name}:\n" + "".join(
        f"      {line}\n" for line in options.strip("\n").split("\n")
    )


WEIGHTS = "{num_bits: 4, type: int, symmetric: true, strategy: group, group_size: 128, observer: mse}"
GROUPS = f"config_groups: {{group_0: {{targets: [Linear], weights: {WEIGHTS}, input_activations: null}}}}"
FLOATS = "config_groups: {group_0: {targets: [Linear], weights: {num_bits: 8, type: float, strategy: channel}}}"
BLOCKS = "config_groups: {group_0: {targets: [Linear], weights: {num_bits: 8, strategy: block}}}"
FOUR = "config_groups: {a: {weights: {num_bits: 4, symmetric: true, strategy: group, group_size: -1, observer: mse}}}"
WIDE = "config_groups: {group_0: {targets: [Linear], weights: {num_bits: 16}}}"
CACHE = "kv_cache_scheme: {num_bits: 8, type: float}"
SPARSE = "sparsity: 0.5\nsequential_update: false\nmask_structure: '2:4'\ntargets: ['re:model.layers.\\d+$']"
MAPPINGS = "mappings: [[['re:.*q_proj', 're:.*k_proj'], 're:.*layernorm'], [['re:.*fc1'], 're:.*norm']]"
LEVELS = "targets: [a]\ninit_sparsity: 0\nfinal_sparsity: 0.5\nstart: 0\nend: 5"
KNOWN = (
    "AWQModifier", "GPTQModifier", "QuantizationModifier", "SmoothQuantModifier", "SparseGPTModifier",
    "WandaPruningModifier",
)  # fmt: skip
"""Those that are read option by option, and written with a tag."""
NOT_RUN = {
    "QuantizationModifier": [
        f"{FLOATS}\nignore: [lm_head]", "targets: Linear\nscheme: FP8_DYNAMIC\nignore: ['re:.*head']",
        f"targets: [Linear]\nscheme: {{W8A8: [Linear]}}\n{CACHE}", CACHE, BLOCKS, WIDE, "scheme: NVFP4A16",
        "scheme: W4A8", "targets: Linear", f"{GROUPS}\nignore: [lm_head]", "scheme: W4A16", "scheme: {W4A16_ASYM: [a]}",
    ],
    "GPTQModifier": [f"{GROUPS}\nblock_size: 128\ndampening_frac: 0.01\nsequential_update: false",
                     "scheme: W8A8\ntargets: Linear\nactorder: weight"],
    "SmoothQuantModifier": [f"smoothing_strength: 0.8\n{MAPPINGS}\nignore: [a]"],
    "LogarithmicEqualizationModifier": [MAPPINGS],
    "OutputDistillationModifier": ["targets: ['re:layers.\\d+$']\ncomparison: square_head\nstart: 0\norig_scale: 1.0"],
    "AWQModifier": [
        "targets: [Linear]\nscheme: W4A16\nduo_scaling: both\nmappings: [{smooth_layer: a, balance_layers: [b]}]",
    ],
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
    assert ("- !" in str(recipe)) == (name in KNOWN)
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


def quantized(name: str, options: str) -> Any:
    """The modifier, and the scheme that it asks for."""
    (modifier,) = (recipe := Recipe.load(stage(name, options))).driven().modifiers
    assert Recipe.load(str(recipe)) == recipe
    return modifier, modifier.scheme_of()


@for_each(
    "options, target, wanted",
    [
        (FOUR, "Linear", LayerScheme(Grid(4, narrow=True), None)),
        (FOUR.replace("true", "false"), "Linear", LayerScheme(Grid(4, symmetric=False), None)),
        ("scheme: {W8A16: [Linear, Embedding]}", "Embedding", LayerScheme(inputs=None)),
        ("scheme: W8A8", "Linear", LayerScheme(inputs=SYMMETRIC_ACTIVATIONS)),
        ("config_groups: {a: {targets: [x], weights: {num_bits: 8, symmetric: true}}}", "x",
         LayerScheme(inputs=None, per_channel=False)),
        ("config_groups: {a: {targets: [x], weights: {strategy: channel}, input_activations: {symmetric: false}}}", "x",
         LayerScheme()),
    ],
)  # fmt: skip
def test_groups_and_presets_of_whole_numbers_run(options: str, target: str, wanted: LayerScheme) -> None:
    for name in ("QuantizationModifier", "vLLMQuantizationModifier"):
        modifier, scheme = quantized(name, options)
        assert scheme.overrides[target] == wanted
        assert scheme.layers == LayerScheme(None, None)
        assert not scheme.strict
        assert modifier.called.endswith("!QuantizationModifier")


def test_scales_of_every_token_are_those_of_training_and_that_is_said() -> None:
    modifier, _ = quantized("QuantizationModifier", "scheme: W8A8")
    assert "the recipe asks for one for each token" in modifier.act().warning
    modifier, _ = quantized("QuantizationModifier", FOUR)
    assert modifier.act().warning == "observer of weights: it means nothing here"
    assert quantized("QuantizationModifier", "scheme: W8A16")[0].act().warning == ""


@for_each("name", ["QuantizationModifier", "LegacyQuantizationModifier", "LegacyQuantization"])
def test_the_older_options_without_a_tag_are_those_with_one(name: str) -> None:
    options = "ignore: [SiLU], scheme_overrides: {Embedding: {input_activations: null}}"
    lines = options.replace("], s", "]\ns")
    recipe = Recipe.load(stage(name, f"{lines}\nstart: 1\npost_oneshot_calibration: true"))
    tagged = f"- !QuantizationModifier {{start_epoch: 1, {options}}}"
    assert recipe == Recipe.load(f"test_stage:\n  some_modifiers:\n  {tagged}\n")
    assert recipe.notes == (f"the recipe: !{name} has no option post_oneshot_calibration; passed over",)


def test_a_preset_that_nobody_knows_is_refused() -> None:
    with pytest.raises(
        PlanError, match=r"line 5: !QuantizationModifier: scheme: 'W4A61' is no scheme \(did you mean W4A16"
    ):
        Recipe.load(stage("QuantizationModifier", "scheme: W4A61"))
