"""kill -9 at any moment, and the resumed run delivers the very file that the run nobody stopped delivers."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from onnxsparse.checkpoints import MARK, claim
from onnxsparse.engines.ort import library
from onnxsparse.engines.working_dirs import claimed
from onnxsparse.errors import OptionError, OutputError
from tests import warm
from tests.engines.ort import killed_run
from tests.messages import refusing

pytestmark = [
    pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training"),
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a system that kills"),
]

SCRIPT = Path(killed_run.__file__)
SURROUNDINGS = {**os.environ, "PYTHONPATH": str(SCRIPT.parent), "OMP_NUM_THREADS": "1"}
LOADER = "killed_run:loader"
LEVEL = {"pattern": "unstructured", "sparsity": 0.8, "updates": 5}
BY_EPOCHS = """
modifiers:
- !GMPruningModifier
    start_epoch: 0.5
    end_epoch: 3.0
    update_frequency: 0.4
    init_sparsity: __FROM_PARAM__
    final_sparsity: 0.8
    params: ['deep', 'wide.weight']
- !ACDCPruningModifier
    start_epoch: 0
    end_epoch: 4
    update_frequency: 1
    compression_sparsity: 0.7
    params: ['residual', 'head']
- !ConstantPruningModifier
    params: __ALL__
    start_epoch: 3.5
- !LearningRateModifier
    start_epoch: 1
    lr_class: ExponentialLR
    lr_kwargs: {gamma: 0.5}
- !TrainableParamsModifier
    params: ['re:.*bias']
    trainable: false
    start_epoch: 1
    end_epoch: 2.5
- !SetWeightDecayModifier
    start_epoch: 2
    weight_decay: 0.01
- !DistillationModifier
    start_epoch: 1.5
    end_epoch: 3
- !SparsificationLoggingModifier
    start_epoch: 0
    update_frequency: 0.5
