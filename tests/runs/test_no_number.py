"""A loss that is no number before the first update is the model's doing, and no rate would help."""

from __future__ import annotations

import numpy as np

from onnxsparse.errors import ModelError
from onnxsparse.recipes.modifiers.pruning import Pruning
from onnxsparse.recipes.modifiers.training import KeepBest, Training
from tests.messages import refusing
from tests.runs.net import Bench, NumpyEngine


class Overflowing(NumpyEngine):
    """Gives no number while anything is masked."""

    def _is_pruned(self) -> bool:
        return any(not mask.all() for mask in self.frozen.values())

    def step(self, batch) -> float:
        loss = super().step(batch)
        return np.inf if self._is_pruned() else loss

    def evaluate(self, batch):
        loss, outputs = super().evaluate(batch)
        return (np.nan if self._is_pruned() else loss), outputs


def test_a_model_that_overflows_when_it_is_pruned_is_refused() -> None:
    bench = Bench(Training(steps=6, batch=8), Pruning(pattern="2:4"), make=Overflowing)
    with refusing(ModelError):
        bench.run().go()


def test_a_pruned_start_that_is_no_number_is_said() -> None:
    """The masks come later here: the run ends with what it had."""
    late = Pruning(pattern="unstructured", sparsity="0.5", begin=0.9, end=0.9)
    bench = Bench(Training(steps=10, batch=8), late, KeepBest(retries=0), make=Overflowing)
    outcome = bench.run().go()
    assert any("right after pruning" in note for note in outcome.notes)
    assert not outcome.helped


class Empty(NumpyEngine):
    """Gives no number to anybody."""

    def dense(self, batch):
        return {name: values * np.nan for name, values in super().dense(batch).items()}

    def step(self, batch):
        raise AssertionError("nothing is trained")


def test_a_model_that_gives_no_number_is_refused_before_it_trains() -> None:
    bench = Bench(Training(steps=6, batch=8), Pruning(pattern="2:4"), make=Empty)
    with refusing(ModelError):
        bench.run().go()


def test_where_pruning_costs_nothing_no_lower_rate_is_tried() -> None:
    bench = Bench(Training(steps=6, batch=8), Pruning(pattern="unstructured", sparsity="0"), KeepBest(retries=3))
    outcome = bench.run().go()
    assert outcome.loss_untrained == 0
    assert outcome.attempts == 1
