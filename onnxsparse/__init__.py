"""onnxsparse: makes ONNX models sparse, from any framework, and proves that the zeros fit the hardware.

The names are imported when they are first used, so that `onnxsparse --help` does not wait for onnx.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from onnxsparse.errors import OnnxSparseError
from onnxsparse.moved import keep_old_names
from onnxsparse.version import __version__

if TYPE_CHECKING:
    from onnxsparse import graphsurgeon
    from onnxsparse.api import (
        Result,
        analyze,
        channels,
        compare,
        fold_masks,
        inspect,
        load,
        permute,
        plan,
        prune,
        quantize,
        verify,
    )
    from onnxsparse.dialects import create
    from onnxsparse.dialects.create.models import create_recipe
    from onnxsparse.dialects.masking import insert_masks
    from onnxsparse.dialects.oneshot import oneshot
    from onnxsparse.permutation_search import search_permutation
    from onnxsparse.recipes import Recipe
    from onnxsparse.report.rows import Report, Row
    from onnxsparse.training_api import finetune, levels

__all__ = [
    "OnnxSparseError",
    "Recipe",
    "Report",
    "Result",
    "Row",
    "__version__",
    "analyze",
    "channels",
    "compare",
    "create",
    "create_recipe",
    "finetune",
    "fold_masks",
    "graphsurgeon",
    "insert_masks",
    "inspect",
    "levels",
    "load",
    "oneshot",
    "permute",
    "plan",
    "prune",
    "quantize",
    "search_permutation",
    "verify",
]
_MODULES = ("create", "graphsurgeon", "torch")
# torch is not in __all__: `import *` has to leave that name to torch itself
_HOMES = {
    "Recipe": "onnxsparse.recipes",
    "Report": "onnxsparse.report.rows",
    "Row": "onnxsparse.report.rows",
    "create_recipe": "onnxsparse.dialects.create.models",
    "finetune": "onnxsparse.training_api",
    "insert_masks": "onnxsparse.dialects.masking",
    "levels": "onnxsparse.training_api",
    "oneshot": "onnxsparse.dialects.oneshot",
    "search_permutation": "onnxsparse.permutation_search",
}

keep_old_names()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"onnxsparse.{name}")
    if name in __all__:
        return getattr(importlib.import_module(_HOMES.get(name, "onnxsparse.api")), name)
    raise AttributeError(f"module 'onnxsparse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
