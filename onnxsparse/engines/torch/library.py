"""Lazy import of torch: when it is first needed; nothing else of the project waits for it. And one of its switches."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from onnxsparse.errors import MissingExtraError


@cache
def available() -> bool:
    """Whether torch is installed."""
    return importlib.util.find_spec("torch") is not None


@cache
def torch() -> Any:
    """The package, with `torch.fx`."""
    if not available():
        raise MissingExtraError("this needs torch: pip install 'onnxsparse[torch]'")
    package = importlib.import_module("torch")
    importlib.import_module("torch.fx")
    return package


@contextmanager
def attention_in_parts() -> Iterator[None]:
    """Attention in one kernel, which torch takes where nothing trains, has no form in ONNX and none in a trace."""
    mha = torch().backends.mha
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(before)
