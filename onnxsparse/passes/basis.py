"""Recognising weights that are fixed mathematics, not learned: to prune one is to break the model.

Each test looks for a property that trained weights do not have by accident:

    selection       every row has one non-zero, and the non-zeros are equal (identity, one-hot, channel shuffle)
    counting        a row 0, 1, 2, ... (the projection of a distribution onto its mean)
    interpolation   non-negative rows of few non-zeros that add up to the same number (resize matrices)
    kernel          channel by channel the same separable, symmetric, non-negative kernel (blur, bilinear)
    filterbank      non-negative rows, each one unimodal bump on a contiguous support (mel, triangular)
    transform       rows of cosines and sines under a window (DFT, STFT, CQT)
    linear phase    a long symmetric one-channel filter (low-pass)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnxsparse.math.values import Array

LARGEST = 1 << 24
LONG = 16


@np.errstate(invalid="ignore")  # a signalling NaN warns when it is cast or compared
def recognise(matrix: Array) -> str:
    """Name the fixed matrix that a weight (group, out, in, tap) is, or return an empty string."""
    if matrix.size < 4 or matrix.size > LARGEST:
        return ""
    data = np.asarray(matrix, np.float64)
    if not np.isfinite(data).all() or not data.any():
        return ""
    rows = data.transpose(0, 1, 3, 2).reshape(-1, data.shape[2]) if data.shape[3] == 1 else _signals(data)
    for test, name in _TESTS:
        if test(data, rows):
            return name
    return ""


@np.errstate(invalid="ignore")
def may_be_fixed(rows: Array) -> bool:
    """A cheap look at the first rows in memory: fixed matrices have one sign, or their rows oscillate."""
    if rows.min() >= 0 or rows.max() <= 0:
        return True
    return _some_oscillate(rows) or _some_oscillate(rows.T)


def _some_oscillate(rows: Array) -> bool:
    some = rows[:: max(1, len(rows) // 8)][:8]
    return rows.shape[1] >= 2 * LONG and _narrow(some.astype(np.float64), 0.8)


def _signals(data: Array) -> Array:
    """A convolution's filters as rows: taps are time when there is one input channel."""
    group, out, inputs, taps = data.shape
    return data.reshape(group * out, inputs * taps)


def _selection(_: Array, rows: Array) -> bool:
    if min(rows.shape) < 2:
        return False
    nonzero = rows != 0
    values = rows[nonzero]
    lone = (nonzero.sum(axis=1) == 1).all() or ((nonzero.sum(axis=0) == 1).all() and (nonzero.sum(axis=1) > 0).all())
    return bool(lone and np.ptp(values) == 0)


def _counting(data: Array, _: Array) -> bool:
    flat = data.reshape(-1)
    return data.shape[1] == data.shape[3] == 1 and flat.size >= 4 and bool((flat == np.arange(flat.size)).all())


def _interpolation(data: Array, rows: Array) -> bool:
    return data.shape[3] == 1 and (_interpolates(rows) or _interpolates(rows.T))


def _interpolates(rows: Array) -> bool:
    if min(rows.shape) < 4 or (rows < 0).any():
        return False
    sums, counts = rows.sum(axis=1), (rows != 0).sum(axis=1)
    sparse = counts.max() <= max(4, rows.shape[1] // 4) and counts.min() >= 1
    return bool(sparse and np.ptp(sums) <= 1e-4 * sums.max())


def _kernel(data: Array, _: Array) -> bool:
    side = round(data.shape[3] ** 0.5)
    if data.shape[3] < 4 or side * side != data.shape[3] or (data < 0).any():
        return False
    channelwise = data.any(axis=3).sum(axis=2).max() == 1
    if not channelwise:
        return False
    kernels = data.reshape(-1, side, side)
    used = kernels[kernels.reshape(len(kernels), -1).any(axis=1)]
    if len(used) < 2 or np.count_nonzero(used[0]) < side:
        return False
    same = np.abs(used - used[0]).max() <= 1e-6 * used[0].max()
    symmetric = np.allclose(used[0], used[0][::-1, ::-1], rtol=1e-6) and np.allclose(used[0], used[0].T, rtol=1e-6)
    return bool(same and symmetric and np.linalg.matrix_rank(used[0], tol=1e-6 * used[0].max()) == 1)


def _filterbank(data: Array, rows: Array) -> bool:
    return data.shape[3] == 1 and (_bumps(rows) or _bumps(rows.T))


def _bumps(rows: Array) -> bool:
    if rows.shape[0] < 8 or rows.shape[1] < LONG or (rows < 0).any():
        return False
    used = rows[rows.any(axis=1)]
    if len(used) < 8 or (used != 0).mean() > 0.5:
        return False
    rises = np.diff(np.concatenate([np.zeros((len(used), 1)), used, np.zeros((len(used), 1))], axis=1), axis=1)
    signs = np.sign(np.where(np.abs(rises) <= 1e-9 * used.max(), 0, rises))
    return all(_unimodal(row[row != 0]) for row in signs)


def _unimodal(signs: Array) -> bool:
    return int((np.diff(signs) != 0).sum()) <= 1


def _transform(data: Array, rows: Array) -> bool:
    if data.shape[2] != 1 and data.shape[3] != 1:
        return False
    return _oscillates(rows) or (data.shape[3] == 1 and _oscillates(rows.T))


def _oscillates(rows: Array) -> bool:
    if rows.shape[0] < 8 or rows.shape[1] < 2 * LONG:
        return False
    used = rows[np.abs(rows).max(axis=1) > 1e-6 * np.abs(rows).max()]
    return len(used) >= 0.75 * len(rows) and _narrow(used, 0.92)


def _narrow(rows: Array, share: float) -> bool:
    """Every row that is not empty has nearly all its energy in one narrow band, and the bands differ."""
    used = rows[rows.any(axis=1)]
    if not len(used):
        return False
    power = np.abs(np.fft.rfft(used, n=4 * rows.shape[1], axis=1)) ** 2
    power /= power.sum(axis=1, keepdims=True)
    peaks = power.argmax(axis=1)
    shares = [power[row, max(0, peak - 12) : peak + 13].sum() for row, peak in enumerate(peaks)]
    return bool(min(shares) > share and len(np.unique(peaks)) >= len(used) // 4)


def _linear_phase(data: Array, rows: Array) -> bool:
    if data.shape[0] * data.shape[1] > 4 or data.shape[2] != 1 or rows.shape[1] < LONG:
        return False
    return bool(np.abs(rows - rows[:, ::-1]).max() <= 1e-5 * np.abs(rows).max())


_TESTS: tuple[tuple[Callable[[Array, Array], bool], str], ...] = (
    (_counting, "counting row"),
    (_selection, "selection matrix"),
    (_interpolation, "interpolation matrix"),
    (_kernel, "fixed resampling kernel"),
    (_filterbank, "filterbank"),
    (_transform, "cosine and sine transform"),
    (_linear_phase, "linear-phase filter"),
)
