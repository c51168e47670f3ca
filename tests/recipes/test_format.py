"""The format of SparseML: what its users have loads as it is, and what is wrong is said with its line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import onnxsparse as osp
from onnxsparse.errors import PlanError
from onnxsparse.recipes import Recipe, compose_staged
from onnxsparse.recipes.checking import check
from onnxsparse.recipes.modifiers.constant import ConstantPruningModifier
from onnxsparse.recipes.modifiers.magnitude import GMPruningModifier, MagnitudePruningModifier
from onnxsparse.recipes.modifiers.parameters import EpochRangeModifier
from onnxsparse.recipes.modifiers.quantization import LegacyQuantizationModifier, QuantizationModifier
from onnxsparse.recipes.modifiers.rates import LearningRateFunctionModifier
from tests.cases import for_each
from tests.messages import refusing
from tests.recipes.sparseml import EXAMPLES, LONG, NEWER, PAGE, SAMPLE, STAGED


def load(text: str, **options) -> Recipe:
    return Recipe.load(text if "\n" in text else text + "\n", **options)


def only(recipe: Recipe, kind: type):
    (found,) = [one for one in recipe.modifiers if type(one) is kind]
    return found


def gmp(more: str = "", **changes: str) -> str:
    options = {"start_epoch": "0", "end_epoch": "5", "update_frequency": "1", "init_sparsity": "0.05"}
    options = {**options, "final_sparsity": "0.5", "params": "__ALL_PRUNABLE__", **changes}
    return "modifiers:\n- !GMPruningModifier\n" + "".join(f"  {k}: {v}\n" for k, v in options.items()) + more


# -- what users have


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_load_as_they_are(name: str) -> None:
    text, options = EXAMPLES[name]
    for form in (text, f"modifiers:\n{text}", f"---\nversion: 0.1.0\nmodifiers:\n{text}---\n# Page\n"):
        (modifier,) = load(form).modifiers
        assert type(modifier).__name__ == name
        assert {option: getattr(modifier, option) for option in options} == options


def test_the_sample_of_the_guide() -> None:
    recipe = load(SAMPLE)
    assert [one.name for one in recipe.modifiers] == ["GMPruningModifier", "EpochRangeModifier", "LearningRateModifier"]
    assert (recipe.min_epochs, recipe.max_epochs) == (0, 70)
    assert only(recipe, GMPruningModifier).params[0] == "sections.0.0.conv1.weight"


def test_everything_at_once() -> None:
    recipe = load(LONG)
    assert recipe.metadata == {"made_by": "hand"}
    pruning, other = only(recipe, GMPruningModifier), only(recipe, MagnitudePruningModifier)
    assert (pruning.start_epoch, pruning.end_epoch, pruning.update_frequency) == (8.0, 28.0, 0.01)
    assert pruning.params == ("encoder.layer.0.weight", "re:encoder.layer.*.attention.weight")
    assert (other.params, other.final_sparsity, other.mask_type) == (("block.2.weight",), 0.5, "2:4")
    assert (other.start_epoch, other.init_sparsity) == (8.0, 0.0)
    assert only(recipe, LearningRateFunctionModifier).init_lr == 8e-5
    assert only(recipe, QuantizationModifier).freeze_bn_stats_epoch == 41.0
    assert recipe.max_epochs == 52
    assert load(str(recipe)) == recipe


def test_stages() -> None:
    recipe = load(STAGED)
    assert [stage.name for stage in recipe.stages] == ["dense_stage", "sparse_stage"]
    assert only(recipe, EpochRangeModifier).end_epoch == 2.0  # the stage's own, not that of the recipe
    assert only(recipe, GMPruningModifier).end_epoch == 6.0
    assert len(recipe.stages[1].modifiers) == 2
    assert load(str(recipe)) == recipe


def test_the_newer_form() -> None:
    recipe = load(NEWER)
    pruning = only(recipe, MagnitudePruningModifier)
    assert (pruning.params, pruning.end_epoch, pruning.update_frequency) == (("re:.*weight",), 3.0, 0.5)
    assert (pruning.inter_func, pruning.mask_type, pruning.final_sparsity) == ("linear", (1, 4), 0.5)
    assert only(recipe, ConstantPruningModifier).start_epoch == 3.0
    variable, *stages = NEWER.splitlines()
    assert load(f"{variable}\nstages:\n" + "".join(f"  {line}\n" for line in stages)) == recipe
    assert load(str(recipe)) == recipe


def test_the_newer_form_as_json(tmp_path: Path) -> None:
    kept = {"keep_stage": {"run_type": "train", "keep_modifiers": {"ConstantPruningModifier": {"targets": ["a\tb"]}}}}
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(kept, indent=2), encoding="utf-8")
    assert Recipe.load(path).modifiers == (ConstantPruningModifier(params=["a\tb"]),)


@pytest.mark.parametrize("name", ["r.yaml", "r.yml", "R.YAML", "r.md", "r.recipe"])
def test_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(PAGE if name.endswith("md") else SAMPLE, encoding="utf-8")
    assert Recipe.load(path) == Recipe.load(str(path)) == load(SAMPLE)


def test_it_is_a_public_name() -> None:
    assert osp.Recipe is Recipe


# -- pages


def test_a_header_of_the_page_is_not_the_recipe() -> None:
    header = "---\ntitle: My recipe\nlayout: post\n---\n"
    assert load(header + PAGE[PAGE.index("---\nversion") :]) == load(SAMPLE)


@pytest.mark.parametrize("fence", ["---", "+++", "--- ", "  ---"])
def test_fences(fence: str) -> None:
    assert load(f"{fence}\n{SAMPLE}{fence}\nwords: [\n") == load(SAMPLE)


def test_dashes_inside_a_value_end_nothing() -> None:
    recipe = load("---\nnote: a --- b\nmodifiers:\n- !ConstantPruningModifier\n  params: ['a---b']\n---\n")
    assert recipe.modifiers == (ConstantPruningModifier(params=["a---b"]),)
    recipe = load(
        "---\nnote: |\n  one\n  ---\n  two\n+++: 1\nmodifiers:\n- !ConstantPruningModifier {params: [a]}\n---\n"
    )
    assert recipe.modifiers == (ConstantPruningModifier(params=["a"]),)


def test_lines_are_those_of_the_page(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(PAGE.replace("init_sparsity: 0.05", "init_sparsity: much"), encoding="utf-8")
    with refusing(PlanError):
        Recipe.load(path)


@pytest.mark.parametrize("text", ["# Words only\n", "---\nmodifiers: []\n", ""])
def test_a_page_without_a_recipe(text: str, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")
    with refusing(PlanError):
        Recipe.load(path)


def test_a_yaml_file_may_begin_with_a_mark_of_its_document(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f"%YAML 1.1\n---\n{SAMPLE}", encoding="utf-8")
    assert Recipe.load(path) == load(SAMPLE) == load(f"---\n{SAMPLE}")
    path.write_text(f"{SAMPLE}\n---\na: 1\n", encoding="utf-8")
    with refusing(PlanError):
        Recipe.load(path)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    for source, says in (
        ("zoo:cv/resnet", "nothing is fetched"),
        (str(tmp_path / "none.yaml"), "cannot read"),
        (7, "not by int"),
    ):
        with pytest.raises(PlanError, match=says):
            Recipe.load(source)


# -- values


@pytest.mark.parametrize("written", ["2:4", "'2:4'", '"2:4"', "tensorrt"])
def test_two_of_four(written: str) -> None:
    (modifier,) = load(gmp(mask_type=written)).modifiers
    assert modifier.n_of_m == (2, 4)
    assert modifier.mask_type == written.strip("'\"")
    assert load(str(load(gmp(mask_type=written)))).modifiers == (modifier,)


@pytest.mark.parametrize(
    ("written", "value"),
    [("0", 0.0), ("'0.25'", 0.25), ("1e-1", 0.1), ("1", 1.0), ("__FROM_PARAM__", "__FROM_PARAM__")],
)
def test_first_levels(written: str, value: object) -> None:
    assert load(gmp(init_sparsity=written)).modifiers[0].init_sparsity == value


@pytest.mark.parametrize("written", ["", "null", "~", "None", "[]"])
def test_nothing_is_all_that_can_be_pruned(written: str) -> None:
    assert load(gmp(params=written)).modifiers[0].params == ()


@pytest.mark.parametrize(("written", "value"), [("0", False), ("1", True), ("True", True), ("eval(bit)", True)])
def test_switches(written: str, value: bool) -> None:
    text = f"bit: 1\nmodifiers:\n- !QuantizationModifier\n  quantize_embeddings: {written}\n"
    assert load(text).modifiers[0].quantize_embeddings is value
    with refusing(PlanError):
        load(text.replace(written, "2"))


@pytest.mark.parametrize(
    ("text", "says", "level"),
    [
        ("n: &n 5\nn: &n 5\n" + gmp(end_epoch="*n"), "`n` is there twice, in line 1 and in line 2", "note"),
        ("n: &n 6\nn: &n 5\n" + gmp(end_epoch="*n"), "`n` is there twice, in line 1 and in line 2", "warning"),
        ("n: 6\nn: 5\n" + gmp(end_epoch="eval(n)"), "`n` is there twice, in line 1 and in line 2", "warning"),
        (gmp("  end_epoch: 5\n", end_epoch="7"), "`end_epoch` is there twice, in line 4 and in line 9", "warning"),
        (
            "---\nmodifiers: []\n" + gmp(end_epoch="5") + "---\n",
            "`modifiers` is there twice, in line 2 and in",
            "warning",
        ),
    ],
)
def test_a_key_that_stands_twice_is_told_and_the_last_counts(text: str, says: str, level: str) -> None:
    """As PyYAML reads it."""
    made = load(text)
    assert made.modifiers[0].end_epoch == 5.0
    (note,) = made.driven().notes
    assert says in note
    (finding,) = (one for one in check(made) if "twice" in one.text)
    assert (finding.level, says in finding.text) == (level, True)
    assert f"line {finding.line}" in finding.text
    assert load(str(made)) == made
    assert load(str(made)).notes == ()


def test_levels_by_name() -> None:
    (modifier,) = load(gmp(params="[]", final_sparsity="{0.5: ['a', 're:b'], 8e-1: [c]}")).modifiers
    assert modifier.final_sparsity == {0.5: ("a", "re:b"), 0.8: ("c",)}


def test_the_older_options_of_quantization() -> None:
    (older,) = load("modifiers:\n- !QuantizationModifier\n  start_epoch: 1\n  submodules: null\n").modifiers
    (newer,) = load("modifiers:\n- !QuantizationModifier\n  start_epoch: 1\n  ignore: [a]\n").modifiers
    assert isinstance(older, LegacyQuantizationModifier)
    assert isinstance(newer, QuantizationModifier)
    assert str(Recipe((older,))).count("!QuantizationModifier") == 1
    assert load(str(Recipe((older, newer)))) == Recipe((older, newer))


def test_anchors_and_merge_keys() -> None:
    base = "base: &base {start_epoch: 0, end_epoch: 4, update_frequency: 1, init_sparsity: 0, params: &names [a]}\n"
    more = "names: *names\nmodifiers:\n- !GMPruningModifier\n  <<: [*base, {final_sparsity: 0.9}]\n  end_epoch: 5\n"
    (modifier,) = load(base + more).modifiers
    assert (modifier.end_epoch, modifier.final_sparsity, modifier.params) == (5.0, 0.9, ("a",))


def test_entries_outside_lists() -> None:
    assert load("!ConstantPruningModifier\nparams: __ALL__\n").modifiers == (ConstantPruningModifier(params="__ALL__"),)
    assert len(load("pruning: !ConstantPruningModifier\n  params: __ALL__\n").modifiers) == 1
    assert len(load(f"keep: !ConstantPruningModifier {{params: __ALL__}}\n{SAMPLE}").modifiers) == 4


# -- variables


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("eval(n)", 7.0),
        ("eval(n + 1)", 8.0),
        ("eval(-n ** 2 % 5 + 2 * (n // 3))", 5.0),
        ("eval(min(n, 3.5, max(1, 2)) + abs(-1) + round(1.6) + int(1.9) + float(1))", 7.0),
        ("eval(2 ** -1 + 1e0 + .5)", 2.0),
        ("1 + eval(n)", 8.0),
        ("eval(n) / eval(m)", 3.5),
        ("'eval(n)'", 7.0),
        ("eval( late )", 8.0),
        ("eval(max(5))", 5.0),
    ],
)
def test_expressions(expression: str, value: float) -> None:
    text = "late: eval(n + one)\none: 1\nn: 7\nm: 2.0\n" + gmp(end_epoch=expression, start_epoch="0")
    assert load(text).modifiers[0].end_epoch == value


@for_each(
    ("expression", "says"),
    [
        ("eval(zz)", "line 5: there is no variable 'zz'"),
        ("eval(epoch)", "line 5: there is no variable 'epoch' (did you mean epochs?)"),
        ("eval(word + 1)", "line 5: the variable word is no number"),
        ("eval(word)", "line 5: end_epoch of !GMPruningModifier: 'some' is no number"),
        ("eval(1 +)", "line 5: something is missing at the end in '1 +'"),
        ("eval(1 2)", "line 5: '2' is too much"),
        ("eval((1)", "line 5: a bracket is not closed"),
        ("eval(epochs.real)", "line 5: '.real' is no part of an expression"),
        ("eval(__import__('os'))", "line 5: \"'os'))\" is no part|line 5: \"'os')\" is no part"),
        ("eval(open(1))", "line 5: there is no function 'open'"),
        ("eval(1 / 0)", "line 5: 1 / 0 has no value: division by zero"),
        ("eval(9 ** 9 ** 9)", "has no value: it is too large"),
        ("eval((-1) ** 0.5)", "has no value: it is no real number"),
        ("eval(" + "(" * 200 + ")", "line 5: a bracket is not closed"),
        ("eval(" + "(" * 90 + "1" + ")" * 91, "nested too deeply"),
        ("eval(epochs > 1)", "is no part of an expression"),
        ("eval(round(1, 2, 3))", "has no value"),
    ],
)
def test_wrong_expressions(expression: str, says: str) -> None:
    text = "epochs: 5\nword: some\n" + gmp(end_epoch=expression).replace("  start_epoch: 0\n", "")
    with pytest.raises(PlanError) as caught:
        load(text)
    assert any(one in str(caught.value) for one in says.split("|"))
    assert "\n" not in str(caught.value)


def test_variables_that_lean_on_themselves() -> None:
    with refusing(PlanError):
        load("a: eval(b)\nb: eval(a)\n" + gmp(end_epoch="eval(a)"))
    chain = "".join(f"v{n + 1}: eval(v{n})\n" for n in range(90))
    with refusing(PlanError):
        load("v0: 1\n" + chain + gmp(end_epoch="eval(v90)"))


def test_variables_that_would_fill_a_disk() -> None:
    lines = ["a0: [x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: [{', '.join([f'eval(a{n - 1})'] * 8)}]" for n in range(1, 12)]
    with refusing(PlanError):
        load("\n".join(lines) + "\n" + gmp(params="eval(a11)"))


@pytest.mark.parametrize(
    "variables", [{"n": 9, "names": ["b"]}, '{"n": 9, "names": ["b"]}', "n=9,names=[b]", "n: 9 , names = ['b']"]
)
def test_values_from_outside(variables: object) -> None:
    text = "n: &n 5\nnames: [a]\n" + gmp(end_epoch="eval(n)", start_epoch="*n", params="eval(names)")
    assert load(text).modifiers[0].end_epoch == 5.0
    (modifier,) = load(text, variables=variables).modifiers
    assert (modifier.end_epoch, modifier.start_epoch, modifier.params) == (9.0, 9.0, ("b",))


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_numbers_of_numpy_from_outside(kind: type) -> None:
    assert load("n: 5\n" + gmp(end_epoch="eval(n)"), variables={"n": kind(9)}).modifiers[0].end_epoch == 9.0


def test_a_variable_that_only_comes_from_outside() -> None:
    text = gmp(end_epoch="eval(late + 1)")
    assert load(text, variables="late=3").modifiers[0].end_epoch == 4.0
    with refusing(PlanError):
        load(text)


def test_a_value_from_outside_counts_in_every_stage() -> None:
    recipe = load(STAGED, variables={"epochs": 3})
    assert (only(recipe, EpochRangeModifier).end_epoch, only(recipe, GMPruningModifier).end_epoch) == (3.0, 5.0)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"m": 1}, "the recipe has no variable 'm'"),
        ("epoch=3", "no variable 'epoch' .did you mean epochs"),
        ("epochs", "name=value"),
        ("{epochs: 3", "no JSON"),
        ("ep!=3", "name=value"),
        ({"epochs": object()}, "of type object"),
        (3, "variables are a mapping"),
        ({"epochs": 10**5000}, "the variable epochs is a number of too many digits"),
        ({"epochs": ["\ud800"]}, "the variable epochs cannot be text: '.ud800' is no letter"),
        ("epochs=\udcff", "the variables cannot be text"),
    ],
)
def test_wrong_values_from_outside(variables: object, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        load(STAGED, variables=variables)


# -- what is wrong


@for_each(
    ("text", "says"),
    [
        ("modifiers:\n- !GMPrunningModifier\n  params: []\n", "line 2: unknown modifier !GMPrunningModifier (did you"),
        (
            "modifiers:\n- !pytorch.GMPruningModifier\n",
            "line 2: unknown modifier !pytorch.GMPruningModifier (did you mean",
        ),
        (gmp("  foo: 1\n"), "line 9: !GMPruningModifier has no option 'foo'"),
        (gmp("  mask_typ: block4\n"), "line 9: !GMPruningModifier has no option 'mask_typ' (did you mean mask_type"),
        (
            gmp("  global_sparsity: true\n").replace("GMP", "MovementP"),
            "line 9: !MovementPruningModifier takes no global_sparsity: it prunes layer by layer",
        ),
        (gmp(end_epoch="-3"), "line 4: !GMPruningModifier: end_epoch: it is -1 or a number from 0"),
        (gmp(start_epoch="6"), "line 4: !GMPruningModifier: end_epoch: 5.0 lies before the start_epoch of 6.0"),
        (gmp(final_sparsity="1.0"), "line 7: !GMPruningModifier: final_sparsity: it is a number between 0 and 1"),
        (gmp(final_sparsity="much"), "line 7: final_sparsity of !GMPruningModifier: 'much' is no number"),
        (gmp(params="foo"), "line 8: !GMPruningModifier: params: 'foo' is neither"),
        (gmp("  mask_type: 124\n"), "line 9: !GMPruningModifier: mask_type: '124' is not known"),
        ("modifiers:\n- !ConstantPruningModifier\n", "line 2: !ConstantPruningModifier: params: it has to be given"),
        (
            "other:\n- !ConstantPruningModifier\n  params: []\nmodifiers: []\n",
            "line 2: !ConstantPruningModifier stands under `other`; modifiers stand in a list with `modifiers`",
        ),
        ("a: 1\nb: [2]\n", "line 1: no modifiers are found; such a list has `modifiers` in its name"),
        ("a_modifiers: {Foo: {}}\n", "line 1: unknown modifier !Foo"),
        ("a: {b_modifiers: []}\nstages: {a: {b_modifiers: []}}\n", "line 2: `a` is there twice"),
        ("__metadata__: 5\nmodifiers: []\n", "line 1: the metadata of a recipe are names with values"),
        ("a: {__metadata__: {}, x_modifiers: []}\nb: {x_modifiers: []}\n", "line 1: either all stages have metadata"),
        (gmp(params="[!GMPruningModifier {}]"), "line 8: a value has no tag such as !GMPruningModifier"),
    ],
)
def test_errors_have_their_line_and_the_nearest_name(text: str, says: str) -> None:
    with pytest.raises(PlanError) as caught:
        load(text)
    assert says in str(caught.value)


@for_each(
    ("older", "newer", "options"),
    [
        ("GradualKSModifier", "GMPruningModifier", gmp("  log_types: __ALL__\n").partition("\n  ")[2]),
        ("ConstantKSModifier", "ConstantPruningModifier", "params: __ALL__\n  start_epoch: 1\n"),
    ],
)
def test_names_of_old_are_those_of_today(older: str, newer: str, options: str) -> None:
    recipe = load(f"modifiers:\n- !{older}\n  {options}")
    assert recipe == load(f"modifiers:\n- !{newer}\n  {options}")
    assert f"- !{newer}\n" in str(recipe)
    with pytest.raises(PlanError, match=f"line 2: !{older} has no option 'layer'"):
        load(f"modifiers:\n- !{older} {{layer: a}}\n")


def test_what_nobody_knows_is_kept_where_that_is_asked_for() -> None:
    holo = "    - !HoloPruningModifier\n        start_epoch: 1\n        shape: 2:4\n"
    text = f"{SAMPLE}\n{holo}    - !ASRegModifier\n"
    recipe = load(text, strict=False)
    assert {one.tag: one.reason for one in recipe.not_applied} == {
        "HoloPruningModifier": "no modifier of that name is known",
        "ASRegModifier": "a penalty on what layers give",
    }
    assert "- !HoloPruningModifier\n        shape: '2:4'\n        start_epoch: 1\n" in str(recipe)
    driven = recipe.driven()
    assert len(driven.modifiers) == 3
    assert [note.split(":")[0] for note in driven.notes] == ["not applied"] * 2
    assert driven.not_applied == ()


def test_what_nothing_runs_is_refused_by_name() -> None:
    recipe = load(f"{SAMPLE}\n    - !ASRegModifier\n    - !WandaPruningModifier {{sparsity: 0.5}}\n")
    with refusing(PlanError):
        recipe.driven()
    assert load(SAMPLE).driven() == load(SAMPLE)


# -- metadata, order, epochs, identity


def test_metadata_from_outside() -> None:
    recipe = Recipe.load(LONG, metadata={"level": "-"})
    assert recipe.metadata is not None
    assert recipe.metadata["level"] == "-"
    assert set(recipe.metadata["framework_metadata"]) == {"python_version", "onnxsparse_version"}
    assert recipe.notes == ("the metadata of the recipe was replaced",)
    assert load(str(recipe)) == recipe
    staged = Recipe.load(STAGED, metadata={"a": [1]})
    assert staged.notes == ()
    assert all(stage.metadata == {**recipe.metadata, "a": (1,)} for stage in staged.stages) is False
    assert load(str(staged)) == staged


def test_metadata_of_any_kind_are_written_and_read_back() -> None:
    recipe = Recipe.load(LONG, metadata={"path": Path("a"), 1: {"b": np.float64(0.5), "c": [None, {"d"}]}})
    assert recipe.metadata is not None
    assert {**recipe.metadata, "framework_metadata": 0} == {
        "path": "a",
        "1": {"b": 0.5, "c": (None, "{'d'}")},
        "framework_metadata": 0,
    }
    assert load(str(recipe)) == recipe
    with refusing(PlanError):
        Recipe.load(LONG, metadata=[1])  # type: ignore[arg-type]


def test_the_order_in_which_they_act() -> None:
    recipe = load(
        """
