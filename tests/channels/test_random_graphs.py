"""Random graphs with every class in a random order: the same outputs, and the inverse gives the same bytes.

The long search is `random_run.py`, or the slow test here: ONNXSPARSE_SEARCH_COUNT and ONNXSPARSE_SEARCH_SEED bound it.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.channels import random_graphs, random_run

FEW, PARTS = 10, 4


def wrong_of(seeds: list[str]) -> tuple[list[str], Counter[str], int]:
    """What is wrong, how often each step was used, and in how many graphs columns moved."""
    wrong, used, moved = [], Counter[str](), 0
    for seed in seeds:
        found = random_run.tried(seed, 9)
        if found is not None:
            wrong += [f"{seed}: {one}" for one in found[0]]
            used.update(found[1])
            moved += bool(found[2])
    return wrong, used, moved


@pytest.mark.parametrize("part", range(PARTS))
def test_random_orders_keep_the_outputs(part: int) -> None:
    seeds = [f"short/{number}" for number in range(part * FEW, part * FEW + FEW)]
    wrong, used, moved = wrong_of(seeds)
    assert not wrong, "\n".join(wrong)
    assert moved >= FEW * 0.7, "hardly anything is permuted"
    assert sum(used.values()) >= FEW * 9 * 0.9, "the generator makes graphs that the runtime refuses"


def test_the_same_seed_makes_the_same_graph() -> None:
    first, second = random_graphs.make("same/1")[0], random_graphs.make("same/1")[0]
    assert first.model.SerializeToString() == second.model.SerializeToString()


def test_fewer_steps_are_the_first_ones() -> None:
    """What the search relies on to make a finding small."""
    whole = random_graphs.make("same/2", 8)[1]
    assert random_graphs.make("same/2", 3)[1] == whole[:3]


def test_every_step_is_among_the_random_graphs() -> None:
    used = Counter(name for number in range(400) for name in random_graphs.drawn(f"steps/{number}")[2])
    assert not set(random_graphs.STEPS) - set(used)


@pytest.mark.slow
def test_random_orders_of_many_graphs() -> None:
    count = int(os.environ.get("ONNXSPARSE_SEARCH_COUNT", "3000"))
    seed = os.environ.get("ONNXSPARSE_SEARCH_SEED", "long")
    wrong, _, moved = wrong_of([f"{seed}/{number}" for number in range(count)])
    assert not wrong, "\n".join(wrong)
    assert moved >= count * 0.7
