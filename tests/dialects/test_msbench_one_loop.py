"""A job file is trained by the loop of fine-tunes: its model is opened once, and its checkpoints are those of a run."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest

from onnxsparse import checkpoints
from onnxsparse.dialects.msbench import preset
from onnxsparse.dialects.msbench.act import ScheduleAct
from onnxsparse.dialects.msbench.runner import SparseRunner
from onnxsparse.engines.engine import DivergedError
from onnxsparse.errors import OptionError
from onnxsparse.graph.flow import Flow
from onnxsparse.graph.model import Model
from tests.dialects.test_msbench_runner import AMBA, STR, desk, trains

ADMM = {
    "mask_generator": {"type": "NormalMaskGenerator"},
    "fake_sparse": {"type": "FakeSparse"},
    "scheduler": {"type": "ADMMScheduler"},
    "sparsity": {"target_sparsity": 0.5, "uniform": False},
}


def probmask(**kwargs):
    config = preset("probmask")
    config["scheduler"]["kwargs"].update(prune_rate=0.6, total_iterations=8, **kwargs)
    return config


PROBMASK = probmask(warmup_iteration_stamps=1, finetune_iteration_stamps=5)


def counted(monkeypatch, owner, name, seen):
    """Have the calls of a method noted."""
    method = getattr(owner, name)
    bound = hasattr(method, "__self__")

    def noted(self, *given, **more):
        seen.append((name, *map(str, given[:1])))
        return method(*given, **more) if bound else method(self, *given, **more)

    monkeypatch.setattr(owner, name, classmethod(noted) if bound else noted)


@trains
def test_a_job_opens_and_walks_its_model_once_and_each_written_file_once(tmp_path, monkeypatch):
    kwargs = {"sparsity_table": [30, 60], "save_dir": str(tmp_path / "levels"), "default_input_shape": [1, 3, 12, 12]}
    scheduler = {"type": "AmbaLevelPruneScheduler", "kwargs": kwargs}
    path = desk(tmp_path, {**AMBA, "scheduler": scheduler})
    seen = []
    counted(monkeypatch, Model, "open", seen)
    counted(monkeypatch, Flow, "walk", seen)
    SparseRunner(path, quiet=True).run()
    opened = [call[1] for call in seen if call[0] == "open"]
    assert opened[0] == str(tmp_path / "net.onnx")
    written = [os.path.basename(one) for one in opened[1:]]
    assert len(written) == 3, "two levels and the result, each for its proof"
    assert not any(one == "net.onnx" for one in written)
    assert sum(call[0] == "walk" for call in seen) == 4


@trains
@pytest.mark.parametrize(
    "sparsity", [AMBA, STR, ADMM, probmask(warmup_iteration_stamps=1, finetune_iteration_stamps=5)]
)
def test_a_checkpoint_of_the_version_before_goes_on_to_the_same_result(tmp_path, monkeypatch, sparsity):
    """It had a loop of its own, which said the same in another order."""
    epochs = {"max_epoch": 4 if sparsity is ADMM else 2, "lr_scheduler": {"type": "ConstantLR"}}
    results = []
    for name in ("whole", "again"):
        (tmp_path / name).mkdir()
        path = desk(tmp_path / name, sparsity, trainer=epochs)
        if name == "again":
            with monkeypatch.context() as patch:
                stopped_at(patch, 5, KeyboardInterrupt)
                with pytest.raises(KeyboardInterrupt):
                    SparseRunner(path, quiet=True).run()
            as_before(str(tmp_path / name / "saved" / "state"))
        figures = SparseRunner(path, quiet=True).run()
        results.append((figures, onnx.load(tmp_path / name / "saved" / "sparse.onnx").graph))
    assert results[0] == results[1]


def stopped_at(patch, moment, error):
    before_step = ScheduleAct.before_step

    def stops(self, trainee, step):
        before_step(self, trainee, step)
        if step == moment:
            raise error

    patch.setattr(ScheduleAct, "before_step", stops)


def as_before(folder):
    """The newest checkpoint in the form of the version before."""
    found = checkpoints.newest(folder, [])
    arrays = {name: np.array(array) for name, array in found.arrays.items()}
    part = found.facts["parts"][-1]
    facts = {
        "network": {"engine": found.facts["engine"], **part["network"]},
        "scheduler": part["scheduler"],
        "iteration": found.facts["step"],
        "total": found.facts["total"],
        "decisive": part["decisive"],
        "leans": part["leans"],
    }
    checkpoints.save(folder, found.step, arrays, facts)
    assert "parts" not in checkpoints.newest(folder, []).facts


@trains
def test_checkpoints_of_a_fine_tune_are_those_of_another_run(tmp_path):
    path = desk(tmp_path)
    facts = {"engine": {}, "parts": [{}], "host": {}, "account": {}, "notes": [], "attempt": 0, "step": 3}
    checkpoints.save(str(tmp_path / "saved" / "state"), 3, {}, facts)
    with pytest.raises(OptionError, match="holds checkpoints of another run"):
        SparseRunner(path, quiet=True).run()


@trains
def test_a_training_that_diverges_ends_with_an_error_and_no_result(tmp_path, monkeypatch):
    path = desk(tmp_path)
    stopped_at(monkeypatch, 5, DivergedError("the loss is no number any more"))
    with pytest.raises(DivergedError, match="no number"):
        SparseRunner(path, quiet=True).run()
    assert not (tmp_path / "saved" / "sparse.onnx").exists()


@trains
def test_a_subnet_that_is_drawn_at_once_needs_no_other_graph(tmp_path):
    config = probmask(warmup_iteration_stamps=0, finetune_iteration_stamps=0)
    figures = SparseRunner(desk(tmp_path, config, trainer={"lr_scheduler": {"type": "ConstantLR"}}), quiet=True).run()
    assert figures["zeros"] == pytest.approx(0.6, abs=0.02)
