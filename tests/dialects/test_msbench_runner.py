"""A whole training by a configuration: its steps, where it starts, and that a killed one ends as one that was not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml

import onnxsparse as osp
from onnxsparse.dialects.msbench.job import read_job
from onnxsparse.dialects.msbench.runner import STEPS, SparseRunner
from onnxsparse.engines.ort import library as ort
from onnxsparse.engines.torch import library as torch
from onnxsparse.errors import ModelError, OptionError
from tests import warm
from tests.dialects.nets import numbers, onnx_model, random
from tests.messages import refusing
from tools import train_sparse

ROOT = Path(__file__).resolve().parent.parent.parent
trains = pytest.mark.skipif(not (ort.available() or torch.available()), reason="needs an engine that trains")
AMBA = {
    "mask_generator": {"type": "NormalMaskGenerator"},
    "fake_sparse": {"type": "FakeSparse"},
    "scheduler": {"type": "AmbaLevelPruneScheduler", "kwargs": {"sparsity_table": [30, 60]}},
}
STR = {
    "mask_generator": {"type": "STRMaskGenerator"},
    "fake_sparse": {"type": "STRFakeSparse", "kwargs": {"sInit_value": -2.5}},
    "scheduler": {"type": "BaseScheduler"},
}
AMPERE = {"scheduler": {"type": "AmpereScheduler"}}


def desk(folder, sparsity=AMBA, **sections):
    """A folder with a model, data and a configuration; the configuration's path."""
    if not (folder / "net.onnx").exists():
        onnx.save(onnx_model(), folder / "net.onnx")
        x = random(1, 32, 3, 12, 12)
        np.savez(folder / "data.npz", x=x, labels=np.abs(x).sum((1, 2, 3)).astype(np.int64) % 8)
    config = {
        "runtime": {"runner": {"type": "sparse"}, "random_seed": 3},
        "data": {"train": str(folder / "data.npz"), "test": str(folder / "data.npz"), "batch_size": 8},
        "trainer": {
            "max_epoch": 2,
            "optimizer": {
                "type": "SGD",
                "kwargs": {"lr": 0.02, "nesterov": True, "momentum": 0.9, "weight_decay": 1e-4},
            },
            "lr_scheduler": {"type": "CosineAnnealingLR", "kwargs": {"T_max": 1}, "warmup_iter": 1},
        },
        "loss": {"type": "cross_entropy"},
        "saver": {"save_dir": str(folder / "saved"), "pretrain_model": str(folder / "net.onnx"), "save_freq": 3},
        "sparsity": sparsity,
    }
    for name, section in sections.items():
        config[name] = {**config.get(name, {}), **section} if isinstance(section, dict) else section
    path = folder / "config.yaml"
    path.write_text(yaml.dump(config))
    return str(path)


def test_what_a_configuration_says(tmp_path):
    job = read_job(desk(tmp_path))
    assert job.options["optimizer"] == "nesterov:momentum=0.9"
    assert job.options["lr"] == 0.02
    assert job.options["weight_decay"] == 1e-4
    assert job.options["lr_schedule"] == "cosine"
    assert job.options["warm_up"] == 1
    assert job.options["loss"] == "cross-entropy"
    assert (job.batch, job.epochs, job.seed, job.every) == (8, 2, 3, 3)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"runtime": {"runner": {"type": "base"}}}, "runner.type is sparse"),
        ({"trainer": {"optimizer": {"type": "SGD", "kwargs": {"lr": 1, "dampening": 0.1}}}}, "no argument 'dampening'"),
        ({"trainer": {"lr_scheduler": {"type": "CosineAnealingLR"}}}, "did you mean CosineAnnealingLR"),
        ({"trainer": {"max_epochs": 3}}, "did you mean max_epoch"),
        ({"saver": {"savedir": "x"}}, "did you mean save_dir"),
        ({"loss": {"type": "cross_entropi"}}, "did you mean cross_entropy"),
        ({"sparsity": None}, "no section `sparsity`"),
        ({"data": {"batch_size": 0}}, "data.batch_size"),
        ({"data": {"train": 3}}, "data.train is the path of a file or folder, not 3"),
        ({"saver": {"save_dir": ["x"]}}, "saver.save_dir is the path"),
        ({"saver": {"auto_resume": "perhaps"}}, "saver.auto_resume is True or False"),
        ({"trainer": {"max_epoch": "many"}}, "trainer.max_epoch is a number, not 'many'"),
        ({"trainer": {"optimizer": {"type": "Adam", "kwargs": {"betas": 3}}}}, "betas are two numbers, not 3"),
        ({"trainer": {"optimizer": {"type": "SGD", "kwargs": {"lr": "fast"}}}}, "lr is a number, not 'fast'"),
        ({"trainer": {"lr_scheduler": {"type": "MultiStepLR", "kwargs": {"milestones": 3}}}}, "milestones are a list"),
        ({"trainer": {"lr_scheduler": {"type": "StepLR", "kwargs": 3}}}, "trainer.lr_scheduler.kwargs is a mapping"),
        ({"loss": {"label_smooth": 1}}, "loss.label_smooth: smoothing, the share of a label .* below 1, not 1"),
        ({"loss": {"kwargs": {"label_smoothing": "a bit"}}}, "loss.label_smoothing is a number, not 'a bit'"),
        ({"loss": {"type": "mse", "label_smooth": 0.1}}, "labels are smoothed for cross_entropy alone.* not for mse"),
        ({"loss": {"type": "label_smooth_ce"}}, "loss.type label_smooth_ce needs to know by how much"),
        ({"trainer": {"lr_scheduler": {"warmup_epochs": -1}}}, "warmup_epochs is a number from 0, not -1"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, sections, said):
    with pytest.raises(OptionError, match=said):
        read_job(desk(tmp_path, **sections))


