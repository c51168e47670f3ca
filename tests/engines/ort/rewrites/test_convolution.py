from __future__ import annotations

import pytest

from onnxsparse.engines.ort import library
from tests.engines.ort.rewrites.harness import Case, check, refused
from tests.engines.ort.rewrites.numbers import floats

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
MS = "com.microsoft"
X = floats(2, 4, 7, 7)
AUTO = ["SAME_UPPER", "SAME_LOWER", "VALID"]


@pytest.mark.parametrize("auto", AUTO)
@pytest.mark.parametrize("width", [2, 3])
def test_automatic_pads(auto: str, width: int) -> None:
    weight = floats(4, 2, width, width)
    check(Case("Conv", [X, weight, floats(4)], {"auto_pad": auto, "strides": [2, 2], "group": 2}))


def test_an_explicit_convolution_stays_as_it_is() -> None:
    model = check(Case("Conv", [X, floats(4, 4, 3, 3)], {"dilations": [2, 2], "pads": [1, 0, 0, 2]}))
    assert [node.name for node in model.graph.node] == ["front", "tried"]


@pytest.mark.parametrize(
    ("activation", "numbers"), [("Relu", []), ("LeakyRelu", [0.1]), ("Clip", [-1.0, 1.0]), ("Tanh", [])]
)
def test_a_fused_activation(activation: str, numbers: list[float]) -> None:
    given = {"activation": activation, "strides": [2, 2], "auto_pad": "SAME_UPPER"}
    given.update({"activation_params": numbers} if numbers else {})
    check(Case("FusedConv", [X, floats(4, 4, 3, 3), floats(4)], given, domain=MS))


def test_a_fused_sum() -> None:
    inputs = [floats(1, 2, 4, 4), floats(3, 2, 3, 3), floats(3), floats(1, 3, 2, 2)]
    check(Case("FusedConv", inputs, {"activation": "Relu"}, domain=MS))


def test_an_unknown_activation_is_refused() -> None:
    case = Case("FusedConv", [X, floats(4, 4, 3, 3)], {"activation": "Softsign"}, domain=MS)
    assert refused(case) == ["com.microsoft:FusedConv tried: its activation Softsign is not known"]
