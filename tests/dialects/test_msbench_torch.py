"""MSBench's schedulers on a torch module, in a loop of one's own; masks are those of the same ONNX model."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import onnxsparse as osp
from onnxsparse.dialects.msbench import build_sparse_scheduler, preset
from onnxsparse.errors import OptionError
from tests.dialects.nets import SIZE, batch, numbers, onnx_model, torch_module
from tests.messages import refusing

SHAPE = [1, 3, SIZE, SIZE]
LEVELS = [30, 60]


def amba(total=4, **kwargs):
    config = preset("amba")
    settings = {"total_iters": total, "sparsity_table": LEVELS, "default_input_shape": SHAPE}
    config["scheduler"]["kwargs"].update({**settings, **kwargs})
    return config


def train(net, scheduler, optimizer, steps, lr_scheduler=None, begin=0):
    for iteration in range(begin, steps):
        scheduler.prune_model(net, iteration)
        x, y = (torch.from_numpy(array) for array in batch(iteration))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        if lr_scheduler is not None:
            lr_scheduler.step()


def sgd(net, lr=0.02):
    return torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)


def of_torch(net, name):
    return dict(net.named_parameters())[name].detach().numpy()


@pytest.mark.parametrize("level", [0, 3])
def test_masks_are_those_of_the_onnx_model(level):
    found = []
    for model in (onnx_model(), torch_module()):
        scheduler = build_sparse_scheduler(amba())
        prepared = scheduler.prepare_sparse_model(model)
        scheduler.prune_model(prepared, level)
        network = scheduler._network
        found.append({site.name: network.masks()[site.key] for site in network.sites})
    assert found[0].keys() == found[1].keys()
    for name, mask in found[0].items():
        np.testing.assert_array_equal(mask, found[1][name], err_msg=name)


def test_statistics_are_those_of_the_onnx_model():
    tables = []
    for model in (onnx_model(), torch_module()):
        scheduler = build_sparse_scheduler(amba(prun_hw_aware="cv22"))
        prepared = scheduler.prepare_sparse_model(model)
        scheduler.prune_model(prepared, 3)
        plain = [{name: value for name, value in row.items() if name != "kind"} for row in scheduler.statistics()]
        tables.append(plain)
    assert tables[0] == tables[1]


@pytest.mark.parametrize("name", ["ampere", "probmask"])
def test_other_masks_are_those_of_the_onnx_model(name):
    found = []
    for model in (onnx_model(), torch_module()):
        config = preset(name)
        if name == "probmask":
            stamps = {"total_iterations": 4, "warmup_iteration_stamps": 0, "finetune_iteration_stamps": 2}
            config["scheduler"]["kwargs"].update(stamps)
        scheduler = build_sparse_scheduler(config)
        prepared = scheduler.prepare_sparse_model(model)
        scheduler.init_optimizer(
            sgd(prepared) if name == "ampere" and prepared is model else None
        ) if name == "ampere" else None
        for iteration in range(3):
            scheduler.prune_model(prepared, iteration)
        network = scheduler._network
        found.append({site.name: network.masks()[site.key] for site in network.sites if site.key in network.masks()})
    assert found[0].keys() == found[1].keys()
    for layer, mask in found[0].items():
        np.testing.assert_array_equal(mask, found[1][layer], err_msg=layer)


def test_the_amba_configuration_in_a_loop_of_ones_own(tmp_path):
    net = torch_module()
    optimizer = sgd(net)
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    scheduler = build_sparse_scheduler(amba(total=8, save_dir=str(tmp_path), output_dir=str(tmp_path)))
    with refusing(OptionError):
        scheduler.set_lr_scheduler(lr_scheduler)
    assert scheduler.prepare_sparse_model(net) is net
    scheduler.set_lr_scheduler(lr_scheduler)
    rates = []
    for iteration in range(8):
        train(net, scheduler, optimizer, iteration + 1, None, iteration)
        rates.append(optimizer.param_groups[0]["lr"])
        lr_scheduler.step()
    assert rates[:4] == rates[4:]
    assert abs(scheduler.compute_sparse_rate(net) - 0.6) <= 0.015
    plain = scheduler.export_sparse_model(net)
    assert plain is net
    assert [name for name, _ in net.named_parameters()] == list(numbers())
    zeros = sum(int((p == 0).sum()) for p in net.parameters()) / sum(p.numel() for p in net.parameters())
    assert abs(zeros - 0.6) <= 0.015
    path = scheduler.export_sparse_onnx(net, torch.zeros(SHAPE), str(tmp_path / "sparse"))
    for found in (osp.verify(path), osp.verify(path, target="amba", level=60)):
        assert found.report.ok, found.report.notes
    saved = torch.load(tmp_path / "global_sparse_rate_30.pth", weights_only=True)
    assert set(saved["model"]) == set(numbers())
    assert saved["prune_step"] == 0
    assert json.loads((tmp_path / "sparse_report.json").read_text())["60"][-1]["layer"] == "total"


def test_a_killed_loop_goes_on_with_its_masks(tmp_path):
    """Resumed from the state dict, the masks and the iteration, it comes to the same numbers."""
    config = amba(total=8, output_dir=str(tmp_path))

    def loop(net, optimizer, begin, end, **kwargs):
        scheduler = build_sparse_scheduler(amba(total=8, output_dir=str(tmp_path), **kwargs))
        scheduler.prepare_sparse_model(net)
        scheduler.init_optimizer(optimizer)
        train(net, scheduler, optimizer, end, None, begin)
        masks = scheduler._network.masks()
        return scheduler.export_sparse_model(net), {key: mask.copy() for key, mask in masks.items()}

    whole = torch_module()
    whole, _ = loop(whole, sgd(whole), 0, 8)
    half = torch_module()
    optimizer = sgd(half)
    half, masks = loop(half, optimizer, 0, 6)
    state, memory = copy.deepcopy(half.state_dict()), copy.deepcopy(optimizer.state_dict())
    again = torch_module()
    again.load_state_dict(state)
    optimizer = sgd(again)
    optimizer.load_state_dict(memory)
    again, found = loop(again, optimizer, 6, 8, mask_dict=masks)
    assert all((found[key] == mask).all() for key, mask in masks.items())
    for name in numbers():
        np.testing.assert_array_equal(of_torch(whole, name), of_torch(again, name))
    assert config["scheduler"]["kwargs"]["total_iters"] == 8


def test_a_plateau_begins_again_with_the_first_rate():
    net = torch_module()
    optimizer = sgd(net, lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.1)
    scheduler = build_sparse_scheduler(amba(total=8, lr_scheduler=plateau))
    scheduler.prepare_sparse_model(net)
    for iteration in range(4):
        scheduler.prune_model(net, iteration)
        plateau.step(float(iteration))
    assert optimizer.param_groups[0]["lr"] < 0.01
    scheduler.prune_model(net, 4)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert plateau.num_bad_epochs == 0
    given = build_sparse_scheduler(amba(total=8, init_lr=0.05))
    other = torch_module()
    optimizer = sgd(other, lr=0.1)
    given.prepare_sparse_model(other)
    given.set_lr_scheduler(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))
    given.prune_model(other, 0)
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_a_plateau_has_a_first_rate_for_each_group():
    net = torch_module()
    optimizer = torch.optim.SGD([{"params": [one]} for one in (net.stem.weight, net.head.weight)], lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    for given, wanted in (([0.05, 0.01], [0.05, 0.01]), (0.02, [0.02, 0.02])):
        scheduler = build_sparse_scheduler(amba(total=8, init_lr=given, lr_scheduler=plateau))
        scheduler.prepare_sparse_model(net)
        scheduler.prune_model(net, 0)
        assert [group["lr"] for group in optimizer.param_groups] == wanted
        scheduler.export_sparse_model(net)
    scheduler = build_sparse_scheduler(amba(total=8, init_lr=[0.1], lr_scheduler=plateau))
    with pytest.raises(OptionError, match="init_lr has 1 numbers, and the optimizer 2 groups"):
        scheduler.prepare_sparse_model(net)


RATES = torch.optim.lr_scheduler
WARMED_UP = {
    "cosine": lambda optimizer: RATES.CosineAnnealingLR(optimizer, 4),
    "restarts": lambda optimizer: RATES.CosineAnnealingWarmRestarts(optimizer, 2, 2),
    "own": lambda optimizer: RATES.LambdaLR(optimizer, lambda epoch: min(1, (epoch + 1) / 3)),
    "times": lambda optimizer: RATES.MultiplicativeLR(optimizer, lambda epoch: 0.9),
    "cyclic": lambda optimizer: RATES.CyclicLR(optimizer, 0.01, 0.1, step_size_up=3),
    "in turn": lambda optimizer: RATES.SequentialLR(
        optimizer, [RATES.LinearLR(optimizer, 0.1, 1.0, 2), RATES.CosineAnnealingLR(optimizer, 4)], [2]
    ),
    "chain": lambda optimizer: RATES.ChainedScheduler(
        [RATES.LinearLR(optimizer, 0.1, 1.0, 2), RATES.ExponentialLR(optimizer, 0.5)]
    ),
}


@pytest.mark.parametrize("kind", WARMED_UP)
def test_a_scheduler_that_has_gone_on_begins_again_with_its_first_epoch(kind):
    """The loop of a run that goes on loads its own state of the rate, and hands it over then."""
    states = {}

    def rates(done):
        net = torch_module()
        optimizer = sgd(net, lr=0.1)
        rate = WARMED_UP[kind](optimizer)
        if done:
            optimizer.load_state_dict(states[done][0])
            rate.load_state_dict(states[done][1])
        scheduler = build_sparse_scheduler(amba(total=12))
        scheduler.prepare_sparse_model(net)
        scheduler.set_lr_scheduler(rate)
        found = []
        for iteration in range(done, 12):
            states.setdefault(iteration, copy.deepcopy((optimizer.state_dict(), rate.state_dict())))
            scheduler.prune_model(net, iteration)
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            rate.step()
        return found

    whole = rates(0)
    assert len(set(whole[:6])) > 1
    assert whole[6:] == whole[:6]
    for done in (2, 5, 8):
        assert rates(done) == pytest.approx(whole[done:], rel=1e-12)


def test_rates_of_layers_are_those_of_the_stage():
    net = torch_module()
    scheduler = build_sparse_scheduler(amba(total=8))
    scheduler.prepare_sparse_model(net)
    assert net.wide.weight_fake_sparse.mask_generator.sparsity is None
    seen = []
    for iteration in (0, 4):
        scheduler.prune_model(net, iteration)
        seen.append([layer.weight_fake_sparse.mask_generator.sparsity for layer in (net.stem, net.wide, net.head)])
        zero = [float((layer.weight == 0).float().mean()) for layer in (net.stem, net.wide, net.head)]
        assert seen[-1] == pytest.approx(zero, abs=0.006)
    assert all(one < other for one, other in zip(*seen))
    net.wide.weight_fake_sparse.mask_generator.sparsity = 0.875
    assert net.wide.weight_fake_sparse.mask_generator.sparsity == 0.875
    assert float((net.wide.weight == 0).float().mean()) == 0.875
    scheduler.prune_model(net, 0)
    assert net.wide.weight_fake_sparse.mask_generator.sparsity == seen[0][1]


def test_sizes_are_asked_for():
    scheduler = build_sparse_scheduler(amba(default_input_shape=None))
    net = scheduler.prepare_sparse_model(torch_module())
    with refusing(OptionError):
        scheduler.prune_model(net, 0)
    scheduler = build_sparse_scheduler(amba(default_input_shape=None, default_input_custom=torch.zeros(SHAPE)))
    scheduler.prepare_sparse_model(torch_module())
    with refusing(OptionError):
        build_sparse_scheduler(amba(default_input_shape=[1, 4, 8, 8])).prepare_sparse_model(torch_module())


def test_the_ampere_configuration_in_a_loop_of_ones_own(tmp_path):
    net = torch_module()
    scheduler = build_sparse_scheduler("ampere")
    scheduler.prepare_sparse_model(net)
    optimizer = sgd(net)
    scheduler.init_optimizer(optimizer)
    train(net, scheduler, optimizer, 3)
    scheduler.export_sparse_model(net)
    path = scheduler.export_sparse_onnx(net, torch.zeros(SHAPE), tmp_path / "sparse.onnx")
    assert osp.verify(path).report.ok
    assert osp.verify(path, target="ampere:asp", allow="small").report.ok


@pytest.mark.parametrize("calculator", ["m4n2_2d_best", "m4n2_2d_greedy"])
def test_masks_along_both_axes_in_a_loop_of_ones_own(calculator, tmp_path):
    net, config = torch_module(), preset("ampere")
    config["scheduler"]["kwargs"]["mask_calculator"] = calculator
    scheduler = build_sparse_scheduler(config)
    scheduler.prepare_sparse_model(net)
    optimizer = sgd(net)
    scheduler.init_optimizer(optimizer)
    train(net, scheduler, optimizer, 3)
    for weight in (net.wide.weight.flatten(2).permute(2, 0, 1), net.head.weight[None]):
        kept = weight.detach().reshape(len(weight), weight.shape[1] // 4, 4, weight.shape[2] // 4, 4) != 0
        assert max(kept.sum(2).max(), kept.sum(4).max()) == 2
    path = scheduler.export_sparse_onnx(net, torch.zeros(SHAPE), tmp_path / "sparse.onnx")
    assert osp.verify(path).report.ok
    assert osp.verify(path, target="ampere:asp", allow="small").report.ok


def test_the_threshold_configuration_in_a_loop_of_ones_own(tmp_path):
    net = torch_module()
    config = preset("str")
    config["fake_sparse"]["kwargs"]["sInit_value"] = -2.5
    scheduler = build_sparse_scheduler(config)
    scheduler.prepare_sparse_model(net)
    optimizer = sgd(net, lr=0.1)
    limits = {site.key: scheduler._network.trained(site.key)["threshold"].copy() for site in scheduler._network.sites}
    train(net, scheduler, optimizer, 3)
    seen = {}
    for site in scheduler._network.sites:
        weight, limit = scheduler._network.weight(site.key), scheduler._network.trained(site.key)["threshold"]
        assert limit != limits[site.key]
        seen[site.key] = np.sign(weight) * np.maximum(np.abs(weight) - 1 / (1 + np.exp(-limit)), 0)
    x = torch.from_numpy(batch(9)[0])
    before = net(x).detach().numpy()
    scheduler.export_sparse_model(net)
    for key, wanted in seen.items():
        np.testing.assert_allclose(of_torch(net, key), wanted, atol=1e-6)
    np.testing.assert_allclose(net(x).detach().numpy(), before, atol=1e-5)
    path = scheduler.export_sparse_onnx(net, torch.zeros(SHAPE), tmp_path / "sparse.onnx")
    assert osp.verify(path).report.ok


def test_what_a_drawn_mask_multiplies_with():
    """sigmoid((logit(p) + noise) * tau), written out again."""
    net = torch_module()
    config = preset("probmask")
    stamps = {"total_iterations": 40, "warmup_iteration_stamps": 0, "finetune_iteration_stamps": 30}
    config["scheduler"]["kwargs"].update(stamps)
    scheduler = build_sparse_scheduler(config)
    scheduler.prepare_sparse_model(net)
    for iteration in range(12):
        scheduler.prune_model(net, iteration)
    key = "wide.weight"
    score, fed = scheduler._network.trained(key)["score"].astype(np.float64), scheduler._network.frozen(key)
    tau = 1 / (0.97 * (1 - 11 / 40) + 0.03)
    logit = np.log(score + 1e-20) - np.log(1 - score + 1e-20)
    wanted = numbers()[key] / (1 + np.exp(-(logit + fed["noise"]) * tau))
    np.testing.assert_allclose(net.wide.weight.detach().numpy(), wanted, rtol=1e-4, atol=1e-6)


def test_the_probmask_configuration_in_a_loop_of_ones_own():
    net = torch_module()
    config = preset("probmask")
    stamps = {"total_iterations": 10, "warmup_iteration_stamps": 2, "finetune_iteration_stamps": 8}
    config["scheduler"]["kwargs"].update(stamps)
    scheduler = build_sparse_scheduler(config)
    scheduler.prepare_sparse_model(net)
    optimizer = sgd(net)
    assert any("score" in name for name, _ in net.named_parameters())
    train(net, scheduler, optimizer, 10)
    assert abs(scheduler.compute_sparse_rate(net) - 0.8) <= 0.015
    scheduler.export_sparse_model(net)
    assert [name for name, _ in net.named_parameters()] == list(numbers())


def test_a_module_that_is_wrapped_and_leaf_modules():
    net = torch.nn.DataParallel(torch_module())
    scheduler = build_sparse_scheduler({**amba(), "leaf_module": ["Linear"]})
    assert scheduler.prepare_sparse_model(net) is net
    scheduler.prune_model(net, 0)
    plain = scheduler.export_sparse_model(net)
    assert (plain.head.weight != 0).all()


def test_what_is_not_for_modules():
    scheduler = build_sparse_scheduler(amba())
    with refusing(OptionError):
        scheduler.prepare_sparse_model(torch_module(), engine="ort")
    scheduler.prepare_sparse_model(torch_module())
    with refusing(OptionError):
        scheduler.set_lr_scheduler("cosine")
    with refusing(OptionError):
        scheduler.init_optimizer()
    with refusing(OptionError):
        scheduler.export_sparse_onnx(None, None, "x")


def test_optimizers_and_schedulers_of_torch_drive_an_onnx_model():
    scheduler = build_sparse_scheduler(amba(total=4))
    model = scheduler.prepare_sparse_model(onnx_model(), engine="torch")
    free = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([free], lr=0.03, momentum=0.8, nesterov=True, weight_decay=1e-4)
    rate = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    scheduler.init_optimizer(optimizer)
    scheduler.set_lr_scheduler(rate)
    assert model.options.optimizer == "nesterov:momentum=0.8"
    seen = []
    for iteration in range(4):
        scheduler.prune_model(model, iteration)
        seen.append((model.pace.rate, model.pace.decay))
        model.step(batch(iteration))
        optimizer.step()
        rate.step()
    assert seen == [(0.03, 1e-4), (0.015, 1e-4), (0.03, 1e-4), (0.015, 1e-4)]


def odd():
    """Attention, a transposed convolution, and a layer that is used twice."""
    from torch import nn

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(16, 16, 2, stride=2)
            self.twice = nn.Linear(16, 16)
            self.mix = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x):
            x = self.twice(self.twice(self.up(x).flatten(2).transpose(1, 2)))
            return self.mix(x, x, x)[0].mean(1)

    return Odd()


def test_what_is_no_layer_of_its_own_is_in_the_notes_and_exported_as_it_is(tmp_path):
    net = odd()
    dense = net.mix.in_proj_weight.detach().clone()
    scheduler = build_sparse_scheduler("ampere")
    model = scheduler.prepare_sparse_model(net)
    scheduler.init_optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    assert "left dense: mix.in_proj_weight: a part of MultiheadAttention, no layer" in scheduler.notes
    assert "left dense: up: no kernel for it has 2:4" in scheduler.notes
    path = scheduler.export_sparse_onnx(model, torch.randn(1, 16, 3, 3), str(tmp_path / "odd"))
    assert torch.backends.mha.get_fastpath_enabled()
    report = osp.verify(path, target="ampere:asp").report
    assert report.ok, [row.reason for row in report.rows]
    assert torch.equal(model.mix.in_proj_weight, dense)
    named = build_sparse_scheduler(
        {"scheduler": {"type": "AmpereScheduler", "kwargs": {"whitelist": ["ConvTranspose2d"]}}}
    )
    named.init_optimizer(torch.optim.SGD(named.prepare_sparse_model(odd()).parameters(), lr=0.01))
    assert 0 < named.compute_sparse_rate() < 0.5
