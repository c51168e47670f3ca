"""Labels of classes in torch: they belong to the first float output, and may lie along its last axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from onnx.helper import make_node

import onnxsparse as osp
from onnxsparse.errors import OptionError
from tests.engines.ort.build import INT64, info, model, numbers, tensor
from tests.messages import refusing

COUNT = 128
STORED = [tensor(numbers(16, 32, seed=1), "a"), tensor(numbers(32, 8, seed=2), "b")]
LAYERS = [
    make_node("MatMul", ["x", "a"], ["h"]),
    make_node("Relu", ["h"], ["r"]),
    make_node("MatMul", ["r", "b"], ["y"]),
]


def tune(proto: Any, x: Any, labels: Any, **options: Any) -> Any:
    known = {"pattern": "2:4", "steps": 40, "loss": "cross-entropy", "data": {"x": x, "labels": labels}}
    return osp.finetune(proto, engine="torch", **{**known, **options})


def test_labels_belong_to_the_first_float_output() -> None:
    best = make_node("ArgMax", ["y"], ["best"], axis=1)
    proto = model([*LAYERS, best], [info("x", ["N", 16])], [info("best", None, INT64), info("y", ["N", "C"])], STORED)
    labels = np.arange(COUNT) % 8
    assert tune(proto, numbers(COUNT, 16), labels).report.details["helped"]
    labels[77] = 8
    with refusing(OptionError):
        tune(proto, numbers(COUNT, 16), labels)


@pytest.mark.parametrize("distillation", ["distill", "kl"])
def test_sequences_have_their_classes_along_the_last_axis(distillation: str) -> None:
    proto = model(LAYERS, [info("x", ["N", 5, 16])], [info("y", ["N", 5, "C"])], STORED)
    labels = np.arange(COUNT * 5).reshape(COUNT, 5) % 8
    assert tune(proto, numbers(COUNT, 5, 16), labels, distillation=distillation).report.details["helped"]
    labels[7, 3] = 8
    with refusing(OptionError):
        tune(proto, numbers(COUNT, 5, 16), labels)
