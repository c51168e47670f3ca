"""What the terminal says of a training that helped, and of one that did not."""

from __future__ import annotations

import pytest

from onnxsparse.report.rows import Report, Totals
from onnxsparse.report.terminal import show

FIGURES = {
    "attempts": 1,
    "loss_without_training": 0.5,
    "metrics_dense": {"accuracy": 0.9},
    "metrics_without_training": {"accuracy": 0.6},
}


def shown(capsys: pytest.CaptureFixture[str], **details: object) -> str:
    totals = Totals(weights=3, done=2, elements=100, zeros=50)
    show(Report("finetune", "model.onnx", "2:4", (), totals, details={**FIGURES, **details}), 0)
    return capsys.readouterr().out


def test_training_that_helped(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, helped=True, steps=89, loss=0.1, metrics={"accuracy": 0.8})
    assert "2 of 3 weights pruned and trained" in out
    assert "0.5 pruned, 0.1 trained (89 steps)" in out
    assert "accuracy: 0.9 dense, 0.6 pruned, 0.8 trained" in out


def test_training_that_did_not_help(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, helped=False, steps=4, loss=0.5, metrics={"accuracy": 0.6})
    assert "2 of 3 weights pruned, 50.0 %" in out
    assert "0.5 pruned, training did not help" in out
    assert "accuracy: 0.9 dense, 0.6 pruned\n" in out
    assert "trained" not in out


def test_what_was_not_trained_is_not_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    totals = Totals(weights=3, done=2, elements=100, zeros=50)
    notes = ("'a' was pruned, but not trained: no gradient reaches it",)
    details = {**FIGURES, "helped": True, "steps": 4, "loss": 0.1, "metrics": {}}
    show(Report("finetune", "model.onnx", "2:4", (), totals, notes=notes, details=details), 0)
    assert "2 of 3 weights pruned, 1 of them trained, 50.0 %" in capsys.readouterr().out


def test_a_training_that_ends_worse_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, helped=False, trained=True, steps=4, loss=0.75, metrics={"accuracy": 0.5})
    assert "2 of 3 weights pruned and trained" in out
    assert "0.5 pruned, 0.75 trained (4 steps)" in out
    assert "accuracy: 0.9 dense, 0.6 pruned, 0.5 trained" in out


def test_the_unit_of_the_loss_and_what_was_measured_on_what_is_held_out(capsys: pytest.CaptureFixture[str]) -> None:
    held = {"metrics_dense": {}, "metrics_without_training": {"distance": 0.5}, "metrics": {"distance": 0.25}}
    more = {**held, "loss_unit": "variances", "measured_on": "samples held out"}
    out = shown(capsys, helped=True, steps=4, loss=0.1, **more)
    assert "loss on samples held out: 0.5 pruned, 0.1 trained (4 steps); variances\n" in out
    assert "relative distance on samples held out: 0.5 pruned, 0.25 trained\n" in out


def test_the_distance_of_several_outputs_is_the_largest(capsys: pytest.CaptureFixture[str]) -> None:
    each = {"distance": 0.5, "distance:a": 0.25, "distance:b": 0.5}
    held = {"metrics_dense": {}, "metrics_without_training": each, "metrics": each, "measured_on": "samples held out"}
    out = shown(capsys, helped=True, steps=4, loss=0.1, **held)
    assert "\nlargest relative distance on samples held out: 0.5 pruned, 0.5 trained\n" in out
    assert "\nrelative distance of a on samples held out: 0.25 pruned, 0.25 trained\n" in out


def test_the_distance_of_a_whole_file_that_trained_as_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, helped=True, steps=4, loss=0.1, metrics={}, distance_of_file={"pruned": 0.5, "trained": 0.25})
    assert "\nrelative distance of the whole file's outputs: 0.5 pruned, 0.25 trained\n" in out


@pytest.mark.parametrize("verbosity", [0, 1])
def test_what_was_not_trained_for_one_reason_is_said_once(capsys: pytest.CaptureFixture[str], verbosity: int) -> None:
    totals = Totals(weights=7, done=6, elements=100, zeros=50)
    notes = [f"'{name}' was pruned, but not trained: no gradient reaches it" for name in "abcde"]
    notes.insert(2, "another note")
    details = {**FIGURES, "helped": True, "steps": 4, "loss": 0.1, "metrics": {}}
    show(Report("finetune", "m.onnx", "2:4", (), totals, notes=tuple(notes), details=details), verbosity)
    out = capsys.readouterr().out
    assert "6 of 7 weights pruned, 1 of them trained" in out
    assert out.count("another note") == 1
    if verbosity:
        assert out.count("was pruned, but not trained: no gradient reaches it\n") == 5
    else:
        assert "'a', 'b', 'c' and 2 more were pruned, but not trained: no gradient reaches it\n" in out
        assert out.count("not trained") == 1
