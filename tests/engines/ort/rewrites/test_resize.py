from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxsparse.engines.ort import library
from tests.cases import for_each
from tests.engines.ort.rewrites.harness import Case, check, refused
from tests.engines.ort.rewrites.numbers import floats, whole

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
MS = "com.microsoft"
X = floats(2, 3, 4, 5)


def scales(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@for_each("mode", ["nearest", "linear", "cubic"])
@for_each("coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
def test_scales(mode: str, coordinates: str) -> None:
    given = {"mode": mode, "coordinate_transformation_mode": coordinates}
    check(Case("Resize", [X, None, scales(1, 1, 2, 2)], given, fixed=(2,)))
    check(Case("Resize", [X, None, scales(1, 1, 1.6, 0.7)], given, fixed=(2,)))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("opset", [13, 18])
def test_sizes(mode: str, opset: int) -> None:
    check(Case("Resize", [X, None, None, whole(2, 3, 7, 3)], {"mode": mode}, opset=opset))


@pytest.mark.parametrize(
    ("opset", "given"),
    [
        (17, {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
        (17, {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil"}),
        (17, {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5}),
        (18, {"mode": "linear", "antialias": 1}),
        (19, {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"}),
    ],
)
def test_options(opset: int, given: dict[str, Any]) -> None:
    check(Case("Resize", [X, None, scales(1, 1, 2, 0.6)], given, opset=opset, fixed=(2,)))


def test_axes() -> None:
    check(Case("Resize", [X, None, None, whole(9, 3)], {"mode": "linear", "axes": [2, 3]}, opset=18))
    check(Case("Resize", [X, None, scales(1.5, 2)], {"mode": "linear", "axes": [2, 3]}, opset=18, fixed=(2,)))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_one_axis_and_three(mode: str) -> None:
    check(Case("Resize", [floats(2, 3, 6), None, scales(1, 1, 2.5)], {"mode": mode}, fixed=(2,)))
    check(Case("Resize", [floats(1, 2, 3, 4, 3), None, scales(1, 1, 2, 2, 1.5)], {"mode": mode}, fixed=(2,)))


def test_whole_factors_repeat() -> None:
    model = check(Case("Resize", [X, None, scales(1, 1, 2, 3)], {"mode": "nearest"}, fixed=(2,)))
    assert [node.op_type for node in model.graph.node].count("Expand") == 2


def test_regions_and_kept_ratios_are_refused() -> None:
    given = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    region = np.array([0, 0, 0.2, 0.2, 1, 1, 0.8, 0.8], np.float32)
    assert refused(Case("Resize", [X, region, scales(1, 1, 2, 2)], given, fixed=(1, 2)))
    ratio = {"mode": "linear", "keep_aspect_ratio_policy": "not_larger", "axes": [2, 3]}
    assert refused(Case("Resize", [X, None, None, whole(8, 8)], ratio, opset=18))
