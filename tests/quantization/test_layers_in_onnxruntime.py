"""onnxruntime's integer kernels give what the file says: nearly all integers are equal, the others one step apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxsparse.planning.quantization import AMPERE, ONNXRUNTIME, Scheme
from tests.quantization.odd_graphs import CASES, IMAGE, drawn, model_of
from tools.bench.bench_quantize_layers import layers_of, main, moved, quantized

pytest.importorskip("onnxruntime")
DIGITS = Path(__file__).resolve().parent.parent.parent / "models" / "digits_cnn.onnx"


@pytest.mark.parametrize("scheme", [ONNXRUNTIME, AMPERE], ids=["onnxruntime", "ampere"])
def test_the_layers_of_a_network(scheme: Scheme) -> None:
    feed = {"x": np.abs(drawn([64, 1, 8, 8]))}
    proto = quantized(str(DIGITS), [feed], scheme)
    layers = list(layers_of(proto, feed))
    assert len(layers) >= 5
    for layer in layers:
        assert layer.equal >= 0.999, layer
        assert layer.apart <= 1, layer
    assert max(moved(proto, feed).values()) < 0.05


@pytest.mark.parametrize("name", ["residual", "pools", "dense_blocks", "concat_twice", "grouped", "multiplied"])
def test_the_layers_of_odd_graphs(name: str) -> None:
    feed = {"x": np.tile(IMAGE["x"], (8, 1, 1, 1)) + drawn([16, 3, 8, 8], 4) / 8}
    for layer in layers_of(quantized(model_of(CASES[name]()), [feed]), feed):
        assert layer.equal >= 0.999, layer
        assert layer.apart <= 1, layer


def test_the_benchmark_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "samples.npy", np.abs(drawn([16, 1, 8, 8])))
    assert main([str(DIGITS), "--data", str(tmp_path / "samples.npy"), "-v"]) == 0
    said = capsys.readouterr().out
    assert "all hold" in said
    assert "Conv Relu" in said
    assert "whole network: 'logits'" in said
