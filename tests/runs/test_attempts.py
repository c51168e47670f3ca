"""Never worse than without training: the best state, attempts with a lower rate, and what is said of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onnxsparse.data import Samples
from onnxsparse.errors import OptionError
from onnxsparse.recipes.modifiers.pruning import Pruning
from onnxsparse.recipes.modifiers.training import ALIKE, KeepBest, Training
from tests.messages import refusing
from tests.runs.net import Bench, NumpyEngine, Spy, random

HALF = Pruning(pattern="2:4")


def run_of(*modifiers, **more):
    bench = Bench(*modifiers, **more)
    run = bench.run()
    return bench, run, run.go()


def one_shot(bench: Bench) -> dict[str, np.ndarray]:
    """The dense weights, with the smaller two of each four along the inputs set to zero."""
    found = {}
    for tag, dense in bench.dense.items():
        groups = np.abs(dense.T.reshape(-1, 4)).argsort(axis=1, kind="stable")
        keep = np.ones(groups.shape, bool)
        np.put_along_axis(keep, groups[:, :2], False, axis=1)
        found[tag] = np.where(keep.reshape(dense.T.shape).T, dense, 0)
    return found


def measured(bench: Bench, arrays) -> float:
    """The probe's loss of stored weights."""
    job = bench.task()
    engine = NumpyEngine(job.spec, bench.dense, "sgd")
    for tag, array in arrays.items():
        engine.weights[tag][...] = array
    return float(np.mean([engine.evaluate(batch)[0] for batch in job.feeding.probe()]))


def test_what_comes_out_is_the_best_that_was_seen() -> None:
    bench, _, outcome = run_of(Training(steps=40, batch=8), HALF, KeepBest(checks=10))
    probes = [row.probe for row in outcome.history.rows if row.probe is not None]
    assert len(probes) == 10
    assert min(probes) <= outcome.loss <= ALIKE * min(probes)
    assert outcome.loss == [loss for loss in probes if loss <= ALIKE * min(probes)][-1]
    assert outcome.loss == measured(bench, outcome.arrays)
    assert outcome.loss_untrained == measured(bench, one_shot(bench)) > outcome.loss
    assert outcome.helped
    assert outcome.attempts == 1


def test_a_rate_that_destroys_is_divided_by_three() -> None:
    spy = Spy(lambda run, step: run.trainee.settings.rate)
    training = Training(steps=10, batch=8, optimizer="sgd", rate=2.0, rate_schedule="constant", warm_up=0)
    _, _, outcome = run_of(training, HALF, KeepBest(checks=5, retries=8), spy)
    rates = list(dict.fromkeys(spy.seen))
    assert len(rates) == outcome.attempts > 2
    assert np.allclose(rates, [2.0 / 3**attempt for attempt in range(len(rates))])
    assert outcome.helped
    assert any("with a third of it" in note for note in outcome.notes)
    assert any(note.startswith("attempt 1 stopped at step") for note in outcome.notes)
    assert [row.step for row in outcome.history.rows] == list(range(1, 11))


class Stubborn(NumpyEngine):
    """What its optimizer remembers cannot be cleared."""

    def clear_moments(self, tag, where=None) -> None:
        pass


@pytest.mark.parametrize("make", [NumpyEngine, Stubborn])
@pytest.mark.parametrize("sparser", ["mask", "probabilistic", "straight-through", "soft-threshold", "hard-threshold"])
def test_an_attempt_begins_like_the_first(sparser: str, make: type) -> None:
    """At a rate of nearly nothing no attempt helps, and all see the same."""
    spy = Spy(lambda run, step: {key: array.copy() for key, array in run.engine.state()[0].items()})
    training = Training(steps=6, batch=8, rate=1e-30, optimizer="sgd")
    bench, _, outcome = run_of(training, Pruning(pattern="2:4", sparser=sparser), KeepBest(retries=2), spy, make=make)
    assert (outcome.attempts, outcome.helped) == (3, False)
    for step in range(6 if make is NumpyEngine else 4):  # the rest of a stubborn memory moves what masks hide
        first, *others = spy.seen[step::6]
        assert all(set(first) == set(other) for other in others)
        for key in first:
            assert all(first[key].tobytes() == other[key].tobytes() for other in others), (step, key)
    assert all(np.array_equal(outcome.arrays[tag], array) for tag, array in one_shot(bench).items())


class Broken(NumpyEngine):
    """What is learned is NaN after the first step."""

    def update(self, pace) -> bool:
        super().update(pace)
        if self.calls.count("step") >= 1:
            for array in self.weights.values():
                array[...] = np.nan
        return True


@pytest.mark.parametrize("sparser", ["mask", "probabilistic", "straight-through", "soft-threshold", "hard-threshold"])
def test_where_nothing_helps_the_dense_weights_under_the_masks_come_out(sparser: str) -> None:
    spec = Pruning(pattern="2:4", sparser=sparser, end=0.9)
    bench, _, outcome = run_of(Training(steps=9, batch=8), spec, KeepBest(checks=9, retries=2), make=Broken)
    assert (outcome.attempts, outcome.helped) == (3, False)
    assert all(np.array_equal(outcome.arrays[tag], array) for tag, array in one_shot(bench).items())
    assert outcome.loss == outcome.loss_untrained
    assert any("no training helped" in note for note in outcome.notes)
    assert sum("attempt" in note for note in outcome.notes) == 3


