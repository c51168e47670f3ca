"""Proof of gradients by themselves, on losses written in numpy: kinks do not look like errors, and errors are found."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.engines.ort import library

if not library.available():
    pytest.skip("needs onnxruntime-training", allow_module_level=True)

from onnxsparse.engines.ort.prove import NOISES, prove, shaken

AWAY = 0.006  # of the size of the weight


class Written:
    """A session of one weight: its loss is much larger than what it changes, and has a kink near the moved weight."""

    def __init__(self, base: float, factor: float = 1.0) -> None:
        self.weights = {"w": np.random.default_rng(0).standard_normal(400).astype(np.float32)}
        self.statistics: tuple[str, ...] = ()
        self.of_the_batch = False
        self.gradients: dict[str, np.ndarray] = {}
        self._base, self._factor = base, factor
        self._middle = shaken(self.weights["w"], "w", NOISES[0]).astype(np.float64)
        self._way = self._middle / np.sum(self._middle**2)  # a step of 0.01 along it is 0.01

    def forget_gradients(self) -> None:
        self.gradients = {}

    def _gone(self) -> float:
        return float((self.weights["w"].astype(np.float64) - self._middle) @ self._way)

    def step(self, feed: object) -> float:
        slope = 2.0 if self._gone() > AWAY else 1.0
        self.gradients = {"w": (self._factor * slope * self._way).astype(np.float32)}
        return self.evaluate(feed)[0]

    def evaluate(self, feed: object) -> tuple[float]:
        gone = self._gone()
        return (self._base + gone + max(gone - AWAY, 0.0),)


@pytest.mark.parametrize("base", [1.0, 100.0, 1000.0])
def test_kinks_are_no_wrong_gradients(base: float) -> None:
    assert prove(Written(base), [{}]).wrong == []  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [0.5, -1.0, 1.6, 3.0])
@pytest.mark.parametrize("base", [1.0, 100.0])
def test_a_wrong_factor_is_found(base: float, factor: float) -> None:
    assert prove(Written(base, factor), [{}]).wrong == ["w"]  # type: ignore[arg-type]
