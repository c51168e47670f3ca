"""Training of networks by a configuration: float and sparse runs, levels as files, going on, two processes."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))

from tiny_network import Builders

from onnxsparse import checkpoints
from onnxsparse.dialects.msbench import build_sparse_scheduler
from onnxsparse.dialects.msbench.network_job import read_network_job, without_effect
from onnxsparse.dialects.msbench.network_levels import Delivered, show_levels
from onnxsparse.dialects.msbench.network_runner import BEST, LATEST, STEPS, NetworkRunner
from onnxsparse.dialects.msbench.overrides import overridden
from onnxsparse.dialects.msbench.start_state import named_numbers
from onnxsparse.dialects.msbench.trainer_section import RateOfStage, WarmUp
from onnxsparse.errors import OptionError, OutputError
from onnxsparse.graph.model import Model
from onnxsparse.passes.verify import Verify
from onnxsparse.planning.rule import Rule
from onnxsparse.report.history import History
from tools.train_sparse import arguments

SCRIPT = Path(__file__).with_name("runner_run.py")
ROOT = SCRIPT.parents[2]
AMBA = {
    "mask_generator": {"type": "NormalMaskGenerator"},
    "fake_sparse": {"type": "FakeSparse"},
    "scheduler": {
        "type": "AmbaLevelPruneScheduler",
        "kwargs": {"sparsity_table": [30, 60], "do_sparse_analysis": False},
    },
}
AMPERE = {"scheduler": {"type": "AmpereScheduler"}}


def configuration(folder: Path, sparsity: Mapping[str, Any] | None, **changes: Any) -> dict[str, Any]:
    """Six epochs of four steps; `changes` are sections that are written over these, key by key."""
    levels = 2 if sparsity is AMBA else 1
    found: dict[str, Any] = {
        "runtime": {"runner": {"type": "base" if sparsity is None else "sparse"}},
        "net": [{"name": "all", "type": "tiny"}],
        "dataset": {"train": {"size": 32, "batch_size": 8}, "test": {"size": 16, "batch_size": 8}},
        "trainer": {
            "max_epoch": 6,
            "test_freq": 2,
            "optimizer": {"type": "SGD", "kwargs": {"lr": 0.005, "momentum": 0.9, "nesterov": True}},
            "lr_scheduler": {"type": "CosineAnnealingLR", "kwargs": {"T_max": 6 // levels}},
        },
        "saver": {"save_dir": str(folder / "out")},
        **({} if sparsity is None else {"sparsity": sparsity}),
    }
    for name, section in changes.items():
        found[name] = {**found.get(name, {}), **section} if isinstance(section, dict) else section
    return found


def trained(config: Mapping[str, Any], *given: Any) -> NetworkRunner:
    runner = NetworkRunner("sparse.yaml", config, Builders(), *given, quiet=True)
    runner.run()
    return runner


def state(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(path, weights_only=True)["model"]
    return found


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The float network that sparse runs start from."""
    folder = tmp_path_factory.mktemp("float")
    trained(configuration(folder, None, hooks=[{"type": "auto_save_best"}]))
    return folder / "out" / LATEST


def test_a_float_run_leaves_a_checkpoint_of_plain_tensors_a_history_and_the_best(dense: Path) -> None:
    assert set(state(dense)) == set(Builders().network([{"type": "tiny"}], 0).state_dict())
    history = History.from_facts(json.loads((dense.parent / "history.json").read_text()))
    assert [row.step for row in history.rows] == [8, 16, 24]
    assert history.rows[-1].metrics["top1"] > 0.9
    assert (dense.parent / BEST).exists()


@pytest.mark.parametrize("split", [pytest.param("tiny", marks=pytest.mark.slow), "split"])
def test_each_level_is_verified_files_of_all_parts(tmp_path: Path, dense: Path, split: str) -> None:
    net = [{"name": "all", "type": split}]
    runner = trained(configuration(tmp_path, AMBA, net=net, saver={"pretrain_model": str(dense)}))
    assert runner.holds
    assert [one.asked for one in runner.delivered] == [30, 60]
    ends = [".net1.onnx", ".net2.onnx"] if split == "split" else [".onnx"]
    for level in (30, 60):
        for end in ends:
            path = tmp_path / "out" / f"level-{level}{end}"
            report = Verify(str(path), Rule.make())(Model.open(str(path)))
            assert report.ok, report.faults
            assert abs(report.totals.zeros / report.totals.elements - level / 100) < 0.015
    weights = [one for one in state(tmp_path / "out" / LATEST).values() if one.dim() > 1]
    assert 0.59 < sum(int((one == 0).sum()) for one in weights) / sum(one.numel() for one in weights) < 0.61


