"""Report rows: the fields of every report, and their form in JSON.

Each weight of the model is one row: what was done, or why not and what to change.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

from onnxsparse.errors import OptionError, nearest
from onnxsparse.version import __version__

DENSE = "dense"
NOTHING = "nothing to prune"
"""How the note begins that says so."""
TIED = "tied with "
"""How the reason of a copy begins, before the name of what it is a copy of."""


@dataclass(frozen=True)
class UseRow:
    """One node that uses the weight, and the axes of the stored tensor by role."""

    op: str
    node: str
    slot: int
    reduction: tuple[int, ...]
    out: tuple[int, ...]
    groups: int = 1
    matrix: tuple[int, ...] = ()
    verdict: str = ""
    may_use: bool | None = None
    pays: bool | None = None
    remark: str = ""


@dataclass(frozen=True)
class Row:
    """One weight. `name` is unique in the report; `zeros` counts zeros after the command.

    `others` are readers that are no layers: what comes out there moves with the zeros.
    """

    name: str
    scope: str
    shape: tuple[int, ...]
    dtype: str
    storage: str
    status: str
    pattern: str = DENSE
    size: int = 0
    zeros: int | None = None
    dropped: int | None = None
    ragged: int = 0
    reason: str = ""
    advice: str = ""
    words: tuple[str, ...] = ()
    masked: bool = False
    others: tuple[str, ...] = ()
    uses: tuple[UseRow, ...] = ()
    violations: int = 0
    places: tuple[tuple[int, ...], ...] = ()
    macs: int | None = None
    bytes_dense: int = 0
    bytes_sparse: int = 0
    target_density: float | None = None
    wasted: int | None = None
    quantized: str = ""
    """The integers that it is stored in, and how many numbers share a scale: `int8, axis 0`."""
    zeros_before: int | None = None
    """Zeros of the float weight: some more numbers are so small that they become zero."""

    @property
    def sparsity(self) -> float | None:
        return None if self.zeros is None or not self.size else self.zeros / self.size


@dataclass(frozen=True)
class Totals:
    """Sums over all rows, and the model's own size."""

    weights: int = 0
    done: int = 0
    elements: int = 0
    zeros: int = 0
    bytes_dense: int = 0
    bytes_sparse: int = 0
    file_bytes: int = 0
    macs: int | None = None
    macs_left: int | None = None


@dataclass(frozen=True)
class Report:
    """What a command found or did. `ok` is False when a verification does not hold. `print(report)` shows the table."""

    command: str
    model: str
    rule: str
    rows: tuple[Row, ...]
    totals: Totals
    ok: bool = True
    output: str = ""
    notes: tuple[str, ...] = ()
    next_step: str = ""
    details: dict[str, object] = field(default_factory=dict)
    verdict: str = ""
    """Whether the zeros are likely to pay on the device, in one sentence; empty where no device is named."""
    faults: tuple[str, ...] = ()
    """Those of the notes that are why a verification does not hold."""
    sampled: bool = False
    """Of very large values behind arithmetic samples were evaluated, not all numbers."""

    def __repr__(self) -> str:
        return f"Report({self.command!r}, {self.model!r}, {self.rule!r}, rows: {len(self.rows)}, ok={self.ok})"

    def __str__(self) -> str:
        from onnxsparse.report.terminal import text_of  # only who prints waits for rich

        return text_of(self)

    def row(self, name: str) -> Row:
        """The row of one tensor."""
        for row in self.rows:
            if row.name == name:
                return row
        raise OptionError(f"the report has no weight {name!r}{nearest(name, [row.name for row in self.rows])}")


# -- Reports as JSON. The form is fixed by `schema.json` beside this file; `schema` counts its versions.


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
