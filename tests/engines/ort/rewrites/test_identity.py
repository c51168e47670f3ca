from __future__ import annotations

import numpy as np
import pytest

from onnxsparse.engines.ort import library
from tests.engines.ort.rewrites.harness import Case, check

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")


def test_dropout_is_gone() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    model = check(Case("Dropout", [x], outputs=("y", "mask")))
    assert not [node for node in model.graph.node if node.op_type == "Dropout"]
