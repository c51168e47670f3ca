"""What is said where the training build of onnxruntime is not installed."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from onnxsparse.engines.ort import library
from onnxsparse.errors import MissingExtraError


@pytest.mark.parametrize(
    ("python", "runtime", "said"),
    [
        ((3, 9, 18), None, r"^fine-tuning needs .*: pip install 'onnxsparse\[ort\]', or 'onnxsparse\[torch\]'$"),
        ((3, 12, 1), "found", r"pip uninstall onnxruntime, then pip install 'onnxsparse\[ort\]'"),
        ((3, 13, 0), None, r"^there is no onnxruntime-training for Python 3\.13: pip install 'onnxsparse\[torch\]'"),
        ((3, 13, 0), "found", r"^there is no onnxruntime-training for Python 3\.13"),
        ((3, 14, 0), "found", r"for Python 3\.14"),
    ],
)
def test_the_way_out_is_one_that_exists(
    python: tuple[int, ...], runtime: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "available", lambda: False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: runtime)
    monkeypatch.setattr(sys, "version_info", python)
    with pytest.raises(MissingExtraError, match=said):
        library.training.__wrapped__()
