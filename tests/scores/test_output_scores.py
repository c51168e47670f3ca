"""The scores of whole outputs, held against their formulas written out one output at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.linalg import norm

import onnxsparse as osp
from onnxsparse import patterns, scores
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Reading, Values

SHAPES = ((1, 8, 3, 9), (1, 12, 5, 1), (4, 3, 2, 4), (1, 2, 1, 1), (1, 1, 6, 1), (6, 1, 1, 9))
DISTANCES = {
    "l1": lambda a, b: norm(a - b, 1),
    "l2": lambda a, b: norm(a - b),
    "cosine": lambda a, b: 1 - (a @ b / (norm(a) * norm(b)) if norm(a) and norm(b) else 0),
}


def weight_of(shape, seed=0, zero=()):
    weight = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    weight.reshape(shape[0] * shape[1], -1)[list(zero)] = 0
    return weight


def values_of(weight):
    return Values(weight, Reading("float32"))


def rows_of(weight):
    return weight.reshape(weight.shape[0] * weight.shape[1], -1).astype(np.float64)


def mean_distances(rows, distance):
    """To all other rows; a row of zeros goes first."""
    return [
        np.mean([DISTANCES[distance](row, other) for j, other in enumerate(rows) if j != i] or [0]) if row.any() else 0
        for i, row in enumerate(rows)
    ]


def nuclear_drops(rows):
    whole = norm(rows, "nuc")
    return [whole - (norm(np.delete(rows, i, 0), "nuc") if len(rows) > 1 else 0) for i in range(len(rows))]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("distance", DISTANCES)
def test_fpgm_is_the_mean_distance_to_all_others(shape, distance):
    weight = weight_of(shape, zero=[1] if shape[0] * shape[1] > 2 else [])
    value = scores.parse(f"fpgm:distance={distance}").value(values_of(weight))
    assert value.shape == shape
    found = value.reshape(shape[0] * shape[1], -1)
    assert (found == found[:, :1]).all()
    np.testing.assert_allclose(found[:, 0], mean_distances(rows_of(weight), distance), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_nuclear_is_the_drop_without_an_output(shape):
    weight = weight_of(shape, zero=[1] if shape[0] * shape[1] > 2 else [])
    found = scores.parse("nuclear").value(values_of(weight)).reshape(shape[0] * shape[1], -1)[:, 0]
    np.testing.assert_allclose(found, nuclear_drops(rows_of(weight)), rtol=1e-7, atol=1e-7)


def test_nuclear_of_outputs_that_depend_on_each_other():
    """Copies, multiples, tiny ones, and a matrix of rank 1."""
    weight = weight_of((1, 10, 16, 1))
    weight[0, 1], weight[0, 2], weight[0, 3], weight[0, 4] = weight[0, 0], 2 * weight[0, 5], weight[0, 6] * 1e-6, 0
    for each in (weight, np.float32(weight[:, :1] * np.arange(10).reshape(1, 10, 1, 1))):
        found = scores.parse("nuclear").value(values_of(each))[0, :, 0, 0]
        np.testing.assert_allclose(found, nuclear_drops(rows_of(each)), rtol=1e-4, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(("l1", "l2", "cosine", "nuclear")), st.integers(1, 7))
def test_the_masks_are_those_of_the_formula(seed, kind, drop):
    weight = weight_of((1, 8, 4, 9), seed)
    formula = nuclear_drops(rows_of(weight)) if kind == "nuclear" else mean_distances(rows_of(weight), kind)
    score = scores.parse("nuclear" if kind == "nuclear" else f"fpgm:distance={kind}")
    keep = patterns.parse("filter").select(values_of(weight), score, drop)
    wanted = np.ones(8, bool)
    wanted[np.argsort(formula, kind="stable")[:drop]] = False
    np.testing.assert_array_equal(keep.all(axis=(0, 2, 3)), wanted)
    np.testing.assert_array_equal(keep.any(axis=(0, 2, 3)), wanted)


@pytest.mark.parametrize("text", ["fpgm:distance=l1", "fpgm:distance=l2", "fpgm:distance=cosine", "nuclear"])
def test_how_it_lies_in_memory_does_not_matter(text):
    weight, score = weight_of((1, 6, 8, 1)), scores.parse(text)
    turned = np.ascontiguousarray(weight[0, :, :, 0].T).T.reshape(1, 6, 8, 1)
    np.testing.assert_array_equal(score.value(values_of(weight)), score.value(values_of(turned)))
    assert scores.parse(score.text) == score
    assert (score.value(values_of(np.zeros((1, 4, 3, 1), np.float32))) == 0).all()


def test_large_and_small_numbers():
    for factor in (1e-30, 1e30):
        weight = weight_of((1, 8, 6, 9)) * np.float32(factor)
        for distance in DISTANCES:
            found = scores.parse(f"fpgm:distance={distance}").value(values_of(weight))[0, :, 0, 0]
            np.testing.assert_allclose(found, mean_distances(rows_of(weight), distance), rtol=1e-9)


def test_what_they_are_not_for(digits_cnn, tmp_path):
    with pytest.raises(OptionError, match="did you mean cosine"):
        scores.parse("fpgm:distance=cosin")
    with pytest.raises(OptionError, match="score fpgm is for pattern filter, not for 2:4"):
        osp.prune(digits_cnn, pattern="2:4", score="fpgm")
    path = tmp_path / "plan.yaml"
    osp.plan(digits_cnn, pattern="unstructured", sparsity=0.5, output=path)
    path.write_text(path.read_text().replace("score: magnitude", "score: nuclear"))
    with pytest.raises(OptionError, match="score nuclear is for pattern filter, not for unstructured"):
        osp.prune(digits_cnn, plan=path)


@pytest.mark.parametrize("text", ["fpgm", "fpgm:distance=l1", "nuclear"])
def test_filters_are_pruned_by_them(digits_cnn, text):
    made = osp.prune(digits_cnn, pattern="filter", sparsity=0.25, score=text)
    assert any(row.dropped for row in made.report.rows)
    assert osp.verify(made.proto).report.ok
