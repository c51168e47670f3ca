"""Scores that weigh by what comes in, against loops; without samples they are refused."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse import scores
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Reading, Values
from onnxsparse.planning.rule import Rule
from onnxsparse.scores import InputScore
from tests.messages import refusing

GROUP, OUT, IN, TAP = SHAPE = (2, 3, 4, 2)


def weight(seed: int = 0) -> tuple[Values, np.ndarray]:
    rng = np.random.default_rng(seed)
    norms = np.broadcast_to(rng.random((GROUP, 1, IN, TAP)) + 0.1, SHAPE)
    return Values(rng.standard_normal(SHAPE).astype(np.float32), Reading("float32")), norms


def scored(word: str, values: Values, norms: np.ndarray) -> np.ndarray:
    score = scores.parse(word)
    assert isinstance(score, InputScore)
    return score.of_inputs(norms).value(values)


def test_wanda_orders_each_output_by_weight_times_input() -> None:
    values, norms = weight()
    found = scored("wanda", values, norms)
    for group, out in np.ndindex(GROUP, OUT):
        products = np.abs(values.stored[group, out].astype(np.float64)) * norms[group, out]
        np.testing.assert_allclose(found[group, out], products / np.sqrt(np.square(products).sum()), rtol=1e-6)


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_ria_adds_the_shares_of_output_and_input(power: float) -> None:
    values, norms = weight()
    found = scored(f"ria:power={power}", values, norms)
    for group in range(GROUP):
        magnitude = np.abs(values.stored[group].astype(np.float64))
        share = magnitude / magnitude.sum(axis=(1, 2), keepdims=True)
        expected = (share + share / share.sum(axis=0)) * norms[group] ** power
        np.testing.assert_allclose(found[group], expected, rtol=1e-6)


def test_zeros_and_empty_outputs_have_no_importance() -> None:
    values, norms = weight()
    values.stored[0, 1] = 0
    for word in ("wanda", "ria"):
        found = scored(word, values, norms)
        assert np.isfinite(found).all()
        np.testing.assert_array_equal(found == 0, values.stored == 0)


@pytest.mark.parametrize("word", ["wanda", "ria", "obs"])
def test_without_samples_they_are_refused(word: str) -> None:
    assert scores.parse(word).needs == ("samples",)
    with refusing(OptionError):
        scores.parse(word).value(weight()[0])
    with pytest.raises(OptionError, match="data="):
        Rule.make(pattern="unstructured", sparsity=0.5, score=word).demand()
