"""Masks in a run: as many places as the schedule says at every step, and those of the plan in the end."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse import schedules
from onnxsparse.errors import OptionError
from onnxsparse.recipes.modifiers.pruning import Pruning
from onnxsparse.recipes.modifiers.training import KeepBest, Training
from onnxsparse.train.onnx_trainee import OnnxTrainee
from tests.cases import for_each
from tests.messages import refusing
from tests.runs.net import Bench, Spy, random

LEVELS = {
    "unstructured": {"sparsity": "0.8"},
    "unstructured-erk": {"sparsity": "0.8", "allocation": "erk"},
    "unstructured-global": {"sparsity": "0.8", "allocation": "global"},
    "block:4x2": {"sparsity": "0.5"},
    "filter": {"sparsity": "0.5"},
    "channel": {"sparsity": "0.5"},
    "2:4": {},
    "2:4:transposable": {},
}
LEARNED = ("probabilistic", "soft-threshold", "straight-through", "hard-threshold")


def pruning(case: str, **more) -> Pruning:
    return Pruning(pattern=case.partition("-")[0], **LEVELS[case], **more)


def masks(run, step):
    """Copies of all masks, and of what the network sees."""
    engine = run.engine
    return {tag: (engine.frozen[f"{tag}/mask"] != 0).copy() for tag in run.planned if f"{tag}/mask" in engine.frozen}


def gone(mask) -> int:
    return int(mask.size - np.count_nonzero(mask))


def elements(bench: Bench) -> dict[str, int]:
    """How many zeros the plan asks for."""
    found = {}
    for tag, row in bench.planned.items():
        size = row.pattern.unit_size(row.use.shape4) if row.pattern.takes_sparsity else 1
        found[tag] = row.drop * size if row.keep is None else gone(row.keep)
    return found


def went(*modifiers, **more):
    """The bench, the outcome, and the masks at every step."""
    spy = Spy(masks)
    bench = Bench(Training(steps=40, batch=8), *modifiers, KeepBest(checks=4, retries=0), spy, **more)
    return bench, bench.run().go(), spy.seen


@for_each("case", LEVELS)
@for_each("regrow", ["none", "weights", "gradient"])
@for_each("schedule", [None, "linear", "steps:3"])
def test_every_step_has_its_level_and_the_end_is_exact(case: str, regrow: str, schedule: str | None) -> None:
    if case.startswith("2:4") and schedule:
        return
    bench, outcome, seen = went(pruning(case, schedule=schedule, regrow=regrow, updates=8, begin=0.1, end=0.7))
    ramp = schedules.parse(schedule or ("one-shot" if case.startswith("2:4") else "cubic"))
    last = 4 if case.startswith("2:4") and regrow == "none" else 28
    every = max(1, (last - 4) // 8)
    goal = elements(bench)
    for step, now in enumerate(seen):
        at = last if step >= last else 4 + (step - 4) // every * every
        for tag, row in bench.planned.items():
            share = ramp.share((at - 4) / max(1, last - 4)) if row.pattern.takes_sparsity else 1.0
            size = goal[tag] // row.drop
            assert gone(now[tag]) == (int(np.floor(share * row.drop + 0.5)) * size if step >= 4 else 0)
    assert all(np.array_equal(now[tag], seen[last][tag]) for now in seen[last:] for tag in goal)
    assert not any(outcome.helped and array[~seen[last][tag]].any() for tag, array in outcome.arrays.items())
    if regrow != "gradient":  # what grew back at 0 may have stayed there
        assert {tag: gone(array != 0) for tag, array in outcome.arrays.items()} == goal
    for tag, row in bench.planned.items():
        zero = row.use.matrix(outcome.arrays[tag].reshape(-1) == 0)
        assert not row.pattern.violations(zero, row.drop)


@pytest.mark.parametrize("case", [case for case in LEVELS if not case.startswith("2:4")])
def test_what_is_pruned_stays_pruned(case: str) -> None:
    _, _, seen = went(pruning(case, updates=10))
    for before, after in zip(seen, seen[1:]):
        assert all(not (after[tag] & ~before[tag]).any() for tag in before)


@pytest.mark.parametrize("regrow", ["weights", "gradient"])
def test_places_grow_back_until_the_end_step(regrow: str) -> None:
    _, _, seen = went(pruning("unstructured", schedule="constant", regrow=regrow, updates=12), Training(steps=40))
    grown = [sum(int((after[tag] & ~before[tag]).sum()) for tag in before) for before, after in zip(seen, seen[1:])]
    assert sum(grown[:24]) > 0
    assert sum(grown[24:]) == 0


def test_what_grows_back_by_weights_has_the_number_it_had() -> None:
    numbers = []

    def look(run, step):
        numbers.append({tag: run.engine.weights[tag].copy() for tag in run.planned})
        return masks(run, step)

    spy = Spy(look)
    bench = Bench(
        Training(steps=40, batch=8), pruning("unstructured", schedule="constant", regrow="weights", updates=12), spy
    )
    bench.run().go()
    grown = 0
    for step, (before, after) in enumerate(zip(spy.seen[:23], spy.seen[1:24]), 1):
        for tag in before:
            back = after[tag] & ~before[tag]
            assert np.array_equal(numbers[step][tag][back], numbers[step - 1][tag][back])
            assert (numbers[step][tag][back] != 0).all()
            grown += int(back.sum())
    assert grown


def test_what_grows_back_by_gradient_starts_at_zero_without_a_memory() -> None:
    def look(run, step):
        arrays = run.engine.state()[0]
        moments = {tag: arrays.get(f"mean/{tag}", np.zeros(1)).copy() for tag in run.planned}
        return masks(run, step), {tag: run.engine.weights[tag].copy() for tag in run.planned}, moments

    spy = Spy(look)
    bench = Bench(Training(steps=40, batch=8), pruning("unstructured", regrow="gradient", updates=12), spy)
    bench.run().go()
    grown = 0
    for (before, _, _), (after, weights, moments) in zip(spy.seen, spy.seen[1:]):
        for tag in before:
            back = after[tag] & ~before[tag]
            assert not weights[tag][back].any()
            assert not moments[tag][back].any()
            assert not weights[tag][~after[tag]].any()  # nor does anything move under the masks
            assert not moments[tag][~after[tag]].any()
            grown += int(back.sum())
    assert grown


def test_places_grow_back_by_the_gradient_that_they_would_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is masked has a gradient when masks are chosen, and what grows back has the larger ones."""
    asked, dense_gradients = [], OnnxTrainee.dense_gradients

    def look(trainee, tags):
        before = {tag: trainee.frozen[f"{tag}/mask"].reshape(-1) != 0 for tag in tags}
        gains = dense_gradients(trainee, tags)
        asked.append((before, {tag: np.abs(gains[tag]).reshape(-1) for tag in tags}))
        return gains

    monkeypatch.setattr(OnnxTrainee, "dense_gradients", look)
    spy = Spy(masks)
    Bench(
        pruning("unstructured", schedule="constant", regrow="gradient", updates=6), Training(steps=40), spy
    ).run().go()
    count = 0
    for (before, gains), (after, _) in zip(asked[1:], asked[2:]):  # before the first of them all masks are open
        for tag in before:
            grown, rest = after[tag] & ~before[tag], ~after[tag] & ~before[tag]
            assert gains[tag][~before[tag]].any()
            # not all of the largest: a kept number that is 0 still may change places with a hidden one before
            assert np.median(gains[tag][grown]) > np.quantile(gains[tag][rest], 0.8)
            count += int(grown.sum())
    assert count


