"""A run that is killed and resumed is the run that was never killed, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onnxsparse import checkpoints
from onnxsparse.errors import OptionError
from onnxsparse.recipes.modifiers.pruning import Pruning
from onnxsparse.recipes.modifiers.training import KeepBest, Training
from onnxsparse.train import checkpointing
from tests.runs.net import Bench, NumpyEngine, random

STEPS = 14


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints however long the writing takes, and without waiting for a disk."""
    monkeypatch.setattr(checkpointing, "PLACES", 1)
    monkeypatch.setattr(checkpointing, "APART", 0.0)
    monkeypatch.setattr("os.fsync", lambda file: None)


def bench(optimizer: str = "relative", retries: int = 1, rate: float | None = None, **pruning) -> Bench:
    options = {"pattern": "unstructured", "sparsity": "0.7", "updates": 4, "end": 0.7, **pruning}
    training = Training(steps=STEPS, batch=8, optimizer=optimizer, rate=rate, weight_decay=0.01)
    return Bench(training, Pruning(**options), KeepBest(checks=3, retries=retries))


def plain(facts) -> dict:
    """Facts without what the clock says, and without the word that it was resumed."""
    rows = [{**row, "samples_per_second": None} for row in facts["account"]["history"]["rows"]]
    notes = [note for note in facts["notes"] if not note.startswith("resumed")]
    return {**facts, "notes": notes, "account": {**facts["account"], "history": rows}}


def same_state(one: checkpoints.Checkpoint, other: checkpoints.Checkpoint) -> None:
    assert plain(one.facts) == plain(other.facts)
    assert set(one.arrays) == set(other.arrays)
    assert all(one.arrays[key].tobytes() == other.arrays[key].tobytes() for key in one.arrays)


def same_outcome(one, other) -> None:
    assert {tag: array.tobytes() for tag, array in one.arrays.items()} == {
        tag: array.tobytes() for tag, array in other.arrays.items()
    }
    for name in ("loss", "loss_untrained", "helped", "attempts", "masked", "steps"):
        assert getattr(one, name) == getattr(other, name)
    rows = [[{**vars(row), "samples_per_second": 0} for row in each.history.rows] for each in (one, other)]
    assert rows[0] == rows[1]
    assert [note for note in other.notes if not note.startswith("resumed") and "no checkpoint" not in note] == one.notes


def kept(made: Bench, folder, monkeypatch: pytest.MonkeyPatch):
    """The outcome of a run that nobody stopped, and a copy of its folder after every step."""
    copies, clean = [], checkpoints.clean

    def and_copy(path: str, keep: int = 2) -> None:
        clean(path, keep)
        copies.append(f"{folder}-{len(copies)}")
        shutil.copytree(path, copies[-1])

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "clean", and_copy)
        patched.setattr(checkpointing, "PLACES", 10**9)
        return made.run(folder=str(folder)).go(), copies


