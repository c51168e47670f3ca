"""Random numbers of a model are the same again in torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from onnx import ModelProto
from onnx.helper import make_node

import onnxsparse as osp
from tests.engines.ort.build import info, model, numbers, tensor

STORED = [tensor(numbers(16, 32, seed=1), "a"), tensor(numbers(32, 8, seed=2), "b")]
ENDS = make_node("MatMul", ["x", "a"], ["h"]), make_node("MatMul", ["r", "b"], ["y"])


def noisy() -> ModelProto:
    drawn = make_node("RandomNormalLike", ["h"], ["noise"], scale=0.3)
    nodes = [ENDS[0], drawn, make_node("Add", ["h", "noise"], ["r"]), ENDS[1]]
    return model(nodes, [info("x", ["N", 16])], [info("y", ["N", 8])], STORED)


def tune(**options: Any) -> Any:
    data = {"x": numbers(128, 16)}
    return osp.finetune(noisy(), data=data, pattern="2:4", steps=20, engine="torch", init="plain", **options)


def test_random_numbers_are_the_same_again(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    whole = tune()
    assert np.array_equal(torch.rand(3), expected)
    assert whole.report.details["loss"] < whole.report.details["loss_without_training"]
    assert tune().model == whole.model

    def stop(told: dict[str, Any]) -> None:
        if told["step"] == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(checkpoint=tmp_path / "run", watch=stop)
    assert tune(checkpoint=tmp_path / "run", resume=True).model == whole.model
