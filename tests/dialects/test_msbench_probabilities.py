"""Probabilities that an optimizer has moved beyond 1, before the next iteration brings them back."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.dialects.msbench import build_sparse_scheduler, preset
from onnxsparse.engines.ort import library as ort
from onnxsparse.engines.torch import library as torch
from tests.dialects.nets import batch, onnx_model, torch_module

needs_torch = pytest.mark.skipif(not torch.available(), reason="needs torch")
ENGINES = [
    pytest.param("ort", marks=pytest.mark.skipif(not ort.available(), reason="needs onnxruntime-training")),
    pytest.param("torch", marks=needs_torch),
]
ABOVE = np.float32(1.25)


def probmask():
    config = preset("probmask")
    config["scheduler"]["kwargs"].update(total_iterations=9, warmup_iteration_stamps=2, finetune_iteration_stamps=8)
    return build_sparse_scheduler(config)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_onnx_model_is_evaluated_between_a_step_and_the_next_iteration(engine):
    scheduler = probmask()
    model = scheduler.prepare_sparse_model(onnx_model(), engine=engine, loss="cross-entropy", optimizer="sgd", lr=0.05)
    for iteration in range(3):
        scheduler.prune_model(model, iteration)
        model.step(batch(iteration))
        for site in model.sites:
            model.trained(site.key)["score"].flat[::2] = ABOVE
        loss, outputs = model.evaluate(batch(9))
        assert np.isfinite(loss)
        assert np.isfinite(outputs["y"]).all()


@needs_torch
def test_a_module_is_evaluated_between_a_step_and_the_next_iteration():
    import torch

    scheduler, net = probmask(), torch_module()
    scheduler.prepare_sparse_model(net)
    scheduler.prune_model(net, 0)
    scores = [one for name, one in net.named_parameters() if name.endswith(".score")]
    x, y = (torch.from_numpy(array) for array in batch(0))
    inside = net(x).detach()
    with torch.no_grad():
        for score in scores:
            score[score == 1] = float(ABOVE)
    outside = net(x)
    assert torch.equal(inside, outside)  # they began at 1: the nearer end
    torch.nn.functional.cross_entropy(outside, y).backward()
    assert scores
    assert all(torch.isfinite(one.grad).all() for one in net.parameters())
