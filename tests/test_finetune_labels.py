"""Labels of classes: each is one of the model's, whatever the model declares, and said before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto
from onnx.helper import make_node

import onnxsparse as osp
from onnxsparse.engines.engine import Batch, LossSpec, Spec
from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.building import build
from onnxsparse.engines.ort.engine import OrtEngine
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.losses import axis_of_labels
from tests.engines.ort.build import INT64, info, model, numbers, tensor
from tests.messages import refusing

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")

STORED = [tensor(numbers(16, 32, seed=1), "a"), tensor(numbers(32, 8, seed=2), "b")]
LAYERS = [
    make_node("MatMul", ["x", "a"], ["h"]),
    make_node("Relu", ["h"], ["r"]),
    make_node("MatMul", ["r", "b"], ["y"]),
]
COUNT = 200


def net(outputs: list[Any], more: list[Any] = [], shape: tuple[Any, ...] = ("N", 16)) -> ModelProto:  # noqa: B006
    return model([*LAYERS, *more], [info("x", list(shape))], outputs, STORED)


def tune(proto: ModelProto, labels: Any, **options: Any) -> Any:
    shape = (COUNT, *labels.shape[1:], 16)
    data = {"x": numbers(*shape), "labels": labels}
    known = {"pattern": "2:4", "steps": 3, "loss": "cross-entropy", "data": data, "engine": "ort"}
    return osp.finetune(proto, **{**known, **options})


SYMBOLIC = net([info("y", ["N", "C"])])
RIGHT = np.arange(COUNT) % 8


@pytest.mark.parametrize("wrong", [8, 10**6, 2**31 - 1, 2**40, -1])
def test_one_wrong_label_is_found_where_the_model_does_not_declare_its_classes(wrong: int) -> None:
    labels = RIGHT.copy()
    labels[133] = wrong
    with pytest.raises(OptionError, match=rf"label {wrong} of sample 133 .* is none of the"):
        tune(SYMBOLIC, labels)


def test_labels_that_are_all_wrong_do_not_end_the_engine() -> None:
    with refusing(OptionError):
        tune(SYMBOLIC, np.full(COUNT, 10**6), hardness=0.0)


def test_wrong_labels_of_what_is_measured_on() -> None:
    wrong = {"x": numbers(40, 16), "labels": np.full(40, 8)}
    with refusing(OptionError):
        tune(SYMBOLIC, RIGHT, eval_data=wrong)


def test_labels_of_a_function_are_checked_with_every_batch() -> None:
    def samples() -> Any:
        for step in range(30):
            labels = np.arange(32) % 8
            labels[5] = 8 if step == 20 else 0
            yield {"x": numbers(32, 16, seed=step), "labels": labels}

    with pytest.raises(OptionError, match=rf"label 8 of sample {20 * 32 + 5} of samples"):
        tune(SYMBOLIC, RIGHT, data=samples, steps=25)


def test_labels_of_a_function_are_checked_in_what_is_held_out() -> None:
    def samples() -> Any:
        for step in range(30):
            yield {"x": numbers(32, 16, seed=step), "labels": np.full(32, 8 if step == 1 else 0)}

    with refusing(OptionError):
        tune(SYMBOLIC, RIGHT, data=samples)


def test_classes_are_those_of_the_first_float_output() -> None:
    best = make_node("ArgMax", ["y"], ["best"], axis=1)
    both = net([info("best", ["N", 1], INT64), info("y", ["N", 8])], [best])
    assert tune(both, RIGHT).report.ok
    with refusing(OptionError):
        tune(both, RIGHT + 1)


SEQUENCES = net([info("y", ["N", 5, "C"])], shape=("N", 5, 16))


def test_sequences_have_their_classes_along_the_last_axis() -> None:
    labels = np.arange(COUNT * 5).reshape(COUNT, 5) % 8
    data = {"x": numbers(COUNT, 5, 16), "labels": labels}
    tuned = tune(SEQUENCES, labels, eval_data=data, hardness=0.3, steps=60)
    details = tuned.report.details
    assert details["metrics"]["accuracy"] > details["metrics_without_training"]["accuracy"]
    labels = labels.copy()
    labels[7, 3] = 8
    with refusing(OptionError):
        tune(SEQUENCES, labels)


def test_sequences_soften_the_same_axis(tmp_path: Path) -> None:
    labels = np.arange(COUNT * 5).reshape(COUNT, 5) % 8
    assert tune(SEQUENCES, labels, distillation="kl", temperature=1.0).report.ok


def test_labels_that_fit_neither_axis() -> None:
    with refusing(OptionError):
        tune(
            SEQUENCES,
            np.zeros((COUNT, 4), np.int64),
            data={"x": numbers(COUNT, 5, 16), "labels": np.zeros((COUNT, 4), int)},
        )


@pytest.mark.parametrize(
    ("shape", "labels", "axis"),
    [
        ((2, 8), (2,), 1),
        ((2, 8, 5), (2, 5), 1),
        ((2, 5, 8), (2, 5), 2),
        ((2, 5, 5), (2, 5), 1),
        ((2, 3, 4, 8), (2, 3, 4), 3),
        ((2, 5, 8), (2, 4), None),
        ((2,), (2,), None),
        ((None, None, 8), (None, 5), 2),
    ],
)
def test_where_classes_lie(shape: tuple[int, ...], labels: tuple[int, ...], axis: int | None) -> None:
    assert axis_of_labels(shape, labels) == axis


def test_a_file_with_whole_numbers_alone_has_no_classes() -> None:
    best = net([info("best", ["N", 1], TensorProto.INT64)], [make_node("ArgMax", ["y"], ["best"], axis=1)])
    with refusing(ModelError):
        tune(best, RIGHT)


def test_an_engine_does_not_read_beyond_the_classes(tmp_path: Path) -> None:
    proto = ModelProto()
    proto.CopyFrom(SYMBOLIC)
    for tag, stored in zip(("t0", "t1"), proto.graph.initializer):
        stored.doc_string = tag
    spec = Spec(8, {"t0": "a", "t1": "b"}, objective=LossSpec("cross-entropy", hardness=0.0))
    samples = {"x": numbers(16, 16), "labels": np.arange(16) % 8}
    made = build(str(tmp_path / "graph"), spec, proto, samples, "origin")
    engine = OrtEngine(str(tmp_path / "graph"), made, "relative")
    assert engine.step(Batch({"x": numbers(8, 16), "labels": np.arange(8)})) > 0
    for run in (engine.step, engine.evaluate):
        with refusing(OptionError):
            run(Batch({"x": numbers(8, 16), "labels": np.array([0, 1, 2, 3, 4, 5, -100, 9])}))
