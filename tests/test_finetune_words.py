"""What finetune says: of a check, of progress, of options that do nothing; and what --strict refuses."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxsparse as osp
from onnxsparse.cli import main
from onnxsparse.cli.training import training_progress
from onnxsparse.data import open_data
from onnxsparse.data.field import Field
from onnxsparse.engines.ort import library
from onnxsparse.errors import LeftOutError, OptionError
from onnxsparse.metrics import parse
from tests.engines.small_nets import numbers, tagger
from tests.messages import refusing

trains = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
IMAGES = np.random.default_rng(0).standard_normal((64, 1, 8, 8)).astype(np.float32)


@pytest.fixture
def data(tmp_path: Path) -> str:
    np.savez(tmp_path / "data.npz", x=IMAGES)
    return str(tmp_path / "data.npz")


@trains
def test_a_check_needs_no_pattern_and_writes_its_report(
    digits_cnn: Path, data: str, tmp_path: Path, capsys: Any
) -> None:
    target = tmp_path / "check.json"
    assert main(["finetune", str(digits_cnn), "--data", data, "--check", "--json", str(target)]) == 0
    said = capsys.readouterr().out
    assert "every gradient agrees with finite differences" in said
    found = json.loads(target.read_text())
    assert (found["command"], found["ok"], found["rows"]) == ("check", True, [])
    assert set(found["details"]) == {"batch", "checked", "loss_at_rest", "unreached", "silent", "wrong"}
    assert f"{found['details']['checked']} tensors train" in said
    jsonschema = pytest.importorskip("jsonschema")
    schema = Path(osp.__file__).parent / "report" / "schema.json"
    jsonschema.validate(found, json.loads(schema.read_text()))


@trains
def test_a_check_to_standard_output_is_json_alone(digits_cnn: Path, data: str, capsys: Any) -> None:
    assert main(["finetune", str(digits_cnn), "--data", data, "--check", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["details"]["wrong"] == []


@trains
def test_train_bn_without_any() -> None:
    options: dict[str, Any] = {"pattern": "2:4", "allow": ["output", "small"], "steps": 2, "retries": 0}
    notes = osp.finetune(tagger(), data={"x": numbers(64, 5, 6)}, train_bn=True, **options).report.notes
    assert any(note.startswith("--train-bn changes nothing") for note in notes)


@trains
def test_strict_wants_training_to_help(digits_cnn: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "pattern": "unstructured", "sparsity": 0.5, "steps": 3, "optimizer": "sgd", "lr": 1e6, "retries": 0,
    }  # fmt: skip
    plain = osp.finetune(digits_cnn, data={"x": IMAGES}, **options).report
    assert plain.details["helped"] is False
    with refusing(LeftOutError):
        osp.finetune(
            digits_cnn, data={"x": IMAGES}, strict=True, allow=["stem", "small", "output"],
            output=tmp_path / "out.onnx", **options,
        )  # fmt: skip
    assert not list(tmp_path.iterdir())


@trains
def test_the_recipe_of_a_report_is_what_was_decided(digits_cnn: Path, tmp_path: Path) -> None:
    result = osp.finetune(
        digits_cnn, data={"x": IMAGES}, pattern="unstructured", sparsity=0.5, steps=3, retries=0,
        output=tmp_path / "out.onnx",
    )  # fmt: skip
    recipe = str(result.report.details["recipe"])
    assert recipe == (tmp_path / "out.recipe.yaml").read_text()
    assert "allocation: sensitivity" in recipe
    assert "init: calibrated" in recipe


def test_the_engines_own_optimizer_needs_its_engine(digits_cnn: Path, capsys: Any) -> None:
    pytest.importorskip("torch")
    with refusing(OptionError):
        osp.finetune(digits_cnn, data={"x": IMAGES}, pattern="2:4", optimizer="ort-adamw", engine="torch")


def test_lists_are_true(capsys: Any) -> None:
    assert main(["list", "optimizers"]) == 0
    assert "ort-adamw" in capsys.readouterr().out
    assert main(["list", "losses"]) == 0
    said = capsys.readouterr().out
    assert "axis (int, default that of the classes)" in said
    assert "default -1)" not in said


def test_an_input_that_the_data_lacks() -> None:
    with refusing(OptionError):
        open_data({"input_ids": IMAGES, "mask": IMAGES}, [Field("ids", "float32", (None, 1, 8, 8))])


def test_a_model_without_arrays_of_scores() -> None:
    with refusing(OptionError):
        parse("accuracy").meter().add({}, {}, {"labels": np.arange(3)})


def test_progress_where_there_is_no_terminal(capsys: Any) -> None:
    row = {
        "epoch": 0.5, "step": 5, "of": 100, "loss": 0.25, "sparsity": 0.5, "rate": 0.01, "samples_per_second": 10.0,
        "attempt": 1,
    }  # fmt: skip
    for verbose, quiet, lines in ((False, False, 0), (True, True, 0), (True, False, 2)):
        with training_progress(Namespace(verbose=verbose, quiet=quiet)) as watch:
            assert (watch is None) == (lines == 0)
            if watch is not None:
                for step in (5, 6, 7, 100):
                    watch({**row, "step": step})
        said = capsys.readouterr().err.splitlines()
        assert len(said) == lines
    assert "step 5/100" in said[0]
    assert "step 100/100" in said[1]
