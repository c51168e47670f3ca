"""MSBench's own tables and checkpoints of levels: read, and written on demand; and what its runner asks of a stage."""

from __future__ import annotations

import json

import numpy as np
import pytest

from onnxsparse.dialects.msbench import build_sparse_scheduler, preset
from onnxsparse.errors import OptionError, PlanError
from tests.dialects.nets import SHAPES, SIZE, batch, numbers, onnx_model
from tests.messages import refusing

LAYERS = [name.rpartition(".")[0] for name in SHAPES]
SHAPE = [1, 3, SIZE, SIZE]
TABLE = {  # of a search in five steps
    "stem": [0.52, 0.08, 0.21, 0.3, 0.25],
    "deep": [0.4, 0.0, 0.2, 0.25, 0.22],
    "point": [0.63, 0.1, 0.29, 0.4, 0.33],
    "wide": [0.83, 0.14, 0.31, 0.64, 0.5],
    "head": [0.71, 0.12, 0.27, 0.55, 0.41],
}
DESIRED = """search table, index and network_sparsification
[0, 1, 2, 3, 4]
[0.8073, 0.1331, 0.3028, 0.6089, 0.4761]
desire table, index, network sparsification and network energy
[2, 3]
[0.3028, 0.6089]
[5.0, 12.5]
"""


def tables(folder, table=TABLE, desired=DESIRED, chip=None):
    folder.mkdir(exist_ok=True)
    (folder / "dict_prun_table.txt").write_text(table if isinstance(table, str) else str(table))
    (folder / "desrie_prun_table.txt").write_text(desired)
    if chip:
        caps = {name: [0.45 if name == "wide" else 1] for name in TABLE}
        (folder / f"hw_aware_sparsity_table_{chip}.txt").write_text(str(caps))
    return str(folder)


def amba(**kwargs):
    config = preset("amba")
    settings = {"total_iters": 4, "sparsity_table": [30, 60], "default_input_shape": SHAPE, "save_dir": None}
    config["scheduler"]["kwargs"].update({**settings, "output_dir": None, "do_sparse_analysis": False, **kwargs})
    return config


def prepared(model=None, **kwargs):
    scheduler = build_sparse_scheduler(amba(**kwargs))
    return scheduler, scheduler.prepare_sparse_model(onnx_model() if model is None else model)


def zeros(scheduler):
    network = scheduler.network
    return {site.name: 1 - np.count_nonzero(network.effective(site.key)) / site.size for site in network.sites}


@pytest.mark.parametrize("wrapper", ["", "module."])
def test_tables_are_read_and_say_the_rate_of_each_layer(tmp_path, wrapper):
    table = {f"{wrapper}{name}": row for name, row in TABLE.items()}
    scheduler, model = prepared(output_dir=tables(tmp_path / "analysis", table))
    for iteration, step in ((0, 2), (2, 3)):
        scheduler.prune_model(model, iteration)
        assert zeros(scheduler) == pytest.approx({name: row[step] for name, row in TABLE.items()}, abs=0.004)
    assert not (tmp_path / "analysis" / "sparse_analysis.json").exists()


def test_a_chip_cuts_rates_off(tmp_path):
    folder = tables(tmp_path / "analysis", chip="cv22")
    scheduler, model = prepared(output_dir=folder, prun_hw_aware="cv22")
    scheduler.prune_model(model, 2)
    assert zeros(scheduler)["wide"] == pytest.approx(0.45, abs=0.001)
    assert zeros(scheduler)["head"] == pytest.approx(0.55, abs=0.004)


def test_without_the_table_of_the_chip_there_is_an_analysis(tmp_path):
    folder = tables(tmp_path / "analysis")
    prepared(output_dir=folder, prun_hw_aware="cv22")
    assert (tmp_path / "analysis" / "sparse_analysis.json").exists()


def test_a_new_analysis_is_made_where_it_is_wanted(tmp_path):
    scheduler, _ = prepared(output_dir=tables(tmp_path / "analysis"), do_sparse_analysis=True)
    other, _ = prepared()
    assert scheduler.facts()["drops"] == other.facts()["drops"]


