"""Reports as JSON. The form is fixed by `schema.json` beside this file; `schema` counts its versions."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from onnxsparse.report.rows import Report
from onnxsparse.version import __version__

SCHEMA = 1


def to_dict(report: Report) -> dict[str, Any]:
    """A report as plain dictionaries and lists."""
    plain = dataclasses.asdict(report)
    rows = [{**row, "sparsity": original.sparsity} for row, original in zip(plain.pop("rows"), report.rows)]
    return {"schema": SCHEMA, "tool": "onnxsparse", "version": __version__, **plain, "rows": rows}


def to_json(report: Report) -> str:
    return json.dumps(finite(to_dict(report)), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """JSON has no infinity: such a figure is null."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
