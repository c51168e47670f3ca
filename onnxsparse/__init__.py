"""onnxsparse: makes ONNX models sparse, from any framework, and proves that the zeros fit the hardware."""

from __future__ import annotations

from onnxsparse.api import Result, compare, fold_masks, insert_masks, inspect, load, plan, prune, verify
from onnxsparse.errors import OnnxSparseError
from onnxsparse.report.rows import Report, Row
from onnxsparse.version import __version__

__all__ = [
    "OnnxSparseError",
    "Report",
    "Result",
    "Row",
    "__version__",
    "compare",
    "fold_masks",
    "insert_masks",
    "inspect",
    "load",
    "plan",
    "prune",
    "verify",
]
