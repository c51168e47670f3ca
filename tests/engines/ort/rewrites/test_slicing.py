from __future__ import annotations

import pytest

from onnxsparse.engines.ort import library
from tests.engines.ort.rewrites.harness import Case, check
from tests.engines.ort.rewrites.numbers import floats, whole

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
Limits = tuple[int, ...]
MS = "com.microsoft"


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ((-1,), (-100,), (1,), (-1,)),
        ((5, 0), (1, 3), (1, -2), (-2, 2)),
        ((3, 6), (-5, -7), (0, 1), (-1, -3)),
        ((2**62,), (-(2**62),), (0,), (-1,)),
    ],
)
def test_backwards(
    starts: tuple[int, ...], ends: tuple[int, ...], axes: tuple[int, ...], steps: tuple[int, ...]
) -> None:
    check(Case("Slice", [floats(4, 7), whole(*starts), whole(*ends), whole(*axes), whole(*steps)]))


@pytest.mark.parametrize("read", [("b",), ("a", "c")])
def test_a_split_with_parts_that_nobody_reads(read: tuple[str, ...]) -> None:
    check(Case("Split", [floats(2, 6)], {"axis": 1}, outputs=("a", "b", "c"), read=read))
    check(Case("Split", [floats(2, 6), whole(1, 2, 3)], {"axis": -1}, outputs=("a", "b", "c"), read=read))


def test_a_split_that_is_read_as_a_whole_stays() -> None:
    model = check(Case("Split", [floats(2, 6)], {"axis": 1}, outputs=("a", "b")))
    assert model.graph.node[-1].op_type == "Split"