def test_a_file_that_does_not_hold_is_named(tmp_path: Path, dense: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A layer of which a mask is taken away before the export is not 2:4 any more."""
    runner = NetworkRunner(
        "sparse.yaml", configuration(tmp_path, AMPERE, saver={"pretrain_model": str(dense)}), Builders(), quiet=True
    )
    deliver = runner._deliver

    def broken() -> None:
        network = runner.scheduler.network
        network.set_masks({key: np.ones_like(keep) for key, keep in network.masks().items()})
        for key in network.masks():
            network.put(key, np.ones_like(network.weight(key)))
        deliver()

    runner._deliver = broken  # type: ignore[method-assign]
    runner.run()
    assert not runner.holds
    assert "sparse.onnx DOES NOT HOLD" in capsys.readouterr().err


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as in a terminal: what a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("sparsity", [None, AMBA, AMPERE], ids=["float", "amba", "ampere"])
def test_a_run_that_is_ended_goes_on_to_the_same_bytes(tmp_path: Path, sparsity: Any, ctrl_c: None) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    changes = {"trainer": {"save_freq": 2, "only_save_latest": True}, "hooks": [{"type": "auto_save_best"}]}
    trained(configuration(whole, sparsity, **changes))
    config = configuration(parts, sparsity, **changes)
    for at, end in ((5, interrupt), (13, interrupt), (18, lambda: os.kill(os.getpid(), signal.SIGINT))):
        runner = NetworkRunner("sparse.yaml", config, Builders(), quiet=True)
        runner._before = ending(runner._before, at, end)  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            runner.run()
    last = trained(config)
    assert last.begin.found is not None
    assert last.begin.found.step == 19  # a signal waits for the end of the step and a checkpoint
    names = {path.name for path in (whole / "out").iterdir() if path.is_file()}
    assert names == {path.name for path in (parts / "out").iterdir() if path.is_file()}
    assert all((whole / "out" / name).read_bytes() == (parts / "out" / name).read_bytes() for name in names)
    arrays = "state/step-00000024/arrays.bin"
    assert (whole / "out" / arrays).read_bytes() == (parts / "out" / arrays).read_bytes()


def interrupt() -> None:
    raise KeyboardInterrupt


def ending(before: Callable[[int], None], at: int, end: Callable[[], None] = interrupt) -> Callable[[int], None]:
    def step(number: int) -> None:
        if number == at:
            end()
        before(number)

    return step


def test_a_run_that_is_ended_behind_its_last_checkpoint_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration(tmp_path, None, trainer={"save_freq": 6})

    def ended(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "clean", ended)
    with pytest.raises(KeyboardInterrupt):
        trained(config)
    monkeypatch.undo()
    runner = trained(config)
    saved = torch.load(tmp_path / "out" / LATEST, weights_only=True)
    assert saved["iteration"] == runner.loop.step == 24
    assert all(torch.equal(one, saved["model"][name]) for name, one in runner.network.state_dict().items())


def test_resume_model_goes_on_from_the_checkpoint_of_another_folder(tmp_path: Path) -> None:
    first = configuration(tmp_path / "first", AMPERE)
    runner = NetworkRunner("sparse.yaml", first, Builders(), quiet=True)
    runner._before = ending(runner._before, 14)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        runner.run()
    second = configuration(tmp_path / "second", AMPERE, saver={"resume_model": str(tmp_path / "first" / "out")})
    assert trained(second).begin.found.step == 12  # type: ignore[union-attr]
    trained(first)
    assert (tmp_path / "first/out/sparse.onnx").read_bytes() == (tmp_path / "second/out/sparse.onnx").read_bytes()


def test_a_checkpoint_is_gone_on_from_by_the_same_run_alone(tmp_path: Path, dense: Path) -> None:
    file = tmp_path / "dense.pth"
    file.write_bytes(dense.read_bytes())
    short = {"trainer": {"max_epoch": 1, "lr_scheduler": {"type": "CosineAnnealingLR"}}}
    saver = {"save_dir": str(tmp_path / "out"), "pretrain_model": str(file)}
    trained(configuration(tmp_path, AMPERE, **short, saver=saver))
    for changes, what in (
        (
            {"trainer": {**short["trainer"], "max_epoch": 12}},
            "trainer differs; pass the same configuration, or another",
        ),
        ({"dataset": {"train": {"size": 40, "batch_size": 8}}}, "dataset differs"),
        ({"saver": {**saver, "auto_resume": False}}, r"set saver\.auto_resume to go on"),
    ):
        with pytest.raises(OptionError, match=what):
            trained(configuration(tmp_path, AMPERE, **{**short, "saver": saver, **changes}))
    with pytest.raises(OptionError, match="sparsity differs"):
        trained(configuration(tmp_path, None, **short, saver=saver))
    workers = {"train": {"size": 32, "batch_size": 8, "num_workers": 2, "image_dir": "elsewhere"}}
    trained(configuration(tmp_path, AMPERE, **short, saver=saver, dataset=workers))
    torch.save({"model": {name: one + 1 for name, one in state(dense).items()}}, file)
    with pytest.raises(OptionError, match="pretrain_model differs"):
        trained(configuration(tmp_path, AMPERE, **short, saver=saver))
    file.unlink()
    trained(configuration(tmp_path, AMPERE, **short, saver=saver))


def test_a_folder_that_cannot_be_written_is_said_before_anything_trains(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    runner = NetworkRunner("sparse.yaml", configuration(tmp_path, None), Builders(), quiet=True)
    with pytest.raises(OutputError, match="cannot write a checkpoint to"):
        runner.run()
    assert not hasattr(runner, "loop")


def test_numbers_that_an_exporter_stored_once_have_all_their_names(tmp_path: Path) -> None:
    ones = helper.make_tensor("first.bias", TensorProto.FLOAT, [2], [1.0, 2.0])
    nodes = [
        helper.make_node("Identity", ["first.bias"], ["second.bias"]),
        helper.make_node("Add", ["x", "first.bias"], ["y"]),
        helper.make_node("Add", ["y", "second.bias"], ["z"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xz"]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:], [ones])), tmp_path / "a.onnx")
    found = named_numbers(str(tmp_path / "a.onnx"))
    assert found["second.bias"].tolist() == found["first.bias"].tolist() == [1.0, 2.0]


def test_evaluation_takes_the_newest_checkpoint_or_the_one_that_is_named(tmp_path: Path, dense: Path) -> None:
    config = configuration(tmp_path, AMBA, net=[{"name": "all", "type": "split"}], saver={"pretrain_model": str(dense)})
    with pytest.raises(OptionError, match="holds no checkpoint to evaluate"):
        trained(config, "", True)
    trained(config)
    out = tmp_path / "out"
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    for start in ("", str(out / "state"), str(out / LATEST), str(out / "level-60.net2.onnx")):
        runner = NetworkRunner("sparse.yaml", config, Builders(), start, True, True)
        assert runner.run().keys() == {"top1"}
        known = {name: one for name, one in state(out / LATEST).items() if one.is_floating_point()}
        assert all(torch.equal(one, runner.network.state_dict()[name]) for name, one in known.items())
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


def test_without_a_float_network_it_starts_from_the_initializers_which_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configuration(tmp_path, AMPERE, saver={"pretrain_model": "pretrain_path"}, trainer={"max_epoch": 1})
    NetworkRunner("sparse.yaml", config, Builders()).run()
    printed = capsys.readouterr().out
    assert printed.count("initializers") == 1
    assert "saver.pretrain_model pretrain_path does not exist: the network starts from its initializers" in printed


def test_an_ema_state_is_what_is_loaded(tmp_path: Path, dense: Path) -> None:
    averaged = {name: one + 1 for name, one in state(dense).items()}
    torch.save({"model": state(dense), "ema": averaged}, tmp_path / "ema.pth")
    config = configuration(tmp_path, AMPERE, saver={"pretrain_model": str(tmp_path / "ema.pth")})
    runner = NetworkRunner("sparse.yaml", config, Builders(), quiet=True)
    for step in ("build_model", "build_ema", "load_ckpt", "resume_model_from_fp"):
        getattr(runner, step)()
    assert torch.equal(runner.network.state_dict()["head.0.weight"], averaged["head.0.weight"])
    assert any("EMA" in note for note in runner.notes)


def test_distillation_learns_from_the_float_network(tmp_path: Path, dense: Path) -> None:
    loss = {"type": "distill"}
    config = configuration(tmp_path, AMPERE, loss=loss, saver={"pretrain_model": str(dense)})
    runner = trained(config)
    assert all(torch.equal(one, runner.teacher.state_dict()[name]) for name, one in state(dense).items())
    assert runner.history.rows[-1].loss < runner.history.rows[0].loss  # type: ignore[operator]
    with pytest.raises(OptionError, match="learns from the float network"):
        trained(configuration(tmp_path / "none", AMPERE, loss=loss))


def test_leaf_modules_stay_dense(tmp_path: Path, dense: Path) -> None:
    sparsity = {**AMPERE, "leaf_module": ["body"]}
    trained(configuration(tmp_path, sparsity, saver={"pretrain_model": str(dense)}))
    found = state(tmp_path / "out" / LATEST)
    assert (found["body.3.weight"] != 0).all()
    assert (found["head.0.weight"] == 0).float().mean() == 0.5


def test_the_rate_is_that_of_the_batch_and_begins_again_with_each_stage(tmp_path: Path) -> None:
    runner = NetworkRunner("sparse.yaml", configuration(tmp_path, AMBA), Builders(), quiet=True)
    for step in STEPS[:-1]:
        getattr(runner, step)()
    rates = [runner.loop.plan.rate(step) for step in range(24)]
    assert rates[0] == rates[12] == 0.005 * 8
    assert rates[11] < 0.02 * rates[0]
    assert rates[:12] == rates[12:]


@pytest.mark.parametrize(
    ("kind", "ratio", "expected"),
    [
        ("linear", 0.0, [0.0, 0.5, 1.0, 1.0]),
        ("linear", None, [1 / 16, 17 / 32, 1.0, 1.0]),
        ("constant", 0.25, [0.25, 0.25, 0.25, 1.0]),
        ("exp", 0.01, [0.01, 0.1, 1.0, 1.0]),
    ],
)
def test_warm_ups_and_milestones(kind: str, ratio: float | None, expected: list[float]) -> None:
    rate = RateOfStage(0.5, "multi-step:at=2,by=0.1", WarmUp(1, 1.0, kind, ratio), 3, 16.0)
    assert [rate.at(step, 12) / 8 for step in range(4)] == pytest.approx(expected)
    assert [rate.at(step, 12) / 8 for step in (5, 6, 11)] == pytest.approx([1, 0.1, 0.1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer": {"optimizer": {"type": "LARS"}}}, "trainer.optimizer.type is SGD, Adam, AdamW, not 'LARS'"),
        ({"trainer": {"max_epochs": 3}}, "trainer has an unknown key 'max_epochs'"),
        (
            {"trainer": {"lr_scheduler": {"type": "Cosine", "warm": 3}}},
            "trainer.lr_scheduler has an unknown key 'warm'",
        ),
        ({"runtime": {"runner": {"type": "quant"}}}, "runtime.runner.type is base or sparse here, not 'quant'"),
        ({"loss": {"type": "mse"}}, "whose own losses stand in net"),
        ({"trainer": {"max_epoch": 5}}, "T_max \\* levels has to be max_epoch: 3 \\* 2 is not 5"),
        ({"saver": {"resume_model": "nowhere"}}, "nowhere does not exist"),
        ({"dataset": {"train": {"size": 32, "batch_size": 8, "classes": 5}}}, "5 classes, and the network knows 4"),
        ({"trainer": {"grad_clip": -1}}, "trainer.grad_clip is a length from 0"),
        ({"trainer": {"grad_clip": {"norm": 1}}}, "trainer.grad_clip has an unknown key 'norm'"),
        ({"trainer": {"max_epoch": 0}}, "trainer.max_epoch is a number above 0, not 0"),
        (
            {"trainer": {"optimizer": {"type": "SGD", "kwargs": {"lr": -1}}}},
            "SGD does not take its kwargs: Invalid lea",
        ),
        ({"trainer": {"lr_scheduler": {"warmup_register_type": "no_scale"}}}, "is base or no_scale_lr, not 'no_scale'"),
        ({"trainer": {"lr_scheduler": {"warmup_iter": -5}}}, "warmup_iter is a number from 0, not -5"),
        ({"runtime": {"random_seed": 1 << 70}}, "runtime.random_seed has at most 63 bits"),
        ({"saver": {"pretrain_model": "/"}}, "is a folder; name the file in it, such as ckpt_latest.pth"),
    ],
)
def test_what_is_wrong_is_said_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        trained(configuration(tmp_path, AMBA, **changes))


def test_a_batch_of_one_number_for_each_channel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def losses(network: Any, *_: Any) -> Any:
        return network.body[1](torch.zeros(1, 16, 1, 1))

    monkeypatch.setattr("tiny_network.Tiny.losses", losses)
    with pytest.raises(OptionError, match="batch normalization has one number of each channel"):
        trained(configuration(tmp_path, None))


def test_other_values_of_a_configuration() -> None:
    found = overridden(
        {"trainer": {"max_epoch": 3}, "net": [{"a": 1}]}, ["trainer.max_iter=10", "net.0.kwargs.width=.5"]
    )
    assert found == {"trainer": {"max_epoch": 3, "max_iter": 10}, "net": [{"a": 1, "kwargs": {"width": 0.5}}]}
    with pytest.raises(OptionError, match="no place in a list of 1"):
        overridden({"net": [{"a": 1}]}, ["net.3.a=1"])
    with pytest.raises(OptionError, match="--opts takes values such as"):
        overridden({}, ["trainer.max_iter"])
    with pytest.raises(OptionError, match=r"--opts trainer\.max_iter: '\[1' is no value in YAML"):
        overridden({}, ["trainer.max_iter=[1"])


def test_words_of_the_command_line_come_in_any_order() -> None:
    found = arguments(["a.yaml", "-e", "level-50.onnx", "--opts", "x=1", "y=2", "--whole", "--opts", "z=3"])
    assert found.words == ["a.yaml", "level-50.onnx"]
    assert found.opts == ["x=1", "y=2", "z=3"]
    assert arguments(["--config", "a.yaml", "dense.pth"]).words == ["a.yaml", "dense.pth"]
    with pytest.raises(OptionError, match=r"unrecognized arguments: --frob"):
        arguments(["a.yaml", "--frob"])


def test_what_has_no_effect_is_noted() -> None:
    found = configuration(
        Path(), None, hooks=[{"type": "auto_checkpoint"}, {"type": "grad_collector"}], ema={"enable": True}
    )
    notes = read_network_job("a.yaml", {**found, "plot": 3, "runtime": {"task_names": "x", "rank_init": 1}}).notes
    assert notes[0] == "a.yaml: nothing here takes runtime.task_names, runtime.rank_init, plot"
    assert [note.split(":")[0] for note in notes[1:]] == ["EMA is ignored", "hook grad_collector"]


def test_values_put_where_only_anchors_were_are_noted() -> None:
    words = ["num_classes=91", "flip.kwargs.flip_p=1", "trainer.max_iter=1", "net.0.type=x"]
    found = {"num_classes": 91, "flip": {"type": "flip", "kwargs": {"flip_p": 1}}, "trainer": {}, "net": []}
    notes = without_effect(found, words)
    assert [note.split(" changes")[0] for note in notes] == ["--opts num_classes=91", "--opts flip.kwargs.flip_p=1"]


class Narrow(Builders):
    """Of networks that need images of at least three pixels."""

    def network(self, net: Any, seed: int) -> Any:
        made = super().network(net, seed)
        made.body[0].padding = (0, 0)
        return made


def test_the_size_of_exported_files_is_said_and_may_be_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for size, said in (([12, 20], "exported at 12 x 20\n"), (None, "exported at 8 x 8, the size of the first batch")):
        folder = tmp_path / ("given" if size else "default")
        config = configuration(folder, AMPERE, export={"size": size}, trainer={"max_iter": 1})
        NetworkRunner("a.yaml", config, Builders()).run()
        assert said in capsys.readouterr().out
        image = onnx.load(str(folder / "out/sparse.onnx")).graph.input[0]
        shape = [one.dim_value for one in image.type.tensor_type.shape.dim[2:]]
        assert shape == (size or [8, 8])
    for wrong, why in ((96, r"export\.size is \[height, width\]"), ([0, 3], r"a side of export\.size is")):
        with pytest.raises(OptionError, match=why):
            read_network_job("a.yaml", configuration(tmp_path, AMPERE, export={"size": wrong}))
    with pytest.raises(OptionError, match="export has an unknown key 'sizes'"):
        read_network_job("a.yaml", configuration(tmp_path, AMPERE, export={"sizes": [3, 3]}))
    with pytest.raises(OptionError, match=r"export\.size: the network does not run at 2 x 2: .*Kernel size"):
        NetworkRunner("a.yaml", configuration(tmp_path, AMPERE, export={"size": [2, 2]}), Narrow(), quiet=True).run()


def test_leaf_modules_without_a_layer_inside_are_not_noted() -> None:
    scheduler = build_sparse_scheduler({**AMBA, "leaf_module": ["BatchNorm2d", "BatchNorm3d"]})
    scheduler.prepare_sparse_model(Builders().network([{"type": "tiny"}], 0))
    assert [note.split(" names")[0] for note in scheduler.notes] == ["leaf_module 'BatchNorm3d'"]


def test_the_last_table_names_the_files_of_both_nets() -> None:
    files = [f"out/sparse.{one}.onnx" for one in ("net1", "net2", "proposals", "post", "whole")]
    lines = list(show_levels([Delivered("sparse", None, 0.5, 1.0, {}, files)]))
    assert lines[-1].endswith("  sparse.net1.onnx, sparse.net2.onnx")


def free_port() -> int:
    while True:
        port = random.SystemRandom().randrange(20000, 30000)
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def launched(*words: str, count: int = 2) -> subprocess.CompletedProcess[str]:
    spread = ["-m", "torch.distributed.run", f"--nproc-per-node={count}", f"--master-port={free_port()}"]
    around = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *(spread if count > 1 else []), str(SCRIPT), *words]
    return subprocess.run(command, env=around, capture_output=True, text=True, timeout=300)


def written(folder: Path, batch: int, sparsity: Any = AMBA) -> str:
    """A run of a hundred steps and more, its batch normalizations frozen, in a file."""
    folder.mkdir()
    config = configuration(
        folder,
        sparsity,
        net=[{"name": "all", "type": "split", "frozen": True}],
        dataset={"train": {"size": 64, "batch_size": batch}},
        trainer={"max_epoch": 14, "lr_scheduler": {"type": "CosineAnnealingLR", "kwargs": {"T_max": 7}}},
    )
    path = folder / "sparse.json"
    path.write_text(json.dumps(config))
    return str(path)


@pytest.mark.slow
def test_two_processes_come_to_what_one_comes_to_and_either_goes_on(tmp_path: Path) -> None:
    runs = {"one": 1, "two": 2, "turns": 2}
    paths = {name: written(tmp_path / name, 8 // count) for name, count in runs.items()}
    failed = launched(paths["turns"], "50", "1")
    assert failed.returncode
    assert failed.stderr.count("this process cannot go on") == 1
    assert launched(paths["turns"], "70", count=1).returncode == 9
    assert launched(paths["turns"]).returncode == 0
    assert launched(paths["one"], count=1).returncode == 0
    assert launched(paths["two"]).returncode == 0
    one = state(tmp_path / "one" / "out" / LATEST)
    for name in ("two", "turns"):
        other = state(tmp_path / name / "out" / LATEST)
        for key in (key for key, tensor in one.items() if key.endswith(("weight", "bias"))):
            assert (one[key] - other[key]).abs().max() <= 1e-3 * one[key].abs().max(), key
            assert torch.equal(one[key] == 0, other[key] == 0), key
