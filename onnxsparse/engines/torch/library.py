"""Lazy import of torch: when it is first needed; nothing else of the project waits for it."""

from __future__ import annotations

import importlib
import importlib.util
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
