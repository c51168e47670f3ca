"""Both engines, same data and seed, static masks: the same numbers after twenty steps."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from onnxsparse.engines.ort import library
from tools.bench import bench_parity

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training beside torch")


@pytest.mark.parametrize("net", bench_parity.NETS)
def test_both_engines_come_to_the_same_numbers(tmp_path: Path, net: str) -> None:
    model = bench_parity.export(net, tmp_path / "net.onnx")
    data = {"x": bench_parity.random_data(bench_parity.NETS[net], net == "encoder")}
    far = bench_parity.parity(model, data, "sgd")
    assert far.masks
    assert far.moved > 0.05  # otherwise to be near would be no feat
    assert far.distance <= bench_parity.BAR, far.tensor
