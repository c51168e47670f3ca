"""What a report must say about an expected tensor, and what a pruned model must hold."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from .case import Array, Expected
from .files import find
from .oracles import groups, indices, keep_n_of_m, scores_of

EVERYTHING = ["embedding", "stem", "depthwise", "small", "basis", "tied-embedding", "output"]

# What the text of a reason must speak of. An empty pattern asks only that there is a text.
REASONS = {
    "1-D": r"1-?D|one.dimension|dimension|vector",
    "two axes": r"axes|axis|along",
    "einsum not matrix form": r"einsum|matrix",
    "unsupported type": r"type|bit|pack|float8|sparse|quant|int",
    "unknown operator": r"operator|domain|known",
    "not traceable": r".",
    "blocked scale": r".",
}


def rows_of(report: Any, wanted: Expected) -> list[Any]:
    """The rows of that tensor. Names met twice have the scope before them; no name at all is known by its shape."""
    named = [row for row in report.rows if row.name == wanted.name or row.name.endswith("/" + wanted.name)]
    named = named if wanted.name else list(report.rows)
    return [row for row in named if tuple(row.shape) == wanted.shape]


def row_of(report: Any, wanted: Expected) -> Any:
    rows = rows_of(report, wanted)
    listing = [(row.name, tuple(row.shape)) for row in report.rows]
    assert len(rows) == 1, f"{wanted.name} {wanted.shape}: {len(rows)} rows; all rows: {listing}"
    return rows[0]


def uses_of(row: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Operator and axes of every use; a sum over one element has no axis worth a word."""
    return sorted({(use.op, tuple(sorted(use.reduction))) for use in row.uses if tuple(use.reduction)})


def wanted_uses(wanted: Expected) -> list[tuple[str, tuple[int, ...]]]:
    sums = [use for use in wanted.uses if use.view(wanted.real).shape[2] > 1]
    return sorted({(use.op, tuple(sorted(use.reduction))) for use in sums})


def explains(row: Any, wanted: Expected) -> bool:
    return (
        bool(row.reason) and re.search(REASONS[wanted.reason or "not traceable"], row.reason, re.IGNORECASE) is not None
    )


def one_partition(wanted: Expected, m: int) -> bool:
    """Whether all uses cut the tensor into the same groups."""
    cut = [groups(use.rows(indices(wanted.shape)), m) for use in wanted.uses]
    return all(one == cut[0] for one in cut[1:])


def keep_mask(wanted: Expected, n: int, m: int) -> Array:
    """What N:M keeps: by loops, along the first use (all agree)."""
    assert one_partition(wanted, m)
    return keep_n_of_m(scores_of(wanted.real), wanted.uses[0].rows(indices(wanted.shape)), n, m)


def values(model: onnx.ModelProto, wanted: Expected, folder: Path | None = None) -> Array:
    return find(model, wanted.name, wanted.shape).values(folder)


def is_masked_copy(before: Array, after: Array, keep: Array, zero: Array) -> str:
    """Empty if `after` is `before` with exactly the positions outside `keep` erased, else what is wrong."""
    blank = np.broadcast_to(np.asarray(zero, dtype=after.dtype), after.shape)
    if before.dtype != after.dtype or before.shape != after.shape:
        return f"{before.dtype}{before.shape} became {after.dtype}{after.shape}"
    if not np.array_equal(bits(before)[keep], bits(after)[keep]):
        return f"{int((bits(before)[keep] != bits(after)[keep]).sum())} kept values changed"
    wrong = bits(after)[~keep] != bits(np.ascontiguousarray(blank))[~keep]
    return f"{int(wrong.sum())} of {int((~keep).sum())} dropped values are not a written zero" if wrong.any() else ""


def bits(array: Array) -> Array:
    """Comparable bit for bit: +0.0 is not -0.0."""
    kinds = {2: np.uint16, 4: np.uint32, 8: np.uint64}
    return np.ascontiguousarray(array).view(kinds[array.itemsize]) if array.dtype.kind == "f" else array


def kept_dense(rows: Iterable[Any]) -> list[str]:
    return [row.name for row in rows if row.status == "dense"]
