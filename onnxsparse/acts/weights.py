"""Weight snapshots of a model in training: dense, pruned at once, as it is stored, as it is delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from onnxsparse import sparsers
from onnxsparse.engines.engine import Batch, Engine, LiveArrays, Spec
from onnxsparse.errors import ModelError
from onnxsparse.math.values import Array
from onnxsparse.planning.plan import PlanRow
from onnxsparse.scores import Score
from onnxsparse.sparsers.mask_updates import Choice, hide, renew, write

Rows = Mapping[str, PlanRow]


def stored(engine: LiveArrays) -> list[str]:
    """Tags of stored tensors, without what sparsers train beside them."""
    return [key for key in engine.weights if "/" not in key]


def live(engine: LiveArrays, rows: Rows) -> list[tuple[str, PlanRow]]:
    """The planned weights that train."""
    return [(tag, row) for tag, row in rows.items() if tag in engine.weights]


def choice(row: PlanRow, score: Score, drop: int) -> Choice:
    """How the places of a planned weight are chosen when so many units go."""
    assert row.pattern is not None
    return Choice(row.pattern, score.bind(row.name), drop, row.use.matrix, row.use.restore)


def make_dense(engine: Engine, spec: Spec, start: Callable[[str], Array]) -> None:
    """The dense model, with open masks, nothing learned and nothing remembered."""
    for tag in stored(engine):
        engine.weights[tag][...] = start(tag)
    for tag, text in spec.sparsers.items():
        if tag in engine.weights:
            for role, array in sparsers.parse(text).trained(engine.weights[tag]).items():
                engine.weights[f"{tag}/{role}"][...] = array
    for key in engine.weights:
        engine.clear_moments(key)
    for key, array in engine.frozen.items():
        if key.endswith("/mask"):  # what else is frozen, a sparser writes before the step that reads it
            array[...] = 1
    engine.discard_gradients()


def demand_numbers(engine: Engine, probe: Iterable[Batch]) -> None:
    """Where the dense model gives none, no training is ever seen to help."""
    dense = (values for batch in probe for values in engine.dense(batch).values())
    if not any(np.isfinite(values).any() for values in dense):
        raise ModelError(
            "for the samples held out the model gives no finite number, before it is pruned; look at the data, or at "
            "the model"
        )


def prune_at_once(engine: LiveArrays, rows: Rows, score: Score) -> None:
    """Write the masks of the plan, and the zeros under them."""
    for tag, row in live(engine, rows):
        weight, mask = engine.weights[tag], engine.frozen[f"{tag}/mask"]
        if row.keep is not None:
            write(weight, mask, row.keep.reshape(-1))
        else:
            renew(weight, mask, choice(row, score, row.drop))


def baked(engine: LiveArrays, tag: str, into: Array | None = None) -> Array:
    """The numbers that are stored of a tensor: +0.0 where its mask says so."""
    weight, mask = engine.weights[tag], engine.frozen.get(f"{tag}/mask")
    made = np.empty(weight.shape, np.float32) if into is None else into
    made[...] = weight
    if mask is not None:
        hide(made, mask)
    return made


def show(engine: LiveArrays, arrays: Mapping[str, Array], rows: Rows) -> None:
    """Make the network that of these stored numbers, and of scales that it rounds by: the zeros are in the weights."""
    for tag, array in arrays.items():
        (engine.weights if tag in engine.weights else engine.frozen)[tag][...] = array
    for tag, _ in live(engine, rows):
        engine.frozen[f"{tag}/mask"][...] = 1


def sparsity(engine: LiveArrays, rows: Rows) -> float | None:
    """The share of masked places; None where the graph has no masks."""
    keys = [f"{tag}/mask" for tag, _ in live(engine, rows)]
    masks = [engine.frozen[key] for key in keys if key in engine.frozen]
    size = sum(mask.size for mask in masks)
    return round(1 - sum(int(np.count_nonzero(mask)) for mask in masks) / size, 6) if size else None
