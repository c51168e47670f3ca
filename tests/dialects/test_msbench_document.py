"""The documented configurations, word for word: as a mapping, YAML and JSON, on an ONNX model and a torch module."""

from __future__ import annotations

import copy
import json

import onnx
import pytest
import yaml

import onnxsparse as osp
from onnxsparse.dialects.msbench import build_sparse_scheduler
from onnxsparse.dialects.msbench.configuration import read
from tests.dialects import nets
from tests.engine_marks import TRAINS

ITERATIONS = 7
AMBA = {
    "mask_generator": {"type": "NormalMaskGenerator"},
    "fake_sparse": {"type": "FakeSparse"},
    "scheduler": {
        "type": "AmbaLevelPruneScheduler",
        "kwargs": {
            "total_iters": ITERATIONS,
            "sparsity_table": [30, 40, 50, 60, 70, 80, 90],
            "no_prune_keyword": "",
            "no_prune_layer": "",
            "prun_algo": 1,
            "do_sparse_analysis": False,
            "default_input_shape": [1, 3, 224, 224],
            "output_dir": "path_to_sparse_analysis",
            "save_dir": "path_to_sparse_ckpts",
        },
    },
}
AMPERE = {
    "scheduler": {
        "type": "AmpereScheduler",
        "kwargs": {
            "mask_calculator": "m4n2_1d",
            "allow_recompute_mask": False,
            "allow_permutation": False,
            "verbosity": 0,
        },
    }
}
STR = {
    "mask_generator": {"type": "STRMaskGenerator"},
    "fake_sparse": {"type": "STRFakeSparse", "kwargs": {"sInit_value": -5}},
    "scheduler": {"type": "BaseScheduler"},
}
CONFIGS = {"amba": AMBA, "ampere": AMPERE, "str": STR}
WRITTEN = {"mapping": None, "yaml": yaml.safe_dump, "json": json.dumps}
BESIDE = {"leaf_module": ["head"], "fuse_bn": True}


def in_form(config, form, folder):
    """The configuration as a mapping, or the path of a file that holds it."""
    if WRITTEN[form] is None:
        return copy.deepcopy(config)
    path = folder / f"sparse.{form}"
    path.write_text(WRITTEN[form](config))
    return str(path)


def expected(name, rate):
    wanted = {"amba": 0.9, "ampere": 0.5}.get(name)
    return 0 < rate < 1 if wanted is None else abs(rate - wanted) < 0.1


@pytest.mark.parametrize("form", ["yaml", "json"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_file_says_what_the_mapping_says(name, form, tmp_path):
    assert read(in_form(CONFIGS[name], form, tmp_path)) == read(CONFIGS[name])


@TRAINS
@pytest.mark.parametrize(("name", "form"), [("amba", "mapping"), ("ampere", "yaml"), ("str", "json")])
def test_on_an_onnx_model(name, form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = in_form(CONFIGS[name], form, tmp_path)
    scheduler = build_sparse_scheduler(config)
    model = scheduler.prepare_sparse_model(nets.onnx_model(), config, optimizer="sgd", lr=0.01)
    if name == "amba":
        scheduler.set_lr_scheduler("cosine")
    if name == "ampere":
        scheduler.init_optimizer("sgd")
    for iteration in range(ITERATIONS):
        scheduler.prune_model(model, iteration)
        model.step(nets.batch(iteration))
        if name == "amba":
            assert abs(scheduler.compute_sparse_rate(model) - (0.3 + 0.1 * iteration)) <= 0.015
    assert expected(name, scheduler.compute_sparse_rate(model))
    onnx.checker.check_model(scheduler.export_sparse_model(model))
    path = scheduler.export_sparse_onnx(model, None, "sparse")
    target = {"amba": {"target": "amba", "level": 90}, "ampere": {"target": "ampere:asp"}}.get(name, {})
    report = osp.verify(path, **target).report
    assert report.ok, report.notes


@pytest.mark.parametrize("beside", [{}, BESIDE], ids=["documented", "with leaf_module"])
@pytest.mark.parametrize("form", WRITTEN)
@pytest.mark.parametrize("name", CONFIGS)
def test_on_a_torch_module(name, form, beside, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    config = copy.deepcopy(CONFIGS[name])
    if beside and name == "amba" and form == "mapping":  # a batch in the place of a shape
        del config["scheduler"]["kwargs"]["default_input_shape"]
        config["scheduler"]["kwargs"]["default_input_custom"] = torch.zeros(1, 3, 12, 12)
    scheduler = build_sparse_scheduler(in_form({**config, **beside}, form, tmp_path))
    net = scheduler.prepare_sparse_model(nets.torch_module())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    if name == "amba":
        scheduler.set_lr_scheduler(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1))
    if name == "ampere":
        scheduler.init_optimizer(optimizer)
    before = net.head.weight.detach().clone()
    for iteration in range(ITERATIONS):
        scheduler.prune_model(net, iteration)
        x, labels = (torch.from_numpy(one) for one in nets.batch(iteration))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), labels).backward()
        optimizer.step()
    assert expected(name, scheduler.compute_sparse_rate(net)) or beside
    plain = scheduler.export_sparse_model(net)
    assert not (plain.head.weight == before).all()
    assert bool((plain.head.weight == 0).any()) is (not beside)
    assert any("fuse_bn is ignored" in note for note in scheduler.notes) is bool(beside)
    if form == "mapping":
        path = scheduler.export_sparse_onnx(net, torch.zeros(1, 3, 12, 12), "sparse")
        assert osp.verify(path).report.ok
