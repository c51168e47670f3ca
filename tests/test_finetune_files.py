"""What finetune writes, and what it must not: all files of a result or none, and never over what they are made from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse.cli import main
from onnxsparse.engines.ort import library
from onnxsparse.errors import OptionError

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


@trains
def test_a_resumed_run_replaces_data_only_if_it_is_its_own(folder: Path, capsys: Any) -> None:
    model = onnx.load(folder / "model.onnx")
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    words = ("--data", "@data.npz", "-o", "@out.onnx", "--checkpoint", "@run")
    assert call(folder, *words) == 0
    data = (folder / "out.onnx.data").read_bytes()
    assert call(folder, *words, "--resume") == 0
    assert (folder / "out.onnx.data").read_bytes() == data
    (folder / "out.onnx.data").write_bytes(b"mine" + data[4:])
    capsys.readouterr()
    assert call(folder, *words, "--resume") == 2
    assert "--overwrite" in line(capsys)
    assert (folder / "out.onnx.data").read_bytes() == b"mine" + data[4:]


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
    words = ["--data", "@data.npz", "-o", "@out.onnx", "--checkpoint", "@run", "--steps", "20"]
    assert call(folder, *words) == 0
    first = (folder / "out.onnx").read_bytes()
    assert call(folder, *words, "--resume") == 0
    assert (folder / "out.onnx").read_bytes() == first
    assert {path.suffix for path in folder.glob("out*")} == {".onnx", ".yaml", ".json", ".csv"}


@trains
def test_the_saved_recipe_says_everything_and_gives_the_same_file(folder: Path) -> None:
    words = [
        "--data",
        "@data.npz",
        "--pattern",
        "unstructured",
        "--sparsity",
        "0.8",
        "--batch-size",
        "8",
        "--steps",
        "40",
    ]
    assert main(["finetune", str(folder / "model.onnx"), "-o", str(folder / "a.onnx"), "-q", *at(folder, words)]) == 0
    recipe = (folder / "a.recipe.yaml").read_text()
    for decided in ("steps: 40", "rate: 0.01", "init: calibrated", "allocation: sensitivity", "warm_up: "):
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
    assert set(details["metrics"]) == {"loss", "distance", "mae"}
    assert set(details["metrics_dense"]) == {"distance", "mae"}


def at(folder: Path, words: list[str]) -> list[str]:
    return [str(folder / word[1:]) if word.startswith("@") else word for word in words]


def test_numbers_that_are_none_at_the_end_of_large_data_are_said_before_training(digits_cnn: Path) -> None:
    images = np.zeros(((1 << 26) // 256 + 1000, 1, 8, 8), np.float32)
    images[-1, 0, 7, 7] = np.nan
    with pytest.raises(OptionError, match=f"NaN or infinity in sample {len(images) - 1}"):
        osp.finetune(
            digits_cnn, data={"x": images[:64]}, eval_data={"x": images}, pattern="2:4", steps=10**6, engine="ort"
        )


@trains
@pytest.mark.parametrize(("classes", "figures"), [(3, {"loss", "accuracy", "distance"}), (6, {"top-5"})])
def test_few_classes_have_no_best_five(classes: int, figures: set[str]) -> None:
    random = np.random.default_rng(0)
    weight = numpy_helper.from_array(random.standard_normal((classes, 64)).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "classes"])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = {"x": random.standard_normal((64, 64)).astype(np.float32), "labels": random.integers(0, classes, 64)}
    options = {"data": data, "eval_data": data, "pattern": "2:4", "allow": "small", "steps": 2, "engine": "ort"}
    found = set(osp.finetune(model, **options).report.details["metrics"])
    assert found >= figures
    assert ("top-5" in found) == (classes > 5)
    asked = osp.finetune(model, **options, metrics=["top-5"]).report.details["metrics"]
    assert set(asked) == {"top-5"}


@trains
def test_a_run_that_ended_early_says_so(digits_cnn: Path) -> None:
    images = np.random.default_rng(3).standard_normal((512, 1, 8, 8)).astype(np.float32)
    options = {"pattern": "unstructured", "sparsity": 0.9, "init": "plain", "schedule": "one-shot"}
    options["lr_schedule"] = "constant"
    for rate, falls in ((0.003, True), (1e-7, False)):
        tuned = osp.finetune(digits_cnn, data={"x": images}, **options, lr=rate, steps=60, engine="ort")
        notes = [note for note in tuned.report.notes if "still falling" in note]
        assert len(notes) == falls
        assert all("--epochs" in note for note in notes)