"""
JOBS = {
    "2:4": {"pruning": {"pattern": "2:4"}},
    "nesterov": {"pruning": LEVEL, "training": {"optimizer": "nesterov", "rate": 1e-3, "clip": 1.0}},
    "regrown": {"pruning": {**LEVEL, "regrow": "gradient"}, "data": LOADER},
    "learned": {"pruning": {**LEVEL, "sparser": "straight-through"}, "data": LOADER},
    "noise": {"pruning": {**LEVEL, "sparser": "probabilistic:start=0.9"}},
    "built in": {
        "pruning": {**LEVEL, "sparser": "straight-through"},
        "training": {"optimizer": "ort-adamw", "rate": 1e-3},
    },
    "by epochs": {"recipe": BY_EPOCHS, "training": {"steps_per_epoch": 6, "optimizer": "sgd", "rate": 1e-3}},
    "attempts": {"pruning": {"pattern": "2:4"}, "training": {"optimizer": "sgd", "rate": 0.3}},
}


def digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


class Ground:
    """Where runs of one job are killed, and how the run ends that nobody stops."""

    def __init__(self, folder: Path, job: dict) -> None:
        self.folder, self.job = folder, job
        killed_run.write_data(folder / "digits.npz")
        job = self._written("whole")
        self.report = killed_run.run(job).report
        self.goal = digest(job["output"])

    def _written(self, name: str, resume: bool = False) -> dict:
        job = {**self.job, "folder": str(self.folder / name), "output": str(self.folder / f"{name}.onnx")}
        job["resume"] = resume
        (self.folder / f"{name}.json").write_text(json.dumps(job))
        return job

    def _words(self, name: str, *death: str) -> list[str]:
        """A run of its own process, with the graph of the whole run: to build it again would take the most time."""
        claim(str(self.folder / name))
        for graph in (self.folder / "whole").glob("graph-*") if "building" not in death else ():
            shutil.copytree(graph, self.folder / name / graph.name, dirs_exist_ok=True)
        return [str(SCRIPT), str(self.folder / f"{name}.json"), *death]

    def kill(self, name: str, event: str, count: int, resume: bool = False) -> None:
        """A run that kills itself."""
        self._written(name, resume)
        done = warm.python(self._words(name, event, str(count)), env=SURROUNDINGS)
        assert done.returncode == -signal.SIGKILL, done.stderr

    def kill_after(self, name: str, seconds: float, resume: bool) -> bool:
        """A run that is killed from outside; whether it was still going on."""
        self._written(name, resume)
        child = subprocess.Popen([sys.executable, *self._words(name)], env=SURROUNDINGS, stderr=subprocess.PIPE)
        time.sleep(seconds)
        child.kill()
        child.communicate()
        return child.returncode == -signal.SIGKILL

    def resumed(self, name: str) -> tuple[str, list[str]]:
        """The digest of what a killed run comes to, and what is said of it."""
        job = self._written(name, resume=True)
        report = killed_run.run(job).report
        return digest(job["output"]), list(report.notes)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ground]:
    made: dict[str, Ground] = {}

    def of(name: str) -> Ground:
        if name not in made:
            os.environ.setdefault("OMP_NUM_THREADS", "1")
            made[name] = Ground(tmp_path_factory.mktemp("runs"), JOBS[name])
        return made[name]

    sys.path.insert(0, str(SCRIPT.parent))
    yield of
    sys.path.remove(str(SCRIPT.parent))


MOMENTS = [
    ("2:4", "building", 1),
    ("2:4", "step", 17),
    ("2:4", "writing", 500),
    ("nesterov", "update", 9),
    ("nesterov", "naming", 12),
    ("regrown", "step", 10),
    ("regrown", "cleaning", 5),
    ("learned", "segment", 1),
    ("learned", "step", 16),
    ("noise", "step", 9),
    ("noise", "segment", 1),
    ("noise", "update", 16),
    ("attempts", "step", 32),
    ("built in", "segment", 1),
    ("built in", "update", 17),
    ("by epochs", "step", 11),
    ("by epochs", "segment", 1),
    ("by epochs", "update", 20),
]


@pytest.mark.parametrize(("job", "event", "count"), MOMENTS)
def test_killed_and_resumed(ground: Callable[[str], Ground], job: str, event: str, count: int) -> None:
    here = ground(job)
    name = f"{event}-{count}"
    here.kill(name, event, count)
    found, notes = here.resumed(name)
    assert found == here.goal
    said = "holds no checkpoint" if event == "building" else "resumed at step"
    assert any(said in note for note in notes)


def test_killed_again_and_again(ground: Callable[[str], Ground]) -> None:
    here = ground("regrown")
    here.kill("often", "probe", 2)
    for count in (1, 2, 3):
        here.kill("often", "update", count, resume=True)
    assert here.resumed("often")[0] == here.goal


@pytest.mark.parametrize("job", ["2:4", "by epochs"])
def test_a_finished_run_delivers_the_same_file_at_once(ground: Callable[[str], Ground], job: str) -> None:
    here = ground(job)
    assert here.resumed("whole")[0] == here.goal


def test_the_folder_of_another_run_is_refused(ground: Callable[[str], Ground]) -> None:
    here = ground("2:4")
    job = {**here._written("whole"), "resume": True, "pruning": {"pattern": "1:4"}}
    with refusing(OptionError):
        killed_run.run(job)
    with refusing(OptionError):
        killed_run.run({**job, "resume": False})


def test_a_folder_has_one_run_at_a_time(ground: Callable[[str], Ground]) -> None:
    here = ground("2:4")
    job = here._written("whole", resume=True)
    with claimed(job["folder"], MARK), refusing(OutputError):
        killed_run.run(job)


def test_resumed_with_a_graph_that_was_damaged(ground: Callable[[str], Ground]) -> None:
    here = ground("2:4")
    here.kill("damaged", "step", 17)
    (graph,) = (here.folder / "damaged").glob("graph-*")
    (graph / "teacher.onnx").unlink()
    data = bytearray((graph / "training_model.onnx").read_bytes())
    data[len(data) // 2] ^= 1
    (graph / "training_model.onnx").write_bytes(bytes(data))
    found, notes = here.resumed("damaged")
    assert found == here.goal
    assert any("was damaged" in note for note in notes)


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_killed_from_outside_at_random_moments(ground: Callable[[str], Ground], job: str) -> None:
    here, random_ = ground(job), random.Random(job)
    for number in range(6):
        name, resume = f"random-{number}", False
        for _ in range(4):
            if not here.kill_after(name, random_.uniform(0.5, 4.0), resume):
                break
            resume = True
        assert here.resumed(name)[0] == here.goal


@pytest.mark.slow
@pytest.mark.parametrize("job", [job for job in JOBS if job != "by epochs"])  # which looks at no samples on the way
@pytest.mark.parametrize("event", ["step", "update", "probe", "writing", "naming", "cleaning"])
def test_killed_at_many_events(ground: Callable[[str], Ground], job: str, event: str) -> None:
    here = ground(job)
    for count in (1, 2, 6, 14, 15, 16, 22):
        name = f"many-{event}-{count}"
        here.kill(name, event, count)
        assert here.resumed(name)[0] == here.goal
