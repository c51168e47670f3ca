"""Label smoothing in both engines is that of torch's CrossEntropyLoss, to float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from onnx.helper import make_node

from onnxsparse import losses
from onnxsparse.engines.ort import library
from onnxsparse.engines.torch.objective import task
from onnxsparse.train.stepped_model import LoopOptions, SteppedModel
from tests.engines.small_nets import net, numbers, run

SHAPES = [(6, 5), (3, 4, 5), (2, 3, 4, 5)]
ENGINES = ["torch", pytest.param("ort", marks=pytest.mark.skipif(not library.available(), reason="needs the engine"))]


def published(logits: Any, labels: Any, smoothing: float) -> tuple[float, Any]:
    student = torch.tensor(logits, requires_grad=True)
    loss = torch.nn.CrossEntropyLoss(label_smoothing=smoothing)(student, torch.tensor(labels))
    loss.backward()
    return float(loss.detach()), student.grad.numpy()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_the_definition_is_the_published_one(shape: tuple[int, ...], smoothing: float) -> None:
    logits = numbers(*shape) * 4
    labels = np.random.default_rng(0).integers(0, shape[1], shape[:1] + shape[2:])
    labels.reshape(-1)[0] = -100
    value, gradient = published(logits, labels, smoothing)
    ours = losses.parse(f"cross-entropy:smoothing={smoothing}")
    assert ours.value([logits], [labels]) == pytest.approx(value, rel=1e-6)
    np.testing.assert_allclose(ours.gradient([logits], [labels])[0], gradient, rtol=1e-5, atol=1e-7)
    found = task("cross-entropy", "y", torch.tensor(logits), torch.tensor(labels), smoothing)
    assert float(found) == value


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loop_s_loss_is_the_published_one(engine: str) -> None:
    """Also of a batch that is no multiple of the first, and beside distillation from the dense model by kl."""
    layers = [make_node("MatMul", ["x", "a"], ["h"]), make_node("Relu", ["h"], ["r"]),
              make_node("MatMul", ["r", "b"], ["y"])]  # fmt: skip
    proto = net(layers, {"a": numbers(8, 16, seed=1), "b": numbers(16, 5, seed=2)}, ["N", 8], {"y": ["N", 5]})
    x, labels = numbers(12, 8, seed=3), np.arange(12) % 5
    logits = run(proto, x)["y"]
    options = LoopOptions(loss="cross-entropy:smoothing=0.1", engine=engine, optimizer="sgd", lr=1e-9)
    stepped = SteppedModel.of(proto, options)
    for count in (8, 12, 3):
        wanted = published(logits[:count], labels[:count], 0.1)[0]
        assert stepped.step((x[:count], labels[:count])) == pytest.approx(wanted, rel=1e-6)
    mixed = SteppedModel.of(proto, replace(options, hardness=0.25))
    wanted = 0.75 * published(logits, labels, 0.1)[0]  # the student is the dense model still
    assert mixed.evaluate((x, labels))[0] == pytest.approx(wanted, rel=1e-6)
