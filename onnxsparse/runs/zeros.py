"""The zeros that a run is to make: what its recipe asks a plan for, and how many they are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from onnxsparse.epochs.planning import ByEpochs, by_epochs
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.modifiers.pruning import Pruning
from onnxsparse.modifiers.scheduled import Scheduled
from onnxsparse.modifiers.training import Training
from onnxsparse.options import Masks, Path, SparsityOptions
from onnxsparse.passes.plan import PlanRow
from onnxsparse.patterns.nm import NM
from onnxsparse.recipes import Recipe


def zeros_by_epochs(model: Model, recipe: Recipe, plan: Path | None, masks: Masks | None) -> ByEpochs | None:
    """What modifiers that act by epochs mean in a model, where the recipe has some."""
    timed = [one for one in recipe.modifiers if isinstance(one, Scheduled)]
    if not timed:
        return None
    for name, value in (("--plan", plan), ("--masks", masks)):
        if value is not None:
            raise OptionError(f"the recipe says what is pruned; leave {name} out")
    return by_epochs(model, timed)


def asked_zeros(pruning: Pruning, plan: Path | None, masks: Masks | None, training: Training) -> SparsityOptions:
    """What the pruning asks for. The allocation is Erdős–Rényi where there is a choice and nobody made one."""
    allocation = pruning.allocation
    free = plan is None and masks is None and pruning.pattern is not None
    if allocation is None and free and str(pruning.pattern).partition(":")[0] in ("unstructured", "block"):
        allocation = "erk"
    seed = training.seed if pruning.score == "random" else None
    return SparsityOptions(
        pruning.pattern, pruning.target, pruning.sparsity, allocation, pruning.score,
        pruning.include, pruning.exclude, pruning.allow, seed,
    )  # fmt: skip


def pruned_share(planned_rows: Mapping[str, PlanRow]) -> float:
    """The share of all planned elements that go."""
    size = sum(row.weight.tensor.size for row in planned_rows.values())
    gone = sum(_gone(row) for row in planned_rows.values())
    return gone / size if size else 0.0


def _gone(row: PlanRow) -> float:
    if row.keep is not None:
        return float(row.keep.size - np.count_nonzero(row.keep))
    if isinstance(row.pattern, NM):
        return (row.weight.tensor.size - row.ragged) * (row.pattern.m - row.pattern.n) / row.pattern.m
    assert row.pattern is not None
    return float(row.pattern.dropped(row.use.shape4, row.drop))
