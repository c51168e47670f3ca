"""Training graphs of onnxruntime-training are made once for all tests here."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _shared_graphs(shared_graphs: None) -> None:
    pass
