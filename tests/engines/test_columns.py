"""Distilled columns of different kinds: each counts by its own spread, and nothing changes where they are alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper
from onnx.helper import make_node

import onnxsparse as osp
from onnxsparse import losses
from onnxsparse.engines.engine import Spec
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.ort.building import build
from onnxsparse.engines.torch import library as torch_library
from onnxsparse.losses import Columns, Distill, scale_along
from tests.engines.small_nets import net, numbers, run, tagger

ENGINES = [
    pytest.param("ort", marks=pytest.mark.skipif(not ort_library.available(), reason="needs onnxruntime-training")),
    pytest.param("torch", marks=pytest.mark.skipif(not torch_library.available(), reason="needs torch")),
]
FAR_APART = np.float32([1.0, 100.0, 0.1])
NOTE = "vary by unlike amounts"


def regression(units: np.ndarray = FAR_APART, squash: str = "", time: bool = False) -> ModelProto:
    """A net of two layers whose outputs are brought to units of their own, perhaps behind a squashing function."""
    count = len(units)
    nodes = [
        make_node("MatMul", ["x", "w1"], ["a"]),
        make_node("Relu", ["a"], ["b"]),
        make_node("MatMul", ["b", "w2"], ["c"]),
        make_node("Mul", ["c", "units"], ["d"]),
        make_node(squash or "Add", ["d"] if squash else ["d", "units"], ["y"]),
    ]
    stored = {"w1": numbers(8, 48, seed=1), "w2": numbers(48, count, seed=2) / 8, "units": units}
    rows: list[int | str] = ["N", 5] if time else ["N"]
    return net(nodes, stored, [*rows, 8], {"y": [*rows, count]})


def tuned(model: ModelProto, engine: str, *shape: int, **options: Any) -> Any:
    return osp.finetune(
        model, data={"x": numbers(256, *shape)}, eval_data={"x": numbers(64, *shape, seed=9)}, engine=engine,
        pattern="unstructured", sparsity=0.7, allow=["output", "small"], metrics=["loss"], **options,
    )  # fmt: skip


# -- the definition


def test_columns_of_one_kind_have_one_scale() -> None:
    rows = numbers(64, 5) * np.float32([1, 2, 3, 4, 5])
    assert scale_along(rows, 2) == losses.scale_of(rows)
    assert scale_along(rows[:, :1], 2) == losses.scale_of(rows[:, :1])
    pictures = numbers(64, 3, 4, 4) * FAR_APART.reshape(3, 1, 1)
    assert scale_along(pictures, 4) == losses.scale_of(pictures)


def test_columns_of_different_kinds_have_their_variances() -> None:
    rows = numbers(64, 3) * FAR_APART + FAR_APART
    found = scale_along(rows, 2)
    assert isinstance(found, Columns)
    assert found.axis == -1
    np.testing.assert_allclose(found.each, rows.astype(float).var(axis=0))
    assert found.ratio == pytest.approx(1e6, rel=0.9)
    turned = scale_along(np.moveaxis(rows.reshape(16, 4, 3), 2, 1), 3, said=1)
    assert isinstance(turned, Columns)
    assert turned.axis == -2
    np.testing.assert_allclose(turned.each, found.each)


def test_columns_that_stand_still_do_not_count_as_small() -> None:
    """Nothing that is constant, or varies by rounding alone, is blown up."""
    rows = np.concatenate([numbers(64, 2), np.full((64, 1), 5), np.zeros((64, 1)), 1e3 + 1e-4 * numbers(64, 1)], axis=1)
    assert isinstance(scale_along(rows, 2), float)
    wide = scale_along(np.concatenate([rows, 100 * numbers(64, 1, seed=3)], axis=1), 2)
    assert isinstance(wide, Columns)
    whole = losses.scale_of(np.concatenate([rows, 100 * numbers(64, 1, seed=3)], axis=1))
    assert wide.each[2:5] == (whole, whole, whole)


def test_a_class_that_is_ruled_out_has_no_part_in_the_unit() -> None:
    rows = numbers(64, 4)
    ruled = np.concatenate([rows, np.full((64, 1), -1e9, np.float32)], axis=1)
    assert scale_along(ruled, 2) == pytest.approx(losses.scale_of(rows))
    assert scale_along(ruled[:, 4:], 2) == losses.scale_of(ruled[:, 4:])


def test_few_rows_say_nothing() -> None:
    assert isinstance(scale_along(numbers(8, 3) * FAR_APART, 2), float)


@pytest.mark.parametrize("axis", [-1, -2])
def test_value_and_gradient(axis: int) -> None:
    student, dense = numbers(4, 3, 3, seed=1).astype(float), numbers(4, 3, 3, seed=2).astype(float)
    columns = Columns(axis, (0.5, 20.0, 3.0))
    loss = Distill().bind([columns])
    shaped = np.array(columns.each).reshape((1, 1, 3) if axis == -1 else (1, 3, 1))
    assert loss.value([student], [dense]) == pytest.approx(np.mean((student - dense) ** 2 / shaped))
    np.testing.assert_allclose(loss.gradient([student], [dense])[0], 2 * (student - dense) / shaped / student.size)


# -- in the engines


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("time", [False, True])
def test_small_columns_live(engine: str, time: bool) -> None:
    """What is lost of a column, of its variance, is alike for all: with one scale the small ones were destroyed."""
    model, shape = regression(time=time), (5, 8) if time else (8,)
    result = tuned(model, engine, *shape, steps=150)
    other = numbers(512, *shape, seed=5)
    ours, dense = (run(one, other)["y"].reshape(-1, 3) for one in (result.model, model))
    lost = ((ours - dense) ** 2).mean(axis=0) / dense.var(axis=0)
    assert lost.max() < 0.25, lost
    assert lost.max() < 8 * lost.min(), lost
    assert any(NOTE in note for note in result.report.notes)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_loss_is_that_of_the_definition(engine: str) -> None:
    model, samples, other = regression(), numbers(256, 8), numbers(64, 8, seed=9)
    result = tuned(model, engine, 8, steps=8, retries=0)
    told: Any = result.report.details["metrics"]
    ours, dense = run(result.model, other)["y"], run(model, other)["y"]
    scale = scale_along(run(model, samples)["y"], 2)
    assert told["loss"] == pytest.approx(Distill().bind([scale]).value([ours], [dense]), rel=0.5)  # of other samples


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("squash", ["", "Sigmoid", "Softmax"])
def test_what_is_of_one_kind_is_left_alone(engine: str, squash: str) -> None:
    """Logits, and shares: of these some are rare, which is no unit of their own."""
    units = np.float32([1, 2, 3]) if not squash else np.float32([1, 1, 1])
    result = tuned(regression(units, squash), engine, 8, steps=4, retries=0)
    assert not any(NOTE in note for note in result.report.notes)


@pytest.mark.skipif(not ort_library.available(), reason="needs onnxruntime-training")
def test_the_training_graph_of_a_classifier_has_one_scale(tmp_path: Path) -> None:
    """It is what it was before columns were looked at: one number, by which the mean of all squares is multiplied."""
    model, x = tagger(time=1), numbers(64, 1, 6)
    logits = run(model, x)["y"]
    model.graph.initializer[0].doc_string = "t0"
    build(str(tmp_path / "graph"), Spec(16, {"t0": "w1"}, {"t0": "mask"}), model, {"x": x}, "origin")
    made = onnx.load(tmp_path / "graph" / "training_model.onnx").graph
    numbers_of_it = {one.name: numpy_helper.to_array(one) for one in made.initializer}
    numbers_of_it.update(
        {node.output[0]: numpy_helper.to_array(node.attribute[0].t) for node in made.node if node.op_type == "Constant"}
    )
    assert numbers_of_it["distill_share"] == pytest.approx(1 / losses.scale_of(logits), rel=1e-6)
    assert [node.op_type for node in made.node if "distill_share" in node.input][:1] == ["Mul"]
    assert not any(name.startswith("distill_root") for name in numbers_of_it)
