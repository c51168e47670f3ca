"""All levels in one run: files, tables, kills at every kind of moment, and configurations."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxsparse as osp
from onnxsparse.cli import main
from onnxsparse.engines.ort import library as ort
from onnxsparse.engines.torch import library as torch
from onnxsparse.errors import OptionError, OutputError
from onnxsparse.recipes.modifiers.levels import Levels, read_levels
from onnxsparse.recipes.modifiers.pruning import Pruning
from onnxsparse.recipes.modifiers.training import Training
from onnxsparse.train import checkpointing
from onnxsparse.train import levels as stages
from onnxsparse.train.loop import Run
from onnxsparse.training_api import levels
from tests.dialects.nets import SIZE, onnx_model, random
from tests.messages import refusing
from tests.runs.net import Bench

trains = pytest.mark.skipif(not (ort.available() or torch.available()), reason="needs an engine that trains")


def data(count=64):
    x = random(1, count, 3, SIZE, SIZE)
    return {"x": x, "labels": (np.abs(x).sum((1, 2, 3)).astype(np.int64)) % 8}


def options(folder, **more):
    return {
        "data": data(),
        "output": folder,
        "levels": "30,60",
        "steps": 6,
        "batch_size": 8,
        "loss": "cross-entropy",
        "lr": 0.01,
        **more,
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    if ort.available() or torch.available():
        levels(onnx_model(), **options(folder / "out", eval_data=data(40), metrics=["accuracy"]))
    return folder / "out"


def same_files(one: Path, other: Path):
    names = {path.name for path in one.iterdir()}
    assert names == {path.name for path in other.iterdir()}
    for name in names:
        if not name.startswith("levels.history"):  # which tells the speed
            assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize("target", ["ampere", "ampere:asp"])
def test_a_target_without_levels_is_one_line(tmp_path, capsys, target):
    onnx.save(onnx_model(), tmp_path / "net.onnx")
    words = [str(tmp_path / "net.onnx"), "--data", "none.npz", "--target", target, "-o", str(tmp_path / "out")]
    assert main(["levels", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"levels needs --target amba or amba:CHIP: {target} has none" in said


# -- the modifier alone


def bench(total=12):
    made = Bench(Training(steps=total, batch=8))
    sizes = {tag: row.weight.tensor.size for tag, row in made.planned.items()}
    counts = {tag: [0, int(0.25 * size) // 8 * 8] for tag, size in sizes.items()}
    return made, counts


def test_stages_come_when_they_are_trained():
    made = Bench(Training(steps=13, batch=8))
    counts = {tag: [8, 8, 8] for tag in made.planned}
    run = made.run(modifiers=[made.training, Levels("10,20,30")], levels=counts)
    assert [(stage, run.step) for stage in run.stages()] == [(0, 13 // 3 - 1), (1, 26 // 3 - 1), (2, 12)]


def test_no_other_run_takes_levels():
    made = Bench(Training(steps=4, batch=8))
    with refusing(OptionError):
        made.run(modifiers=[made.training, Levels("10,20")])


def test_rates_begin_again_with_every_stage():
    rates = []
    made = Bench(Training(steps=20, batch=8, rate=0.01, warm_up=1))
    counts = {tag: [8, 8] for tag in made.planned}
    run = made.run(modifiers=[made.training, Levels("10,20")], levels=counts)
    for step in range(20):
        run._segments.jump(step) if step == 0 else None
        for act in run.acts:
            act.before_step(run.trainee, step)
        rates.append(run.trainee.settings.rate)
    assert rates[:10] == rates[10:]
    assert rates[0] < rates[1] > rates[9]


@pytest.mark.parametrize("good", [True, False])
def test_a_level_starts_from_the_better_of_both(good):
    """From the network of the level before, pruned or calibrated: as the samples held out say."""
    made = Bench(Training(steps=12, batch=8), Pruning(pattern="unstructured", sparsity="0.5"))
    counts = {tag: [0, row.weight.tensor.size // 4] for tag, row in made.planned.items()}
    run = made.run(modifiers=[made.training, Levels("10,20")], levels=counts, calibrates=True)
    asked = []

    def recalibrated(drops):
        asked.append(drops)
        keeps = {tag: np.arange(row.weight.tensor.size) >= drops[tag] for tag, row in made.planned.items()}
        live = run.engine.weights
        return keeps, {tag: live[tag] * keeps[tag].reshape(live[tag].shape) * good for tag in keeps}

    losses = iter([2.0, 1.0 if good else 3.0] * 2)
    run.recalibrated, run.probe_loss = recalibrated, lambda: next(losses)
    run._segments.jump(0)
    run._to_start()
    for act in run.acts:
        act.before_step(run.trainee, 6)
    assert asked == [{tag: drops[1] for tag, drops in counts.items()}]
    for tag, drops in counts.items():
        mask = run.engine.frozen[f"{tag}/mask"].reshape(-1)
        assert mask.size - np.count_nonzero(mask) == drops[1]
        assert (not mask[: drops[1]].any()) == good
        assert np.count_nonzero(run.engine.weights[tag]) > 0
    assert any("level 20 starts plainly pruned" in note for note in run.notes) != good


@pytest.mark.parametrize("text", ["", "a", "30,30", "50,30", "100", "-1,5"])
def test_levels_that_are_none(text):
    with refusing(OptionError):
        read_levels(text)


# -- from end to end


@trains
def test_every_level_is_a_verified_file(whole):
    table = json.loads((whole / "levels.json").read_text())
    assert [row["level"] for row in table["levels"]] == [30, 60]
    for row in table["levels"]:
        assert row["verified"]
        found = osp.verify(whole / row["file"], target="amba", level=row["level"]).report
        assert found.ok
        assert found.totals.zeros == row["parameters"] - row["nonzero"]
        assert found.totals.macs_left == row["macs_left"]
        assert abs(row["sparsity"] - row["level"] / 100) <= 0.015
        assert 0 <= row["metrics"]["accuracy"] <= 1
    lines = list(csv.DictReader((whole / "levels.csv").read_text().splitlines()))
    assert [float(line["level"]) for line in lines] == [30, 60]
    assert set(lines[0]) >= {"accuracy", "macs_left", "sparsity"}
    assert not (whole / ".run").exists()


@trains
@pytest.mark.parametrize("moment", [1, 5, 6, 7, 11])
def test_a_killed_run_started_again_ends_with_the_same_files(whole, tmp_path, monkeypatch, moment):
    monkeypatch.setattr(checkpointing, "PLACES", 100)
    monkeypatch.setattr(checkpointing, "APART", 0.0)
    folder = tmp_path / "out"
    given = options(folder, eval_data=data(40), metrics=["accuracy"])

    class Killed(BaseException):
        pass

    steps = Run._one_step

    def dies(self):
        if self.step == moment:
            raise Killed
        return steps(self)

    monkeypatch.setattr(Run, "_one_step", dies)
    with pytest.raises(Killed):
        levels(onnx_model(), **given)
    monkeypatch.setattr(Run, "_one_step", steps)
    report = levels(onnx_model(), **given).report
    assert report.ok
    assert any("resumed" in note for note in report.notes)
    same_files(whole, folder)


@trains
@pytest.mark.parametrize("place", ["_hand_over", "_finished", "rmtree"])
def test_killed_while_it_writes(whole, tmp_path, monkeypatch, place):
    monkeypatch.setattr(checkpointing, "PLACES", 100)
    monkeypatch.setattr(checkpointing, "APART", 0.0)
    folder = tmp_path / "out"
    given = options(folder, eval_data=data(40), metrics=["accuracy"])

    class Killed(BaseException):
        pass

    def dies(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        if place == "_hand_over":
            patch.setattr(stages, "write_text", dies)  # the model is there, its figures are not
        elif place == "_finished":
            patch.setattr(stages, "_csv", dies)
        else:
            patch.setattr(shutil, "rmtree", dies)
        with pytest.raises(Killed):
            levels(onnx_model(), **given)
    assert levels(onnx_model(), **given).report.ok
    shutil.rmtree(folder / ".run", ignore_errors=True)
    same_files(whole, folder)


@trains
def test_a_folder_that_is_done_is_done(whole, tmp_path):
    given = options(whole, eval_data=data(40), metrics=["accuracy"])
    before = (whole / "levels.json").stat().st_mtime_ns
    report = levels(onnx_model(), **given).report
    assert "all levels were there already" in report.notes
    assert (whole / "levels.json").stat().st_mtime_ns == before
    with refusing(OutputError):
        levels(onnx_model(), **{**given, "seed": 1})
    other = tmp_path / "other"
    shutil.copytree(whole, other)
    (other / "mine.txt").write_text("kept")
    levels(onnx_model(), **{**given, "output": other, "levels": "40", "overwrite": True})
    assert {path.name for path in other.iterdir() if path.suffix == ".onnx"} == {"level-40.onnx"}
    assert (other / "mine.txt").read_text() == "kept"


@trains
def test_every_level_has_data_of_its_own(tmp_path, monkeypatch):
    """Also where it is killed between its file and its figures, and where the levels are made anew."""
    onnx.save(onnx_model(), tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    folder, data_of = tmp_path / "out", lambda: {path.name for path in (tmp_path / "out").glob("*.data")}

    class Killed(BaseException):
        pass

    def dies(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(stages, "write_text", dies)
        with pytest.raises(Killed):
            levels(tmp_path / "m.onnx", **options(folder))
    assert data_of() == {"level-30.onnx.data"}
    levels(tmp_path / "m.onnx", **options(folder))
    assert data_of() == {"level-30.onnx.data", "level-60.onnx.data"}
    shutil.move(folder / "level-60.onnx", tmp_path / "moved")  # a file and its data travel together
    shutil.move(folder / "level-60.onnx.data", tmp_path)
    assert osp.verify(tmp_path / "moved", target="amba", level=60).report.ok
    shutil.move(tmp_path / "moved", folder / "level-60.onnx")
    shutil.move(tmp_path / "level-60.onnx.data", folder)
    (folder / "mine.data").write_text("kept")
    levels(tmp_path / "m.onnx", **options(folder, levels="40,60", overwrite=True))
    assert data_of() == {"level-40.onnx.data", "level-60.onnx.data", "mine.data"}
    assert all(osp.verify(path, target="amba").report.ok for path in folder.glob("*.onnx"))
    assert (tmp_path / "w.bin").exists()


def test_a_folder_with_other_things(tmp_path):
    (tmp_path / "mine.txt").write_text("")
    with refusing(OutputError):
        levels(onnx_model(), **options(tmp_path))
    assert os.listdir(tmp_path) == ["mine.txt"]


@trains
def test_on_the_command_line_with_a_configuration(tmp_path, capsys):
    onnx.save(onnx_model(), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", **data())
    (tmp_path / "config.yaml").write_text(
        "sparsity:\n  mask_generator: {type: NormalMaskGenerator}\n  fake_sparse: {type: FakeSparse}\n"
        "  scheduler:\n    type: AmbaLevelPruneScheduler\n    kwargs: {total_iters: 8, sparsity_table: [20, 50],\n"
        "      no_prune_layer: 'head,hed', prun_hw_aware: cv22, default_input_shape: [1, 3, 224, 224]}\n"
    )
    with (tmp_path / "config.yaml").open("a") as config:
        config.write("  leaf_module: [/point]\n")
    net, out = str(tmp_path / "net.onnx"), str(tmp_path / "out")
    command = ["levels", net, "--data", str(tmp_path / "data.npz"), "-o", out, "--batch-size", "8", "--lr", "0.001"]
    command += ["--config", str(tmp_path / "config.yaml"), "--json", str(tmp_path / "report.json")]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "2 of 2 levels verified" in shown.out
    assert "note: no_prune_layer 'hed' names no layer (did you mean head" in shown.err
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["command"] == "levels"
    assert [row["level"] for row in report["details"]["levels"]] == [20, 50]
    found = osp.verify(tmp_path / "out" / "level-50.onnx").report
    assert found.ok
    assert found.row("head.weight").zeros == found.row("point.weight").zeros == 0
    assert "amba:cv22" in found.rule or "own record" in found.rule


def test_options_that_mean_nothing(tmp_path):
    with pytest.raises(TypeError, match="unexpected keyword argument 'epoch'"):
        levels(onnx_model(), data=data(), output=tmp_path / "o", epoch=3)
    with refusing(OptionError):
        levels(onnx_model(), data=data(), output=tmp_path / "o", levels=[50, 30])


@trains
def test_levels_that_a_sparse_model_has_passed_are_said(tmp_path, capsys):
    onnx.save(osp.prune(onnx_model(), target="amba", level=50).model, tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", **data())
    words = [str(tmp_path / "net.onnx"), "--data", str(tmp_path / "data.npz"), "-o", str(tmp_path / "out")]
    flags = ["--levels", "30,60", "--steps", "4", "--batch-size", "8", "--loss", "cross-entropy", "--lr", "0.01"]
    assert main(["levels", *words, *flags]) == 0
    said = capsys.readouterr().out
    assert "passed already" in said
    assert "level 30 is passed already: the model has 50.32 % zeros" in said
    assert "level 60 is passed" not in said
    for level in (30, 60):
        assert osp.verify(tmp_path / "out" / f"level-{level}.onnx").report.ok  # by what the file says of itself


@trains
def test_what_was_measured_on_is_said(whole, tmp_path, capsys):
    report = levels(onnx_model(), **options(tmp_path / "out")).report
    assert "the figures are of the samples held out from --data" in report.notes[-1]
    again = levels(onnx_model(), **options(whole, eval_data=data(40), metrics=["accuracy"])).report
    assert not any("--eval-data" in note for note in again.notes)


def test_why_a_level_does_not_hold_is_said():
    dense = osp.verify(onnx_model(), target="amba", level=60).report
    said = stages._remarks(dense, 60, True)
    assert any("level 60 does not hold: network sparsity 0.00 %, level 60 %" in note for note in said)


@trains
def test_what_the_recipe_of_levels_is_for_is_said(whole, tmp_path, capsys):
    onnx.save(onnx_model(), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", **data())
    words = [str(tmp_path / "net.onnx"), "--data", str(tmp_path / "data.npz"), "-o", str(tmp_path / "out.onnx")]
    assert main(["finetune", *words, "--recipe", str(whole / "levels.recipe.yaml")]) == 2
    said = capsys.readouterr().err
    assert "!levels is the record of an `onnxsparse levels`" in said
    assert "--levels 30,60" in said


def test_a_picture_without_a_metric_has_one_axis(tmp_path):
    figure = pytest.importorskip("matplotlib.figure")
    from onnxsparse.report.history import draw_levels

    rows = [{"level": one, "metrics": {}, "macs": 100, "macs_left": 100 - one} for one in (30, 60)]
    seen = []
    save = figure.Figure.savefig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure.Figure, "savefig", lambda self, *a, **k: (seen.append(self), save(self, *a, **k)))
        draw_levels(str(tmp_path / "a.png"), rows, None)
    (axes,) = seen[0].axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["multiply-accumulates left, %"]


def test_a_picture_where_matplotlib_is(tmp_path):
    pytest.importorskip("matplotlib")
    from onnxsparse.report.history import draw_levels

    rows = [{"level": one, "metrics": {"accuracy": 0.9}, "macs": 100, "macs_left": 100 - one} for one in (30, 60)]
    draw_levels(str(tmp_path / "a.png"), rows, "accuracy")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
