"""Several acts that mask the same parameter: the zeros of all of them count."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from onnxsparse.acts.trainee import SharedMasks
from tests.epochs.arrays import Arrays, run
from tests.epochs.test_acts import made

OPTIONS = {"init_sparsity": 0.05, "update_frequency": 1, "params": "__ALL_PRUNABLE__"}
FIRST = {**OPTIONS, "start_epoch": 0, "end_epoch": 2, "final_sparsity": 0.8}
SECOND = {**OPTIONS, "start_epoch": 1, "end_epoch": 3, "final_sparsity": 0.6}


def host() -> Arrays:
    return Arrays({"a.weight": np.random.default_rng(0).standard_normal((20, 20)).astype(np.float32)})


def share(one: Arrays) -> float:
    mask = one.masks.get("a.weight")
    return 0.0 if mask is None else 1 - float(mask.mean())


def levels(*acts: Any) -> list[float]:
    one, seen = host(), []
    run(one, list(acts), 5, seen=lambda _: seen.append(round(share(one), 4)))
    return [seen[epoch * 4] for epoch in range(5)]


def test_a_second_one_lets_no_zeros_go() -> None:
    found = levels(made("GMPruningModifier", **FIRST), made("MagnitudePruningModifier", **SECOND))
    assert found == sorted(found)
    assert found[2:] == [0.8, 0.8, 0.8]


def test_a_second_one_that_wants_more_has_it() -> None:
    more = {**SECOND, "final_sparsity": 0.9}
    assert levels(made("GMPruningModifier", **FIRST), made("MagnitudePruningModifier", **more))[-1] == 0.9


def test_what_is_let_go_is_let_go_for_one_alone() -> None:
    free = made("GMPruningModifier", **{**FIRST, "leave_enabled": False})
    stays = made("MagnitudePruningModifier", **{**SECOND, "init_sparsity": 0.3})
    assert levels(free, stays)[-1] == 0.6


def test_dense_phases_hold_what_another_holds() -> None:
    phases = {"start_epoch": 0, "end_epoch": 5, "update_frequency": 1, "params": "__ALL_PRUNABLE__"}
    found = levels(
        made("ACDCPruningModifier", **phases, compression_sparsity=0.9), made("MagnitudePruningModifier", **FIRST)
    )
    assert found[1] == 0.9
    assert found[2] == 0.8


def test_states_go_through_json() -> None:
    first, keep = SharedMasks(), np.random.default_rng(1).random(101) < 0.3
    for _ in range(2):
        first.add(["a"])
    first.put("a", 0, keep)
    first.put("a", 1, ~keep)
    again = SharedMasks()
    for _ in range(2):
        again.add(["a"])
    again.restore(json.loads(json.dumps(first.state())), {"a": 101})
    assert (again.own("a", 0) == keep).all()
    assert (again.release("a", 0) == ~keep).all()
    assert again.release("a", 1) is None
