"""Training in torch: sparsers as defined, runs that train and resume, and the same result as the other engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse import sparsers
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.torch import library
from onnxsparse.sparsers.sparser import Moment

pytestmark = pytest.mark.skipif(not library.available(), reason="needs torch")

SPARSERS = ["mask", "mask:storage=bool", "soft-threshold", "hard-threshold", "straight-through", "probabilistic"]


def images(count: int = 256) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, 1, 8, 8)).astype(np.float32)


def arrays(model: onnx.ModelProto | None) -> dict[str, np.ndarray]:
    assert model is not None
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.mark.parametrize("text", SPARSERS)
def test_sparsers_are_those_of_the_definition(text: str) -> None:
    from onnxsparse.engines.torch.parametrization import effective

    torch, random = library.torch(), np.random.default_rng(1)
    sparser, weight = sparsers.parse(text), random.standard_normal((6, 8)).astype(np.float32)
    trained = {role: array + 0.3 for role, array in sparser.trained(weight).items()}
    if "score" in trained:
        trained["score"] = random.uniform(0.1, 0.9, weight.shape).astype(np.float32)
    frozen = sparser.feed(weight, trained, random.random(weight.shape) < 0.5, Moment("w", 3))
    upstream = random.standard_normal(weight.shape).astype(np.float32)

    leaf = torch.from_numpy(weight.copy()).requires_grad_()
    more = {role: torch.from_numpy(array.copy()).requires_grad_() for role, array in trained.items()}
    seen = effective(sparser, leaf, more, {role: torch.from_numpy(array.copy()) for role, array in frozen.items()})
    seen.backward(torch.from_numpy(upstream))
    wanted, others = sparser.gradient(weight, trained, frozen, upstream)
    np.testing.assert_allclose(seen.detach(), sparser.effective(weight, trained, frozen), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(leaf.grad, wanted, rtol=1e-4, atol=1e-5)
    for role, gradient in others.items():
        np.testing.assert_allclose(more[role].grad, gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("loss", ["distill", "kl", "cross-entropy"])
def test_it_trains(digits_cnn: Path, loss: str) -> None:
    data = {"x": images(), "labels": np.arange(256) % 10}
    report = osp.finetune(
        digits_cnn, data=data, pattern="2:4", engine="torch", init="plain", steps=12, loss=loss
    ).report
    assert float(str(report.details["loss"])) < float(str(report.details["loss_without_training"]))
    assert {row.zeros for row in report.rows if row.status == "pruned" and row.size % 4 == 0} != {0}


def test_a_run_goes_on_bit_for_bit(digits_cnn: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "data": {"x": images()}, "pattern": "unstructured", "sparsity": 0.8, "engine": "torch", "steps": 14,
        "sparser": "probabilistic",
    }  # fmt: skip
    whole = arrays(osp.finetune(digits_cnn, **options).model)

    def stop(row: dict[str, Any]) -> None:
        if row["step"] == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        osp.finetune(digits_cnn, checkpoint=tmp_path / "run", watch=stop, **options)
    again = arrays(osp.finetune(digits_cnn, checkpoint=tmp_path / "run", resume=True, **options).model)
    for name, array in whole.items():
        assert (array == again[name]).all(), name


@pytest.mark.skipif(not ort_library.available(), reason="needs onnxruntime-training beside torch")
def test_both_engines_agree(digits_cnn: Path) -> None:
    options: dict[str, Any] = {
        "data": {"x": images()}, "pattern": "2:4", "init": "plain", "steps": 20, "optimizer": "sgd", "lr": 1e-3,
        "retries": 0,
    }  # fmt: skip
    one = arrays(osp.finetune(digits_cnn, engine="torch", **options).model)
    other = arrays(osp.finetune(digits_cnn, engine="ort", **options).model)
    for name, array in one.items():
        assert np.abs(array - other[name]).max() <= 1e-4 * np.abs(array).max(), name


@pytest.mark.parametrize("narrow", [TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_weights_behind_a_cast_are_trained(narrow: int) -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((64, 64)).astype(helper.tensor_dtype_to_np_dtype(narrow))
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=narrow),
        helper.make_node("MatMul", ["narrow", "weight"], ["product"]),
        helper.make_node("Cast", ["product"], ["y"], to=TensorProto.FLOAT),
    ]
    value = helper.make_tensor_value_info
    x, y = value("x", TensorProto.FLOAT, ["n", 64]), value("y", TensorProto.FLOAT, ["n", 64])
    graph = helper.make_graph(nodes, "cast", [x], [y], [numpy_helper.from_array(weight, "weight")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = {"x": random.standard_normal((200, 64)).astype(np.float32)}
    made = osp.finetune(model, data=data, pattern="2:4", engine="torch", steps=4, batch_size=16)
    assert made.report.ok
    assert made.model is not None
    assert made.model.graph.initializer[0].data_type == narrow


def test_what_lies_in_a_branch_that_no_sample_takes_is_not_called_trained() -> None:
    value = helper.make_tensor_value_info
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("MatMul", ["x", weight], [weight + "x"])],
            name,
            [],
            [value(weight + "x", TensorProto.FLOAT, None)],
        )
        for name, weight in (("then", "taken"), ("else", "idle"))
    }
    x, y = value("x", TensorProto.FLOAT, ["n", 32]), value("y", TensorProto.FLOAT, None)
    stored = {name: np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32) for name in ("taken", "idle")}
    tensors = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(
        [helper.make_node("If", ["wide"], ["y"], **branches)],
        "g",
        [x, value("wide", TensorProto.BOOL, [])],
        [y],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    numbers = np.random.default_rng(1).standard_normal((200, 32)).astype(np.float32)
    data = {"x": numbers, "wide": np.array(True)}
    report = osp.finetune(model, data=data, pattern="2:4", engine="torch", steps=4, batch_size=16).report
    told = [note for note in report.notes if "was pruned, but not trained" in note]
    assert len(told) == 1
    assert told[0].startswith("'idle' ")
