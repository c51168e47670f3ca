"""Labels that are numbers: measured whatever is learned, and advice that fits them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnxsparse as osp
from onnxsparse.engines.ort import library
from onnxsparse.errors import OptionError
from tests.engines.small_nets import numbers, tagger

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")

COUNT = 96
X = numbers(COUNT, 1, 6)
MODEL = tagger(time=1, classes=3)
RIGHT = numbers(COUNT, 1, 3, seed=5)


def tune(data: dict[str, Any], **options: Any) -> Any:
    known = {"pattern": "unstructured", "sparsity": 0.5, "steps": 3, "retries": 0, "allow": ["output", "small"]}
    return osp.finetune(MODEL, data={"x": X, **data}, **{**known, **options})


def test_float_labels_are_measured_without_a_loss_against_them() -> None:
    report = tune({}, eval_data={"x": X, "targets": RIGHT}).report
    found: Any = report.details["metrics"]
    assert set(found) == {"loss", "r2", "mae", "distance"}
    assert not any("int64" in note for note in report.notes)


def test_a_function_sees_them() -> None:
    def far(outputs: Any, batch: Any) -> float:
        assert set(batch) == {"x", "labels"}
        return float(np.abs(outputs["y"] - batch["labels"]).mean())

    found: Any = tune({}, eval_data={"x": X, "y": RIGHT}, metrics=["mae", "mse", far]).report.details["metrics"]
    assert found["far"] == pytest.approx(found["mae"])
    assert set(found) == {"mae", "mse", "far"}


def test_numbers_of_no_output_are_no_default() -> None:
    found: Any = tune({}, eval_data={"x": X, "y": numbers(COUNT, 7)}).report.details["metrics"]
    assert set(found) == {"loss", "distance"}


def test_float_labels_that_nothing_is_learned_from_are_told_of() -> None:
    notes = [note for note in tune({"y": RIGHT}).report.notes if "'y'" in note]
    assert len(notes) == 1
    assert "--loss mse or l1" in notes[0]
    assert "int64" not in notes[0]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (RIGHT, "numbers are learned with --loss mse or l1"),
        (np.eye(3, dtype=np.float32)[np.arange(COUNT) % 3][:, None], "one-hot rows: save their .argmax"),
        ((RIGHT > 0).astype(np.float32), "--loss bce"),
        (np.float32(np.arange(COUNT) % 3), "--loss bce|int64"),
        (np.float32(np.arange(COUNT) % 5), "save them as int64 if they are, or learn numbers"),
    ],
)
def test_what_is_said_of_floats_where_classes_are_wanted(labels: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        tune({"y": labels}, loss="cross-entropy")


def test_one_hot_rows_of_whole_numbers() -> None:
    with pytest.raises(OptionError, match=r"one-hot rows, save their \.argmax"):
        tune({"y": np.eye(3, dtype=np.int64)[np.arange(COUNT) % 3][:, None]}, loss="cross-entropy")


def test_one_number_is_called_so() -> None:
    from onnxsparse.losses import labels_unlike

    text = labels_unlike("mse", "y", (1,), [()])
    assert text.startswith("a sample's labels have shape [1], but --loss mse on 'y' takes one number for each sample;")
    assert labels_unlike("l1", "y", (), [(3,)]).startswith(
        "a sample's labels are one number, but --loss l1 on 'y' takes [3]"
    )


def test_metrics_of_classes_and_of_nothing() -> None:
    with pytest.raises(OptionError, match=r"accuracy needs labels that are numbers of classes.*--metric r2"):
        tune({}, eval_data={"x": X, "y": RIGHT}, metrics=["accuracy"])
    with pytest.raises(
        OptionError, match=r"none called labels, label, .*; it has x, truth: name one of them with --labels"
    ):
        tune({}, eval_data={"x": X, "truth": RIGHT}, metrics=["r2"])
    with pytest.raises(OptionError, match=r"unknown metric 'nonsense'.*\(known: loss, accuracy, .*module:function"):
        tune({}, eval_data={"x": X}, metrics=["nonsense"])
    with pytest.raises(OptionError, match="did you mean accuracy"):
        tune({}, eval_data={"x": X}, metrics=["acuracy"])
