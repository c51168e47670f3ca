"""A recipe on the command line of finetune: variables, what is left out, and the recipe that is saved beside."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxsparse.cli import main
from onnxsparse.engines.ort import library
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.modifiers.one_shot import RUN_BY

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")

PAGE = """\
---
sparsity: 0.5
pruning_modifiers:
    - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 2.0}
    - !GMPruningModifier
        start_epoch: 0.0
        end_epoch: 1.0
        update_frequency: 0.5
        init_sparsity: 0.05
        final_sparsity: eval(sparsity)
        params: [wide, re:deep.*]
    - !WandaPruningModifier {sparsity: 0.5, start_epoch: 1.0}
    - !HoloModifier {size: 2:4}
---
# A page
"""


@pytest.fixture
def desk(tmp_path: Path, digits_cnn: Path) -> Path:
    images = np.random.default_rng(0).standard_normal((160, 1, 8, 8), np.float32)
    np.savez(tmp_path / "data.npz", **{onnx.load(digits_cnn).graph.input[0].name: images})
    (tmp_path / "recipe.md").write_text(PAGE, encoding="utf-8")
    return tmp_path


def words(desk: Path, digits_cnn: Path, *more: str) -> list[str]:
    files = ["-o", str(desk / "out.onnx"), "--data", str(desk / "data.npz"), "--json", str(desk / "report.json")]
    return ["finetune", str(digits_cnn), *files, "--recipe", str(desk / "recipe.md"), *more, "-q"]


def test_what_nothing_runs_is_refused_before_anything(
    desk: Path, digits_cnn: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(words(desk, digits_cnn)) == 2
    assert "line 13: unknown modifier !HoloModifier (`onnxsparse list" in capsys.readouterr().err
    known = PAGE.replace("    - !HoloModifier {size: 2:4}\n", "")
    (desk / "recipe.md").write_text(known, encoding="utf-8")
    assert main(words(desk, digits_cnn)) == 2
    assert "!WandaPruningModifier (what comes into each layer, on samples" in capsys.readouterr().err
    assert not (desk / "out.onnx").exists()


def test_the_rest_runs_where_that_is_asked_for(desk: Path, digits_cnn: Path) -> None:
    assert main(words(desk, digits_cnn, "--lenient", "--variables", "sparsity=0.75")) == 0
    report = json.loads((desk / "report.json").read_text(encoding="utf-8"))
    left = [note for note in report["notes"] if note.startswith("not applied: !")]
    assert left == [
        "not applied: !HoloModifier: no modifier of that name is known",
        f"not applied: !WandaPruningModifier: {RUN_BY}",
    ]
    rows = {row["name"]: row["sparsity"] for row in report["rows"]}
    assert (rows["wide.weight"], rows["deep.weight"], rows["head.weight"]) == (0.75, 0.75, 0.0)
    saved = Recipe.load(desk / "out.recipe.yaml")
    assert saved.max_epochs == 2
    assert {"training", "GMPruningModifier"} <= {one.name for one in saved.modifiers}
    assert Recipe.load(str(saved)) == saved


def test_options_of_a_recipe_need_one(desk: Path, digits_cnn: Path, capsys: pytest.CaptureFixture) -> None:
    call = words(desk, digits_cnn, "--variables", "a=1")
    at = call.index("--recipe")
    assert main([*call[:at], *call[at + 2 :]]) == 2
    assert "--variables and --lenient speak of a recipe" in capsys.readouterr().err


def test_our_own_modifiers_beside_one_that_nobody_knows(desk: Path, digits_cnn: Path) -> None:
    text = "modifiers:\n- !training {steps: 4, batch: 16}\n- !pruning {pattern: 2:4}\n- !HoloModifier\n"
    (desk / "recipe.md").write_text(f"---\n{text}---\n", encoding="utf-8")
    assert main(words(desk, digits_cnn, "--lenient")) == 0
    report = json.loads((desk / "report.json").read_text(encoding="utf-8"))
    assert "not applied: !HoloModifier: no modifier of that name is known" in report["notes"]
