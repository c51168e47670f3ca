"""What there is of a network, layer by layer and in total: numbers, non-zero ones, and multiply-accumulates."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxsparse.loops.network import Measured, Network
from onnxsparse.targets import Target

COLUMNS = (
    "layer", "kind", "shape", "parameters", "nonzero", "sparsity", "macs", "macs_left", "target_density", "wasted",
)  # fmt: skip


def statistics(network: Network, found: Mapping[str, Measured], target: Target | None = None) -> list[dict[str, Any]]:
    """A row for every layer, as its numbers would be stored now; the last one is the total."""
    rows = [_row(network, site, found, target) for site in network.sites]
    return [*rows, _total(rows)]


def _row(network: Network, site: Any, found: Mapping[str, Measured], target: Target | None) -> dict[str, Any]:
    kept = int(np.count_nonzero(network.effective(site.key)))
    macs = found[site.key].macs if site.key in found else 0
    bound = target.target_density(site.convolution) if target is not None and site.convolution else None
    wasted = None if bound is None else max(0, site.size - kept - int(np.floor((1 - bound) * site.size + 0.5)))
    return {
        "layer": site.name,
        "kind": site.kind,
        "shape": list(site.shape),
        "parameters": site.size,
        "nonzero": kept,
        "sparsity": round(1 - kept / max(site.size, 1), 6),
        "macs": macs,
        "macs_left": round(macs * kept / max(site.size, 1)),
        "target_density": None if bound is None else round(bound, 6),
        "wasted": wasted,
    }


def _total(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    sums = {name: sum(row[name] for row in rows) for name in ("parameters", "nonzero", "macs", "macs_left")}
    known = [row["wasted"] for row in rows if row["wasted"] is not None]
    return {
        "layer": "total",
        "kind": "",
        "shape": [],
        **sums,
        "sparsity": round(1 - sums["nonzero"] / max(sums["parameters"], 1), 6),
        "target_density": None,
        "wasted": sum(known) if known else None,
    }


def as_csv(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Tables by the level they belong to, as one."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["level", *COLUMNS])
    for level, rows in tables.items():
        for row in rows:
            cells = ["x".join(map(str, row[one])) if one == "shape" else row[one] for one in COLUMNS]
            writer.writerow([level, *("" if cell is None else cell for cell in cells)])
    return out.getvalue()
