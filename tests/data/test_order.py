"""The order of the batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxsparse.data import Order, hold_out
from onnxsparse.errors import OptionError

COUNTS, BATCHES, SEEDS = st.integers(1, 60), st.integers(1, 20), st.integers(0, 2**64 - 1)


@given(COUNTS, BATCHES, SEEDS, st.integers(0, 5))
def test_an_epoch_holds_every_sample_at_most_once(count: int, batch: int, seed: int, epoch: int) -> None:
    order = Order(count, batch, seed)
    steps = range(epoch * order.per_epoch, (epoch + 1) * order.per_epoch)
    rows = np.concatenate([order.rows(step) for step in steps])
    assert {order.epoch(step) for step in steps} == {epoch}
    assert len(rows) == batch * order.per_epoch
    assert 0 <= rows.min() <= rows.max() < count
    if count >= batch:
        assert len(set(rows.tolist())) == len(rows)
        assert count - len(rows) < batch
    else:
        assert set(rows.tolist()) == set(range(count))


@given(COUNTS, BATCHES, SEEDS, st.lists(st.integers(0, 40), max_size=8))
def test_any_batch_can_be_asked_for(count: int, batch: int, seed: int, steps: list[int]) -> None:
    order = Order(count, batch, seed)
    for step in steps:
        assert order.rows(step).tolist() == Order(count, batch, seed).rows(step).tolist()


def test_epochs_and_seeds_differ_and_leave_out_others() -> None:
    order = Order(103, 50, seed=3)
    epochs = [np.concatenate([order.rows(2 * epoch), order.rows(2 * epoch + 1)]) for epoch in range(8)]
    left_out = [frozenset(range(103)) - frozenset(rows.tolist()) for rows in epochs]
    assert {len(rows) for rows in left_out} == {3}
    assert len(set(left_out)) == 8
    assert len({tuple(rows.tolist()) for rows in epochs}) == 8
    assert Order(103, 50, seed=4).rows(0).tolist() != order.rows(0).tolist()


def test_epochs_are_not_shifted_forms_of_each_other() -> None:
    order = Order(1000, 1000)
    first, second = order.rows(0), order.rows(1)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.15
    assert max(np.mean(first[lag:] == second[: 1000 - lag]) for lag in range(12)) < 0.02


def test_the_order_is_the_same_on_every_machine() -> None:
    assert Order(10, 5, seed=1).rows(0).tolist() == [3, 5, 2, 9, 7]


def test_rows_may_be_named() -> None:
    rows = np.array([3, 8, 11, 40])
    order = Order(rows, 2, seed=5)
    assert sorted([*order.rows(0).tolist(), *order.rows(1).tolist()]) == rows.tolist()


@given(st.integers(1, 200), st.integers(0, 250), SEEDS)
def test_what_is_held_out(total: int, count: int, seed: int) -> None:
    training, probe = hold_out(total, count, seed)
    if total > 1:
        assert sorted([*training.tolist(), *probe.tolist()]) == list(range(total))
        assert len(probe) == min(count, total // 2)
    assert len(training)
    assert probe.tolist() == sorted(probe.tolist())
    assert hold_out(total, count, seed)[1].tolist() == probe.tolist()


def test_numbers_that_mean_nothing() -> None:
    for make in (
        lambda: Order(0, 3),
        lambda: Order(3, 0),
        lambda: Order(3, 3, -1),
        lambda: hold_out(0, 1),
        lambda: hold_out(4, -1),
    ):
        with pytest.raises(OptionError):
            make()
