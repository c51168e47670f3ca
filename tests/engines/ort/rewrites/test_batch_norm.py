from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.engines.ort import library
from tests.engines.ort.rewrites.harness import Case, check, rewritten
from tests.engines.ort.rewrites.numbers import floats, positive

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
MS = "com.microsoft"
NUMBERS = [floats(4), floats(4), floats(4), positive(4)]


@pytest.mark.parametrize("shape", [(5, 4), (2, 4, 3), (2, 4, 3, 3)])
@pytest.mark.parametrize("fixed", [(3, 4), (1, 2, 3, 4)])
def test_frozen_statistics(shape: tuple[int, ...], fixed: tuple[int, ...]) -> None:
    case = Case("BatchNormalization", [floats(*shape), *NUMBERS], {"epsilon": 1e-3}, fixed=fixed)
    model = check(case)
    stored = {tensor.name for tensor in model.graph.initializer}
    assert {"in1", "in2", "in3", "in4"} <= stored


def test_it_goes_even_where_no_gradient_flows() -> None:
    case = Case("BatchNormalization", [np.ones((2, 4), np.float32), *NUMBERS])
    assert "BatchNormalization" not in [node.op_type for node in rewritten(case, trained=set()).graph.node]