@pytest.mark.parametrize(
    "loss",
    [
        {"label_smooth": 0.1},
        {"kwargs": {"label_smoothing": 0.1}},
        {"type": "cross-entropy:smoothing=0.1"},
        {"type": "label_smooth_ce", "kwargs": {"smooth_ratio": 0.1, "num_classes": 8}},
    ],
)
def test_labels_are_smoothed_by_any_of_the_published_words(tmp_path, loss):
    job = read_job(desk(tmp_path, loss=loss))
    assert job.options["loss"] == "cross-entropy:smoothing=0.1"
    assert job.task == "cross-entropy"


def test_labels_that_are_smoothed_by_nothing_are_labels(tmp_path):
    assert read_job(desk(tmp_path, loss={"label_smooth": 0.0})).options["loss"] == "cross-entropy"


def test_the_period_of_the_rate_has_to_fit_the_levels(tmp_path):
    path = desk(
        tmp_path, trainer={"max_epoch": 3, "lr_scheduler": {"type": "CosineAnnealingLR", "kwargs": {"T_max": 1}}}
    )
    with refusing(OptionError):
        SparseRunner(path, quiet=True).run()


def test_what_nothing_takes_is_a_note(tmp_path):
    job = read_job(desk(tmp_path, ema={"enable": True}, hooks={"type": "auto_save"}))
    assert any("EMA is ignored" in note for note in job.notes)
    assert not any("EMA" in note for note in read_job(desk(tmp_path, ema={"enable": False})).notes)
    assert any("'hooks'" in note for note in job.notes)


class Killed(BaseException):
    pass


def killed_at(monkeypatch, moment):
    from onnxsparse.dialects.msbench.act import ScheduleAct

    before_step = ScheduleAct.before_step

    def dies(self, trainee, step):
        before_step(self, trainee, step)
        if step == moment:
            raise Killed

    monkeypatch.setattr(ScheduleAct, "before_step", dies)


@trains
@pytest.mark.parametrize(
    ("sparsity", "kills"), [(AMBA, (2, 5, 7)), (STR, (5,)), (AMPERE, (4,))], ids=["amba", "str", "ampere"]
)
def test_a_killed_training_goes_on_to_the_same_result(tmp_path, monkeypatch, sparsity, kills):
    whole, again = tmp_path / "whole", tmp_path / "again"
    results = []
    for folder, moments in ((whole, ()), (again, kills)):
        folder.mkdir()
        path = desk(folder, sparsity)
        for moment in moments:
            with monkeypatch.context() as patch:
                killed_at(patch, moment)
                with pytest.raises(Killed):
                    SparseRunner(path, quiet=True).run()
        results.append(SparseRunner(path, quiet=True).run())
    assert results[0] == results[1]
    files = [stored(folder / "saved" / "sparse.onnx") for folder in (whole, again)]
    assert files[0].keys() == files[1].keys()
    assert all((files[0][name] == files[1][name]).all() for name in files[0])
    report = osp.verify(again / "saved" / "sparse.onnx").report
    assert report.ok, report.notes
    assert results[0]["zeros"] > 0
    assert 0 <= results[0]["accuracy"] <= 1