CASES = {
    "mask": {},
    "2:4": {"pattern": "2:4", "sparsity": None},
    "adam": {"optimizer": "adam", "rate": 0.01},
    "sgd": {"optimizer": "sgd", "rate": 1e-4},
    "nesterov": {"optimizer": "nesterov", "rate": 1e-4},
    "weights": {"regrow": "weights"},
    "gradient": {"regrow": "gradient"},
    "block": {"pattern": "block:4x2", "regrow": "gradient"},
    "random": {"score": "random"},
    "probabilistic": {"sparser": "probabilistic", "regrow": "gradient"},
    "annealed": {"sparser": "probabilistic:anneal=true"},
    "soft": {"sparser": "soft-threshold"},
    "hard": {"sparser": "hard-threshold"},
    "straight": {"sparser": "straight-through", "pattern": "2:4", "sparsity": None},
    "far too fast": {"optimizer": "sgd", "rate": 0.5, "retries": 2},
    "too fast and learned": {"rate": 1.0, "sparser": "probabilistic", "retries": 2},
    "too fast and straight": {"optimizer": "sgd", "rate": 20.0, "sparser": "straight-through", "retries": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_resumed_after_any_step(case: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, copies = kept(bench(**CASES[case]), tmp_path / "run", monkeypatch)
    assert len(copies) >= STEPS
    for folder in copies:
        resumed = bench(**CASES[case]).run(folder=folder, resume=True).go()
        same_outcome(outcome, resumed)
        if checkpoints.newest(copies[-1]).facts["step"] == STEPS:  # otherwise it diverged, and there is no last state
            same_state(checkpoints.newest(copies[-1]), checkpoints.newest(folder))


@pytest.mark.parametrize("case", ["mask", "probabilistic", "gradient", "too fast and learned"])
def test_checkpoints_change_nothing_wherever_they_lie(case: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = bench(**CASES[case]).run().go()
    monkeypatch.setattr(checkpointing, "PLACES", 3)
    same_outcome(outcome, bench(**CASES[case]).run(folder=str(tmp_path / "few")).go())
    monkeypatch.setattr(checkpointing, "SECONDS", -1.0)
    same_outcome(outcome, bench(**CASES[case]).run(folder=str(tmp_path / "clock")).go())


class Killed(BaseException):
    pass


def killed(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """The process ends in the middle of a step: at the so-manieth call of the engine."""
    calls, step, evaluate = [0], NumpyEngine.step, NumpyEngine.evaluate

    def counted(method):
        def call(self, batch):
            calls[0] += 1
            if calls[0] == at:
                raise Killed
            return method(self, batch)

        return call

    monkeypatch.setattr(NumpyEngine, "step", counted(step))
    monkeypatch.setattr(NumpyEngine, "evaluate", counted(evaluate))


@pytest.mark.parametrize("case", ["mask", "gradient", "annealed", "far too fast", "too fast and learned"])
def test_killed_between_two_checkpoints(case: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed again and again, always a little later, until it comes to its end."""
    outcome = bench(**CASES[case]).run().go()
    monkeypatch.setattr(checkpointing, "PLACES", 5)
    for at in (2, 3, 5, 7, 11, 14, 17, 20, 26, 34, 40, 47):
        folder = str(tmp_path / f"killed-{at}")
        with monkeypatch.context() as patched:
            killed(patched, at)
            try:
                bench(**CASES[case]).run(folder=folder).go()
                break
            except Killed:
                pass
        resumed = bench(**CASES[case]).run(folder=folder, resume=True).go()
        same_outcome(outcome, resumed)


def test_a_finished_run_delivers_the_same_without_a_step(tmp_path) -> None:
    outcome = bench().run(folder=str(tmp_path)).go()
    again = bench()
    same_outcome(outcome, again.run(folder=str(tmp_path), resume=True).go())
    assert "step" not in again.engines[-1].calls


def stream(first: int = 0, sizes=(5, 20, 9, 40)):
    def loader() -> Iterator[dict[str, np.ndarray]]:
        for place, size in enumerate(sizes):
            yield {"x": random(size, 8, seed=first + place)}

    return loader


def streamed(**more) -> Bench:
    training = Training(steps=STEPS, batch=8, rate=0.01)
    return Bench(training, Pruning(pattern="2:4", sparser="probabilistic"), data=stream(**more))


def test_what_a_function_yields_is_replayed(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, copies = kept(streamed(), tmp_path / "run", monkeypatch)
    for folder in copies:
        same_outcome(outcome, streamed().run(folder=folder, resume=True).go())


def test_other_data_is_said(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, copies = kept(streamed(), tmp_path / "run", monkeypatch)
    notes = streamed(first=1).run(folder=copies[3], resume=True).go().notes
    assert any("the data is not what it was" in note for note in notes)


def refused(tmp_path, made: Bench, **more) -> str:
    with pytest.raises(OptionError) as caught:
        made.run(folder=str(tmp_path), **more).go()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_not_this_run_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench().run(folder=str(tmp_path)).go()
    assert "pass resume=True" in refused(tmp_path, bench())
    assert "another run" in refused(tmp_path, bench(), resume=True, digest="of another recipe")
    assert "another run" in refused(tmp_path, bench(sparsity="0.71"), resume=True)
    monkeypatch.setattr(checkpointing, "__version__", "0.0.1")
    assert "another run" in refused(tmp_path, bench(), resume=True)


def test_other_masks_of_the_same_size_are_another_run(tmp_path) -> None:
    mask = np.arange(128).reshape(8, 16) % 2 == 0

    def masked(first: np.ndarray) -> Bench:
        return Bench(Training(steps=4, batch=8), Pruning(), masks={"first": first})

    masked(mask).run(folder=str(tmp_path)).go()
    assert "another run" in refused(tmp_path, masked(~mask), resume=True)


def test_a_folder_without_checkpoints_is_said(tmp_path) -> None:
    notes = bench().run(folder=str(tmp_path / "none"), resume=True).go().notes
    assert any("holds no checkpoint" in note for note in notes)


def test_damaged_checkpoints_are_passed_over(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, copies = kept(bench(), tmp_path / "run", monkeypatch)
    folder = copies[6]
    newest = checkpoints.newest(folder)
    with open(f"{newest.path}/arrays.bin", "r+b") as file:
        file.write(b"\xff" * 16)
    resumed = bench().run(folder=folder, resume=True).go()
    assert any("passed over" in note for note in resumed.notes)
    resumed.notes = [note for note in resumed.notes if "passed over" not in note]
    same_outcome(outcome, resumed)


@st.composite
def any_run(draw):
    """Modifiers of every kind, with windows and rates that make sense or do not."""
    pattern = draw(st.sampled_from(["unstructured", "block:4x2", "filter", "channel", "2:4"]))
    begin, end = sorted(draw(st.tuples(*[st.sampled_from([0, 0.1, 0.3, 0.5, 0.8, 1])] * 2)))
    pruning = Pruning(
        pattern,
        sparsity=None if pattern == "2:4" else draw(st.sampled_from([0.3, 0.5, 0.9])),
        schedule=None if pattern == "2:4" else draw(st.sampled_from([None, "linear", "one-shot", "steps:3"])),
        start_sparsity=draw(st.sampled_from([0.0, 0.4])),
        begin=begin,
        end=end,
        updates=draw(st.sampled_from([1, 3, 60])),
        regrow=draw(st.sampled_from(["none", "weights", "gradient"])),
        sparser=draw(
            st.sampled_from(["mask", "probabilistic", "soft-threshold", "straight-through", "hard-threshold"])
        ),
    )
    training = Training(
        steps=draw(st.integers(1, 12)),
        batch=8,
        optimizer=draw(st.sampled_from(["relative", "sgd", "adamw"])),
        rate=draw(st.sampled_from([None, 0.01, 1.0])),
        rate_schedule=draw(st.sampled_from(["cosine", "constant"])),
        clip=draw(st.sampled_from([0.0, 1.0])),
        weight_decay=draw(st.sampled_from([0.0, 0.1])),
    )
    return training, pruning, KeepBest(draw(st.integers(1, 5)), draw(st.integers(0, 2)))


def try_any(modifiers, tmp_path_factory) -> None:
    with pytest.MonkeyPatch.context() as patched:
        outcome, copies = kept(Bench(*modifiers), tmp_path_factory.mktemp("any") / "run", patched)
    made = Bench(*modifiers)
    for tag, row in made.planned.items():
        zero = row.use.matrix(outcome.arrays[tag].reshape(-1) == 0)
        assert not row.pattern.violations(zero, row.drop)
    for folder in copies[:: max(1, len(copies) // 4)]:
        same_outcome(outcome, Bench(*modifiers).run(folder=folder, resume=True).go())


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(any_run())
def test_any_run_meets_its_plan_and_resumes(tmp_path_factory, modifiers) -> None:
    try_any(modifiers, tmp_path_factory)


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(any_run())
def test_many_runs_meet_their_plan_and_resume(tmp_path_factory, modifiers) -> None:
    try_any(modifiers, tmp_path_factory)
