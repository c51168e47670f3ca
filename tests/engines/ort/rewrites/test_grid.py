from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.engines.ort import library
from tests.cases import for_each
from tests.engines.ort.rewrites.harness import Case, check, refused
from tests.engines.ort.rewrites.numbers import floats

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")


@for_each("corners", [0, 1])
@for_each("outside", ["zeros", "border"])
@for_each(("opset", "mode"), [(16, "nearest"), (16, "bilinear"), (20, "linear")])
def test_sampling(opset: int, mode: str, outside: str, corners: int) -> None:
    inputs = [floats(2, 3, 4, 5), np.clip(0.7 * floats(2, 3, 2, 2), -1.3, 1.3)]
    given = {"mode": mode, "padding_mode": outside, "align_corners": corners}
    check(Case("GridSample", inputs, given, opset=opset, fixed=(1,) if mode == "nearest" else ()))


def test_other_modes_are_refused() -> None:
    inputs = [floats(1, 1, 4, 4), floats(1, 2, 2, 2)]
    given = {"padding_mode": "reflection"}
    assert refused(Case("GridSample", inputs, given)) == [
        "GridSample tried: its mode (linear, reflection) has no rewrite"
    ]
    assert refused(Case("GridSample", inputs, {"mode": "bicubic"}))
