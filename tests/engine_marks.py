"""Marks of tests that need an engine that trains; a module that imports them has not itself to do with torch.

In the environment with torch only what has to do with it runs again: of `ENGINES` the tests of that engine.
"""

from __future__ import annotations

import pytest

from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.torch import library as torch_library

TRAINS = pytest.mark.skipif(
    not (ort_library.available() or torch_library.available()), reason="needs an engine that trains"
)
HAS_ORT = pytest.mark.skipif(not ort_library.available(), reason="needs onnxruntime-training")
HAS_TORCH = pytest.mark.skipif(not torch_library.available(), reason="needs torch")
ENGINES = [pytest.param("ort", marks=HAS_ORT), pytest.param("torch", marks=HAS_TORCH)]