def test_what_was_best_before_it_diverged_counts() -> None:
    class Late(NumpyEngine):
        def step(self, batch) -> float:
            return super().step(batch) if self.calls.count("step") < 15 else math.nan

    _, _, outcome = run_of(Training(steps=20, batch=8), HALF, KeepBest(checks=10), make=Late)
    assert outcome.helped
    assert outcome.attempts == 1
    assert np.isfinite(outcome.arrays["onnxsparse:0"]).all()


def test_without_keep_best_the_last_state_comes_out() -> None:
    bench = Bench(Training(steps=12, batch=8), HALF)
    bench.modifiers = tuple(one for one in bench.modifiers if not isinstance(one, KeepBest))
    run = bench.run()
    outcome = run.go()
    assert outcome.helped
    assert outcome.loss == measured(bench, outcome.arrays)
    assert not any(np.array_equal(outcome.arrays[tag], array) for tag, array in one_shot(bench).items())


def test_all_engines_ask_ahead_or_none() -> None:
    """Otherwise the same sample could have two answers, one before a kill and one after it."""
    bench, _, _ = run_of(Training(steps=40, batch=8), Pruning(pattern="2:4", sparser="soft-threshold"))
    assert [one.calls.count("ask_ahead") for one in bench.engines] == [1, 1]
    bench, _, _ = run_of(Training(steps=3, batch=8), Pruning(pattern="2:4", sparser="soft-threshold"))
    assert [one.calls.count("ask_ahead") for one in bench.engines] == [0, 0]


def test_two_segments_share_weights_and_masks_but_no_moments_of_what_was_learned() -> None:
    def look(run, step):
        return {key: array.copy() for key, array in run.engine.state()[0].items()}

    spy = Spy(look)
    given = {"first": random(8, 16, seed=5) > 0.3, "second": np.ones((16, 12), bool)}
    bench = Bench(Training(steps=20, batch=8, optimizer="sgd"), Pruning(), spy, masks=given)
    bench.run().go()
    assert {key for key in spy.seen[-1] if key.startswith("velocity/")} == {f"velocity/{tag}" for tag in bench.planned}


# -- what is told


def size(engine) -> dict[str, float]:
    return {"size": float(sum(np.abs(array).sum() for array in engine.weights.values()))}


def test_metrics_come_after_every_epoch_whatever_the_rows() -> None:
    bench = Bench(Training(epochs=5, batch=8), HALF)
    steps = bench.run().per_epoch
    outcome = bench.run(measure=size).go()
    assert [row.step for row in outcome.history.rows if row.metrics] == [steps * epoch for epoch in range(1, 5)]
    assert set(outcome.metrics) == set(outcome.untrained) == {"size"}


def test_long_runs_have_about_a_hundred_rows_and_every_epoch() -> None:
    bench = Bench(Training(steps=1203, batch=1, optimizer="sgd", rate=1e-9), HALF, KeepBest(1, 0), steps_per_epoch=71)
    rows: list[dict] = []
    outcome = bench.run(measure=size, watch=rows.append).go()
    found = [row.step for row in outcome.history.rows]
    assert found == sorted({*range(12, 1204, 12), *range(71, 1204, 71), 1203})
    assert [row["step"] for row in rows] == found
    assert {row["of"] for row in rows} == {1203}
    assert all(row["attempt"] == 1 and math.isfinite(row["loss"]) for row in rows)


def test_the_loss_of_a_row_is_the_mean_since_the_row_before() -> None:
    losses: list[float] = []

    class Noting(NumpyEngine):
        def step(self, batch) -> float:
            losses.append(super().step(batch))
            return losses[-1]

    bench = Bench(Training(steps=250, batch=8), HALF, KeepBest(1, 0), make=Noting)
    outcome = bench.run().go()
    starts = [0, *(row.step for row in outcome.history.rows)]
    for row, start in zip(outcome.history.rows, starts):
        assert row.loss == sum(losses[start : row.step]) / (row.step - start)


def test_sparsity_is_told_as_it_is_and_not_told_where_there_are_no_masks() -> None:
    _, _, outcome = run_of(Training(steps=10, batch=8), Pruning(pattern="unstructured", sparsity="0.5"))
    told = [row.sparsity for row in outcome.history.rows]
    assert told == sorted(told)
    assert told[-1] == 0.5
    _, _, outcome = run_of(Training(steps=10, batch=8), Pruning(pattern="2:4", sparser="soft-threshold"))
    assert [row.sparsity for row in outcome.history.rows] == [None] * 6 + [0.5] * 4


def test_a_function_without_an_epoch_needs_steps() -> None:
    def loader():
        yield {"x": random(40, 8)}

    with refusing(OptionError):
        Bench(Training(epochs=1, batch=8), HALF, data=loader).run()
    assert Bench(Training(steps=3, batch=8), HALF, data=loader).run().total == 3
    assert Bench(Training(epochs=2, batch=8), HALF, data=loader, steps_per_epoch=5).run().total == 10


class Diverging(NumpyEngine):
    def step(self, batch) -> float:
        return super().step(batch) if self.calls.count("step") < 4 else math.nan


def test_the_steps_told_are_those_of_the_last_attempt() -> None:
    _, run, outcome = run_of(Training(steps=20, batch=8), HALF, KeepBest(checks=4, retries=0), make=Diverging)
    assert (outcome.steps, run.total) == (4, 20)
    assert run_of(Training(steps=20, batch=8), HALF)[2].steps == 20


def test_data_that_is_not_finite_is_no_divergence(monkeypatch) -> None:
    monkeypatch.setattr(Samples.look_through, "__defaults__", (100,))
    data = random(96, 8, seed=3)
    data[40:] = np.nan
    with refusing(OptionError):
        run_of(Training(steps=20, batch=8), HALF, data={"x": data})
