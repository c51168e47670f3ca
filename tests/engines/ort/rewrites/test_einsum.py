"""Einstein sums of one, two and three operands."""

from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.engines.ort import library, rewrites, value_shapes
from onnxsparse.math.values import Array
from tests.engines.ort.rewrites.harness import Case, check

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")


def uniform(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.Generator(np.random.Philox(key=seed)).uniform(-1, 1, shape).astype(np.float32)


EQUATIONS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij->ji", [(2, 3)]),
    ("ijk->ik", [(2, 3, 4)]),
    ("ij->", [(2, 3)]),
    ("ba", [(2, 3)]),
    ("...ij->...ji", [(2, 3, 4)]),
    ("i...->...", [(2, 3, 4)]),
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ij , kj -> ki", [(2, 3), (4, 3)]),
    ("bhid,bhjd->bhij", [(2, 2, 3, 4), (2, 2, 5, 4)]),
    ("bhij,bhjd->bihd", [(2, 2, 3, 4), (2, 2, 4, 5)]),
    ("bsd,dhk->bshk", [(2, 3, 4), (4, 2, 5)]),
    ("bqc,bkc->bqk", [(2, 3, 4), (2, 5, 4)]),
    ("nchw,cd->ndhw", [(2, 3, 2, 2), (3, 4)]),
    ("nkctv,kvw->nctw", [(1, 2, 3, 2, 3), (2, 3, 4)]),
    ("i,j->ij", [(3,), (4,)]),
    ("i,i->", [(3,), (3,)]),
    ("ij,ij->ij", [(3, 4), (3, 4)]),
    ("ij,j->ij", [(3, 4), (4,)]),
    ("ijk,jl->il", [(2, 3, 4), (3, 5)]),
    ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (2, 3, 4, 5)]),
    ("...ij,...jk", [(1, 3, 4), (2, 4, 5)]),
    ("bij,bjk->bik", [(1, 3, 4), (2, 4, 5)]),
    ("b...d,dk->b...k", [(2, 3, 2, 4), (4, 5)]),
    (",ij->ij", [(), (2, 3)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ("bi,ij,bj->b", [(2, 3), (3, 4), (2, 4)]),
    ("a,b,c->cba", [(2,), (3,), (4,)]),
]


@pytest.mark.parametrize(("equation", "sizes"), EQUATIONS, ids=str)
def test_einsum(equation: str, sizes: list[tuple[int, ...]]) -> None:
    model = check(Case("Einsum", [uniform(shape, seed) for seed, shape in enumerate(sizes)], {"equation": equation}))
    assert "Einsum" not in {node.op_type for node in model.graph.node}


@pytest.mark.parametrize(
    ("equation", "sizes", "reason"),
    [("ii->i", [(3, 3)], "same letter twice"), ("ij,jj->i", [(2, 3), (3, 3)], "same letter twice")],
)
def test_diagonals_are_refused(equation: str, sizes: list[tuple[int, ...]], reason: str) -> None:
    case = Case("Einsum", [uniform(shape, seed) for seed, shape in enumerate(sizes)], {"equation": equation})
    model = case.model()
    value_shapes.infer(model)
    assert reason in rewrites.apply(model, set(case.trained()))[0]
