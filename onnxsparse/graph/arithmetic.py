"""The arithmetic of shapes: what exporters compute a Reshape's target or a Slice's bounds with.

Only small arrays of integers are evaluated, by operators that do nothing else than move or combine them; anything
else has no value here, and whoever needed it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Optional

import numpy as np

from onnxsparse.graph.attributes import Attributes
from onnxsparse.graph.storage import Array

LARGEST = 1024

Rule = Callable[[Sequence[Array], Attributes], Optional[Array]]


def evaluate(operator: str, arrays: Sequence[Array], attributes: Attributes) -> Array | None:
    """The value of one node whose inputs are small arrays of integers, or None."""
    rule = _RULES.get(operator)
    if rule is None or not arrays or any(array.size > LARGEST or array.dtype.kind not in "iub" for array in arrays):
        return None
    try:
        with np.errstate(all="ignore"):
            result = rule(arrays, attributes)
    except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError):
        return None  # arguments that do not fit together: the runtime will say so
    return None if result is None or result.size > LARGEST else result


def _axes(arrays: Sequence[Array], attributes: Attributes, index: int) -> list[int] | None:
    if len(arrays) > index:
        return [int(axis) for axis in arrays[index].reshape(-1)]
    return attributes.integers("axes")


def _concat(arrays: Sequence[Array], attributes: Attributes) -> Array | None:
    return np.concatenate(list(arrays), axis=attributes.integer("axis"))


def _gather(arrays: Sequence[Array], attributes: Attributes) -> Array | None:
    data, indices = arrays
    return np.asarray(np.take(data, indices.astype(np.int64), axis=attributes.integer("axis")))


def _unsqueeze(arrays: Sequence[Array], attributes: Attributes) -> Array | None:
    axes = _axes(arrays, attributes, 1)
    return np.expand_dims(arrays[0], tuple(axes)) if axes else None


def _squeeze(arrays: Sequence[Array], attributes: Attributes) -> Array | None:
    axes = _axes(arrays, attributes, 1)
    return np.squeeze(arrays[0], None if axes is None else tuple(axes))


def _slice(arrays: Sequence[Array], attributes: Attributes) -> Array | None:
    """Shapes are lists, so only the first axis matters."""
    bounds = [[int(value) for value in array.reshape(-1)] for array in arrays[1:]]
    starts = bounds[0] if bounds else attributes.integers("starts") or []
    ends = bounds[1] if len(bounds) > 1 else attributes.integers("ends") or []
    step = bounds[3][0] if len(bounds) > 3 else 1
    return arrays[0][starts[0] : ends[0] : step] if arrays[0].ndim == 1 and len(starts) == len(ends) == 1 else None


def _divide(arrays: Sequence[Array], _: Attributes) -> Array | None:
    """Integers are divided towards zero."""
    left, right = arrays
    return np.asarray(np.trunc(left / right).astype(left.dtype)) if right.all() else None


_RULES: dict[str, Rule] = {
    "Identity": lambda arrays, _: arrays[0],
    "Cast": lambda arrays, attributes: arrays[0] if attributes.integer("to") in (6, 7) else None,
    "Concat": _concat,
    "Gather": _gather,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Slice": _slice,
    "Reshape": lambda arrays, _: arrays[0].reshape([int(dim) for dim in arrays[1].reshape(-1)]),
    "Add": lambda arrays, _: np.asarray(arrays[0] + arrays[1]),
    "Sub": lambda arrays, _: np.asarray(arrays[0] - arrays[1]),
    "Mul": lambda arrays, _: np.asarray(arrays[0] * arrays[1]),
    "Div": _divide,
    "ReduceProd": lambda arrays, _: np.asarray(arrays[0].prod()),
}
