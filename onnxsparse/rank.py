"""Exact choice of the k smallest keys without sorting them; among equal keys the earlier go first."""

from __future__ import annotations

import numpy as np

from onnxsparse.values import Array

CHUNK = 1 << 16


def smallest(keys: Array, count: int) -> Array:
    """True at the `count` smallest of a 1-D array."""
    chosen = np.zeros(keys.shape, dtype=bool)
    chosen[np.argsort(keys, kind="stable")[:count]] = True
    return chosen
