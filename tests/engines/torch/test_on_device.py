"""Parameters that are not on the host: optimizers as defined, and arrays that come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from onnxsparse.engines.engine import Pace
from onnxsparse.engines.torch import optimizer_state
from onnxsparse.engines.torch.device_optimizers import FORMS, DeviceOptimizer, form_of, scale_on_device
from onnxsparse.engines.torch.engine import TorchEngine
from onnxsparse.engines.torch.optimizer_state import LiveArrays, NumpyOptimizer
from onnxsparse.optimizers import available
from tests.engines.torch.test_settings import close, tune

TEXTS = [*FORMS, "sgd:momentum=0.5", "adam:beta1=0.8,beta2=0.9", "relative:floor=0.5,eps=0.01"]


def parameters() -> dict[str, Any]:
    random = np.random.default_rng(3)
    shapes = {"a": (5, 7), "b": (7,), "zeros": (3, 3), "none": (2,)}
    made = {tag: random.standard_normal(shape).astype(np.float32) for tag, shape in shapes.items()}
    made["a"][::2] = 0
    made["zeros"][...] = 0
    return {tag: torch.nn.Parameter(torch.from_numpy(array)) for tag, array in made.items()}


def steps(stepping: Any, here: dict[str, Any], count: range) -> None:
    for step in count:
        random = np.random.default_rng(step)
        for tag, one in here.items():
            if tag != "none":
                one.grad = torch.from_numpy(random.standard_normal(tuple(one.shape)).astype(np.float32))
        here["b"].grad *= step > 2
        stepping.step(Pace(0.02, 0.1, held=frozenset(["zeros"] if step == 1 else [])), 0.3, 0.0)


def test_every_optimizer_has_a_form() -> None:
    assert {entry.syntax.partition("[")[0].partition(":")[0] for entry in available()} == {*FORMS, "ort-adamw"}


@pytest.mark.parametrize("text", TEXTS)
def test_optimizers_are_those_of_the_definition(text: str) -> None:
    host, device = parameters(), parameters()
    ours, form = NumpyOptimizer(text, host, LiveArrays(host)), form_of(text)
    assert form is not None
    theirs = DeviceOptimizer(form, device)
    steps(ours, host, range(6))
    steps(theirs, device, range(6))
    for tag, one in host.items():
        np.testing.assert_allclose(one.detach(), device[tag].detach(), rtol=2e-5, atol=2e-6)
    arrays, facts = ours.state()
    others, told = theirs.state()
    assert facts == told
    assert set(arrays) == set(others)
    again = DeviceOptimizer(form, device)
    again.restore(arrays, facts)  # what was saved on the host goes on here
    steps(ours, host, range(6, 9))
    steps(again, device, range(6, 9))
    for tag, one in host.items():
        np.testing.assert_allclose(one.detach(), device[tag].detach(), rtol=5e-5, atol=5e-6)


def test_moments_are_cleared_where_a_mask_says_so() -> None:
    here = parameters()
    stepping = DeviceOptimizer(form_of("adam"), here)
    steps(stepping, here, range(3))
    where = np.arange(35).reshape(5, 7) % 2 == 0
    stepping.clear("a", where)
    arrays, _ = stepping.state()
    for moment in ("mean/a", "square/a"):
        assert (arrays[moment][where] == 0).all()
        assert (arrays[moment][~where] != 0).all()
    stepping.clear("a", None)
    assert "mean/a" not in stepping.state()[0]


def test_the_length_of_gradients() -> None:
    gradients = [torch.full((4,), 3.0), torch.full((2, 2), 4.0)]
    assert scale_on_device(gradients, 0.5, 0.0) == 0.5
    assert scale_on_device(gradients, 0.5, 100.0) == 0.5
    assert scale_on_device(gradients, 0.5, 2.0) == pytest.approx(0.2)
    assert scale_on_device([], 0.5, 2.0) == 0.5
    assert np.isnan(scale_on_device([torch.tensor([float("nan")])], 1.0, 0.0))


@pytest.mark.parametrize(
    "options",
    [
        {"pattern": "2:4", "sparsity": None, "updates": None},
        {"regrow": "gradient"},
        {"regrow": "weights", "clip": 0.5},
        {"sparser": "straight-through"},
        {"sparser": "probabilistic"},
        {"optimizer": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)},
        {"precision": "float16", "regrow": "gradient", "train_bn": True},
    ],
    ids=lambda options: ", ".join(f"{name}: {'own' if callable(one) else one}" for name, one in options.items()),
)
def test_arrays_that_are_copies_come_to_the_same(
    digits_cnn: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """What a device does to arrays, without one: each is a copy, which goes back before it is used."""
    options = {"optimizer": "sgd", "lr": None if callable(options.get("optimizer")) else 1e-3, "retries": 0, **options}
    here = tune(digits_cnn, **options)
    monkeypatch.setattr(optimizer_state, "on_host", lambda tensor: False)
    monkeypatch.setattr(TorchEngine, "_on_host", property(lambda self: False))
    close(here, tune(digits_cnn, **options), 1e-4)