def test_numbers_of_numpy_and_layers_that_no_table_names(tmp_path):
    text = str({name: row for name, row in TABLE.items() if name != "deep"}).replace("0.64", "np.float64(0.64)")
    scheduler, model = prepared(output_dir=tables(tmp_path / "analysis", text))
    scheduler.prune_model(model, 2)
    assert zeros(scheduler)["wide"] == pytest.approx(0.64, abs=0.001)
    assert zeros(scheduler)["deep"] == 0.0
    assert any("does not name deep" in note for note in scheduler.notes)


@pytest.mark.parametrize(
    ("table", "desired"),
    [
        ("__import__('os').system('touch bad')", DESIRED),
        ("{'stem': [__import__('os').getcwd()]}", DESIRED),
        ("[" * 100_000, DESIRED),
        ("{}", DESIRED),
        ("{'stem': []}", DESIRED),
        ("{'stem': [0.5, 0.5], 'stem': [0.1]}", DESIRED),
        ({**TABLE, "fc": [0.1] * 5}, DESIRED),
        ({**TABLE, "wide": [0.1]}, DESIRED),
        ({**TABLE, "wide": [64.0] * 5}, DESIRED),
        (TABLE, "nothing"),
        (TABLE, DESIRED.replace("[2, 3]", "[2, 3, 4]")),
        (TABLE, DESIRED.replace("[2, 3]", "[2, -3]")),
        (TABLE, DESIRED.replace("[2, 3]", "[2, 0.5]")),
    ],
)
def test_a_wrong_table_is_one_line(table, desired, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables(tmp_path / "analysis", table, desired)
    with refusing(PlanError):
        prepared(output_dir="analysis")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["analysis"]


def test_what_is_written_is_read_again(tmp_path):
    folder, saved = tmp_path / "analysis", tmp_path / "saved"
    kwargs = {"output_dir": str(folder), "prun_hw_aware": "cv22", "msbench_names": True}
    scheduler, model = prepared(do_sparse_analysis=True, save_dir=str(saved), **kwargs)
    for iteration in range(4):
        scheduler.prune_model(model, iteration)
    names = ["desrie_prun_table.txt", "dict_prun_table.txt", "hw_aware_sparsity_table_cv22.txt", "pruner_report.csv"]
    assert sorted(one.name for one in folder.iterdir()) == names
    lines = (folder / "desrie_prun_table.txt").read_text().splitlines()
    assert len(lines) == 7
    assert lines[4] == "[0, 1]"
    again, _ = prepared(**kwargs)
    assert again.facts()["drops"] == scheduler.facts()["drops"]
    assert sorted(one.name for one in saved.glob("*.onnx")) == [
        "global_sparse_rate_0.3.onnx",
        "global_sparse_rate_0.6.onnx",
    ]
    facts = json.loads((saved / "global_sparse_rate_0.6.json").read_text())
    assert set(facts) == {"prune_step", "sparse_matrix", "desire_index_table"}
    assert facts["prune_step"] == 1
    assert list(facts["sparse_matrix"]) == LAYERS


def test_the_iteration_at_which_the_stage_began():
    scheduler, model = prepared()
    assert scheduler.get_prune_step() == scheduler.get_last_prune_step() == 0
    seen = []
    for iteration in range(4):
        scheduler.prune_model(model, iteration)
        seen.append((scheduler.iteration, scheduler.get_prune_step()))
    assert seen == [(0, 0), (1, 0), (2, 2), (3, 2)]
    again, twin = prepared()
    again.iteration = 3  # as a runner that resumes sets it
    assert again.get_last_prune_step() == 2
    again.load_state_dict(scheduler.state_dict())
    assert again.iteration == 3
    with refusing(OptionError):
        again.prune_model(twin, -1)


def test_macs_are_those_of_the_shape_of_now():
    scheduler, model = prepared(model=onnx_model())
    scheduler.prune_model(model, 0)
    before = scheduler.statistics()[-1]["macs"]
    scheduler.prune_model(model, 1, curr_input_shape=SHAPE)
    assert scheduler.statistics()[-1]["macs"] == before


# -- on a module


def torch_module():
    pytest.importorskip("torch")
    from tests.dialects.nets import torch_module

    return torch_module()


def checkpoint(path, **changes):
    """As MSBench writes it: its modules have a buffer beside every weight."""
    torch = pytest.importorskip("torch")
    state = {}
    for name, array in numbers().items():
        drop = int(TABLE[name.rpartition(".")[0]][3] * array.size)
        flat = array.reshape(-1).copy()
        flat[np.argsort(np.abs(flat), kind="stable")[:drop]] = 0
        state[name] = torch.from_numpy(flat.reshape(array.shape) * 1.5)
        state[f"{name}_fake_sparse.fake_sparse_enabled"] = torch.zeros(1, dtype=torch.uint8)
    held = {"model": state, "prune_step": 1, "sparse_matrix": TABLE, "desire_index_table": [2, 3], **changes}
    torch.save(held, path)
    return state


def test_a_checkpoint_of_a_level_is_gone_on_from(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "global_sparse_rate_0.6.pth.tar"
    state = checkpoint(path)
    for given in (str(path), torch.load(path, weights_only=True)):
        scheduler, net = prepared(torch_module(), mask_dict=given)
        net.load_state_dict(torch.load(path, weights_only=True)["model"])
        scheduler.prune_model(net, 3)
        assert all(torch.equal(one, state[name]) for name, one in net.state_dict().items())
        assert scheduler.notes == []
    scheduler, model = prepared(mask_dict=str(path))
    scheduler.prune_model(model, 3)
    masks = {site.name: scheduler.network.masks()[site.key] for site in scheduler.network.sites}
    assert all(np.array_equal(keep, state[f"{name}.weight"].numpy() != 0) for name, keep in masks.items())


def test_wrong_checkpoints_are_one_line(tmp_path):
    torch = pytest.importorskip("torch")
    (tmp_path / "text.pth.tar").write_text("no checkpoint")
    torch.save({"state_dict": {}}, tmp_path / "other.pth.tar")
    torch.save({"model": {"x.weight": torch.ones(2)}, "prune_step": 0}, tmp_path / "else.pth.tar")
    checkpoint(tmp_path / "levels.pth.tar", desire_index_table=[2])
    checkpoint(tmp_path / "matrix.pth.tar", sparse_matrix={"wide": "half"})
    for name in ("none", "text", "other", "else", "levels", "matrix"):
        with pytest.raises(PlanError, match="mask_dict"):
            prepared(mask_dict=str(tmp_path / f"{name}.pth.tar"))


def test_checkpoints_of_a_module_in_their_form(tmp_path):
    torch = pytest.importorskip("torch")
    saved = tmp_path / "saved"
    scheduler, net = prepared(torch_module(), save_dir=str(saved), msbench_names=True)
    for iteration in range(4):
        scheduler.prune_model(net, iteration)
    path = saved / "global_sparse_rate_0.6.pth.tar"
    found = torch.load(path, weights_only=True)
    assert set(found) == {"model", "prune_step", "sparse_matrix", "desire_index_table"}
    again, fresh = prepared(torch_module(), mask_dict=str(path))
    fresh.load_state_dict(found["model"])
    again.prune_model(fresh, 3)
    assert all(torch.equal(one, found["model"][name]) for name, one in fresh.state_dict().items())
    assert again.facts()["drops"] == scheduler.facts()["drops"]


def test_the_shape_may_come_with_the_first_iteration(tmp_path):
    torch = pytest.importorskip("torch")
    scheduler, net = prepared(torch_module(), default_input_shape=None)
    with refusing(OptionError):
        scheduler.prune_model(net, 0)
    with refusing(OptionError):
        scheduler.prune_model(net, 0, curr_input_shape=224)
    scheduler.prune_model(net, 0, curr_input_shape=(1, 3, SIZE, SIZE))
    other, twin = prepared(torch_module())
    other.prune_model(twin, 0)
    assert scheduler.statistics() == other.statistics()
    other.prune_model(twin, 1, curr_input_shape=torch.Size([1, 3, 2 * SIZE, 2 * SIZE]))
    before, after = scheduler.statistics()[0], other.statistics()[0]
    assert after["macs"] == 4 * before["macs"]
    images, labels = (torch.from_numpy(one) for one in batch(0))
    torch.nn.functional.cross_entropy(twin(images), labels).backward()