def test_the_gradient_that_moves_the_weights_is_that_of_the_new_masks() -> None:
    def look(run, step):
        gradients = run.engine.gradients()
        return all(not gradients[tag][run.engine.frozen[f"{tag}/mask"] == 0].any() for tag in run.planned)

    spy = Spy(look)
    Bench(pruning("unstructured", regrow="gradient", updates=12), spy).run().go()
    assert all(spy.seen)


@for_each("regrow", ["none", "weights", "gradient"])
@for_each("sparser", ["mask", *LEARNED])
def test_given_masks_are_what_comes_out(regrow: str, sparser: str) -> None:
    shapes = {"first": (8, 16), "second": (16, 12)}
    given = {name: random(*shape, seed=5) > 0.3 for name, shape in shapes.items()}
    spy = Spy(masks)
    bench = Bench(Pruning(regrow=regrow, sparser=sparser), spy, masks=given)
    outcome = bench.run().go()
    for (tag, array), mask in zip(outcome.arrays.items(), given.values()):
        assert np.array_equal(array != 0, mask)
        assert all(np.array_equal(now[tag], mask) for now in spy.seen)


@for_each("case", LEVELS)
@for_each("sparser", LEARNED)
def test_learned_masks_meet_the_plan_and_then_stand_still(case: str, sparser: str) -> None:
    bench, outcome, seen = went(pruning(case, sparser=sparser, end=0.5))
    for tag, count in elements(bench).items():
        assert gone(seen[20][tag]) == count
        assert gone(outcome.arrays[tag] != 0) >= count  # a soft threshold may leave a zero at a place that is kept
        assert not (outcome.helped and outcome.arrays[tag][~seen[20][tag]].any())
        assert all(np.array_equal(now[tag], seen[20][tag]) for now in seen[20:])
    assert len(bench.engines) == 2


