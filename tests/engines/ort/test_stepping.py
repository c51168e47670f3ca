"""The engine's own optimizer: it trains, and a run with it is resumed bit for bit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxsparse as osp
from onnxsparse.engines.engine import Pace
from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.stepping import NumpyOptimizer

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")


def options(**more: Any) -> dict[str, Any]:
    images = np.random.default_rng(0).standard_normal((128, 1, 8, 8)).astype(np.float32)
    return {"data": {"x": images}, "pattern": "2:4", "optimizer": "ort-adamw", "steps": 12, "lr": 3e-4, **more}


def arrays(model: onnx.ModelProto | None) -> dict[str, np.ndarray]:
    assert model is not None
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_it_trains(digits_cnn: Path) -> None:
    report = osp.finetune(digits_cnn, init="plain", **options()).report
    assert report.details["helped"]
    assert float(str(report.details["loss"])) < 0.7 * float(str(report.details["loss_without_training"]))


def test_it_is_resumed_with_what_it_remembers(digits_cnn: Path, tmp_path: Path) -> None:
    whole = arrays(osp.finetune(digits_cnn, **options()).model)

    class StoppedError(Exception):
        pass

    def stop(row: dict[str, Any]) -> None:
        if row["step"] == 7:
            raise StoppedError

    with pytest.raises(StoppedError):
        osp.finetune(digits_cnn, checkpoint=tmp_path / "run", watch=stop, **options())
    again = arrays(osp.finetune(digits_cnn, checkpoint=tmp_path / "run", resume=True, **options()).model)
    for name, array in whole.items():
        assert (array == again[name]).all(), name


def test_what_modifiers_keep_is_no_moment_of_the_optimizer() -> None:
    """A checkpoint has the scores of movement pruning beside them, under keys of the same form."""
    session: Any = SimpleNamespace(weights={"a": np.ones(3, np.float32)})
    made = NumpyOptimizer("adam")
    made.step(session, {"a": np.ones(3, np.float32)}, Pace(0.1), 1.0)
    saved, facts = made.state(session)
    again = NumpyOptimizer("adam")
    again.restore(session, {**saved, "movement 0/a": np.zeros(3, np.float32), "weight/a": session.weights["a"]}, facts)
    assert {key: list(array) for key, array in again.state(session)[0].items()} == {
        key: list(array) for key, array in saved.items()
    }
