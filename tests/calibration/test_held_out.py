"""Which samples of a calibration judge: about an eighth, however many there are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxsparse.calibration.feeding import Feeds
from onnxsparse.calibration.moments import Samples
from onnxsparse.data import open_data
from onnxsparse.graph.model import Model
from onnxsparse.passes.calibrate import HELD, batches_of
from onnxsparse.planning.model_inputs import SampleAxes, fields_of
from tests.calibration.nets import SIZE, conv_net


def batches(folder: Path, count: int) -> Samples:
    model = Model.open(str(conv_net(folder / "net.onnx")))
    x = np.random.default_rng(0).standard_normal((count, 3, SIZE, SIZE)).astype(np.float32)
    data = open_data({"x": x}, fields_of(model, SampleAxes()), None, False, None)
    return batches_of(Feeds(model.proto, data, parts=HELD))


@pytest.mark.parametrize("count", [33, 48, 64, 100, 200, 256, 500])
def test_an_eighth_of_the_samples_judges(count: int, tmp_path: Path) -> None:
    found = batches(tmp_path, count)
    assert found.count == count
    assert 1 / 13 <= (count - found.fitted) / count <= 1 / 7


@pytest.mark.parametrize("count", [4, 32])
def test_few_samples_are_one_batch(count: int, tmp_path: Path) -> None:
    assert [*batches(tmp_path, count).sizes] == [count]
