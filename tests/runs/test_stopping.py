"""A signal that comes in the middle of a step is heard when the step is saved; the run goes on from there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onnxsparse import checkpoints
from onnxsparse.recipes.modifiers.pruning import Pruning
from onnxsparse.recipes.modifiers.training import KeepBest, Training
from onnxsparse.train import checkpointing
from onnxsparse.train.checkpointing import Stopping
from tests.runs.net import Bench, NumpyEngine

pytestmark = pytest.mark.usefixtures("usual_signals")
STEPS, AT = 14, 7


def bench() -> Bench:
    training = Training(steps=STEPS, batch=8, weight_decay=0.01)
    return Bench(training, Pruning(pattern="unstructured", sparsity="0.7", updates=4, end=0.7), KeepBest(checks=3))


@pytest.fixture(autouse=True)
def rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No checkpoints but those that a signal asks for, and the last one."""
    monkeypatch.setattr(checkpointing, "PLACES", 1)
    monkeypatch.setattr("os.fsync", lambda file: None)


def struck(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The signal comes while the engine works on a step."""
    steps, step = [0], NumpyEngine.step

    def counted(self: Any, batch: Any) -> float:
        steps[0] += 1
        if steps[0] == AT:
            signal.raise_signal(number)
        return step(self, batch)

    monkeypatch.setattr(NumpyEngine, "step", counted)


def test_the_step_is_saved_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bench().run().go()
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        struck(patched, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            bench().run(folder=str(tmp_path / "run")).go()
    assert signal.getsignal(signal.SIGINT) is before
    newest = checkpoints.newest(str(tmp_path / "run"))
    assert newest is not None
    assert newest.facts["step"] == AT
    resumed = bench().run(folder=str(tmp_path / "run"), resume=True).go()
    assert {tag: array.tobytes() for tag, array in whole.arrays.items()} == {
        tag: array.tobytes() for tag, array in resumed.arrays.items()
    }


def test_one_that_comes_between_two_steps_is_saved_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right after it was looked whether one came: the step after that is the one that is saved."""
    looks, asked = [0], Stopping.asked.fget

    def looked(self: Stopping) -> bool:
        found = asked(self)
        looks[0] += 1
        if looks[0] == AT:
            signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(Stopping, "asked", property(looked))
    with pytest.raises(KeyboardInterrupt):
        bench().run(folder=str(tmp_path / "run")).go()
    newest = checkpoints.newest(str(tmp_path / "run"))
    assert newest is not None
    assert newest.facts["step"] == AT + 1


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_what_is_ignored_stays_ignored(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a shell has SIGINT for what it starts in the background, and nohup SIGHUP: also in what a step starts."""
    number, within = getattr(signal, name), []
    signal.signal(number, signal.SIG_IGN)
    step = NumpyEngine.step

    def struck(self: Any, batch: Any) -> float:
        within.append(signal.getsignal(number))
        signal.raise_signal(number)
        return step(self, batch)

    monkeypatch.setattr(NumpyEngine, "step", struck)
    run = bench().run(folder=str(tmp_path / "run"))
    run.go()
    assert run.step == STEPS
    assert set(within) == {signal.SIG_IGN}


def test_without_a_folder_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    struck(monkeypatch, signal.SIGINT)
    run = bench().run()
    with pytest.raises(KeyboardInterrupt):
        run.go()
    assert run.step == AT - 1


def test_the_second_one_does_not_wait() -> None:
    stopping, heard = Stopping(True), []

    def twice() -> None:
        with stopping.until_saved():
            signal.raise_signal(signal.SIGINT)
            heard.append(stopping.asked)
            signal.raise_signal(signal.SIGINT)
            heard.append("it waited")

    with pytest.raises(KeyboardInterrupt):
        twice()
    assert heard == [True]


def test_an_error_does_not_hide_it() -> None:
    def fails() -> None:
        with Stopping(True).until_saved():
            signal.raise_signal(signal.SIGINT)
            raise ValueError

    with pytest.raises(KeyboardInterrupt):
        fails()


SCRIPT = """
import sys
sys.argv[0] = "onnxsparse"
from onnxsparse.cli import main
from onnxsparse.train import outcome

outcome.ROWS = 10**6
add = outcome.Account.add

def told(self, done, *more):
    add(self, done, *more)
    print(done, file=sys.__stdout__, flush=True)

outcome.Account.add = told
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs signals")
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_command_that_is_ended_leaves_its_state(
    name: str, code: int, tmp_path: Path, digits_cnn: Path, repository: Path
) -> None:
    from onnxsparse.engines.ort import library

    if not library.available():
        pytest.skip("needs onnxruntime-training")
    import numpy as np

    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).standard_normal((64, 1, 8, 8)).astype(np.float32))
    words = ["finetune", str(digits_cnn), "--data", "data.npz", "--pattern", "2:4", "--steps", "20000"]
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *words, "-o", "out.onnx", "--checkpoint", "run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(repository)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while (last := int(process.stdout.readline())) < 5:
        pass
    process.send_signal(getattr(signal, name))
    seen, said = process.communicate(timeout=600)
    assert process.returncode == code
    assert "go on with --checkpoint run --resume" in said
    newest = checkpoints.newest(str(tmp_path / "run"))
    assert newest is not None
    assert newest.facts["step"] == int([last, *seen.split()][-1])
    assert not (tmp_path / "out.onnx").exists()
