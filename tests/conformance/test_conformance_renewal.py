"""A mask that is renewed is the one that prune makes of the same numbers: every float32 weight of every model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs.builders import CASES
from graphs.expectations import EVERYTHING

from onnxsparse.options import SparsityOptions
from onnxsparse.planning.request import planned
from onnxsparse.sparsers import Choice, renew

osp: Any = pytest.importorskip("onnxsparse")
INSIDE = [name for name in CASES if not CASES[name].build().files]
RULES = [("unstructured", 0.7, "global"), ("unstructured", 0.5, None), ("2:4", None, None), ("block:4x1", 0.5, None)]


def options(pattern: str, sparsity: float | None, allocation: str | None) -> dict[str, Any]:
    given = {"pattern": pattern, "sparsity": sparsity, "allocation": allocation, "score": None, "seed": None}
    return {**given, "include": (), "exclude": (), "allow": EVERYTHING, "target": None}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0])
def test_renewed_is_pruned(rule: tuple[str, float | None, str | None]) -> None:
    wrong = [name for name in INSIDE if not renewed_is_pruned(name, rule)]
    assert not wrong


def renewed_is_pruned(name: str, rule: tuple[str, float | None, str | None]) -> bool:
    built = CASES[name].build()
    made, _ = planned(osp.load(built.model), None, None, SparsityOptions(**options(*rule)))
    weights = osp.load(osp.prune(built.model, **options(*rule)).model).weights
    pruned = {weight.name: weight for weight in weights}
    for row in made.rows:
        if row.pattern is None or row.weight.tensor.kind != "float32":
            continue
        weight = row.weight.tensor.read().copy()
        mask, before = np.ones(weight.shape, np.float32), weight.copy()
        score = made.rule.score.bind(row.name)
        done = renew(weight, mask, Choice(row.pattern, score, row.drop, row.use.matrix, row.use.restore))
        right = weight.tobytes() == pruned[row.name].tensor.read().tobytes() and done.grown.size == 0
        if not right or weight.tobytes() != np.where(mask == 1, before, np.float32(0)).tobytes():
            return False
    return True