def prepared(runner):
    """The runner after `prepare_sparse_model`."""
    for step in STEPS[: STEPS.index("prepare_sparse_model") + 1]:
        getattr(runner, step)()
    return runner


def stored(path):
    from onnx import numpy_helper

    return {one.name: numpy_helper.to_array(one) for one in onnx.load(path).graph.initializer}


@trains
def test_steps_have_names_and_evaluation_changes_nothing(tmp_path, capsys):
    path = desk(tmp_path)
    seen = []

    class Telling(SparseRunner):
        def __getattribute__(self, name):
            if name in STEPS:
                seen.append(name)
            return super().__getattribute__(name)

    first = Telling(path).run()
    assert seen == list(STEPS)
    before = {one: one.stat().st_mtime_ns for one in (tmp_path / "saved").rglob("*") if one.is_file()}
    found = warm.python([str(ROOT / "tools" / "train_sparse.py"), "--config", path, "-e"], cwd=ROOT)
    assert found.returncode == 0, found.stderr
    assert f"accuracy {first['accuracy']:.4f}" in found.stdout
    assert {one: one.stat().st_mtime_ns for one in (tmp_path / "saved").rglob("*") if one.is_file()} == before
    sparse = str(tmp_path / "saved" / "sparse.onnx")
    other = desk(tmp_path, saver={"save_dir": str(tmp_path / "none"), "resume_model": sparse})
    again = SparseRunner(other, evaluate=True, quiet=True).run()
    assert {name: again[name] for name in ("zeros", "accuracy")} == {
        name: first[name] for name in ("zeros", "accuracy")
    }
    with refusing(OptionError):
        SparseRunner(desk(tmp_path, saver={"auto_resume": False}), quiet=True).run()


def test_what_other_runners_say_is_a_note_and_what_nobody_says_an_error(tmp_path):
    rate = {"warmup_type": "linear", "type": "CosineAnnealingLR", "kwargs": {"T_max": 1, "warmup_iter": 2}}
    trainer = {"test_freq": 2, "lr_scheduler": rate}
    job = read_job(desk(tmp_path, trainer=trainer, saver={"results_dir": "results"}))
    for said in ("trainer.test_freq", "saver.results_dir", "lr_scheduler.warmup_type"):
        assert f"nothing here takes {said}" in job.notes
    assert job.options["warm_up"] == 2
    wrong = [
        ({"lr_scheduler": {**rate, "warmup_iters": 3}}, "lr_scheduler has an unknown key 'warmup_iters' .*warmup_iter"),
        ({"lr_scheduler": {**rate, "kwargs": {"TMax": 3}}}, "CosineAnnealingLR has no argument 'TMax' here .*T_max"),
        ({"lr_scheduler": {**rate, "kwargs": {"eta_min": 0.1}}}, "eta_min is 0 here"),
        ({"optimizer": {"type": "SGD", "lr": 3}}, "optimizer has an unknown key 'lr'"),
    ]
    for section, said in wrong:
        with pytest.raises(OptionError, match=said):
            read_job(desk(tmp_path, trainer=section))


@trains
def test_a_file_that_is_named_is_what_is_evaluated(tmp_path, capsys):
    folders = {"output_dir": str(tmp_path / "out"), "save_dir": str(tmp_path / "levels"), "do_sparse_analysis": True}
    kwargs = {**AMBA["scheduler"]["kwargs"], **folders, "default_input_shape": [1, 3, 12, 12]}
    path = desk(tmp_path, {**AMBA, "scheduler": {**AMBA["scheduler"], "kwargs": kwargs}})
    last = SparseRunner(path, quiet=True).run()
    before = {one: one.stat().st_mtime_ns for one in tmp_path.rglob("*") if one.is_file()}

    def evaluated(*names):
        capsys.readouterr()
        code = train_sparse.main(["--config", path, "-e", *names])
        return (code, *capsys.readouterr())

    assert f"zeros {last['zeros']:.4f}, loss" in evaluated()[1]
    dense, sparse = (str(tmp_path / name) for name in ("net.onnx", "saved/sparse.onnx"))
    for file, zeros in ((dense, 0.0), (sparse, last["zeros"])):
        code, out, err = evaluated(file)
        assert code == 0, err
        assert f"start: {file}" in out
        assert f"zeros {zeros:.4f}, loss" in out
    assert f"accuracy {last['accuracy']:.4f}" in out
    code, _, err = evaluated(str(tmp_path / "none.onnx"))
    assert code == 2
    assert err.count("\n") == 1
    assert "none.onnx" in err
    assert {one: one.stat().st_mtime_ns for one in tmp_path.rglob("*") if one.is_file()} == before


