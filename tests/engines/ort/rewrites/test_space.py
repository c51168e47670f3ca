from __future__ import annotations

import pytest

from onnxsparse.engines.ort import library
from tests.engines.ort.rewrites.harness import Case, check
from tests.engines.ort.rewrites.numbers import floats

pytestmark = pytest.mark.skipif(not library.available(), reason="needs onnxruntime-training")
MS = "com.microsoft"


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode: str) -> None:
    check(Case("DepthToSpace", [floats(2, 8, 3, 2)], {"blocksize": 2, "mode": mode}))


def test_space_to_depth() -> None:
    check(Case("SpaceToDepth", [floats(2, 3, 4, 6)], {"blocksize": 2}))
