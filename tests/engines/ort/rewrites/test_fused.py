from __future__ import annotations

from typing import Any

import pytest

from onnxsparse.engines.ort import library
from tests.engines.ort.rewrites.harness import Case, check, refused
from tests.engines.ort.rewrites.numbers import floats

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
MS = "com.microsoft"


@pytest.mark.parametrize(
    ("a", "b", "given"),
    [
        ((2, 3), (3, 4), {"alpha": 0.5}),
        ((2, 3), (4, 3), {"transB": 1}),
        ((5, 3, 2), (5, 3, 4), {"transA": 1, "alpha": 2.0}),
        ((5, 3, 2), (4, 3), {"transA": 1, "transB": 1}),
    ],
)
def test_products(a: tuple[int, ...], b: tuple[int, ...], given: dict[str, Any]) -> None:
    check(Case("FusedMatMul", [floats(*a), floats(*b)], given, domain=MS))


def test_transposed_batches_are_refused() -> None:
    case = Case("FusedMatMul", [floats(5, 3, 2), floats(3, 2, 4)], {"transBatchA": 1}, domain=MS)
    assert refused(case) == ["com.microsoft:FusedMatMul tried: it transposes the axes of the batch"]


@pytest.mark.parametrize(
    ("activation", "numbers"),
    [
        ("Relu", {}),
        ("Sigmoid", {}),
        ("Softplus", {}),
        ("LeakyRelu", {"activation_alpha": 0.3}),
        ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
    ],
)
def test_a_product_with_an_activation(activation: str, numbers: dict[str, float]) -> None:
    given = {"transB": 1, "alpha": 0.7, "activation": activation, **numbers}
    check(Case("FusedGemm", [floats(2, 3), floats(4, 3), floats(4)], given, domain=MS))


def test_an_unknown_activation_is_refused() -> None:
    given = {"activation": "Wonder"}
    assert refused(Case("FusedGemm", [floats(2, 3), floats(3, 4), floats(4)], given, domain=MS))
