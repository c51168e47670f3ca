from __future__ import annotations

import pytest

from onnxsparse.engines.ort import library
from tests.cases import for_each
from tests.engines.ort.rewrites.harness import Case, check, refused, rewritten
from tests.engines.ort.rewrites.numbers import floats

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
MS = "com.microsoft"
X = floats(2, 6, 3, 4)


@for_each("opset", [13, 17, 18])
@for_each("bias", [True, False])
@for_each("axis", [-1, 1])
def test_layer_normalization(opset: int, bias: bool, axis: int) -> None:
    sizes = (3, 4) if axis == 1 else (4,)
    inputs = [floats(2, 3, 4), floats(*sizes), *([floats(*sizes)] if bias else [])]
    check(Case("LayerNormalization", inputs, {"axis": axis, "epsilon": 1e-2}, opset=opset))


def test_a_layer_normalization_with_its_statistics_read() -> None:
    case = Case("LayerNormalization", [floats(2, 4), floats(4)], outputs=("y", "mean"))
    assert refused(case) == ["LayerNormalization tried: a gradient would have to flow through its statistics"]


@pytest.mark.parametrize(("opset", "goes"), [(13, True), (17, False)])
def test_a_layer_normalization_without_a_gradient(opset: int, goes: bool) -> None:
    model = rewritten(Case("LayerNormalization", [floats(2, 4), floats(4)], opset=opset), trained=set())
    assert ("LayerNormalization" not in [node.op_type for node in model.graph.node]) == goes


@pytest.mark.parametrize("opset", [13, 18])
def test_simplified_layer_normalization(opset: int) -> None:
    check(Case("SimplifiedLayerNormalization", [floats(2, 3, 4), floats(4)], {"axis": -1}, opset=opset))


@pytest.mark.parametrize("numbers", [1, 2, 3])
@pytest.mark.parametrize("outputs", [("y",), ("y", "", "", "sum")])
def test_skip_layer_normalization(numbers: int, outputs: tuple[str, ...]) -> None:
    inputs = [floats(2, 3, 4), floats(2, 3, 4), *[floats(4) for _ in range(numbers)]]
    check(Case("SkipLayerNormalization", inputs, {"epsilon": 1e-3}, outputs=outputs, domain=MS))


def test_skip_simplified_layer_normalization() -> None:
    # With a bias the runtime's own kernel differs from the operator's definition.
    inputs = [floats(2, 3, 4), floats(2, 3, 4), floats(4)]
    given = {"epsilon": 1e-3}
    check(Case("SkipSimplifiedLayerNormalization", inputs, given, outputs=("y", "", "", "sum"), domain=MS))


@pytest.mark.parametrize("opset", [17, 18])
def test_instance_normalization(opset: int) -> None:
    check(Case("InstanceNormalization", [X, floats(6), floats(6)], {"epsilon": 1e-2}, opset=opset))


@pytest.mark.parametrize(("opset", "size"), [(18, 2), (21, 6)])
def test_group_normalization(opset: int, size: int) -> None:
    check(Case("GroupNormalization", [X, floats(size), floats(size)], {"num_groups": 2}, opset=opset))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_neighbouring_channels(size: int) -> None:
    check(Case("LRN", [X], {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5}))


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("p", [1, 2])
def test_length(axis: int, p: int) -> None:
    check(Case("LpNormalization", [X], {"axis": axis, "p": p}))


def test_mean_zero_and_variance_one() -> None:
    check(Case("MeanVarianceNormalization", [X]))
    check(Case("MeanVarianceNormalization", [X], {"axes": [1, 2]}))
