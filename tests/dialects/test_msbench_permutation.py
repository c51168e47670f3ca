"""AmpereScheduler with `allow_permutation: True`: the network as good as before, and masks that keep more of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxsparse as osp
from onnxsparse.dialects.msbench import build_sparse_scheduler
from onnxsparse.dialects.msbench.runner import SparseRunner
from onnxsparse.errors import OptionError
from tests.dialects.nets import CLASSES, SIZE, onnx_model, random
from tests.dialects.test_msbench_runner import desk, trains
from tests.messages import refusing

X = random(9, 4, 3, SIZE, SIZE)


def config(**kwargs: Any) -> dict[str, Any]:
    return {"scheduler": {"type": "AmpereScheduler", "kwargs": {"allow_permutation": True, **kwargs}}}


def outputs(proto: Any) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": X})[0]


def kept(weight: Any) -> float:
    return float(np.abs(weight).sum())


def stored(proto: Any) -> dict[str, Any]:
    return {weight.name: weight.tensor.array() for weight in osp.load(proto).weights}


@pytest.mark.parametrize("calculator", ["m4n2_1d", "m4n2_2d_best"])
def test_an_onnx_model_keeps_more_under_its_masks(calculator: str) -> None:
    found = {}
    for permuted in (False, True):
        scheduler = build_sparse_scheduler(config(mask_calculator=calculator, allow_permutation=permuted))
        model = scheduler.prepare_sparse_model(onnx_model())
        assert np.abs(outputs(model.finish()) - outputs(onnx_model())).max() < 1e-5
        scheduler.init_optimizer()
        found[permuted] = stored(scheduler.export_sparse_model(model))
    assert set(found[True]) == set(found[False])
    assert kept(found[True]["wide.weight"]) + kept(found[True]["point.weight"]) > 1.003 * (
        kept(found[False]["wide.weight"]) + kept(found[False]["point.weight"])
    )


@trains
def test_a_state_goes_on_in_its_own_order() -> None:
    scheduler = build_sparse_scheduler(config())
    model = scheduler.prepare_sparse_model(onnx_model(), engine="auto", optimizer="sgd", lr=0.01)
    scheduler.init_optimizer()
    labels = np.arange(4) % CLASSES
    model.step((X, labels))
    state = scheduler.state_dict()
    again = build_sparse_scheduler(config())
    other = again.prepare_sparse_model(onnx_model(), engine="auto", optimizer="sgd", lr=0.01)
    again.load_state_dict(state)
    for one in (model, other):
        one.step((X, labels))
    assert np.array_equal(outputs(model.finish()), outputs(other.finish()))
    plain = build_sparse_scheduler(config(allow_permutation=False))
    plain.prepare_sparse_model(onnx_model())
    with refusing(OptionError):
        plain.load_state_dict(state)


def test_masks_in_a_graph_are_for_its_channels_as_they_stand() -> None:
    scheduler = build_sparse_scheduler(config())
    result = scheduler.insert_masks(onnx_model())
    assert "permute" in str(result.report)
    other = build_sparse_scheduler(config(allow_permutation=False)).insert_masks(onnx_model())
    assert np.array_equal(outputs(result.model), outputs(other.model))


@trains
def test_a_job_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """It began with the numbers of a state: the checkpoint says the order, whatever numbers there are now."""
    state = tmp_path / "state.npz"
    np.savez(state, **{"wide.weight": random(5, 32, 32, 3, 3) * np.float32(0.1)})
    saver = {"pretrain_model": str(state)}
    path = desk(tmp_path, config(), model=str(tmp_path / "net.onnx"), saver=saver, trainer={"max_epoch": 1})
    SparseRunner(path, quiet=True).run()
    sparse = tmp_path / "saved" / "sparse.onnx"
    assert osp.verify(sparse).report.ok
    assert osp.load(str(sparse)).metadata["onnxsparse.permutation"]
    before = sparse.read_bytes()
    sparse.unlink()
    again = SparseRunner(path, quiet=True)
    again.run()
    assert again.found is not None
    assert sparse.read_bytes() == before


def test_a_torch_module_is_permuted_in_place() -> None:
    torch = pytest.importorskip("torch")
    from tests.dialects.nets import torch_module

    found = {}
    for permuted in (False, True):
        module, plain = torch_module(), torch_module()
        held = list(module.parameters())
        scheduler = build_sparse_scheduler(config(allow_permutation=permuted))
        module = scheduler.prepare_sparse_model(module)
        x = torch.from_numpy(X)
        assert float((module(x) - plain(x)).abs().max().detach()) < 1e-5
        optimizer = torch.optim.SGD(module.parameters(), 0.01)
        scheduler.init_optimizer(optimizer)
        sparse = scheduler.export_sparse_model(module)
        assert all(one is two for one, two in zip(held, sparse.parameters()))
        found[permuted] = {name: one.detach().numpy() for name, one in sparse.named_parameters()}
    assert kept(found[True]["wide.weight"]) > 1.003 * kept(found[False]["wide.weight"])
