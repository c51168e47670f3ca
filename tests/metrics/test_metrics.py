"""Metrics: against slow and simple oracles, over batches of any size."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxsparse import metrics
from onnxsparse.errors import OptionError
from onnxsparse.metrics import Metric, function_metric, parse
from tests.messages import refusing

GENERATOR = np.random.Generator(np.random.Philox(key=11))
LOGITS = GENERATOR.standard_normal((23, 7)).astype(np.float32)
LABELS = GENERATOR.integers(0, 7, 23)


def measured(metric: str | Metric, outputs, dense=None, labels=None, cuts: Sequence[int] = ()) -> dict[str, float]:
    """The figures of a metric over batches that end where it is cut."""
    meter = (parse(metric) if isinstance(metric, str) else metric).meter()
    count = len(next(iter(outputs.values())))
    for start, stop in zip([0, *cuts], [*cuts, count]):
        cut = [{name: array[start:stop] for name, array in (part or {}).items()} for part in (outputs, dense)]
        meter.add(*cut, {} if labels is None else {"labels": labels[start:stop]})
    return meter.result()


def slow_top(scores, label: int, k: int) -> bool:
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    return label in order[:k]


CUTS = st.lists(st.integers(0, 23), max_size=4).map(sorted)


@given(st.integers(1, 9), st.integers(0, 2**32), CUTS)
def test_top_k_is_what_sorting_says(k: int, seed: int, cuts: list[int]) -> None:
    scores = np.random.Generator(np.random.Philox(key=seed)).integers(-3, 3, (23, 7)).astype(np.float32)
    wanted = np.mean([slow_top(row, label, k) for row, label in zip(scores.tolist(), LABELS)])
    assert measured(f"top-{k}", {"logits": scores}, labels=LABELS, cuts=cuts) == {f"top-{k}": pytest.approx(wanted)}


@given(CUTS)
def test_accuracy_is_the_share_of_right_winners(cuts: list[int]) -> None:
    found = measured("accuracy", {"logits": LOGITS}, labels=LABELS, cuts=cuts)
    assert found == {"accuracy": pytest.approx(np.mean(LOGITS.argmax(-1) == LABELS))}


def test_which_output_is_meant() -> None:
    counts = np.zeros((23, 7), np.int64)
    pixels = np.zeros((23, 7, 3, 3), np.float32)
    wrong = -LOGITS
    outputs = {"counts": counts, "pixels": pixels, "logits": LOGITS, "other": wrong}
    assert measured("accuracy", outputs, labels=LABELS) == measured("accuracy", {"x": LOGITS}, labels=LABELS)
    named = measured("accuracy:output=other", outputs, labels=LABELS)
    assert named == measured("accuracy", {"x": wrong}, labels=LABELS)
    assert parse("top-3:output=other").text == "top-3:output=other"
    with refusing(OptionError):
        measured("accuracy:output=logit", outputs, labels=LABELS)
    with refusing(OptionError):
        measured("accuracy", {"pixels": pixels}, labels=LABELS)


@pytest.mark.parametrize("axis", [1, -1])
def test_a_label_for_each_place(axis: int) -> None:
    scores = GENERATOR.standard_normal((4, 5, 6, 3)).astype(np.float32)
    labels = GENERATOR.integers(0, 3, (4, 5, 6))
    wanted = np.mean(scores.argmax(-1) == labels)
    found = measured("accuracy", {"pixels": np.moveaxis(scores, -1, axis)}, labels=labels)
    assert found["accuracy"] == pytest.approx(wanted)


def test_what_is_left_out_does_not_count() -> None:
    labels = LABELS.copy()
    labels[::2] = -100
    found = measured("accuracy", {"logits": LOGITS}, labels=labels)
    assert found["accuracy"] == pytest.approx(np.mean((LOGITS.argmax(-1) == LABELS)[1::2]))
    assert measured("accuracy", {"logits": LOGITS}, labels=np.full(23, -100)) == {}


def test_nan_is_never_right() -> None:
    for k in (1, 5):
        assert measured(f"top-{k}", {"logits": np.full((23, 7), np.nan, np.float32)}, labels=LABELS) == {
            f"top-{k}": 0.0
        }
    assert measured("agreement", {"x": LOGITS * np.nan}, {"x": LOGITS}) == {"agreement": 0.0}


def test_agreement() -> None:
    other = LOGITS + GENERATOR.standard_normal((23, 7)).astype(np.float32)
    wanted = np.mean(other.argmax(-1) == LOGITS.argmax(-1))
    assert measured("agreement", {"x": other}, {"x": LOGITS}, cuts=[5]) == {"agreement": pytest.approx(wanted)}
    with refusing(OptionError):
        measured("agreement", {"x": LABELS}, {"x": LABELS})


@given(CUTS)
def test_distance(cuts: list[int]) -> None:
    near = LOGITS + np.float32(0.01)
    wanted = np.sqrt(np.sum((near - LOGITS).astype(float) ** 2) / np.sum(LOGITS.astype(float) ** 2))
    found = measured("distance", {"x": near, "kind": LABELS}, {"x": LOGITS, "kind": LABELS}, cuts=cuts)
    assert found == {"distance": pytest.approx(wanted)}


def test_the_largest_distance_counts() -> None:
    dense = {"a": LOGITS, "b": LOGITS[:, :2]}
    outputs = {"a": LOGITS * 2, "b": LOGITS[:, :2] * 1.5}
    found = measured("distance", outputs, dense, cuts=[4, 9])
    assert found == {
        name: pytest.approx(far) for name, far in (("distance", 1), ("distance:a", 1), ("distance:b", 0.5))
    }
    assert list(measured("distance:output=b", outputs, dense).values()) == [pytest.approx(0.5)]
    outputs["b"] = outputs["b"] * np.nan
    assert np.isnan(measured("distance", outputs, dense)["distance"])
    with refusing(OptionError):
        measured("distance", {"a": LOGITS[:, :3]}, dense)


def test_distance_to_nothing() -> None:
    zero = {"x": np.zeros((3, 2), np.float32)}
    assert measured("distance", zero, zero) == {"distance": 0.0}
    assert measured("distance", {"x": zero["x"] + 1}, zero) == {"distance": 1.0}


def test_words() -> None:
    known = {"accuracy", "agreement", "distance", "mae", "mse", "r2", "top-K"}
    assert {entry.syntax for entry in metrics.available()} == known
    assert parse("top-k:k=3") == parse("top-3")
    assert parse("top-k").text == "top-5"
    for metric in ("accuracy", "top-7", "distance:output=a", "agreement"):
        assert parse(parse(metric).text) == parse(metric)
    for word in ("accurcy", "top-0", "top-x", "os:system", "accuracy:outputs=3", "top-5:k=3"):
        with pytest.raises(OptionError):
            parse(word)
    assert parse("accuracy").needs == ("labels",)


# -- functions of the user's


def test_a_function_is_averaged_over_samples() -> None:
    def mean(outputs, batch):
        return outputs["x"].mean()

    def several(outputs, batch):
        return {"mean": float(outputs["x"].mean()), "size": len(batch["labels"])}

    found = measured(function_metric(mean), {"x": LOGITS}, cuts=[3, 10])
    assert found == {"mean": pytest.approx(LOGITS.mean(), rel=1e-4)}
    found = measured(function_metric(several), {"x": LOGITS}, labels=LABELS, cuts=[3])
    assert found == {"mean": pytest.approx(LOGITS.mean(), rel=1e-4), "size": pytest.approx((3 * 3 + 20 * 20) / 23)}


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda outputs, batch: None, "gives NoneType"),
        (lambda outputs, batch: {"a": "text"}, "gives str"),
        (lambda outputs, batch: np.zeros(3), "gives ndarray"),
        (lambda outputs, batch: outputs["y"], "failed: KeyError.*no 'y'; the outputs are 'x'"),
        (lambda outputs: 3, "failed: TypeError"),
    ],
)
def test_functions_that_fail(function, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        measured(function_metric(function), {"x": LOGITS})


def test_a_function_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_metrics_of_tests.py").write_text("def seven(outputs, batch):\n    return 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    metric = function_metric("my_metrics_of_tests:seven")
    assert measured(metric, {"x": LOGITS}) == {"seven": 7.0}
    assert metric.text == "my_metrics_of_tests:seven"
    for name, words in (("seven", "module:function"), ("my_metrics_of_tests:eight", "no 'eight'")):
        with pytest.raises(OptionError, match=words):
            function_metric(name)
    sys.modules.pop("my_metrics_of_tests")


# -- labels that are numbers

NUMBERS = (GENERATOR.standard_normal((23, 3)) * [1, 50, 0.01] + [1e4, 3, 0]).astype(np.float32)
FOUND = (NUMBERS + GENERATOR.standard_normal((23, 3)) * [0.3, 20, 0.002]).astype(np.float32)


@given(CUTS)
def test_numbers_are_compared(cuts: list[int]) -> None:
    wide, right = FOUND.astype(float), NUMBERS.astype(float)
    for metric, wanted in (
        ("mse", np.mean((wide - right) ** 2)),
        ("mae", np.mean(np.abs(wide - right))),
        ("r2", np.mean(1 - ((wide - right) ** 2).sum(0) / ((right - right.mean(0)) ** 2).sum(0))),
    ):
        assert measured(metric, {"y": FOUND}, labels=NUMBERS, cuts=cuts) == {metric: pytest.approx(wanted, rel=1e-6)}


def test_the_output_of_the_labels_shape_is_compared() -> None:
    outputs = {"logits": LOGITS, "counts": np.zeros((23, 3), int), "y": FOUND, "other": NUMBERS}
    assert measured("mse", outputs, labels=NUMBERS)["mse"] > 0
    assert measured("mse:output=other", outputs, labels=NUMBERS) == {"mse": 0}
    with refusing(OptionError):
        measured("mae", {"logits": LOGITS}, labels=NUMBERS)
    with refusing(OptionError):
        measured("r2:output=z", outputs, labels=NUMBERS)


def test_one_number_for_each_sample() -> None:
    for found, right in ((FOUND[:, :1], NUMBERS[:, 0]), (FOUND[:, 0], NUMBERS[:, :1]), (FOUND[:, 0], NUMBERS[:, 0])):
        wanted = np.mean(np.abs(FOUND[:, 0].astype(float) - NUMBERS[:, 0]))
        assert measured("mae", {"y": found}, labels=right) == {"mae": pytest.approx(wanted)}
    assert measured("r2", {"y": NUMBERS[:, :1]}, labels=NUMBERS[:, 0]) == {"r2": 1.0}


def test_columns_that_do_not_vary_explain_nothing() -> None:
    still = np.ones((23, 1), np.float32)
    both = np.concatenate([NUMBERS[:, :1], still], axis=1)
    assert measured("r2", {"y": both + still}, labels=both)["r2"] < 1
    assert measured("r2", {"y": still}, labels=still) == {}


def test_columns_of_pictures_are_their_channels() -> None:
    right = GENERATOR.standard_normal((6, 2, 4, 4)) * np.array([1, 100]).reshape(2, 1, 1)
    found = right + GENERATOR.standard_normal(right.shape)
    each = [1 - ((found - right)[:, c] ** 2).sum() / ((right[:, c] - right[:, c].mean()) ** 2).sum() for c in (0, 1)]
    assert measured("r2", {"y": found}, labels=right) == {"r2": pytest.approx(np.mean(each))}


def test_what_a_function_asks_for_and_is_not_there() -> None:
    with refusing(OptionError):
        measured(function_metric(lambda outputs, batch: batch["label"].sum()), {"y": LOGITS}, labels=LABELS)
    optional = function_metric(lambda outputs, batch: float(batch.get("weight", 2)))
    assert list(measured(optional, {"y": LOGITS}, labels=LABELS).values()) == [2.0]
