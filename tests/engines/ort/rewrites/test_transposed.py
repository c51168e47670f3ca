from __future__ import annotations

from typing import Any

import pytest

from onnxsparse.engines.ort import library
from tests.engines.ort.rewrites.harness import Case, check
from tests.engines.ort.rewrites.numbers import floats

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
MS = "com.microsoft"
X = floats(2, 4, 5, 4)


@pytest.mark.parametrize(
    ("weight", "given"),
    [
        ((4, 3, 2, 2), {"strides": [2, 2]}),
        ((4, 3, 3, 3), {}),
        ((4, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        ((4, 3, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((4, 3, 5, 3), {"strides": [3, 2], "pads": [0, 1, 2, 1]}),
        ((4, 3, 2, 2), {"strides": [3, 3], "output_padding": [2, 1]}),
        ((4, 3, 3, 3), {"strides": [2, 2], "group": 2}),
        ((4, 1, 3, 3), {"strides": [2, 2], "group": 4, "pads": [1, 1, 1, 1]}),
        ((4, 3, 3, 2), {"dilations": [2, 3]}),
        ((4, 3, 3, 2), {"dilations": [2, 3], "strides": [2, 2], "pads": [1, 0, 2, 1]}),
        ((4, 3, 3, 3), {"strides": [2, 2], "output_shape": [10, 8]}),
    ],
)
def test_two_axes(weight: tuple[int, ...], given: dict[str, Any]) -> None:
    outputs = weight[1] * given.get("group", 1)
    model = check(Case("ConvTranspose", [X, floats(*weight), floats(outputs)], given))
    assert "ConvTranspose" not in [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(
    "more", [{"strides": [2, 2]}, {"strides": [1, 2]}, {"strides": [2, 2], "output_shape": [10, 8]}]
)
def test_automatic_pads(auto: str, more: dict[str, Any]) -> None:
    check(Case("ConvTranspose", [X, floats(4, 3, 4, 3)], {"auto_pad": auto, **more}))


def test_one_axis_and_three() -> None:
    check(Case("ConvTranspose", [floats(2, 3, 6), floats(3, 2, 4), floats(2)], {"strides": [2], "pads": [1, 1]}))
    inputs = [floats(1, 2, 2, 3, 2), floats(2, 3, 2, 2, 3), floats(3)]
    check(Case("ConvTranspose", inputs, {"strides": [2, 2, 2]}))


def test_a_weight_that_is_not_trained() -> None:
    check(Case("ConvTranspose", [X, floats(4, 3, 3, 3), floats(3)], {"strides": [2, 2]}, fixed=(1, 2)))
