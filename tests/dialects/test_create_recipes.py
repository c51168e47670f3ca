"""Recipes that are created: their texts, RecipeVariables, and the command and function for an ONNX model. No torch."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import onnxsparse as osp
from onnxsparse import create
from onnxsparse.cli import main
from onnxsparse.create.schemas import RecipeVariables
from onnxsparse.dialects.create.recipe_text import WORDS, Wanted, method_of, text_of
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.errors import OptionError, OutputError, PlanError
from onnxsparse.recipes import Recipe
from tests.dialects.nets import batch, onnx_model


def text(pruning: Any = True, quantization: bool = True, steps: float | None = 4, **given: Any) -> str:
    variables = RecipeVariables(**{name: value for name, value in given.items() if name != "distillation"})
    method = method_of(pruning, quantization)
    return text_of(
        Wanted(method, quantization, "linear", given.get("distillation", False), variables, steps_per_epoch=steps)
    )


def recipe(*words: Any, **given: Any) -> dict[str, Any]:
    """Its modifiers by name."""
    return {one.name: one for one in Recipe.load(text(*words, **given)).modifiers}


# -- the text


def test_every_word_gives_a_recipe_of_the_epochs_asked_for() -> None:
    targets, lengths = (None, "vnni", "tensorrt"), (3, 20)
    for word, quantized, target, epochs in itertools.product(WORDS, (True, False), targets, lengths):
        made = Recipe.load(text(word, quantized, target=target, num_epochs=epochs, distillation=quantized))
        assert made.max_epochs == epochs
        assert all(one.end_epoch <= epochs for one in made.modifiers)


def test_the_time_is_divided_as_in_sparseml() -> None:
    found = yaml.safe_load(text().partition("training_modifiers")[0])
    assert found == {
        "lr_func": "linear", "init_lr": 1e-3, "final_lr": 1e-7, "num_epochs": 20.0, "num_qat_epochs": 5.0,
        "num_qat_finetuning_epochs": 2.5, "quantization_submodules": None, "num_pruning_active_epochs": 7.5,
        "num_pruning_finetuning_epochs": 7.5, "pruning_start_epoch": 0.0, "pruning_init_sparsity": 0.05,
        "pruning_final_sparsity": 0.8, "pruning_update_frequency": 0.375, "mask_type": "unstructured",
        "global_sparsity": True,
        "_num_pruning_epochs": "eval(num_pruning_active_epochs + num_pruning_finetuning_epochs)",
    }  # fmt: skip
    rounding = recipe()["LegacyQuantizationModifier"]
    assert (rounding.start_epoch, rounding.disable_quantization_observer_epoch) == (15.0, 17.5)
    assert recipe("transfer")["LegacyQuantizationModifier"].freeze_bn_stats_epoch == 2.5
    assert recipe(num_epochs=2)["LegacyQuantizationModifier"].start_epoch == 1.0


def test_what_sparseml_ignored_counts() -> None:
    found = recipe(sparsity=0.95)["GlobalMagnitudePruningModifier"]
    assert (found.init_sparsity, found.final_sparsity, found.update_frequency) == (0.05, 0.95, 0.375)
    assert recipe(sparsity=0.03)["GlobalMagnitudePruningModifier"].init_sparsity == 0.03
    assert recipe("acdc", sparsity=0.9)["ACDCPruningModifier"].compression_sparsity == 0.9
    assert "MagnitudePruningModifier" in recipe(global_sparsity=False)


def test_n_of_m_is_there_at_once_and_survives_yaml() -> None:
    found = recipe(target="tensorrt")["MagnitudePruningModifier"]
    assert (found.mask_type, found.init_sparsity, found.final_sparsity) == ("2:4", 0.5, 0.5)
    assert yaml.safe_load(text(target="tensorrt").partition("training_modifiers")[0])["mask_type"] == "2:4"
    assert recipe(mask_type="1:4", sparsity=0.75)["MagnitudePruningModifier"].final_sparsity == 0.75
    assert recipe(target="vnni")["GlobalMagnitudePruningModifier"].mask_type == "block4"
    assert recipe(target="tensorrt")["LegacyQuantizationModifier"].tensorrt
    assert not recipe(target="vnni")["LegacyQuantizationModifier"].tensorrt


@pytest.mark.parametrize("epochs", [3, 4, 11, 20, 55, 100])
def test_phases_of_acdc_last_whole_epochs(epochs: int) -> None:
    for quantized in (True, False):
        found = recipe("acdc", quantized, num_epochs=epochs)["ACDCPruningModifier"]
        assert found.end_epoch.is_integer()
        assert found.update_frequency.is_integer()
        assert 0 < found.end_epoch <= epochs / 2 + 1


@pytest.mark.parametrize("steps", [1, 4, 100, 1000.5])
@pytest.mark.parametrize("word", ["mfac", "obs"])
def test_gradients_are_there_when_they_are_asked_for(word: str, steps: float) -> None:
    (found,) = (one for name, one in recipe(word, steps=steps).items() if "Pruning" in name)
    assert found.num_grads >= 1
    assert found.start_epoch * steps >= found.num_grads - 1e-6
    assert found.update_frequency * steps >= found.num_grads - 1e-6
    assert found.start_epoch + found.update_frequency <= found.end_epoch
    assert found.num_grads <= {"mfac": 64, "obs": 1024}[word]


@pytest.mark.parametrize("word", ["mfac", "obs"])
def test_few_steps_are_enough_for_a_recipe_by_gradients(word: str) -> None:
    for epochs, steps in ((0.5, 2), (1, 1), (3, 1)):
        (found,) = (one for name, one in recipe(word, steps=steps, num_epochs=epochs).items() if "Pruning" in name)
        assert found.start_epoch <= found.end_epoch


def test_movement_turns_its_default_off() -> None:
    assert recipe("movement")["MovementPruningModifier"].final_sparsity == 0.8
    with pytest.raises(OptionError, match="layer by layer"):
        text("movement", global_sparsity=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"target": "tensorrt", "mask_type": "unstructured"}, "target tensorrt demands mask_type 2:4"),
        ({"target": "vnni", "mask_type": "2:4"}, "target vnni demands mask_type block4"),
        ({"target": "tensorrt", "sparsity": 0.8}, "contradicts 2:4, which is 0.5"),
        ({"target": "tensorrt", "global_sparsity": True}, "the same in every layer"),
    ],
)
def test_a_contradiction_is_an_error(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        text(**given)
    text("constant", **given)  # where nothing is pruned nothing contradicts


# -- the variables


def test_the_variables_have_the_names_defaults_and_texts_of_the_schema() -> None:
    known = {
        "num_epochs": 20.0, "init_lr": 1e-3, "final_lr": 1e-7, "target": None, "sparsity": 0.8,
        "mask_type": "unstructured", "global_sparsity": True, "hardness": 0.5, "temperature": 2.0,
    }  # fmt: skip
    assert RecipeVariables().dict() == known
    assert create.RecipeVariables is create.schemas.RecipeVariables is RecipeVariables
    properties = RecipeVariables.schema()["properties"]
    assert {name: one["default"] for name, one in properties.items()} == known
    assert all(len(one["description"]) > 20 for one in properties.values())


def test_values_are_made_what_their_fields_declare() -> None:
    given = RecipeVariables(num_epochs="10", sparsity="0.9", global_sparsity="false", target="None", mask_type="2:4")
    assert (given.num_epochs, given.sparsity, given.global_sparsity, given.target) == (10.0, 0.9, False, None)
    given.hardness = "0.7"  # type: ignore[assignment]
    assert given == RecipeVariables.parse_obj({**given.dict()})
    assert given.fields_set == {"num_epochs", "sparsity", "global_sparsity", "target", "mask_type", "hardness"}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("num_epochs", "many", "num_epochs: 'many' is no number"), ("num_epochs", 0, "above 0|between 0"),
        ("sparsity", 1.0, "between 0 and 1, not 1"), ("init_lr", -1, "from 0 to 1"), ("temperature", 0, "above 0"),
        ("target", "gpu", "target 'gpu' is not known"), ("mask_type", "blok4", "did you mean block4"),
        ("target", "ampere:aps", "no profile"), ("global_sparsity", "perhaps", "true or false"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named(name: str, value: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said) as error:
        RecipeVariables(**{name: value})
    assert "\n" not in str(error.value)


def test_unknown_variables_are_ignored_and_said_once() -> None:
    with pytest.warns(UserWarning, match="sparsty, epochs is ignored.*did you mean sparsity") as said:
        assert RecipeVariables(sparsty=0.9, epochs=3) == RecipeVariables()
    assert len(said) == 1
    with pytest.raises(AttributeError, match="sparsity"):
        RecipeVariables().sparsty = 0.9  # type: ignore[attr-defined]


# -- for an ONNX model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    path.write_bytes(onnx_model().SerializeToString())
    return path


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (None, {"point.weight", "wide.weight", "head.weight"}),
        ("vnni", {"point.weight", "wide.weight", "head.weight"}),
        ("ampere:asp", {"point.weight", "wide.weight", "head.weight"}),
        ("tensorrt", {"point.weight", "wide.weight", "head.weight"}),
    ],
)
def test_layers_are_those_that_the_target_can_use(model: Path, target: str | None, names: set[str]) -> None:
    made = osp.create_recipe(model, target=target)
    (pruning,) = (one for one in made.modifiers if "Pruning" in one.name)
    assert set(pruning.params) == names


def test_a_target_of_levels_gives_each_layer_its_own(model: Path) -> None:
    (pruning,) = (one for one in osp.create_recipe(model, target="amba", sparsity=0.7).modifiers if "Prun" in one.name)
    plan = osp.plan(model, target="amba", level=70).report
    wanted = {row.name: row.dropped / row.size for row in plan.rows if row.dropped}
    found = {name: level for level, names in pruning.final_sparsity.items() for name in names}
    assert set(found) == set(wanted)
    assert all(abs(found[name] - wanted[name]) <= 0.011 for name in wanted)


def test_levels_by_layer_are_no_finding(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.yaml"
    osp.create_recipe(model, target="amba", sparsity=0.45, output=recipe)
    (pruning,) = (one for one in osp.Recipe.load(recipe).modifiers if "Pruning" in one.name)
    assert min(pruning.final_sparsity) < 0.4 < max(pruning.final_sparsity)
    assert main(["recipe", "check", str(recipe), "--model", str(model)]) == 0
    assert "nothing is found" in capsys.readouterr().out


def test_few_samples_are_gone_through_more_often(model: Path) -> None:
    lengths = [osp.create_recipe(model, data_size=count).max_epochs for count in (300, 10_000, 100_000, 1_000_000)]
    assert lengths == sorted(lengths, reverse=True)
    assert (lengths[0], lengths[-1]) == (40, 4)
    by_data = osp.create_recipe(model, data={"x": np.zeros((10_000, 3, 12, 12), np.float32)})
    assert by_data.max_epochs == lengths[1]
    assert osp.create_recipe(model).max_epochs == 20
    assert osp.create_recipe(model, data_size=300, epochs=7).max_epochs == 7


def test_samples_say_how_much_of_each_layer_goes(model: Path, tmp_path: Path) -> None:
    if not ort_library.available():
        pytest.skip("gradients need an engine")
    data = {"x": np.random.default_rng(0).standard_normal((96, 3, 12, 12)).astype(np.float32)}
    recipe, again = (osp.create_recipe(model, data=data, sparsity=0.7, output=tmp_path / f"{n}.yaml") for n in range(2))
    assert str(recipe) == str(again)
    pruning: Any = next(one for one in recipe.modifiers if "Pruning" in one.name)
    assert pruning.name == "MagnitudePruningModifier"
    sizes = {weight.name: weight.tensor.size for weight in osp.load(model).weights}
    levels = {name: level for level, names in pruning.final_sparsity.items() for name in names}
    planned = osp.plan(model, pattern="unstructured", sparsity=0.7).report.rows
    whole = sum(sizes[row.name] for row in planned if row.dropped)
    assert min(levels.values()) < 0.7 < max(levels.values())
    assert sum(level * sizes[name] for name, level in levels.items()) / whole == pytest.approx(0.7, abs=0.01)
    given = osp.create_recipe(model, data=data, sparsity=0.7, variables={"global_sparsity": True})
    assert any(one.name == "GlobalMagnitudePruningModifier" for one in given.modifiers)


def test_the_command_writes_what_finetune_runs(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "recipe.yaml"
    words = ["recipe", "create", str(model), "--target", "vnni", "--data-size", "256"]
    assert main([*words, "--epochs", "4", "--variables", "hardness=0.8", "--distill", "-o", str(out)]) == 0
    assert capsys.readouterr().out == ""
    assert "# deep.weight stays dense: depthwise" in out.read_text()
    assert "distillation_hardness: 0.8" in out.read_text()
    assert main(["recipe", "check", str(out), "--model", str(model), "-q"]) == 0
    assert main([*words, "-o", str(out)]) == 2
    assert "exists; choose another name or pass --overwrite" in capsys.readouterr().err
    assert main([*words, "-o", str(out), "--overwrite"]) == 0
    assert main(words) == 0
    assert capsys.readouterr().out == out.read_text()
    assert main([*words, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["max_epochs"] == 40


@pytest.mark.skipif(not ort_library.available(), reason="needs onnxruntime-training")
def test_what_it_makes_is_pruned_rounded_and_verified(model: Path, tmp_path: Path) -> None:
    made = [batch(step) for step in range(8)]
    data = {"x": np.concatenate([x for x, _ in made]), "labels": np.concatenate([y for _, y in made])}
    osp.create_recipe(
        model, data=data, target="tensorrt", pruning="obs", quantization=True, epochs=4, output=tmp_path / "r.yaml"
    )
    out = tmp_path / "sparse.onnx"
    osp.finetune(model, data=data, recipe=tmp_path / "r.yaml", loss="cross-entropy", output=out, engine="ort")
    report = osp.verify(out).report
    assert report.ok
    found = {row.name: row for row in report.rows}
    for name in ("point.weight", "wide.weight", "head.weight"):
        assert found[name].dtype == "int8"
        assert found[name].zeros >= found[name].size / 2
    assert found["deep.weight"].zeros < found["deep.weight"].size / 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["create", "--pruning", "acddc"], "did you mean acdc"),
        (["create", "--lenient"], "--lenient speaks of a recipe that there is"),
        (["create", "--variables", "sparsty=0.9"], "--variables: sparsty is none"),
        (["create", "--sparsity", "0.9", "--variables", "sparsity=0.8"], "sparsity is said twice"),
        (["create", "--target", "ampere", "--sparsity", "0.9"], "contradicts 2:4"),
        (["create", "--include", "stem"], "no weight that can be pruned"),
        (["check", "--quantization"], "--quantization is of recipe create"),
    ],
)
def test_a_mistake_is_one_line(model: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(["recipe", words[0], str(model), *words[1:]]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_model_of_integers_is_refused_with_the_reason(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    int8 = tmp_path / "int8.onnx"
    osp.quantize(model, data={"x": batch(0)[0]}, output=int8)
    for pruning in (True, "constant"):
        with pytest.raises(OptionError, match=r"such as .*: it is stored as int8"):
            osp.create_recipe(int8, pruning=pruning)


def test_a_recipe_takes_the_place_of_nothing(model: Path, tmp_path: Path) -> None:
    with pytest.raises((OptionError, OutputError)):
        osp.create_recipe(model, output=model, overwrite=True)
    (tmp_path / "there.yaml").write_text("x")
    with pytest.raises(OutputError, match="exists"):
        osp.create_recipe(model, output=tmp_path / "there.yaml")
    with pytest.raises((PlanError, OptionError)):
        osp.create_recipe(model, variables={"bogus": 1})
