from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from models import builders


def weights(model: onnx.ModelProto) -> int:
    return sum(prod(t.dims) for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT)


def test_resnet50_has_the_size_and_the_convolutions_of_a_resnet50() -> None:
    model = builders.resnet50()
    onnx.checker.check_model(model)
    assert weights(model) == 25_530_472
    assert sum(n.op_type == "Conv" for n in model.graph.node) == 53


@pytest.mark.slow
def test_bert_has_the_size_of_the_encoder_of_bert_base() -> None:
    model = builders.bert()
    assert weights(model) == 85_054_464 + 1
    assert sum(n.op_type == "MatMul" for n in model.graph.node) == 12 * 8


@pytest.mark.parametrize("vocabulary", [0, 50])
def test_a_small_bert_runs(vocabulary: int) -> None:
    model = builders.bert(layers=2, hidden=32, heads=4, vocabulary=vocabulary)
    x = np.zeros((2, 5), np.int64) if vocabulary else np.ones((2, 5, 32), np.float32)
    (out,) = run(model.SerializeToString(), x)
    assert out.shape == (2, 5, 32)
    assert np.isfinite(out).all()


def test_builders_are_seeded() -> None:
    small = {"layers": 1, "hidden": 16, "heads": 2}
    assert builders.bert(seed=3, **small) == builders.bert(seed=3, **small)
    assert builders.bert(seed=3, **small) != builders.bert(seed=4, **small)


def test_the_streamed_single_file_is_what_protobuf_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builders, "WIDTH", 64)
    path = tmp_path / "single.onnx"
    builders.write_single(path, layers=3, head=24)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert model.SerializeToString() == path.read_bytes()
    assert run(path.read_bytes(), np.ones((2, 64), np.float32))[0].shape == (2, 24)


def test_the_external_model_has_the_weights_of_the_single_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builders, "WIDTH", 64)
    builders.write_external(tmp_path / "external.onnx", layers=3)
    builders.write_single(tmp_path / "single.onnx", layers=3, head=0)
    assert (tmp_path / "external.onnx.data").stat().st_size == 3 * 64 * 64 * 4
    outside, inside = (
        {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / f"{name}.onnx").graph.initializer}
        for name in ("external", "single")
    )
    assert outside.keys() == inside.keys()
    assert all(np.array_equal(outside[name], inside[name]) for name in inside)


def run(model: bytes, x: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})
