"""Rates of layers on a torch module, in the loops of MSBench's example programs."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from onnxsparse.dialects.msbench import build_sparse_scheduler
from onnxsparse.dialects.msbench.gen_sparse_rate import *  # noqa: F403
from onnxsparse.dialects.msbench.gen_sparse_rate import (
    get_sparsities_erdos_renyi,
    get_st_sparsities_special,
    get_st_sparsities_uniform,
    get_unst_sparsities_norm,
    get_unst_sparsities_norm_v2,
    get_unst_sparsities_uniform,
    update_sparsity_per_layer_from_sparsities,
)
from onnxsparse.errors import OptionError
from tests.dialects.nets import SIZE, batch, numbers, onnx_model, torch_module
from tests.messages import refusing

SAT = {
    "scheduler": {"type": "BaseScheduler"},
    "mask_generator": {"type": "NormalMaskGenerator", "kwargs": {"structured": False}},
    "fake_sparse": {"type": "DefaultFakeSparse", "kwargs": {"mask_is_static": False, "weight_correction": False}},
}


def filters(kind, func):
    return {
        "scheduler": {"type": "BaseScheduler"},
        "mask_generator": {"type": kind, "kwargs": {"structured": True, "func": func}},
        "fake_sparse": {"type": "DefaultFakeSparse"},
    }


def prepared(config=SAT):
    scheduler = build_sparse_scheduler(config)
    return scheduler, scheduler.prepare_sparse_model(torch_module())


def zeros(model):
    return {name.rpartition(".")[0]: float((one == 0).float().mean()) for name, one in model.state_dict().items()}


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)


def epoch(model, optimizer, steps=3):
    for step in range(steps):
        images, target = (torch.from_numpy(one) for one in batch(step))
        loss = torch.nn.functional.cross_entropy(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


ALLOCATIONS = {
    "uniform": lambda model, rate: get_unst_sparsities_uniform(model, rate),
    "Magnitude": lambda model, rate: get_unst_sparsities_norm(model, rate, func="Magnitude"),
    "L2Normalized": lambda model, rate: get_unst_sparsities_norm(model, rate, func="L2Normalized"),
    "L2Normalized_v2": lambda model, rate: get_unst_sparsities_norm_v2(
        model, rate, max_sparsity=rate + 0.2, no_prune_layer_list=[], func="L2Normalized"
    ),
    "ERK": lambda model, rate: get_sparsities_erdos_renyi(model, rate),
}


@pytest.mark.parametrize("alloc", ALLOCATIONS)
def test_the_imagenet_example(alloc, tmp_path):
    scheduler, model = prepared()
    sparsities = ALLOCATIONS[alloc](model, 0.5)
    assert sparsities == pytest.approx(ALLOCATIONS[alloc](onnx_model(), 0.5))
    update_sparsity_per_layer_from_sparsities(model, sparsities)
    wrapped = torch.nn.DataParallel(model)
    optimizer = sgd(wrapped)
    lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    for _ in range(2):
        epoch(wrapped, optimizer)
        assert zeros(model) == pytest.approx(sparsities, abs=0.01)
        lr_scheduler.step()
    torch.save({"state_dict": wrapped.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pth")
    assert scheduler.compute_sparse_rate(model) == pytest.approx(0.5, abs=0.01)
    scheduler.export_sparse_model(model)
    written = scheduler.export_sparse_onnx(model, torch.zeros(1, 3, SIZE, SIZE), onnx_name=str(tmp_path / "sparse"))
    assert written == str(tmp_path / "sparse.onnx")
    # the same program again, with --resume
    again, fresh = prepared()
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.copy_(torch.randn_like(parameter))
    update_sparsity_per_layer_from_sparsities(fresh, ALLOCATIONS["uniform"](fresh, 0.5) and sparsities)
    torch.nn.DataParallel(fresh).load_state_dict(torch.load(tmp_path / "checkpoint.pth")["state_dict"])
    for name, one in fresh.state_dict().items():
        assert torch.equal(one, model.state_dict()[name]), name
    assert again.compute_sparse_rate(fresh) == scheduler.compute_sparse_rate(model)


@pytest.mark.parametrize(
    "config",
    [filters("FPGMMaskGenerator", "l2"), filters("NormalMaskGenerator", "p1"), filters("NuclearMaskGenerator", None)],
    ids=["fpgm", "norm", "nuclear"],
)
def test_the_cifar_example_with_zeros(config):
    """It exports after every epoch, saves, and trains on."""
    scheduler, model = prepared(config)
    sparsities = get_st_sparsities_uniform(model, 0.5)
    update_sparsity_per_layer_from_sparsities(model, sparsities)
    optimizer, seen = sgd(model), []
    for _ in range(3):
        epoch(model, optimizer)
        assert zeros(model) == sparsities
        scheduler.export_sparse_model(model)
        seen.append({name: one.clone() for name, one in model.state_dict().items()})
        assert zeros(model) == sparsities
    assert not torch.equal(seen[1]["wide.weight"], seen[2]["wide.weight"])
    assert torch.equal(seen[0]["wide.weight"] == 0, seen[2]["wide.weight"] == 0)


def test_the_cifar_example_with_a_smaller_network():
    small = torch_module()
    small.wide = torch.nn.Conv2d(32, 24, 3, 2, 1, bias=False)
    small.head = torch.nn.Linear(24, 8, bias=False)
    scheduler, model = prepared(filters("NuclearMaskGenerator", "p1"))
    sparsities = get_st_sparsities_special(small, model)
    assert sparsities == {"stem": 0.0, "deep": 0.0, "point": 0.0, "wide": 0.25, "head": 0.0}
    update_sparsity_per_layer_from_sparsities(model, sparsities)
    scheduler.export_sparse_model(model)
    assert zeros(model) == sparsities


def test_rates_set_by_hand_on_layers():
    scheduler, model = prepared()
    scheduler.update_sparsity_per_layer(model, 0.9)
    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
            assert module.weight_fake_sparse.mask_generator.sparsity == 0.9
            module.weight_fake_sparse.mask_generator.sparsity = 0.0 if name == "stem" else 0.5
    assert zeros(model) == {"stem": 0.0, "deep": 0.5, "point": 0.5, "wide": 0.5, "head": 0.5}
    np.testing.assert_array_equal(model.stem.weight.detach(), numbers()["stem.weight"])
    epoch(model, sgd(model))
    assert zeros(model)["wide"] == 0.5
    scheduler.export_sparse_model(model)
    assert not hasattr(model.wide, "weight_fake_sparse")
    assert all("weight_fake_sparse" not in name for name in model.state_dict())


def test_a_copy_of_the_module_is_a_module_of_its_own():
    scheduler, model = prepared()
    scheduler.update_sparsity_per_layer(model, 0.5)
    twin = copy.deepcopy(model)
    with refusing(OptionError):
        twin.wide.weight_fake_sparse.mask_generator.sparsity = 0.1
    twin.load_state_dict({name: torch.zeros_like(one) for name, one in twin.state_dict().items()})
    assert zeros(model) == dict.fromkeys(zeros(model), 0.5)
    scheduler.update_sparsity_per_layer(model, 0.25)
    assert zeros(model)["wide"] == 0.25


def test_numbers_that_are_changed_before_training_are_the_ones_that_count():
    scheduler, model = prepared()
    scheduler.update_sparsity_per_layer(model, 0.5)
    with torch.no_grad():
        model.wide.parametrizations.weight.original.mul_(2)
    scheduler.update_sparsity_per_layer(model, 0.75)
    kept = model.wide.weight.detach().numpy()
    np.testing.assert_array_equal(kept, np.where(kept != 0, 2 * numbers()["wide.weight"], 0))


def test_a_state_with_masks_beside_it_is_taken_as_it_is():
    scheduler, model = prepared()
    scheduler.update_sparsity_per_layer(model, 0.5)
    epoch(model, sgd(model))
    state, beside = copy.deepcopy(model.state_dict()), scheduler.state_dict()
    for swapped in (False, True):
        again, fresh = prepared()
        steps = [lambda one=again: one.load_state_dict(beside), lambda one=fresh: one.load_state_dict(state)]
        for step in reversed(steps) if swapped else steps:
            step()
        assert all(torch.equal(one, state[name]) for name, one in fresh.state_dict().items())
        assert again.compute_sparse_rate(fresh) == 0.5
        assert fresh.wide.weight_fake_sparse.mask_generator.sparsity == 0.5


class Tied(torch.nn.Module):
    """Two layers, and an embedding beside them, that have one weight."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(24, 24)
        self.first = torch.nn.Linear(24, 24, bias=False)
        self.last = torch.nn.Linear(24, 24, bias=False)
        self.first.weight = self.last.weight = self.words.weight

    def forward(self, x):
        return self.last(torch.relu(self.first(self.words(x))))


