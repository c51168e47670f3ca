"""Batch normalization in training: frozen by default, following the batches with `train_bn`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxsparse as osp
from onnxsparse.engines.engine import LossSpec, Spec
from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.building import build
from onnxsparse.engines.ort.session import Session

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")

CHANNELS, BATCH = 6, 16


def network() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    stored = {
        "w": 0.3 * rng.standard_normal((CHANNELS, 4, 3, 3)),
        "scale": 1 + 0.1 * rng.standard_normal(CHANNELS),
        "bias": 0.1 * rng.standard_normal(CHANNELS),
        "mean": np.zeros(CHANNELS),
        "head": rng.standard_normal((CHANNELS, 4)),
    }
    stored["variance"] = np.square(stored["w"]).sum(axis=(1, 2, 3))  # of images without structure
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "variance"], ["n"], momentum=0.8),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "head"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 4, 5, 5])],
        [helper.make_tensor_value_info("y", 1, ["N", 4])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def images() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((BATCH * 2, 4, 5, 5)).astype(np.float32)


def arrays(model: onnx.ModelProto | None) -> dict[str, np.ndarray]:
    assert model is not None
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def tuned(steps: int, train_bn: bool, lr: float | None = 1e-9) -> dict[str, np.ndarray]:
    result = osp.finetune(
        network(), data={"x": images()}, pattern="unstructured", sparsity=0.5, allow="small", steps=steps, lr=lr,
        batch_size=BATCH, train_bn=train_bn or None, retries=0, schedule="one-shot", checks=1, warm_up=0,
        lr_schedule="constant", init="plain",
    )  # fmt: skip
    return arrays(result.model)


def test_frozen_statistics_stay() -> None:
    before, after = arrays(network()), tuned(3, False)
    assert (before["mean"] == after["mean"]).all()
    assert (before["variance"] == after["variance"]).all()


def test_trained_statistics_come_back_into_the_file() -> None:
    before, after = arrays(network()), tuned(20, True, lr=None)
    assert np.abs(before["mean"] - after["mean"]).max() > 1e-3
    assert np.abs(before["variance"] - after["variance"]).max() > 1e-3


def test_running_statistics_follow_those_of_the_batch_by_the_momentum_of_the_node(tmp_path: Path) -> None:
    model, names = network(), ["w", "scale", "bias", "mean", "head", "variance"]
    for number, tensor in enumerate(model.graph.initializer):
        tensor.doc_string = f"tag{number}"
    tags = {name: f"tag{number}" for number, name in enumerate(names)}
    spec = Spec(BATCH, {tag: name for name, tag in tags.items()}, {}, LossSpec(), train_bn=True)
    made = build(str(tmp_path / "g"), spec, model, {"x": images()}, "origin")
    session, plain = Session(str(tmp_path / "g"), made), arrays(network())
    feed = {"x": images()[:BATCH], **{name: np.zeros((BATCH, 4), np.float32) for name in made["teacher"].values()}}

    measured = session.evaluate(feed)
    assert (session.weights[tags["mean"]] == plain["mean"]).all()
    assert list(measured[1]) == ["y"]

    session.step(feed)
    exposed = network()
    exposed.graph.output.append(helper.make_tensor_value_info("c", 1, None))
    runtime = pytest.importorskip("onnxruntime")
    runner = runtime.InferenceSession(exposed.SerializeToString(), providers=["CPUExecutionProvider"])
    values = runner.run(["c"], {"x": images()[:BATCH]})[0]
    for name, measure in (("mean", np.mean), ("variance", np.var)):
        wanted = 0.8 * plain[name] + 0.2 * measure(values, axis=(0, 2, 3))
        np.testing.assert_allclose(session.weights[tags[name]], wanted, rtol=1e-4, atol=1e-6)
    assert not {tags["mean"], tags["variance"]} & set(session.gradients)


def test_training_statistics_is_resumed(tmp_path: Path) -> None:
    options = {
        "data": {"x": images()}, "pattern": "unstructured", "sparsity": 0.5, "allow": "small", "steps": 4,
        "batch_size": BATCH, "train_bn": True, "retries": 0,
    }  # fmt: skip
    whole = arrays(osp.finetune(network(), **options).model)
    kept = arrays(osp.finetune(network(), checkpoint=tmp_path / "c", **options).model)
    again = arrays(osp.finetune(network(), checkpoint=tmp_path / "c", resume=True, **options).model)
    for name in whole:
        assert (whole[name] == kept[name]).all()
        assert (whole[name] == again[name]).all()
