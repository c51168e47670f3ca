"""Fixed mathematics is recognised; trained and pruned weights are not."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.planning.defaults import may_be_fixed, recognise
from tests.cases import for_each

RANDOM = np.random.default_rng(11)


def linear(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows)[None, :, :, None]


def dft(length: int, window: np.ndarray) -> np.ndarray:
    time, frequency = np.arange(length), np.arange(length // 2 + 1)[:, None]
    angle = 2 * np.pi * frequency * time / length
    return np.concatenate([np.cos(angle), np.sin(angle)]) * window


def bilinear(size: int, to: int) -> np.ndarray:
    rows = np.zeros((to, size))
    for index in range(to):
        place = index * (size - 1) / (to - 1)
        low = min(int(place), size - 2)
        rows[index, low], rows[index, low + 1] = 1 - (place - low), place - low
    return rows


def mel(bands: int, bins: int) -> np.ndarray:
    edges = np.linspace(0, bins - 1, bands + 2)
    centre = np.arange(bins)
    rise = (centre - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - centre) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0, np.minimum(rise, fall))


FIXED = {
    "counting row": np.arange(16.0).reshape(1, 1, 16, 1),
    "selection matrix": linear(np.eye(16)[RANDOM.permutation(16)]),
    "interpolation matrix": linear(bilinear(16, 40)),
    "filterbank": linear(mel(20, 129)),
    "cosine and sine transform": dft(64, np.hanning(64)).reshape(1, 66, 1, 64),
    "linear-phase filter": np.sinc(np.linspace(-4, 4, 65)).reshape(1, 1, 1, 65),
    "fixed resampling kernel": np.tile(np.outer([1, 3, 3, 1], [1, 3, 3, 1]).reshape(1, 1, 1, 16) / 16.0, (8, 1, 1, 1)),
}


@pytest.mark.parametrize("name", FIXED)
def test_fixed_matrices_are_recognised(name: str) -> None:
    assert recognise(FIXED[name].astype(np.float32)) == name


@pytest.mark.parametrize("window", [np.ones(128), np.hanning(128), np.hamming(128)], ids=["none", "hann", "hamming"])
def test_a_transform_stored_along_either_axis_is_recognised(window: np.ndarray) -> None:
    rows = dft(128, window).astype(np.float32)
    assert recognise(linear(rows)) == recognise(linear(rows.T)) == "cosine and sine transform"
    assert may_be_fixed(rows)
    assert may_be_fixed(np.ascontiguousarray(rows.T))


@for_each("sparsity", [0.0, 0.5, 0.9])
@for_each("shape", [(1, 64, 64, 1), (1, 64, 32, 9), (32, 1, 1, 9), (1, 32, 1, 49), (1, 16, 1, 400)])
def test_trained_weights_are_not(shape: tuple[int, ...], sparsity: float) -> None:
    weight = RANDOM.standard_normal(shape)
    weight[RANDOM.random(shape) < sparsity] = 0
    assert recognise(weight.astype(np.float32)) == ""


@pytest.mark.parametrize("value", [0.0, 1.0, np.nan, np.inf])
def test_weights_of_one_value_are_not(value: float) -> None:
    assert recognise(np.full((1, 16, 16, 9), value, np.float32)) == ""