def test_layers_with_one_weight_are_one_layer_by_any_of_their_names():
    scheduler = build_sparse_scheduler(SAT)
    model = scheduler.prepare_sparse_model(Tied())
    assert get_unst_sparsities_uniform(model, 0.5) == {"first": 0.5}
    for name, rate in [("first", 0.25), ("last", 0.5), ("last.weight", 0.75)]:
        update_sparsity_per_layer_from_sparsities(model, {name: rate})
        assert zeros(model) == {"words": rate, "first": rate, "last": rate}
    model.last.weight_fake_sparse.mask_generator.sparsity = 0.125
    assert model.first.weight_fake_sparse.mask_generator.sparsity == 0.125
    assert get_unst_sparsities_norm_v2(model, 0.5, 0.9, ["last"]) == {"first": 0.0}


THRESHOLDS = {
    "scheduler": {"type": "BaseScheduler"},
    "mask_generator": {"type": "STRMaskGenerator"},
    "fake_sparse": {"type": "STRFakeSparse", "kwargs": {"sInit_value": -0.5}},
}


def test_thresholds_hold_wherever_a_weight_is():
    scheduler = build_sparse_scheduler(THRESHOLDS)
    model = scheduler.prepare_sparse_model(Tied())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    assert sum(parameter.numel() for parameter in model.parameters()) == 24 * 24 + 1, "one weight, one threshold"
    words = torch.arange(24)
    model(words).square().mean().backward()
    optimizer.step()
    state, seen = model.state_dict(), model(words).detach()
    weights = [state[f"{name}.weight"] for name in ("words", "first", "last")]
    assert all(torch.equal(one, weights[0]) for one in weights)
    assert 0 < (weights[0] == 0).float().mean() < 1
    plain = Tied()
    plain.load_state_dict(state)
    torch.testing.assert_close(plain(words), seen)
    exported = scheduler.export_sparse_model(model)
    assert exported.first.weight is exported.last.weight is exported.words.weight
    torch.testing.assert_close(exported(words), seen)