@trains
def test_numbers_of_another_checkpoint_are_the_start(tmp_path):
    path = desk(tmp_path, model=str(tmp_path / "net.onnx"), saver={"pretrain_model": None})
    np.savez(tmp_path / "state.npz", **{name: 2 * array for name, array in numbers().items()})
    runner = SparseRunner(path, str(tmp_path / "state.npz"), quiet=True)
    prepared(runner)
    tags = {name: tag for tag, name in runner.model.names().items()}
    np.testing.assert_array_equal(runner.model.weight(tags["wide.weight"]), 2 * numbers()["wide.weight"])
    np.savez(tmp_path / "other.npz", nothing=np.zeros(3))
    with refusing(ModelError):
        SparseRunner(path, str(tmp_path / "other.npz"), quiet=True).run()


@pytest.mark.skipif(not torch.available(), reason="needs torch")
def test_an_average_in_the_checkpoint_is_what_is_loaded(tmp_path, capsys):
    library = torch.torch()
    plain = {f"module.{name}": library.from_numpy(array) for name, array in numbers().items()}
    average = {name: library.from_numpy(3 * array) for name, array in numbers().items()}
    library.save({"model": plain, "ema": {"ema_state_dict": average}, "epoch": 3}, tmp_path / "dense.pth")
    path = desk(tmp_path, model=str(tmp_path / "net.onnx"), saver={"pretrain_model": str(tmp_path / "dense.pth")})
    runner = SparseRunner(path)
    prepared(runner)
    tags = {name: tag for tag, name in runner.model.names().items()}
    np.testing.assert_array_equal(runner.model.weight(tags["wide.weight"]), 3 * numbers()["wide.weight"])
    assert "EMA itself is ignored" in capsys.readouterr().out


def test_mistakes_are_one_line(tmp_path):
    path = desk(tmp_path, saver={"pretrain_model": None})
    script = ["sh", str(ROOT / "tools" / "train_sparse.sh"), path]
    environment = {"PYTHON": sys.executable, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    found = subprocess.run(script, capture_output=True, text=True, timeout=600, env=environment)
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert "nothing says which model" in found.stderr


@trains
def test_other_values_go_before_those_of_the_file(tmp_path, capsys):
    """As `--opts`: the run is that of a file which says them itself, and a checkpoint of other values is refused."""
    path = desk(tmp_path)
    others = ["trainer.max_epoch=null", "trainer.max_iter=8", "trainer.lr_scheduler.kwargs={}", "saver.save_freq=8"]
    assert train_sparse.main([path, "--opts", *others]) == 0, capsys.readouterr().err
    said = desk(
        tmp_path,
        trainer={"max_epoch": None, "max_iter": 8, "lr_scheduler": {"type": "CosineAnnealingLR", "warmup_iter": 1}},
        saver={"save_dir": str(tmp_path / "same"), "save_freq": 8, "pretrain_model": str(tmp_path / "net.onnx")},
    )
    SparseRunner(said, quiet=True).run()
    assert (tmp_path / "saved/sparse.onnx").read_bytes() == (tmp_path / "same/sparse.onnx").read_bytes()
    capsys.readouterr()
    assert train_sparse.main([said, "--opts", f"saver.save_dir={tmp_path / 'same'}", "trainer.max_iter=9"]) == 2
    assert "trainer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--opts", "trainer.max_iter"], "--opts takes values such as trainer.max_iter=10, not 'trainer.max_iter'"),
        (["--opts", "trainer.max_iters=3"], "trainer has an unknown key 'max_iters'"),
        (["--scenes"], "--scenes and --whole are for configurations with a network"),
        (["--whole"], "--scenes and --whole are for configurations with a network"),
    ],
)
def test_other_values_are_as_those_of_the_file_and_a_model_has_neither_scenes_nor_parts(tmp_path, words, said, capsys):
    assert train_sparse.main([desk(tmp_path), *words]) == 2
    assert said in capsys.readouterr().err


def test_configurations_are_json_too(tmp_path):
    config = yaml.safe_load(Path(desk(tmp_path)).read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_job(str(tmp_path / "config.json")) == read_job(str(tmp_path / "config.yaml"))
