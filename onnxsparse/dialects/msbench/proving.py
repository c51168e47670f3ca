"""Whether the file that a training delivers holds what its record promises."""

from __future__ import annotations

from typing import Any

from onnxsparse.api import verify
from onnxsparse.dialects.msbench.leveled import dims_of
from onnxsparse.graph.model import Model


def why_not(path: str, shape: Any) -> str:
    """What does not hold in a file; nothing where all of it does. `shape` says sizes that the model leaves open."""
    report = verify(path, dims=dims_of(Model.open(path), shape)).report
    if report.ok:
        return ""
    broken = [f"{row.name} is {row.status}" for row in report.rows if row.status == "violated"]
    more = [f"{len(broken) - 3} layers more"] if len(broken) > 3 else []
    return "; ".join([*report.faults, *broken[:3], *more]) or "no layer holds what the record says"
