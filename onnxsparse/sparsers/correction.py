"""What is kept of a weight, scaled and shifted so that every output keeps its mean and its standard deviation.

With kept numbers w of n in all, k kept, and new ones a w + b: the sum over all places has to be n mean, and the sum of
squares n (std^2 + mean^2). So b = (n mean - a S1) / k with S1 = sum(w), S2 = sum(w^2), and

    a^2 (S2 - S1^2 / k) = n (std^2 + mean^2) - (n mean)^2 / k

Where no number does that (too few are kept, or all are alike) the output stays as it is.
"""

from __future__ import annotations

import numpy as np

from onnxsparse.values import Array

ALIKE = 1e-12


def corrected(weight: Array, keep: Array) -> Array:
    """Rows are outputs; `keep` is True where a number stays. Everything else is +0.0."""
    wide, kept = weight.astype(np.float64), np.where(keep, weight, 0).astype(np.float64)
    n, k = wide.shape[1], np.count_nonzero(keep, axis=1)
    mean, first, second = wide.mean(axis=1), kept.sum(axis=1), np.square(kept).sum(axis=1)
    some = np.maximum(k, 1)
    wanted = np.square(wide).sum(axis=1) - np.square(n * mean) / some
    spread = second - np.square(first) / some
    possible = (k > 1) & (spread > ALIKE * second) & (wanted >= 0)
    scale = np.sqrt(np.where(possible, wanted, 1) / np.where(possible, spread, 1))
    shift = np.where(possible, (n * mean - scale * first) / some, 0)
    made = np.where(keep, kept * scale[:, None] + shift[:, None], 0)
    return np.where(possible[:, None], made, kept).astype(weight.dtype)
