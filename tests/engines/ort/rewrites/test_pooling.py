from __future__ import annotations

import pytest

from onnxsparse.engines.ort import library
from tests.engines.ort.rewrites.harness import Case, check, refused
from tests.engines.ort.rewrites.numbers import floats

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
MS = "com.microsoft"
X = floats(2, 4, 7, 7)


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_automatic_pads(op: str, auto: str) -> None:
    check(Case(op, [X], {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": auto}))


@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 1]])
def test_a_dilated_mean(pads: list[int]) -> None:
    given = {"kernel_shape": [2, 2], "dilations": [2, 2], "pads": pads, "count_include_pad": 1}
    check(Case("AveragePool", [X], given, opset=19))


def test_a_dilated_mean_of_what_is_there_is_refused() -> None:
    assert refused(Case("AveragePool", [X], {"kernel_shape": [2, 2], "dilations": [2, 2], "pads": [1] * 4}, opset=19))


def test_places_in_column_order_are_dropped_when_nobody_reads_them() -> None:
    given = {"kernel_shape": [2, 2], "storage_order": 1}
    check(Case("MaxPool", [X], given, outputs=("y", "places"), read=("y",)))
    assert refused(Case("MaxPool", [X], given, outputs=("y", "places")))


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 4), (1, 2, 2, 3, 2)])
@pytest.mark.parametrize("op", ["GlobalMaxPool", "GlobalLpPool"])
def test_pools_of_everything(op: str, shape: tuple[int, ...]) -> None:
    check(Case(op, [floats(*shape)]))


def test_other_powers_and_pads() -> None:
    check(Case("LpPool", [X], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "p": 3}))
    check(Case("GlobalLpPool", [X], {"p": 1}))
