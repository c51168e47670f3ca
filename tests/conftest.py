"""What all tests share: one thread, so that results and times do not depend on the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def digits_cnn(repository: Path) -> Path:
    """The small trained network that ships with the project."""
    return repository / "models" / "digits_cnn.onnx"
