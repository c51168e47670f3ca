"""Blocks, filters and channels fall as wholes; allocations share the zeros out as the slow references do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs.builders import CASES, Built, Expected
from graphs.expectations import EVERYTHING, is_masked_copy, values
from graphs.files import Stored, differences, find, stored_tensors
from graphs.oracles import keep_global, scores_of

from tests.cases import for_each

osp: Any = pytest.importorskip("onnxsparse")


def test_filter_and_channel_never_drop_all() -> None:
    for pattern in ("filter", "channel"):
        built = CASES["conv_2d"].build()
        result = osp.prune(built.model, pattern=pattern, sparsity=0.999, allow=EVERYTHING)
        assert values(result.model, built.expected[0]).any()


@for_each("sparsity", [0.3, 0.8, 0.95])
@for_each(
    "name",
    [
        "opset_17",
        "function_called_with_two_weights",
        "lstm_forward",
        "equal_tensors_under_two_names",
        "if_with_initializers",
    ],
)
def test_global_ranks_over_all_weights(name: str, sparsity: float) -> None:
    """Among equals the tensor that stands earlier in the file falls first."""
    built = CASES[name].build()
    result = osp.prune(built.model, pattern="unstructured", sparsity=sparsity, allocation="global", allow=EVERYTHING)
    order = [one.tensor.SerializeToString() for one in stored_tensors(built.model)]
    expected = sorted(built.expected, key=lambda one: order.index(held(built, one).tensor.SerializeToString()))
    keeps = keep_global([scores_of(one.real) for one in expected], sparsity)
    for wanted, keep in zip(expected, keeps):
        assert is_masked_copy(values(built.model, wanted), values(result.model, wanted), keep, wanted.zero) == ""


def held(built: Built, wanted: Expected) -> Stored:
    return find(built.model, wanted.name, wanted.shape)


def test_global_empties_no_weight() -> None:
    """One tensor a thousand times weaker than the other keeps its strongest element."""
    built = CASES["equal_tensors_under_two_names"].build()
    weak = values(built.model, built.expected[0]) * np.float32(1e-3)
    held(built, built.expected[0]).tensor.raw_data = weak.tobytes()  # type: ignore[union-attr]
    result = osp.prune(built.model, pattern="unstructured", sparsity=0.6, allocation="global", allow=EVERYTHING)
    keeps = keep_global([scores_of(weak), scores_of(built.expected[1].real)], 0.6)
    assert np.array_equal(values(result.model, built.expected[0]) != 0, keeps[0])
    assert np.array_equal(values(result.model, built.expected[1]) != 0, keeps[1])
    assert np.count_nonzero(keeps[0]) == 1


@pytest.mark.parametrize("allocation", ["global", "erk", "uniform"])
def test_allocations_reach_the_sparsity_and_repeat(allocation: str) -> None:
    built = CASES["opset_17"].build()
    options = {"pattern": "unstructured", "sparsity": 0.8, "allocation": allocation, "allow": EVERYTHING}
    once = osp.prune(built.model, **options)
    sizes = [one.real.size for one in built.expected]
    dropped = sum(int((values(once.model, one) == 0).sum()) for one in built.expected)
    assert abs(dropped - 0.8 * sum(sizes)) <= len(sizes) * 0.5 + 1e-9
    assert differences(once.model, osp.prune(once.model, **options).model, []) == []


def test_erk_gives_the_larger_layer_more_zeros() -> None:
    built = CASES["opset_17"].build()
    result = osp.prune(built.model, pattern="unstructured", sparsity=0.6, allocation="erk", allow=EVERYTHING)
    k, w = (float((values(result.model, one) == 0).mean()) for one in built.expected)
    dense = {"k": (6 + 8 + 3 + 3) / 432, "w": (54 + 8) / 432}
    assert (k > w) == (dense["k"] < dense["w"])
