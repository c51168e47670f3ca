"""Batches of other sizes than the first: loss, outputs and the step are those of their samples, in each engine."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.data.field import IGNORED
from onnxsparse.dialects.msbench import build_sparse_scheduler
from onnxsparse.engines.ort import library as ort
from onnxsparse.losses import parse
from onnxsparse.train.fixed_batch import portions_of
from tests.dialects.nets import batch, onnx_model, random

pytestmark = pytest.mark.skipif(not ort.available(), reason="needs onnxruntime-training")

SIZES = (32, 5, 33, 100, 1)
LOSSES = ("cross-entropy", "mse", "distill")


def prepared(loss, size, moved=0.1, **options):
    """A model whose graph takes so many samples, with weights that are not the dense model's."""
    scheduler = build_sparse_scheduler("amba")
    settings = {"engine": "ort", "optimizer": "sgd:momentum=0", "lr": 0.01, **options}
    model = scheduler.prepare_sparse_model(onnx_model(), loss=loss, **settings)
    if size:
        model._started(given(loss, size, 7))
    for place, site in enumerate(model.sites):
        model.weight(site.key)[...] += np.float32(moved) * random(50 + place, *site.shape)
    return model


def given(loss, size, seed=3):
    x, classes = batch(seed, size)
    labels = {"cross-entropy": classes, "mse": random(40 + seed, size, 8)}
    return {"x": x, **({"labels": labels[loss]} if loss in labels else {})}


def numbers(model):
    return {site.key: np.array(model.weight(site.key)) for site in model.sites}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_is_that_of_its_samples(loss):
    """Held against one sample at a time, whose gradients need no filling."""
    model, single = prepared(loss, 32), prepared(loss, 32 if loss == "distill" else 1)  # its scale is of the first
    for size in SIZES:
        arrays = given(loss, size)
        found, moved = stepped(model, arrays)
        alone = [stepped(single, {name: one[at : at + 1] for name, one in arrays.items()}) for at in range(size)]
        assert found == pytest.approx(np.mean([one for one, _ in alone]), rel=1e-4)
        for key, array in moved.items():
            wanted = np.mean([one[key] for _, one in alone], axis=0)
            assert np.abs(array - wanted).max() <= 2e-3 * np.abs(wanted).max(), (size, key)


def stepped(model, arrays):
    """The loss, and by how much the weights move; they are put back."""
    model.steps, before = 0, numbers(model)
    loss, moved = model.step(arrays), {}
    for key, array in numbers(model).items():
        moved[key] = array.astype(np.float64) - before[key]
        model.weight(key)[...] = before[key]
    return loss, moved


@pytest.mark.parametrize("loss", LOSSES[:2])
def test_what_is_evaluated_is_that_of_its_samples(loss):
    model = prepared(loss, 32)
    for size in SIZES:
        arrays = given(loss, size)
        found, outputs = model.evaluate(arrays)
        assert outputs["y"].shape == (size, 8)
        assert found == pytest.approx(parse(loss).value([outputs["y"]], [arrays["labels"]]), rel=1e-4)
        for place in (0, size - 1):
            alone = model.evaluate({name: array[place : place + 1] for name, array in arrays.items()})[1]["y"]
            np.testing.assert_allclose(outputs["y"][place : place + 1], alone, rtol=1e-4, atol=1e-5)


def test_what_is_evaluated_first_decides_nothing():
    models = [prepared("cross-entropy", 0) for _ in range(2)]
    arrays = given("cross-entropy", 100)
    assert models[0].evaluate(arrays)[1]["y"].shape == (100, 8)
    assert not [key for key in models[0].state()[0] if key.startswith("samples/")]
    for turn in range(2):
        losses = [model.step(given("cross-entropy", 16, turn)) for model in models]
        assert losses[0] == losses[1]
    assert models[0]._fixed == 16
    for key, array in numbers(models[0]).items():
        assert array.tobytes() == models[1].weight(key).tobytes()


def test_labels_that_are_left_out_count_nowhere():
    model, arrays = prepared("cross-entropy", 8), given("cross-entropy", 21)
    arrays["labels"][[0, 3, 9, 10, 11, 20]] = IGNORED
    found, outputs = model.evaluate(arrays)
    assert found == pytest.approx(parse("cross-entropy").value([outputs["y"]], [arrays["labels"]]), rel=1e-4)


@pytest.mark.parametrize("count", [1, 5, 8, 11, 16, 31])
def test_weights_times_samples_are_those_of_the_mean(count):
    share = np.zeros(count)
    for portion in portions_of({"x": np.arange(count)}, 8, False):
        places = portion.batch.arrays["x"]
        assert len(places) == 8
        np.add.at(share, places, portion.weight / 8)
    np.testing.assert_allclose(share, 1 / count, atol=1e-12)


def test_batch_statistics_of_a_filled_batch_are_said():
    model = prepared("cross-entropy", 8, train_bn=True)
    for size, said in ((8, False), (16, False), (5, True), (3, True)):
        model.step(given("cross-entropy", size))
        assert sum("no multiple of the first one" in note for note in model.notes) == said
