"""Random arrays for the tests of rewrites."""

from __future__ import annotations

import numpy as np

from onnxsparse.math.values import Array

_RANDOM = [np.random.default_rng(3)]


def restart(seed: int) -> None:
    """Begin a sequence of its own."""
    _RANDOM[0] = np.random.default_rng(seed)


def floats(*shape: int) -> Array:
    return _RANDOM[0].standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> Array:
    return (_RANDOM[0].random(shape) + 0.5).astype(np.float32)


def whole(*values: int) -> Array:
    return np.array(values, np.int64)
