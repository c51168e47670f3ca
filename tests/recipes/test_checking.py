"""What `recipe check` finds, what `recipe show` tells, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxsparse.cli import main
from onnxsparse.data import Field, open_data
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.checking import check, steps_of_data
from onnxsparse.recipes.outline import ROWS, outline, table
from onnxsparse.train.batches import Feeding
from onnxsparse.train.task import ask
from tests.cases import for_each
from tests.epochs.test_small import normalized
from tests.recipes.sparseml import LONG, SAMPLE, STAGED

GMP = {"start_epoch": 0, "end_epoch": 4, "update_frequency": 0.5, "init_sparsity": 0.05, "final_sparsity": 0.8}
LR = {"start_epoch": 0, "end_epoch": 5, "lr_func": "linear", "init_lr": 0.1, "final_lr": 0}


def recipe(*entries: tuple[str, dict[str, Any]], strict: bool = True) -> Recipe:
    lines = [f"- !{tag} {json.dumps(options)}" for tag, options in entries]
    return Recipe.load("modifiers:\n" + "\n".join(lines), strict=strict)


def gmp(**changes: Any) -> tuple[str, dict[str, Any]]:
    return "GMPruningModifier", {**GMP, "params": "__ALL_PRUNABLE__", **changes}


def lr(**changes: Any) -> tuple[str, dict[str, Any]]:
    return "LearningRateFunctionModifier", {**LR, **changes}


RANGE = ("EpochRangeModifier", {"start_epoch": 0, "end_epoch": 6})
KEEP = ("ConstantPruningModifier", {"params": "__ALL_PRUNABLE__"})
PHASES = {"start_epoch": 0, "end_epoch": 4, "update_frequency": 2, "compression_sparsity": 0.8, "params": []}
QUANTIZED = ("QuantizationModifier", {"start_epoch": 4})
NOT_RUN = ("WandaPruningModifier", {"sparsity": 0.5, "start_epoch": 4})
SET = ("SetLearningRateModifier", {"start_epoch": 2, "learning_rate": 0.5})


@pytest.mark.parametrize(
    "entries",
    [[gmp(), lr(), RANGE], [gmp(leave_enabled=False), KEEP], [lr(end_epoch=3), lr(start_epoch=3)], [gmp(), SET]],
)
def test_nothing_is_found_where_all_is_well(entries: list[Any]) -> None:
    assert check(recipe(*entries), steps_per_epoch=10, optimizer="sgd") == []


@for_each(
    ("entries", "around", "says"),
    [
        ([gmp(final_sparsity=0.3)], {}, "warning: line 2: !GMPruningModifier: it ends at 0.3, and below 0.4"),
        ([gmp(final_sparsity={0.3: ["a"], 0.2: ["b"]}, params=[])], {}, "it ends at 0.3"),
        ([gmp(init_sparsity=0.9)], {}, "it begins at 0.9 and ends at 0.8: zeros come back"),
        ([gmp(end_epoch=-1), RANGE], {}, "with end_epoch -1 it never comes to its final_sparsity"),
        ([gmp(leave_enabled=False), RANGE], {}, "its masks are let go at 4"),
        ([lr()], {"optimizer": "adam"}, "!LearningRateFunctionModifier: adam finds its own steps"),
        ([SET], {"optimizer": "adamw:beta1=0.9"}, "!SetLearningRateModifier: adamw:beta1=0.9 finds its own"),
        ([lr(), ("training", {"optimizer": "adamw"})], {}, "adamw finds its own steps"),
        ([lr(), lr(start_epoch=4, end_epoch=8)], {}, "it moves the learning rate at epoch 4, as !Learn"),
        ([lr(), SET], {}, "it moves the learning rate at epoch 2"),
        ([SET, SET], {}, "it moves the learning rate at epoch 2, as !SetLearningRateModifier does"),
        ([gmp(update_frequency=0.01)], {"steps_per_epoch": 10}, "0.01 is less than a step of 10 per epoch"),
        ([gmp(update_frequency=0.3)], {"steps_per_epoch": 4}, "0.3 is 1.2 steps: it acts every 0.5 epochs"),
        ([gmp(update_frequency=0.3)], {"data_size": 160}, "0.3 is 1.2 steps"),
        ([gmp(update_frequency=0.3)], {"data_size": 80, "batch_size": 10}, "0.3 is 1.2 steps"),
        ([gmp()], {"data_size": 352, "steps_per_epoch": 8}, "8 steps per epoch are said, and the data make 10"),
        ([gmp(end_epoch=3.3)], {"steps_per_epoch": 4}, "end_epoch 3.3 lies between two of 4 steps per epoch"),
        ([gmp(update_frequency=5)], {}, "the next update after the first comes at its end"),
        ([NOT_RUN, gmp()], {}, "refused: line 2: !WandaPruningModifier: `onnxsparse oneshot` runs it"),
        (
            [QUANTIZED, gmp(leave_enabled=False)],
            {},
            "!QuantizationModifier: the zeros are lost while it trains: add !ConstantPruningModifier",
        ),
        ([gmp(), ("QuantizationModifier", {"start_epoch": 4})], {}, "start_epoch is 4, where the run ends: nothing"),
        ([RANGE, ("QuantizationModifier", {"freeze_bn_stats_epoch": 9})], {}, "freeze_bn_stats_epoch is 9, where the"),
        ([("QuantizationModifier", {"start_epoch": 1.1}), RANGE], {"steps_per_epoch": 4}, "it acts at 1.25"),
        ([("QuantizationModifier", {"scheme": {"weights": {"kwargs": {"eps": 1}}}}), RANGE], {},
         "note: line 2: !QuantizationModifier: eps of weights: it means nothing here"),
        ([gmp(), gmp(start_epoch=2, end_epoch=6)], {}, "what !GMPruningModifier of line 2 prunes at the same time"),
        ([gmp(), ("EpochRangeModifier", {"start_epoch": 0, "end_epoch": 3})], {}, "make the run last 4 epochs"),
        ([gmp(), ("training", {"epochs": 2})], {}, "!training: it lasts 2 epochs, and modifiers go on to 4"),
        ([KEEP], {}, "warning: nothing says how long the run is"),
        ([gmp(), ("pruning", {"sparsity": 0.5})], {}, "wrong: line 3: !pruning: it goes by shares of the run"),
        ([("ACDCPruningModifier", PHASES)], {}, "no more than two phases"),
    ],
)  # fmt: skip
def test_what_is_found(entries: list[Any], around: dict[str, Any], says: str) -> None:
    found = [str(one) for one in check(recipe(*entries), **around)]
    assert any(says in one for one in found), found


def test_a_recipe_for_what_is_done_at_once_has_notes_alone() -> None:
    found = check(recipe(NOT_RUN, ("SmoothQuantModifier", {}), ("QuantizationModifier", {"scheme": "W8A8"})))
    said = [one.tag for one in found if "`onnxsparse oneshot` runs it" in one.text]
    assert sorted(said) == ["SmoothQuantModifier", "WandaPruningModifier"]
    assert {one.level for one in found} == {"note"}, list(map(str, found))


def entry(*names: str) -> tuple[str, dict[str, Any]]:
    return gmp(params=list(names))


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ("a.b", "a.b.weight", True), ("a.b", "re:a.*weight", True), ("__ALL__", "a.b", True), ("a.b", "a.c", False),
        ("re:a.*", "b", False), ("re:a", "re:a", True), ("__all_prunable__", "re:x", True),
    ],
)  # fmt: skip
def test_overlaps_by_their_spelling(ours: str, theirs: str, same: bool) -> None:
    for pair in ((ours, theirs), (theirs, ours)):
        found = [str(one) for one in check(recipe(*map(entry, pair)))]
        assert any("prunes at the same time" in one for one in found) == same


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [("head", "re:he", True), ("head", "__ALL_PRUNABLE__", True), ("head", "re:.*[d]", True), ("head", "stem", False)],
)
def test_overlaps_by_a_model(digits_cnn: Path, ours: str, theirs: str, same: bool) -> None:
    found = [str(one) for one in check(recipe(entry(ours), entry(theirs)), model=str(digits_cnn))]
    assert any("prunes at the same time; the zeros of both stay" in one for one in found) == same, found


def test_groups_that_are_apart_may_move_at_once() -> None:
    assert check(recipe(lr(param_groups=[0]), lr(param_groups=[1]))) == []


def test_names_are_looked_for_in_a_model(digits_cnn: Path) -> None:
    found = check(recipe(gmp(params=["nope.weight"])), model=str(digits_cnn))
    assert [one.level for one in found] == ["wrong"]
    assert "'nope.weight' is no parameter or layer" in found[0].text
    assert check(recipe(gmp()), model=str(digits_cnn)) == []


def test_layers_of_a_scheme_are_looked_for_in_the_model(digits_cnn: Path) -> None:
    scheme = {"start_epoch": 0, "ignore": ["head", "LlamaRMSNorm"], "scheme_overrides": {"Conv2d": {"weights": None}}}
    (found,) = check(recipe(("QuantizationModifier", scheme), RANGE), model=str(digits_cnn))
    assert (found.level, found.line) == ("note", 2)
    assert found.text.startswith("ignore: 'LlamaRMSNorm' is no layer and no module type")
    for name, options in (("ignore", ["hed"]), ("scheme_overrides", {"hed": None}), ("submodules", ["hed"])):
        (wrong,) = check(recipe(("QuantizationModifier", {name: options}), RANGE), model=str(digits_cnn))
        assert (wrong.level, wrong.line) == ("wrong", 2)
        assert wrong.text.startswith(f"{name}: 'hed' is no layer")


def test_what_is_worse_comes_first(digits_cnn: Path) -> None:
    found = check(recipe(NOT_RUN, gmp(params=["nope"], final_sparsity=0.3)), model=str(digits_cnn))
    assert [one.level for one in found] == ["wrong", "refused", "warning"]


def test_quantization_of_a_sparse_model(digits_cnn: Path, tmp_path: Path) -> None:
    sparse = str(tmp_path / "sparse.onnx")
    assert main(["prune", str(digits_cnn), "-o", sparse, "--pattern", "2:4", "-q"]) == 0
    quantized = ("QuantizationModifier", {"start_epoch": 0})
    for modifiers in ((quantized, RANGE), (lr(), RANGE), (RANGE,)):
        (found,) = check(recipe(*modifiers), model=sparse)
        assert (found.level, "the model is sparse: finetune holds the zeros of " in found.text) == ("note", True)
    assert check(recipe(gmp(), RANGE), model=sparse) == []
    assert check(recipe(quantized, RANGE), model=str(digits_cnn)) == []
    assert check(recipe(quantized, RANGE, KEEP), model=sparse) == []


def test_scales_that_are_pruned_along(tmp_path: Path) -> None:
    onnx.save(normalized(), tmp_path / "m.onnx")
    (found,) = check(recipe(gmp(params=["re:.*weight"])), model=str(tmp_path / "m.onnx"))
    assert (found.level, found.line) == ("warning", 2)
    assert "it prunes 1 scale or bias too (bn.weight)" in found.text
    assert "`params: __ALL_PRUNABLE__`" in found.text
    (found,) = check(recipe(gmp(params="__ALL__")), model=str(tmp_path / "m.onnx"))
    assert "it prunes 2 scales and biases too (such as bn.weight)" in found.text
    for params in ("__ALL_PRUNABLE__", ["conv", "bn.weight"]):
        assert check(recipe(gmp(params=params)), model=str(tmp_path / "m.onnx")) == []


def test_weights_that_the_exporter_renamed(tmp_path: Path) -> None:
    made = normalized()
    for one in made.graph.initializer:
        one.name = "onnx::Conv_41" if one.name == "conv.weight" else one.name
    made.graph.node[0].input[1] = "onnx::Conv_41"
    onnx.save(made, tmp_path / "m.onnx")
    (found,) = check(recipe(gmp(params=["re:w"])), model=str(tmp_path / "m.onnx"))
    assert str(found).startswith(
        "warning: 1 of 2 prunable weights are reached by no modifier (first onnx::Conv_41): exporters rename them; "
    )
    assert "record_match" in found.text
    pruned = recipe(gmp(params=["re:w"], end_epoch=1), RANGE)
    task = ask(str(tmp_path / "m.onnx"), pruned, {"x": np.zeros((64, 3, 8, 8), np.float32)})
    assert found.text in task.notes
    for params in ("__ALL_PRUNABLE__", ["w"], ["re:w", "conv"], ["re:.*conv", "w"]):  # said by hand, or reached
        assert check(recipe(gmp(params=params)), model=str(tmp_path / "m.onnx")) == []


def test_groups_do_not_say_what_is_pruned(digits_cnn: Path) -> None:
    groups = ("StructuredPruningModifier", {**GMP, "param_groups": [["wide.weight"]]})
    (found,) = check(recipe(groups), model=str(digits_cnn))
    assert (
        "params says what is pruned, which is all layers, head.weight among them, also the one of the outp"
        in found.text
    )
    assert "which is all layers, also the one of the outputs" in check(recipe(groups))[0].text
    named = ("StructuredPruningModifier", {**groups[1], "params": ["wide.weight"]})
    assert check(recipe(named), model=str(digits_cnn)) == []


def test_nothing_to_hold(digits_cnn: Path) -> None:
    (found,) = check(recipe(KEEP, RANGE), model=str(digits_cnn))
    assert "there is nothing to hold" in found.text
    assert check(recipe(KEEP, gmp()), model=str(digits_cnn)) == []


def test_a_teacher_has_to_be_there(digits_cnn: Path) -> None:
    missing = ("DistillationModifier", {"teacher": "no_such.onnx", "end_epoch": 2})
    assert [str(one) for one in check(recipe(missing))] == [
        "wrong: line 2: !DistillationModifier: teacher: there is no file no_such.onnx"
    ]
    stub = ("PerLayerDistillationModifier", {"teacher": "zoo:cv/resnet", "end_epoch": 2})
    assert any("teacher: zoo:cv/resnet is a SparseZoo stub" in one.text for one in check(recipe(stub)))
    for teacher in ("self", "disable", str(digits_cnn)):
        assert check(recipe(("DistillationModifier", {"teacher": teacher, "end_epoch": 2}))) == []


def test_little_drift_is_a_note() -> None:
    (found,) = check(recipe(gmp(update_frequency=0.5)), data_size=1257)
    assert str(found).startswith("note: line 2: !GMPruningModifier: update_frequency 0.5 is 18.5 steps")
    (found,) = check(recipe(gmp(update_frequency=0.3)), steps_per_epoch=4)
    assert found.level == "warning"


def test_all_wrong_names_of_a_modifier_are_said(digits_cnn: Path) -> None:
    (found,) = check(recipe(gmp(params=["nope", "head", "neither"])), model=str(digits_cnn))
    assert all(f"'{name}' is no parameter" in found.text for name in ("nope", "neither"))


@pytest.mark.parametrize("count", [1, 2, 40, 63, 640, 1257, 20000])
def test_steps_of_data_are_those_of_a_run(count: int) -> None:
    samples = open_data({"x": np.zeros((count, 1), np.float32)}, [Field("x", "float32", (None, 1))])
    made = Feeding(samples, min(32, count), 0).per_epoch
    assert steps_of_data(Recipe(), count, min(32, count))[0] == made
    assert steps_of_data(Recipe(), 1257) == (37, 62)


# -- what happens when


def test_what_is_not_run_is_shown() -> None:
    rows = outline(recipe(NOT_RUN, QUANTIZED, RANGE))
    assert rows[4].begins == ("QuantizationModifier", "WandaPruningModifier (not run)")
    assert "QuantizationModifier begins, WandaPruningModifier (not run) begins" in table(rows)


CUBIC = [0.05, 0.416, 0.638, 0.752, 0.794, 0.8]


def test_levels_and_rates_by_epoch() -> None:
    rows = outline(recipe(gmp(end_epoch=5, update_frequency=1), lr(), RANGE))
    assert [row.epoch for row in rows] == [0, 1, 2, 3, 4, 5, 6]
    assert [row.sparsity[0] for row in rows] == pytest.approx([*CUBIC, 0.8], abs=5e-5)
    assert [row.rates[0] for row in rows[:5]] == pytest.approx([0.1, 0.08, 0.06, 0.04, 0.02])
    assert rows[0].begins == ("GMPruningModifier", "LearningRateFunctionModifier", "EpochRangeModifier")
    assert rows[5].ends == ("GMPruningModifier", "LearningRateFunctionModifier")


def test_phases() -> None:
    rows = outline(recipe(("ACDCPruningModifier", {**PHASES, "end_epoch": 8})))
    assert [row.sparsity[0] for row in rows] == [0, 0, 0.8, 0.8, 0, 0, 0.8, 0.8, 0.8]


def test_many_epochs_are_told_in_a_page() -> None:
    rows = outline(recipe(("EpochRangeModifier", {"start_epoch": 0, "end_epoch": 1000}), SET))
    assert len(rows) <= ROWS + 3
    assert rows[-1].epoch == 1000
    assert table(rows).splitlines()[0].split() == ["epoch", "sparsity", "learning", "rate"]
    assert [row for row in rows if row.begins][1].rates == (0.5,)


def test_nothing_to_tell() -> None:
    assert len(outline(Recipe())) == 1


# -- the command


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(text: str, name: str = "r.yaml") -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return write


def test_exit_codes(file: Any, capsys: Any) -> None:
    assert main(["recipe", "check", file(SAMPLE)]) == 0
    assert "3 modifiers, 70 epochs: nothing is found" in capsys.readouterr().out
    assert main(["recipe", "check", file(SAMPLE), "--optimizer", "adam"]) == 1
    assert "1 finding\n" in capsys.readouterr().out
    assert main(["recipe", "check", file(SAMPLE), "-q"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["recipe", "check", file(SAMPLE.replace("!GMP", "!GMMP"))]) == 2
    assert "line 15: unknown modifier !GMMPruningModifier (did you mean GMPruning" in capsys.readouterr().err
    assert main(["recipe", "check", file(SAMPLE.replace("!GMP", "!GMMP")), "--lenient"]) == 0
    assert "note: line 15: !GMMPruningModifier: it is left out: no modifier of that name" in capsys.readouterr().out
    assert main(["recipe", "check", file(SAMPLE), "--steps-per-epoch", "0"]) == 2
    assert main(["recipe", "chek", file(SAMPLE)]) == 2


def test_what_is_worth_a_note_is_no_finding(file: Any, capsys: Any) -> None:
    path = file(
        "modifiers:\n- !EpochRangeModifier {start_epoch: 0, end_epoch: 3.7}\n- !WandaPruningModifier {sparsity: 0.5}\n"
    )
    assert main(["recipe", "check", path, "--lenient", "--data-size", "1257", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"]
    assert [one["level"] for one in report["findings"]] == ["note", "note"]
    assert [one["line"] for one in report["findings"]] == [3, 2]
    assert main(["recipe", "check", path, "--lenient", "--data-size", "1257"]) == 0
    assert "4 epochs, 37 steps an epoch (62 of 1257 samples are held out): nothing is found" in capsys.readouterr().out
    assert main(["recipe", "check", path, "--data-size", "1257"]) == 1


def test_show_prints_what_reads_back(file: Any, capsys: Any) -> None:
    path = file(STAGED)
    assert main(["recipe", "show", path, "--variables", "sparsity=0.9", "--data-size", "320"]) == 0
    shown = capsys.readouterr().out
    text = shown[: shown.index("\nepoch ")]
    assert Recipe.load(text) == Recipe.load(path, variables={"sparsity": 0.9})
    assert "    6    0.9000" in shown


def test_reports_as_json(file: Any, capsys: Any, tmp_path: Path) -> None:
    page = LONG.replace(
        "quantization_modifiers:", "layer_modifiers:\n  - !WandaPruningModifier {sparsity: 0.5}\n\nx_modifiers:"
    )
    assert main(["recipe", "check", file(page, "r.md"), "--json", "-"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["tool"], report["command"], report["ok"]) == ("onnxsparse", "recipe check", False)
    assert {one["level"] for one in report["findings"]} == {"refused"}
    assert report["max_epochs"] == 52
    assert Recipe.load(report["recipe"]) == Recipe.load(page)
    target = tmp_path / "show.json"
    for _ in range(2):
        assert main(["recipe", "show", file(SAMPLE), "--json", str(target), "-q"]) == 0
    report = json.loads(target.read_text(encoding="utf-8"))
    assert report["epochs"][0] == {
        "epoch": 0,
        "sparsity": [0.05],
        "rates": [0.005],
        "begins": ["GMPruningModifier", "EpochRangeModifier", "LearningRateModifier"],
        "ends": [],
    }
    assert main(["recipe", "show", file(SAMPLE), "--json", file(SAMPLE)]) == 2


def test_keys_of_a_teacher_are_outputs_of_the_model(digits_cnn: Path) -> None:
    wrong = recipe(("DistillationModifier", {"distill_output_keys": ["foo"]}), RANGE)
    (found,) = check(wrong, model=str(digits_cnn))
    assert str(found).startswith(
        "wrong: line 2: !DistillationModifier: distill_output_keys: the model has no output 'foo' (it"
    )
    assert check(wrong) == []
    assert check(recipe(("DistillationModifier", {"distill_output_keys": [0]}), RANGE), model=str(digits_cnn)) == []


def test_a_model_that_cannot_be_read_is_no_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("modifiers:\n- !EpochRangeModifier {start_epoch: 0.0, end_epoch: 2.0}\n", encoding="utf-8")
    assert main(["recipe", "check", str(path), "--model", str(tmp_path / "none.onnx")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
