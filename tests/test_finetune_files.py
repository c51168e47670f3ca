"""What finetune writes, and what it must not: all files of a result or none, and never over what they are made from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxsparse.cli import main
from onnxsparse.engines.ort import library

trains = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")


@pytest.fixture
def folder(tmp_path: Path, digits_cnn: Path) -> Path:
    shutil.copy(digits_cnn, tmp_path / "model.onnx")
    images = np.random.default_rng(0).standard_normal((64, 1, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=images)
    return tmp_path


def call(folder: Path, *words: str) -> int:
    here = [str(folder / word[1:]) if word.startswith("@") else word for word in words]
    return main(["finetune", str(folder / "model.onnx"), "--pattern", "2:4", "--steps", "2", "-q", *here])


def line(capsys: Any) -> str:
    err: str = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("out", "data"), [("@data.npz", "@data.npz"), ("@out.onnx", "@out.history.csv"), ("@out.onnx", "@out.recipe.yaml")]
)
def test_the_data_is_not_replaced(folder: Path, capsys: Any, out: str, data: str) -> None:
    held = folder / data[1:]
    if not held.exists():
        shutil.copy(folder / "data.npz", held)
    before = held.read_bytes()
    assert call(folder, "--data", data, "-o", out, "--overwrite") == 2
    assert "would replace" in line(capsys)
    assert held.read_bytes() == before


@pytest.mark.parametrize("ending", [".recipe.yaml", ".history.json", ".history.csv"])
def test_files_beside_the_result_are_not_replaced(folder: Path, capsys: Any, ending: str) -> None:
    (folder / f"out{ending}").write_text("mine")
    assert call(folder, "--data", "@data.npz", "-o", "@out.onnx") == 2
    assert "--overwrite" in line(capsys)
    assert (folder / f"out{ending}").read_text() == "mine"
    assert not (folder / "out.onnx").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--metric", "accuracy", "--eval-data", "@data.npz"], "needs labels"),
        (["--loss-output", "logit"], "did you mean logits"),
        (["--checkpoint", ""], "--checkpoint is empty"),
        (["--recipe", ""], "--recipe is empty"),
        (["--json", "@out.history.json"], "choose another name"),
        (["--resume"], "--checkpoint"),
    ],
)
def test_said_before_anything_is_trained(folder: Path, capsys: Any, words: list[str], says: str) -> None:
    assert call(folder, "--data", "@data.npz", "-o", "@out.onnx", *words) == 2
    assert says in line(capsys)
    assert not list(folder.glob("out*"))


@trains
def test_a_metric_that_fails_is_said_before_training(folder: Path, capsys: Any, monkeypatch: Any) -> None:
    (folder / "mine.py").write_text("def broken(outputs, batch):\n    raise ValueError('no such thing')\n")
    monkeypatch.chdir(folder)
    words = ["--eval-data", "@data.npz", "--metric", "mine:broken", "--steps", "100000"]
    assert call(folder, "--data", "@data.npz", "-o", "@out.onnx", *words) == 2
    assert "no such thing" in line(capsys)


@trains
def test_a_finished_run_may_be_resumed_over_its_own_result(folder: Path) -> None:
    words = ["--data", "@data.npz", "-o", "@out.onnx", "--checkpoint", "@run"]
    assert call(folder, *words) == 0
    first = (folder / "out.onnx").read_bytes()
    assert call(folder, *words, "--resume") == 0
    assert (folder / "out.onnx").read_bytes() == first
    assert {path.suffix for path in folder.glob("out*")} == {".onnx", ".yaml", ".json", ".csv"}


@trains
def test_the_saved_recipe_says_everything_and_gives_the_same_file(folder: Path) -> None:
    words = ["--data", "@data.npz", "--pattern", "unstructured", "--sparsity", "0.8"]
    assert main(["finetune", str(folder / "model.onnx"), "-o", str(folder / "a.onnx"), "-q", *at(folder, words)]) == 0
    recipe = (folder / "a.recipe.yaml").read_text()
    for decided in ("steps: 500", "rate: 0.03", "allocation: erk", "schedule: cubic", "score: magnitude", "warm_up: "):
        assert decided in recipe
    again = ["--data", "@data.npz", "--recipe", "@a.recipe.yaml"]
    assert main(["finetune", str(folder / "model.onnx"), "-o", str(folder / "b.onnx"), "-q", *at(folder, again)]) == 0
    assert (folder / "a.onnx").read_bytes() == (folder / "b.onnx").read_bytes()
    assert (folder / "b.recipe.yaml").read_text() == recipe


@trains
def test_numbers_as_labels_are_measured_by_the_loss(folder: Path, capsys: Any) -> None:
    arrays = np.load(folder / "data.npz")
    np.savez(folder / "numbers.npz", x=arrays["x"], labels=np.zeros((64, 10), np.float32))
    words = ["--data", "@numbers.npz", "--eval-data", "@numbers.npz", "--loss", "mse", "-o", "@out.onnx", "--json", "-"]
    assert call(folder, *words) == 0
    details = json.loads(capsys.readouterr().out)["details"]
    assert set(details["metrics"]) == {"loss", "distance"}
    assert set(details["metrics_dense"]) == {"distance"}


def at(folder: Path, words: list[str]) -> list[str]:
    return [str(folder / word[1:]) if word.startswith("@") else word for word in words]
