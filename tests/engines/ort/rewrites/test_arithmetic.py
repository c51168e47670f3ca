"""Sums, products, powers, choices and casts, in the forms that the engine gets wrong or does not know."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.engines.ort import library
from onnxsparse.math.values import Array
from tests.engines.ort.rewrites.harness import Case, check, engine_gradients

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")

Shape = tuple[int, ...]


def uniform(*shape: int, low: float = -1.0, high: float = 1.0, seed: int = 0) -> Array:
    random = np.random.Generator(np.random.Philox(key=seed))
    return random.uniform(low, high, shape).astype(np.float32)


@pytest.mark.parametrize("op", ["Sum", "Mean"])
@pytest.mark.parametrize("others", [[], [(3, 4)], [(4,), (2, 3, 1)], [(3, 1), (), (1, 4)]], ids=str)
def test_sums(op: str, others: list[Shape]) -> None:
    check(Case(op, [uniform(3, 4), *(uniform(*shape, seed=place) for place, shape in enumerate(others, 1))]))


@pytest.mark.parametrize(
    ("condition", "one", "other", "fixed"),
    [
        ((3, 4), (1, 4), (3, 1), ()),
        ((3, 4), (3, 4), (), ()),
        ((3, 4), (3, 4), (), (2,)),
        ((3, 4), (), (), (1,)),
        ((4,), (3, 1), (2, 1, 1), ()),
        ((1, 4), (3, 4), (3, 4), ()),
        ((2, 3, 4), (3, 4), (4,), ()),
    ],
)
def test_where(condition: Shape, one: Shape, other: Shape, fixed: Shape) -> None:
    chosen = uniform(*condition) > 0
    check(Case("Where", [chosen, uniform(*one, seed=1), uniform(*other, seed=2)], fixed=fixed))


MATMUL: list[tuple[Shape, Shape]] = [
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((2, 2, 3, 4), (4,)),
    ((4,), (2, 1, 4, 5)),
]


@pytest.mark.parametrize(("one", "other"), MATMUL, ids=str)
@pytest.mark.parametrize("fixed", [(), (1,)], ids=["both", "first"])
def test_products_with_vectors(one: Shape, other: Shape, fixed: Shape) -> None:
    check(Case("MatMul", [uniform(*one), uniform(*other, seed=1)], fixed=fixed))


def test_gemm_that_adds_nothing() -> None:
    case = Case(
        "Gemm", [uniform(4, 3), uniform(4, 5), uniform(5)], {"beta": 0.0, "transA": 1, "alpha": 0.5}, fixed=(2,)
    )
    check(case)


@pytest.mark.parametrize(
    ("base", "exponent"), [((3, 4), (3, 4)), ((3, 4), (4,)), ((2, 1, 4), (3, 1)), ((), (3,)), ((3, 4), ())], ids=str
)
@pytest.mark.parametrize("fixed", [(), (1,)], ids=["both", "base"])
def test_powers(base: Shape, exponent: Shape, fixed: Shape) -> None:
    check(Case("Pow", [uniform(*base, low=0.3, high=2.0), uniform(*exponent, low=-2.0, high=3.0, seed=1)], fixed=fixed))


def test_powers_of_negative_numbers() -> None:
    check(Case("Pow", [uniform(3, 4), np.array([1.0, 2.0, 3.0, -2.0], np.float32)], fixed=(1,)))
    check(Case("Pow", [uniform(3, 4), np.array(3, np.int64)]))


def test_the_exponent_of_what_is_not_positive_has_no_gradient() -> None:
    case = Case("Pow", [np.array([-2.0, 0.0, 2.0], np.float32), np.full(3, 2.0, np.float32)])
    model = check(case, tolerance=np.inf)
    gradient = engine_gradients(model, case, {"y": np.ones(3, np.float32)})["in1"]
    np.testing.assert_allclose(gradient, [0.0, 0.0, 4.0 * np.log(2.0)], rtol=1e-5)


@pytest.mark.parametrize("bounds", [(-0.5, 0.4), (-0.5, None), (None, 0.4), (0.3, -0.2)], ids=str)
@pytest.mark.parametrize("fixed", [(), (1, 2)], ids=["trained", "fixed"])
def test_clip(bounds: tuple[float | None, float | None], fixed: Shape) -> None:
    given = [None if bound is None else np.array(bound, np.float32) for bound in bounds]
    check(Case("Clip", [uniform(3, 4), *given], fixed=fixed))


def test_casts() -> None:
    check(Case("Cast", [uniform(3, 4)], {"to": 1}))
    check(Case("CastLike", [uniform(3, 4), np.array(1.0, np.float32)], fixed=(1,)))


def test_transpose_without_an_order() -> None:
    check(Case("Transpose", [uniform(2, 3, 4)]))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sums(axis: int, exclusive: int, reverse: int) -> None:
    check(Case("CumSum", [uniform(2, 3, 4), np.array(axis)], {"exclusive": exclusive, "reverse": reverse}))


@pytest.mark.parametrize("given", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}], ids=str)
def test_long_running_sums(given: dict[str, int]) -> None:
    check(Case("CumSum", [uniform(2, 1300, 2), np.array([1])], given), exact=1e-3)
