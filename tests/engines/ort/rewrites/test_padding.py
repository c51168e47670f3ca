from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.engines.ort import library
from tests.engines.ort.rewrites.harness import Case, check
from tests.engines.ort.rewrites.numbers import floats, whole

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
MS = "com.microsoft"


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(1, 1, 0, 2), (0, -1, -1, 2)])
def test_pads_that_repeat(mode: str, pads: tuple[int, ...]) -> None:
    check(Case("Pad", [floats(4, 7), whole(*pads)], {"mode": mode}, opset=19))


@pytest.mark.parametrize("axis", [1, -2])
@pytest.mark.parametrize("value", [None, np.float32(3)])
def test_pads_of_one_axis(axis: int, value: np.ndarray | None) -> None:
    check(Case("Pad", [floats(4, 7), whole(1, 2), value, whole(axis)], fixed=(2,), opset=18))


def test_zeros_and_negative_pads_stay() -> None:
    model = check(Case("Pad", [floats(4, 7), whole(-1, 2, 2, -3)]))
    assert [node.name for node in model.graph.node] == ["front", "tried"]
