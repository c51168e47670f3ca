"""The record in the file of a torch module is of the tensors in that file, whatever the exporter made of the layers."""

from __future__ import annotations

import onnx
import pytest
from onnx import numpy_helper

torch = pytest.importorskip("torch")

from torch import nn

import onnxsparse as osp
from onnxsparse.dialects.msbench import build_sparse_scheduler, preset

STEPS = 4


class Normed(nn.Module):
    """Batch normalizations behind every convolution, and a matrix that multiplies three axes."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))
        self.block = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(2)
        )
        self.wide = nn.Sequential(nn.Conv2d(16, 32, 1), nn.BatchNorm2d(32))
        self.mix = nn.Linear(32, 32)
        self.head = nn.Linear(32, 8)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        for one in self.block:
            x = x + one(x)
        return self.head(self.mix(self.wide(x).flatten(2).transpose(1, 2)).mean(1))


class Computed(nn.Module):
    """A layer whose weight is computed with before it is used: by the exporter, or by a node."""

    def __init__(self, folds):
        super().__init__()
        self.one, self.two, self.folds = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3), folds

    def forward(self, x):
        weight = self.two.weight
        return nn.functional.conv2d(self.one(x), weight * torch.ones(3).cumsum(0) if self.folds else torch.sin(weight))


def settings(kind):
    if kind == "admm":
        return {
            "mask_generator": {"type": "NormalMaskGenerator", "kwargs": {"structured": True, "func": "p2"}},
            "fake_sparse": {"type": "FakeSparse"},
            "scheduler": {"type": "ADMMScheduler", "kwargs": {"iters_per_epoch": 1, "max_iters": STEPS}},
            "sparsity": {"target_sparsity": 0.3, "uniform": True},
        }
    config = preset(kind)
    kwargs = config["scheduler"].setdefault("kwargs", {})
    if kind == "amba":
        kwargs.update(total_iters=STEPS, sparsity_table=[30, 60], default_input_shape=[1, 3, 8, 8])
    if kind == "str":
        config["sparsity"] = {"target_sparsity": 0.4, "uniform": True}
    if kind == "probmask":
        kwargs.update(total_iterations=STEPS, warmup_iteration_stamps=1, finetune_iteration_stamps=3)
    return config


def trained(net, kind, plain):
    torch.manual_seed(0)
    scheduler = build_sparse_scheduler(settings(kind))
    scheduler.prepare_sparse_model(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    if kind == "ampere":
        scheduler.init_optimizer(optimizer)
    for iteration in range(STEPS):
        more = scheduler.prune_model(net, iteration)
        optimizer.zero_grad()
        loss = net(torch.randn(4, 3, 8, 8)).square().mean()
        (loss + more["loss"] if more else loss).backward()
        optimizer.step()
    return scheduler, scheduler.export_sparse_model(net) if plain else net


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("kind", ["amba", "ampere", "str", "probmask", "admm"])
def test_every_layer_that_was_pruned_is_checked(kind, plain, tmp_path):
    torch.manual_seed(0)
    net = Normed()
    scheduler, net = trained(net, kind, plain)
    path = scheduler.export_sparse_onnx(net, torch.randn(1, 3, 8, 8), tmp_path / "net.onnx")
    found = osp.verify(path).report
    assert found.ok, found.faults
    checked = [row for row in found.rows if row.status == "holds"]
    assert len(checked) == len(scheduler.prunable) == (5 if kind == "ampere" else 6)
    assert sum(row.name.startswith("onnx::") for row in checked) >= 4
    assert not any("no promise" in note for note in scheduler.notes)


def test_a_number_that_came_back_breaks_the_record_of_a_folded_layer(tmp_path):
    scheduler, net = trained(Normed(), "ampere", False)
    path = scheduler.export_sparse_onnx(net, torch.randn(1, 3, 8, 8), tmp_path / "net.onnx")
    model = onnx.load(path)
    folded = next(
        one for one in model.graph.initializer if one.name.startswith("onnx::Conv") and list(one.dims[1:2]) == [16]
    )
    array = numpy_helper.to_array(folded).copy()
    array[array == 0] = 1
    folded.CopyFrom(numpy_helper.from_array(array, folded.name))
    onnx.save(model, path)
    found = osp.verify(path).report
    assert not found.ok
    assert [row.name for row in found.rows if row.status not in ("holds", "unchecked")] == [folded.name]


@pytest.mark.parametrize("folds", [False, True])
def test_what_no_tensor_is_certainly_of_is_said(folds, tmp_path):
    scheduler, net = trained(Computed(folds), "amba", False)
    path = scheduler.export_sparse_onnx(net, torch.randn(1, 3, 8, 8), tmp_path / "net.onnx")
    assert osp.verify(path).report.ok
    said = [note for note in scheduler.notes if "no promise" in note]
    assert len(said) == 1
    assert said[0].startswith("1 of 2 layers have no promise in the record of the file")
    assert "two.weight" in said[0]


def test_a_file_of_that_name_stays_until_the_export_has_its_record(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    scheduler = build_sparse_scheduler(settings("ampere"))
    net = Normed()
    scheduler.prepare_sparse_model(net)
    (tmp_path / "net.onnx").write_text("of before")
    monkeypatch.setattr("onnxsparse.train.torch_export.record", full)
    with pytest.raises(OSError, match="No space"):
        scheduler.export_sparse_onnx(net, torch.randn(1, 3, 8, 8), str(tmp_path / "net.onnx"))
    assert [one.name for one in tmp_path.iterdir()] == ["net.onnx"]
    assert (tmp_path / "net.onnx").read_text() == "of before"
