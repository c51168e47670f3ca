"""Random chains between a weight and its use, against the same steps done to indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from graphs.builders import Built
from graphs.expectations import EVERYTHING, bits, is_masked_copy, keep_mask, row_of, values
from graphs.files import differences
from graphs.oracles import breaks_n_of_m, indices
from graphs.random_chains import chains, convolutions, quantized_chains
from hypothesis import HealthCheck, given, settings

osp: Any = pytest.importorskip("onnxsparse")
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def check(built: Built, n: int, m: int) -> None:
    wanted = built.expected[0]
    rows = wanted.uses[0].rows(indices(wanted.shape))
    before = values(built.model, wanted)
    result = osp.prune(built.model, pattern=f"{n}:{m}", allow=EVERYTHING)
    row = row_of(result.report, wanted)
    after = values(result.model, wanted)
    if rows.shape[1] < m:
        assert np.array_equal(before, after)
        return
    assert row.status == "pruned", row.reason
    assert is_masked_copy(before, after, keep_mask(wanted, n, m), wanted.zero) == ""
    assert not breaks_n_of_m(after == wanted.zero, rows, n, m)
    assert osp.verify(result.model, pattern=f"{n}:{m}", allow=EVERYTHING).report.ok
    if wanted.dtype == "int8":
        return
    masked = osp.insert_masks(built.model, pattern=f"{n}:{m}", allow=EVERYTHING).model
    assert np.array_equal(bits(values(osp.fold_masks(masked).model, wanted)), bits(after))
    assert differences(built.model, osp.fold_masks(masked, discard=True).model, []) == []


@settings(max_examples=120, deadline=None, suppress_health_check=QUIET, derandomize=True)
@given(chains())
def test_random_chains(built: Built) -> None:
    check(built, 2, 4)


@settings(max_examples=40, deadline=None, suppress_health_check=QUIET, derandomize=True)
@given(chains())
def test_random_chains_of_one_in_three(built: Built) -> None:
    check(built, 1, 3)


@settings(max_examples=30, deadline=None, suppress_health_check=QUIET, derandomize=True)
@given(chains() | quantized_chains() | convolutions())
def test_random_chains_are_valid_models(built: Built) -> None:
    """The generator itself: the runtime takes what it makes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(built.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session.run(None, dict(built.feeds))


@settings(max_examples=100, deadline=None, suppress_health_check=QUIET, derandomize=True)
@given(quantized_chains())
def test_random_quantized_chains(built: Built) -> None:
    """Scored by what the codes mean along whichever axis the scale runs; erased to the zero point of the place."""
    check(built, 2, 4)


@settings(max_examples=80, deadline=None, suppress_health_check=QUIET, derandomize=True)
@given(convolutions())
def test_random_convolutions(built: Built) -> None:
    check(built, 2, 4)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=QUIET)
@given(quantized_chains() | convolutions())
def test_many_random_weights(built: Built) -> None:
    check(built, 1, 4)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None, suppress_health_check=QUIET)
@given(chains(12))
def test_many_random_chains(built: Built) -> None:
    check(built, 2, 4)
