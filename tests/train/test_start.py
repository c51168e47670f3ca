"""Training starts from calibrated masks and numbers, unless somebody else says what the masks are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import onnxsparse as osp
from onnxsparse.engines.ort import library as ort
from onnxsparse.engines.torch import library as torch
from onnxsparse.errors import ModelError
from onnxsparse.recipes.flags import recipe_of
from onnxsparse.recipes.modifiers.pruning import Pruning
from onnxsparse.recipes.modifiers.training import Training
from onnxsparse.train import start
from onnxsparse.train.start import started
from onnxsparse.train.task import ask
from tests.cases import for_each

pytestmark = pytest.mark.skipif(not (ort.available() or torch.available()), reason="needs an engine that trains")
STEPS: dict[str, Any] = {"pattern": "unstructured", "sparsity": 0.95, "steps": 20, "batch_size": 16}


@pytest.fixture(scope="module")
def images() -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {"x": random.random((320, 1, 8, 8), np.float32) * (random.random((320, 1, 8, 8)) < 0.4)}


@pytest.fixture(scope="module")
def whole(digits_cnn: Path, images: dict[str, Any]) -> osp.Result:
    return osp.finetune(digits_cnn, data=images, **STEPS)


def task_of(model: Path, images: dict[str, Any], **options: Any) -> Any:
    masks = options.pop("masks", None)
    return ask(str(model), recipe_of({**options, "batch_size": 16}), images, masks=masks)


def same(one: osp.Result, other: osp.Result) -> bool:
    assert one.model is not None
    assert other.model is not None
    return bool(one.model.SerializeToString() == other.model.SerializeToString())


def test_the_default_starts_nearer_than_a_plain_one(
    digits_cnn: Path, images: dict[str, Any], whole: osp.Result, tmp_path: Path
) -> None:
    """The recipe that was written makes the same file again; one that says nothing starts plainly, as before."""
    plain = osp.finetune(digits_cnn, data=images, init="plain", **STEPS)
    ours, theirs = whole.report.details, plain.report.details
    assert ours["loss_without_training"] < theirs["loss_without_training"]
    assert ours["loss"] < ours["loss_without_training"]
    assert any("starts from calibrated numbers" in note for note in whole.report.notes)
    assert not any("start" in note for note in plain.report.notes)
    assert "init: calibrated" in ours["recipe"]
    for known in (whole, plain):
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(known.report.details["recipe"])
        assert same(osp.finetune(digits_cnn, data=images, recipe=recipe), known)
    (tmp_path / "own.yaml").write_text(
        "modifiers:\n- !training {steps: 20, batch: 16}\n- !pruning {pattern: unstructured, sparsity: 0.95}\n"
    )
    assert same(osp.finetune(digits_cnn, data=images, recipe=tmp_path / "own.yaml"), plain)


class StopError(Exception):
    pass


def test_a_run_that_stopped_goes_on_from_the_same_start(
    digits_cnn: Path, images: dict[str, Any], whole: osp.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start is kept with the checkpoints: it is not made again, whatever became of the samples."""

    def stop(row: dict[str, Any]) -> None:
        if row["step"] > 6:
            raise StopError

    given = {"data": images, "checkpoint": tmp_path / "run", **STEPS}
    with pytest.raises(StopError):
        osp.finetune(digits_cnn, watch=stop, **given)
    monkeypatch.setattr(start, "pruned", None)
    assert same(osp.finetune(digits_cnn, resume=True, **given), whole)


ZEROS = {"pattern": "unstructured", "sparsity": 0.5}


@for_each(
    ("said", "more"),
    [
        ("--schedule linear", {"schedule": "linear"}),
        ("--prune-begin", {"prune_begin": 0.1}),
        ("--regrow gradient", {"regrow": "gradient"}),
        ("--sparser soft-threshold", {"sparser": "soft-threshold"}),
        ("--score random", {"score": "random"}),
    ],
)
def test_who_says_what_the_masks_are_starts_plainly(
    said: str, more: dict[str, Any], digits_cnn: Path, images: dict[str, Any]
) -> None:
    task = started(task_of(digits_cnn, images, **ZEROS, **more))
    assert task.start is None
    assert said in task.notes[-1]
    assert task.recipe.only(Pruning).init == "plain"


def test_calibration_sees_no_sample_that_is_held_out(
    digits_cnn: Path, images: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    task, seen = task_of(digits_cnn, images, pattern="2:4"), []

    def look(model: Any, plan: Any, request: Any) -> Any:
        seen.append(request.asked)
        raise ModelError("seen")

    monkeypatch.setattr(start, "pruned", look)
    assert "cannot be calibrated: seen" in started(task).notes[-1]
    rows = {one.tobytes() for one in seen[0].data["x"]}
    held = task.feeding.held_out()
    assert len(rows) == min(start.SAMPLES, task.feeding.trained)
    assert not rows & {one.tobytes() for one in held.take(np.arange(held.count))["x"]}


def test_the_nearer_of_both_is_taken(digits_cnn: Path, images: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(digits_cnn, images, pattern="2:4")
    made = started(task)
    assert made.start is not None
    assert all(row.keep is not None for row in made.plan.planned)
    monkeypatch.setattr(start, "distance", lambda task, plan, numbers: float(bool(numbers)))
    plain = started(task)
    assert plain.start is None
    assert plain.plan is task.plan
    assert "calibrated its outputs lie 1 from" in plain.notes[-1]


def test_rates_are_lower_near_the_goal() -> None:
    rates = [Training().base_rate(share, near=True) for share in (0.5, 0.8, 0.9, 0.95)]
    assert rates == sorted(rates)
    assert all(near < Training().base_rate(share) for near, share in zip(rates, (0.5, 0.8, 0.9, 0.95)))
    assert Training(rate=0.1).base_rate(0.5, near=True) == 0.1


def test_where_every_rate_harms_the_start_is_delivered(
    digits_cnn: Path, images: dict[str, Any], whole: osp.Result
) -> None:
    """Number by number: the loss on the samples held out is that of the start, and nothing of a training is left."""
    task = started(task_of(digits_cnn, images, **{name: STEPS[name] for name in ("pattern", "sparsity")}))
    result = osp.finetune(digits_cnn, data=images, lr=1e4, **STEPS)
    details = result.report.details
    assert result.model is not None
    assert not details["trained"]
    assert details["loss"] == details["loss_without_training"] == whole.report.details["loss_without_training"]
    stored = {one.name: numpy_helper.to_array(one) for one in result.model.graph.initializer}
    assert task.start
    for tag, array in task.start.items():
        known = task.planned.get(tag)
        keep = 1 if known is None or known.keep is None else known.keep.reshape(array.shape)
        assert (stored[task.tags[tag].name] == array * keep).all()
