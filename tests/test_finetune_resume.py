"""What a run may replace: with --resume what it delivered, never what it is made from."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxsparse.cli import main
from onnxsparse.engines.ort import library
from tests.test_finetune_files import call, folder

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
__all__ = ["folder"]


def test_resume_replaces_neither_the_model_nor_what_another_run_left(folder: Path, capsys: Any) -> None:
    (folder / "model.recipe.yaml").write_text("anything")
    before = (folder / "model.onnx").read_bytes()
    words = ["--data", "@data.npz", "--checkpoint", "@run"]
    assert call(folder, *words, "--resume", "-o", "@model.onnx") == 2
    assert "is the model itself" in capsys.readouterr().err
    assert (folder / "model.onnx").read_bytes() == before
    (folder / "out.onnx").write_bytes(b"precious")
    (folder / "out.recipe.yaml").write_text("mine")
    assert call(folder, *words, "--resume", "-o", "@out.onnx") == 2
    assert "--overwrite" in capsys.readouterr().err
    assert call(folder, *words, "-o", "@first.onnx") == 0
    assert call(folder, *words, "--resume", "-o", "@out.onnx") == 2  # its checkpoints, but none of its files
    assert "--overwrite" in capsys.readouterr().err
    assert (folder / "out.onnx").read_bytes() == b"precious"
    assert (folder / "out.recipe.yaml").read_text() == "mine"


def test_a_result_that_was_changed_since_is_not_replaced_by_resuming(folder: Path, capsys: Any) -> None:
    words = ["--data", "@data.npz", "-o", "@out.onnx", "--checkpoint", "@run"]
    assert call(folder, *words) == 0
    (folder / "out.recipe.yaml").write_text("mine now")
    assert call(folder, *words, "--resume") == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (folder / "out.recipe.yaml").read_text() == "mine now"


def test_files_of_a_run_are_not_its_own_without_its_checkpoints(folder: Path, capsys: Any) -> None:
    words = ["--data", "@data.npz", "-o", "@out.onnx", "--checkpoint", "@run"]
    assert call(folder, *words) == 0
    for path in (folder / "run").glob("step-*"):
        shutil.rmtree(path)
    assert call(folder, *words, "--resume") == 2
    assert "--overwrite" in capsys.readouterr().err


def test_the_recipe_of_the_command_line_is_not_replaced(folder: Path, capsys: Any) -> None:
    recipe = folder / "out.recipe.yaml"
    recipe.write_text("# mine\nmodifiers:\n- !training\n  steps: 2\n- !pruning\n  pattern: 2:4\n")
    words = [str(folder / "model.onnx"), "-o", str(folder / "out.onnx"), "--data", str(folder / "data.npz")]
    assert main(["finetune", *words, "--recipe", str(recipe), "--overwrite"]) == 2
    assert "would replace what --recipe names" in capsys.readouterr().err
    assert "# mine" in recipe.read_text()


LOADER = """
import os
import numpy as np

def samples():
    print("hello from data")
    os.chdir("elsewhere")
    try:
        yield {"x": np.ones((64, 1, 8, 8), np.float32)}
    finally:
        pass
"""


def test_a_function_may_change_the_folder_and_print(folder: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.path", [*sys.path])
    (folder / "roaming.py").write_text(LOADER.replace('"elsewhere"', repr(str(folder / "elsewhere"))))
    (folder / "elsewhere").mkdir()
    words = ["model.onnx", "-o", "out.onnx", "--checkpoint", "run", "--pattern", "2:4", "--steps", "2", "--json", "-"]
    assert main(["finetune", *words, "--data", "roaming:samples"]) == 0
    assert not list((folder / "elsewhere").iterdir())
    assert (folder / "out.onnx").exists()
    assert (folder / "run").exists()
    told = capfd.readouterr()
    assert json.loads(told.out)["command"] == "finetune"
    assert "hello from data" in told.err


def test_nothing_is_trained_where_nothing_is_pruned(folder: Path, capsys: Any) -> None:
    words = ["--data", str(folder / "data.npz"), "-o", str(folder / "out.onnx"), "--pattern", "2:4", "--exclude", "*"]
    assert main(["finetune", str(folder / "model.onnx"), *words]) == 0
    shown = capsys.readouterr().out
    assert "nothing was trained: there is nothing to prune" in shown
    assert shown.rstrip().endswith("nothing to prune: every weight stays dense, see the reasons")
    dense, same = (onnx.load(folder / name).graph for name in ("model.onnx", "out.onnx"))
    assert dense == same
    assert main(["finetune", str(folder / "model.onnx"), *words, "--overwrite", "--strict"]) == 1
    assert "--strict: nothing to prune" in capsys.readouterr().err
