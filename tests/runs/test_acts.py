"""Acts in a run: made and bound once, as before their first step in every attempt, and with arrays in a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import onnxsparse as osp
from onnxsparse.acts.act import Act
from onnxsparse.acts.trainee import Trainee
from onnxsparse.engines.engine import Batch
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.errors import OptionError
from onnxsparse.recipes.modifiers.magnitude import GMPruningModifier, Gradual
from onnxsparse.recipes.modifiers.modifier import Modifier
from onnxsparse.recipes.modifiers.pruning import Pruning
from onnxsparse.recipes.modifiers.training import KeepBest, Objective, Training
from tests.epochs.arrays import Arrays
from tests.runs.test_by_epochs import GRADUAL, levels, ran

TOO_FAST = "- !SetLearningRateModifier {learning_rate: 0.9}\n"


def test_an_act_is_made_and_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, make, bind = Counter[str](), GMPruningModifier.act, Gradual.bind

    def made(self: Any) -> Any:
        calls["made"] += 1
        return make(self)

    def bound(self: Any, params: Any) -> None:
        calls["bound"] += 1
        bind(self, params)

    monkeypatch.setattr(GMPruningModifier, "act", made)
    monkeypatch.setattr(Gradual, "bind", bound)
    outcome, _ = ran(GRADUAL + TOO_FAST, KeepBest(checks=2, retries=2))
    assert outcome.attempts > 1
    assert calls == {"made": 1, "bound": 1}


def test_every_attempt_begins_as_the_first_one() -> None:
    let_go = GRADUAL.replace("end_epoch: 3", "end_epoch: 2\n    leave_enabled: false")
    held = "- !ConstantPruningModifier {params: __ALL__, start_epoch: 1}\n"
    look = lambda run, step: (run.attempt, step, levels(run, step))  # noqa: E731
    outcome, seen = ran(let_go + held + TOO_FAST, KeepBest(checks=2, retries=2), look=look)
    assert outcome.attempts == 3
    second, third = ([one[1:] for one in seen if one[0] == attempt] for attempt in (1, 2))
    assert second == third
    assert second[-1] == (15, [0.8, 0.8])


def test_what_a_users_loop_steps_is_not_stepped_here() -> None:
    trainee: Trainee = Arrays({"a.weight": np.ones((4, 4))})
    for verb in (lambda: trainee.step(Batch({})), trainee.update, lambda: trainee.weights, lambda: trainee.frozen):
        with pytest.raises(OptionError, match="a loop of yours"):
            verb()


@dataclass(frozen=True)
class Counting(Modifier):
    """Counts steps in an array that a checkpoint holds."""

    name: ClassVar[str] = "counting"
    seen: ClassVar[list[int]] = []

    def start(self, run: Any) -> Act:
        return CountingAct(self.seen)


class CountingAct(Act):
    def __init__(self, seen: list[int]) -> None:
        self._seen, self._steps = seen, np.zeros(1, np.int64)

    def after_step(self, trainee: Trainee, step: int) -> None:
        self._steps += 1

    def finish(self, trainee: Trainee) -> None:
        self._seen.append(int(self._steps[0]))

    def arrays(self) -> Mapping[str, np.ndarray]:
        return {"counting/steps": self._steps}

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._steps[...] = arrays["counting/steps"]


@pytest.mark.skipif(not ort_library.available(), reason="needs onnxruntime-training")
def test_a_checkpoint_holds_the_arrays_of_an_act(digits_cnn: Path, tmp_path: Path) -> None:
    data = {"x": np.random.default_rng(0).standard_normal((128, 1, 8, 8)).astype(np.float32)}
    given = Counting()
    pruning = Pruning(pattern="unstructured", sparsity=0.5)
    recipe = osp.Recipe((Training(steps=4, batch=32), Objective(), pruning, KeepBest(retries=0), given))
    for resume in (False, True):
        osp.finetune(digits_cnn, data=data, recipe=recipe, checkpoint=tmp_path / "run", resume=resume, engine="ort")
    assert given.seen == [4, 4]
