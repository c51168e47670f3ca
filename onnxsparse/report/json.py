"""Reports as JSON. The form is fixed by `schema.json` beside this file; `schema` counts its versions."""

from __future__ import annotations

import dataclasses
import json
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
    return json.dumps(to_dict(report), indent=2, ensure_ascii=False) + "\n"
