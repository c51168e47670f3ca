"""Errors that add up over the positions of a sample: estimates, least squares, and what it gains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnxsparse as osp
from onnxsparse.calibration import pooling
from onnxsparse.calibration.pooling import COUNTS, Energies, drawn_together
from onnxsparse.calibration.statistics import LayerMoments
from onnxsparse.engines.inference import Session
from onnxsparse.engines.ort import library
from onnxsparse.math.values import Array
from onnxsparse.solvers.quadratic import Quadratic
from onnxsparse.solvers.rounds import Layer
from tests.calibration.nets import conv_net, samples


def drawn(seed: int, count: int = 12, places: int = 5, inputs: int = 4, outputs: int = 3) -> tuple[Array, Array, Array]:
    """Inputs that have much in common within a sample, what is wanted of them, and dense weights."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, 1, inputs)) + rng.standard_normal((count, places, inputs)) + 0.5
    dense = rng.standard_normal((outputs, inputs))
    x = rows.reshape(-1, inputs)
    return x, x @ dense.T + rng.standard_normal((len(x), outputs)), dense


@given(st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_the_mean_square_is_that_of_errors_and_of_their_means(seed: int, share: float) -> None:
    errors = drawn(seed)[1]
    means = errors.reshape(12, 5, -1).mean(axis=1)
    wanted = (1 - share) * np.square(errors).mean(axis=0) + share * np.square(means).mean(axis=0)
    np.testing.assert_allclose(np.square(drawn_together(errors, 12, share)).mean(axis=0), wanted, rtol=1e-12)


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 0.95))
def test_weights_are_those_of_lstsq_with_the_means_as_more_rows(seed: int, share: float) -> None:
    x, y, dense = drawn(seed)
    sums = LayerMoments(4, 3)
    sums.add(drawn_together(x, 12, share), drawn_together(y, 12, share))
    layer = Layer(dense, [Quadratic.of(np.arange(3), sums, True)], np.ones(3), 1e-12)
    (refit,) = layer.refits()
    mask = np.array([[True, True, False, True]] * 3)
    rows, _ = refit.under(mask, dense, False)
    both = [np.hstack([part, np.ones((len(part), 1))]) for part in (x, x.reshape(12, 5, -1).mean(axis=1))]
    sizes = (1 - share) ** 0.5, (5 * share) ** 0.5
    matrix = np.vstack([part * size for part, size in zip(both, sizes)])[:, [0, 1, 3, 4]]
    target = np.vstack([part * size for part, size in zip((y, y.reshape(12, 5, -1).mean(axis=1)), sizes)])
    found = np.linalg.lstsq(matrix, target, rcond=None)[0]
    near = 1e-4  # the least ridge that makes up for rounding
    np.testing.assert_allclose(rows[:, [0, 1, 3]], found[:3].T, rtol=near, atol=near)
    np.testing.assert_allclose(layer.bias(rows), found[3], rtol=near, atol=near)


def test_rows_that_are_no_samples_or_not_finite_stay() -> None:
    rows = drawn(0)[0]
    for count, share in ((7, 0.5), (0, 0.5), (len(rows), 0.5), (12, 0.0)):
        assert drawn_together(rows, count, share) is rows
    rows[3, 1] = np.nan
    assert drawn_together(rows, 12, 0.5) is rows


def energies(gradients: Array) -> Energies:
    """Of gradients (samples, positions, outputs), in two batches."""
    found = Energies(gradients.shape[2])
    for part in np.split(gradients, 2):
        rows = part.reshape(-1, gradients.shape[2])
        found.add(np.arange(gradients.shape[2]), rows, len(part), 1 / len(gradients))
    return found


def test_what_is_alike_in_all_positions_is_told_from_what_is_not() -> None:
    """Against what the gradients were drawn with, to what so many samples tell."""
    rng, means, rests, places = np.random.default_rng(0), np.array([0.5, 0.0, 2.0]), np.array([1.0, 1.0, 0.5]), 6
    alike, other = rng.standard_normal((20_000, 1, 3)), rng.standard_normal((20_000, places, 3))
    rows, share = energies(means * alike + rests * other).split()
    wanted = [places * rests**2, COUNTS * places**2 * means**2]
    np.testing.assert_allclose(rows, sum(wanted), rtol=0.05, atol=0.05)
    assert share == pytest.approx(wanted[1].sum() / (wanted[0] + wanted[1]).sum(), rel=0.03)


def test_independent_positions_and_single_ones_have_no_share() -> None:
    gradients = np.random.default_rng(1).standard_normal((4_000, 8, 2))
    for own in (gradients, gradients[:, :1]):
        found = energies(own)
        rows, share = found.split()
        assert share < 0.02
        np.testing.assert_allclose(rows, np.square(own).sum(axis=1).mean(axis=0), rtol=0.05)
        np.testing.assert_allclose(found.plain, np.square(own).sum(axis=1).mean(axis=0))


def outputs(model: onnx.ModelProto, x: Array) -> Array:
    return np.asarray(Session(model).run({"x": x})["y"])


@pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
def test_a_net_that_pools_keeps_its_outputs_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: dict[float, list[float]] = {}
    for seed in range(2):
        net = conv_net(tmp_path / f"{seed}.onnx", seed)
        data = samples(tmp_path / f"{seed}.npz", 96, seed + 10)
        with np.load(samples(tmp_path / "fresh.npz", 300, seed + 50)) as file:
            x = file["x"]
        dense = outputs(onnx.load(net), x)
        for counts in (0.0, COUNTS):
            monkeypatch.setattr(pooling, "COUNTS", counts)
            options: dict[str, Any] = {"pattern": "unstructured", "sparsity": 0.85, "exclude": ["w1"]}
            made = osp.prune(net, data=str(data), allow=["stem", "small", "output"], workers=1, **options)
            assert made.model is not None
            lost.setdefault(counts, []).append(float(np.square(outputs(made.model, x) - dense).mean()))
    with_means, without = np.log(lost[COUNTS]).mean(), np.log(lost[0.0]).mean()
    assert with_means < without - 0.1  # 0.29 as it is