modifiers:
- !ConstantPruningModifier {params: __ALL__}
- !SetLearningRateModifier {learning_rate: 0.1, start_epoch: 0}
- !EpochRangeModifier {start_epoch: 0, end_epoch: 3}
"""
        + gmp().replace("modifiers:", "")
    )
    found = [one.name.replace("Modifier", "") for one in recipe.modifiers]
    assert found == ["EpochRange", "GMPruning", "ConstantPruning", "SetLearningRate"]


def test_epochs() -> None:
    assert load("modifiers:\n- !ConstantPruningModifier {params: __ALL__}\n").max_epochs == -1
    assert load("modifiers:\n- !EpochRangeModifier {start_epoch: 1.2, end_epoch: 4.3}\n").max_epochs == 5
    assert load("modifiers:\n- !EpochRangeModifier {start_epoch: 1.2, end_epoch: 4.3}\n").min_epochs == 1
    assert load("modifiers:\n- !SetLearningRateModifier {learning_rate: 1, start_epoch: 6.5}\n").max_epochs == 7


# -- two recipes in stages


def test_two_recipes_become_stages() -> None:
    base, additional = load(SAMPLE), load(gmp())
    recipe = compose_staged(base, additional)
    assert [stage.name for stage in recipe.stages] == ["stage_0", "stage_1"]
    assert {one.end_epoch for one in recipe.stages[0].modifiers} == {40.0, 70.0}
    (pruning,) = recipe.stages[1].modifiers
    assert (pruning.start_epoch, pruning.end_epoch) == (70.0, 75.0)
    assert recipe.max_epochs == 75
    assert load(str(recipe)) == recipe
    again = compose_staged(recipe, gmp())
    assert [stage.name for stage in again.stages] == ["stage_0", "stage_1", "stage_3"]
    assert again.max_epochs == 80
    before = compose_staged(gmp(), load(STAGED))
    assert [stage.name for stage in before.stages] == ["pre_dense_stage", "dense_stage", "sparse_stage"]


def test_stages_at_their_own_epochs() -> None:
    recipe = compose_staged(load(SAMPLE), load(gmp()), keep_original_epochs=True)
    assert recipe.max_epochs == 70
    assert -1.0 in {one.end_epoch for stage in recipe.stages for one in stage.modifiers}


def test_whatever_names_an_epoch_moves() -> None:
    rates = "- !LearningRateModifier {start_epoch: 0, lr_class: MultiStepLR, lr_kwargs: {milestones: [2, 3]}}\n"
    quantized = "- !QuantizationModifier {start_epoch: 1, freeze_bn_stats_epoch: 2}\n"
    thin = "- !LayerThinningModifier {param_group_dependency_map: {a: [b]}, update_epochs: [1, 2]}\n"
    recipe = compose_staged(SAMPLE, "modifiers:\n" + rates + quantized + thin)
    found = {one.name: one for one in recipe.modifiers if one.start_epoch >= 70}
    assert found["LearningRateModifier"].milestones == (72.0, 73.0)
    assert found["QuantizationModifier"].freeze_bn_stats_epoch == 72.0
    assert found["LayerThinningModifier"].update_epochs == (71.0, 72.0)


def test_no_two_stages_of_one_name() -> None:
    with refusing(PlanError):
        compose_staged(load(STAGED), load(STAGED))


def test_saving(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    load(LONG).save(path)
    assert Recipe.load(path) == load(LONG)
    with refusing(osp.OnnxSparseError):
        load(SAMPLE).save(path)


@pytest.mark.parametrize("indent", ["\t", "  \t"])
def test_a_tab_is_called_a_tab(indent: str) -> None:
    with refusing(PlanError):
        Recipe.load(f"modifiers:\n{indent}- !EpochRangeModifier\n{indent}    start_epoch: 0\n")


def test_stages_follow_one_another_by_the_latest_end_that_they_have() -> None:
    """What never ends counts for its stage only where nothing else is in it, as in SparseML."""
    text = """
first:
    first_modifiers:
        - !EpochRangeModifier {start_epoch: 0, end_epoch: 3}
        - !SetLearningRateModifier {start_epoch: 0, learning_rate: 0.1}
second:
    second_modifiers:
        - !EpochRangeModifier {start_epoch: 3, end_epoch: 5}
"""
    assert [one.end_epoch for one in load(text).modifiers] == [3.0, -1.0, 5.0]
    endless = text.replace("        - !EpochRangeModifier {start_epoch: 0, end_epoch: 3}\n", "")
    assert [one.end_epoch for one in load(endless).modifiers] == [5.0, -1.0]
