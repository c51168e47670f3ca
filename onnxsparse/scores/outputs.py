"""A weight as rows: everything that belongs to one output, in double precision, in the order of the outputs."""

from __future__ import annotations

import numpy as np

from onnxsparse.values import Array, Values


def rows_of(values: Values) -> Array:
    """(outputs of all groups, inputs and taps)"""
    group, out, inputs, taps = values.shape
    rows: Array = np.asarray(values.real(), np.float64).reshape(group * out, inputs * taps)
    return rows


def spread(values: Values, rows: Array, importance: Array) -> Array:
    """The importance of each row for all its elements; rows that are zero already have none."""
    group, out, _, _ = values.shape
    alive = np.where(rows.any(axis=1), importance, 0.0)
    return np.broadcast_to(alive.reshape(group, out, 1, 1), values.shape)