def test_probabilities_add_up_to_the_budget_after_every_step() -> None:
    def look(run, step):
        scores = [run.engine.weights[f"{tag}/score"] for tag in run.planned if f"{tag}/score" in run.engine.weights]
        return sum(float(score.sum(dtype=np.float64)) for score in scores) if scores else None

    spy = Spy(look)
    bench = Bench(Training(steps=40, batch=8), pruning("unstructured", sparser="probabilistic", schedule="linear"), spy)
    bench.run().go()
    size, goal = sum(row.weight.tensor.size for row in bench.planned.values()), sum(elements(bench).values())
    for step, total in enumerate(spy.seen[:24]):
        assert total <= size - goal * step / 24 + 0.01
        assert total >= 0.8 * (size - goal * step / 24)
    assert spy.seen[24:40] == [None] * 16


def test_the_masks_of_straight_through_follow_the_schedule() -> None:
    bench, _, seen = went(pruning("unstructured", sparser="straight-through", schedule="linear"))
    for step in range(24):
        for tag, row in bench.planned.items():
            assert gone(seen[step][tag]) == int(np.floor(step / 24 * row.drop + 0.5))


@for_each("steps", [1, 2, 3])
@for_each("sparser", ["mask", *LEARNED])
@for_each("window", [(0.0, 0.0), (0.0, 1.0), (0.5, 0.5), (1.0, 1.0)])
def test_the_shortest_runs_reach_the_goal(steps: int, sparser: str, window: tuple[float, float]) -> None:
    bench = Bench(
        Training(steps=steps, batch=8), pruning("unstructured", sparser=sparser, begin=window[0], end=window[1])
    )
    spy = Spy(masks)
    bench.modifiers = (*bench.modifiers, spy)
    outcome = bench.run().go()
    assert {tag: gone(array != 0) for tag, array in outcome.arrays.items()} == elements(bench)
    assert {tag: gone(mask) for tag, mask in spy.seen[steps - 1].items()} == elements(bench)


def test_a_level_that_cannot_rise_is_said() -> None:
    with refusing(OptionError):
        Bench(Pruning(pattern="2:4", schedule="cubic")).run()


def test_random_scores_are_pruned_exactly_too() -> None:
    bench, outcome, _ = went(pruning("unstructured", score="random"))
    assert {tag: gone(array != 0) for tag, array in outcome.arrays.items()} == elements(bench)


def test_a_dense_model_with_more_zeros_than_are_asked_for_keeps_them_masked_or_not() -> None:
    bench = Bench(Training(steps=10, batch=8), pruning("unstructured"))
    for array in bench.dense.values():
        array[:, ::2] = 0
    outcome = bench.run().go()
    assert all(gone(array != 0) >= count for array, count in zip(outcome.arrays.values(), elements(bench).values()))
