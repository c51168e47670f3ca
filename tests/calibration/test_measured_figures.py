"""What `prune --eval-data` and `--max-loss` measured, as a user reads it; and models that cannot be measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxsparse as osp
from onnxsparse.errors import OptionError
from tests.messages import refusing

pytest.importorskip("onnxruntime")
WIDTH, CLASSES = 32, 4
PLAIN: dict[str, Any] = {"sensitivity": "measured", "workers": 1}


def classifier(*chosen: str) -> ModelProto:
    """Two layers, and the scores of four classes; with `chosen` the number of the class in their place."""
    draw = np.random.default_rng(0)
    shapes = {"w1": (WIDTH, WIDTH), "w2": (WIDTH, CLASSES)}
    stored = [numpy_helper.from_array(draw.normal(size=one).astype(np.float32), name) for name, one in shapes.items()]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"], "second"),
        *(helper.make_node("ArgMax", ["y"], [name], axis=1, keepdims=0) for name in chosen),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", CLASSES])
    outputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n"]) for name in chosen] or [y]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])
    graph = helper.make_graph(nodes, "classifier", [x], outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def labelled(count: int) -> dict[str, Any]:
    """Samples whose labels the dense model mostly gets right."""
    x = np.random.default_rng(1).normal(size=(count, WIDTH)).astype(np.float32)
    w1, w2 = (numpy_helper.to_array(tensor) for tensor in classifier().graph.initializer)
    labels = np.argmax(np.maximum(x @ w1, 0) @ w2, axis=1)
    labels[::10] = (labels[::10] + 1) % CLASSES
    return {"x": x, "labels": labels}


def test_both_models_are_measured_where_no_limit_is_named() -> None:
    data = labelled(400)
    made = osp.prune(classifier(), pattern="2:4", data=data, samples=64, eval_data=data, **PLAIN)
    details: Any = made.report.details
    assert details["metrics_dense"]["accuracy"] == pytest.approx(0.9)
    assert details["measured_samples"] == 400
    shown = f"accuracy on 400 samples of eval_data=: 0.9 dense, {details['metrics']['accuracy']:.4g} sparse"
    assert shown in str(made)
    assert "relative distance on 400 samples" in str(made)


def test_few_samples_say_how_much_they_can_tell() -> None:
    data = labelled(400)
    few = osp.prune(classifier(), max_loss=0.5, data=data, samples=64, allocation="uniform", **PLAIN)
    assert few.report.details["measured_samples"] == 50
    assert "accuracy on 50 samples that calibration did not see" in str(few)
    assert any("50 samples tell the accuracy to about" in note for note in few.report.notes)
    many = osp.prune(classifier(), max_loss=30, data=data, samples=64, allocation="uniform", eval_data=data, **PLAIN)
    assert not any("tell the accuracy" in note for note in many.report.notes)


def test_what_got_better_is_no_loss() -> None:
    data = labelled(400)
    wrong = {**data, "labels": (data["labels"] + 2) % CLASSES}  # any zeros are right more often
    made = osp.prune(classifier(), pattern="2:4", max_loss=1, data=wrong, eval_data=wrong, samples=64, **PLAIN)
    assert any("nothing is lost, " in note and " is gained" in note for note in made.report.notes)


@pytest.mark.parametrize(
    "given", [{"max_loss": "1%"}, {"pattern": "2:4", "eval_data": labelled(64)}], ids=["limit", "data"]
)
def test_a_model_without_float_outputs_cannot_be_measured(given: dict[str, Any]) -> None:
    with refusing(OptionError):
        osp.prune(classifier("winner"), data=labelled(128), **PLAIN, **given)
