"""The sparse analysis of `sparse_analysis.json` (each layer's sparsity at each level), and the report of all layers.

1. A table counts for the settings that it was made with, and for that network: the names, shapes and input sizes of
   its layers, which of them stay dense, and their numbers.
2. A network that is sparse already, or gets masks, is one that goes on: its numbers have moved, and the table counts.
3. What was made for anything else is made anew, and what differs is said. What is damaged is an error.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxsparse.allocations.energy import Energy
from onnxsparse.dialects.msbench.configuration import load
from onnxsparse.errors import PlanError, nearest
from onnxsparse.files import make_folder, write_text
from onnxsparse.targets import Target
from onnxsparse.train.layers import Measured, Network

NAME = "sparse_analysis.json"
VERSION, WEIGHTS = 2, "weights"
Table = Mapping[str, Mapping[str, float]]


def made_for(
    network: Network, found: Mapping[str, Measured], dense: Mapping[str, str], device: str, allocation: Energy
) -> dict[str, Any]:
    """Everything that a table depends on, for JSON."""
    layers = {
        site.name: [list(site.shape), found[site.key].size, "dense" if site.key in dense else ""]
        for site in network.sites
    }
    digest = hashlib.sha256()
    for site in network.sites:
        digest.update(np.ascontiguousarray(network.weight(site.key), np.float32).tobytes())
    return {"device": device, "allocation": allocation.text, "layers": layers, WEIGHTS: digest.hexdigest()}


def goes_on(network: Network, masked: bool, lowest: float) -> bool:
    """Whether a network is in the middle of its training: it gets masks, or has the zeros of half a level already."""
    size = sum(site.size for site in network.sites)
    zeros = sum(site.size - int(np.count_nonzero(network.weight(site.key))) for site in network.sites)
    return masked or zeros > max(size, 1) * lowest / 200 > 0


def read_tables(path: str, levels: Sequence[float]) -> tuple[Table, Mapping[str, Any]]:
    """The tables of a file by level, and what they were made for; what is damaged is an error."""
    found = load(path)
    tables = found.get("levels") if isinstance(found, Mapping) else None
    if not isinstance(tables, Mapping):
        raise PlanError(f"{path} is no analysis of ours; remove it, or set do_sparse_analysis to True")
    known = found.get("made_for")
    known = known if isinstance(known, Mapping) else {}
    layers = known.get("layers")
    for level in levels:
        _check(tables.get(f"{level:g}", {}), f"{level:g}", path, layers if isinstance(layers, Mapping) else None)
    return tables, known


def _check(table: Any, level: str, path: str, names: Mapping[str, Any] | None) -> None:
    """Shares are shares, and of layers of the network that the table was made for, where it says which."""
    way = "remove the file, or set do_sparse_analysis to True"
    if not isinstance(table, Mapping):
        raise PlanError(f"{path}: level {level} is no mapping of layers to per cent but {table!r:.40}; {way}")
    for name, share in table.items():
        if names is not None and name not in names:
            raise PlanError(f"{path}: the network has no layer '{name}'{nearest(str(name), names)}; {way}")
        number = isinstance(share, (int, float)) and not isinstance(share, bool) and math.isfinite(share)
        if not number or not 0 <= share < 100:
            raise PlanError(
                f"{path}: '{name}' at level {level} is from 0 to below 100 per cent, not {share!r:.40}; {way}"
            )


def difference(tables: Table, levels: Sequence[float], known: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What a table was made for that is another now; nothing where it counts."""
    missing = next((f"{level:g}" for level in levels if f"{level:g}" not in tables), None)
    if missing is not None:
        return f"it has no level {missing}"
    if not known:
        return "it does not say what it was made for"
    for name in ("device", "allocation"):
        if known.get(name) != wanted[name]:
            return f"{name} was {known.get(name)!s:.80} and is {wanted[name]}"
    return _of_layers(tables, levels, known, wanted)


def _of_layers(tables: Table, levels: Sequence[float], known: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    before, now = known.get("layers"), wanted["layers"]
    before = before if isinstance(before, Mapping) else {}
    for name in {**now, **before}:
        if name not in now or name not in before:
            return f"layer '{name}' is {'new' if name in now else 'gone'}"
        if before[name] != now[name]:
            return _changed(name, before[name], now[name])
    for level in levels:
        absent = next((name for name in now if name not in tables[f"{level:g}"]), None)
        if absent is not None:
            return f"layer '{absent}' is missing at level {level:g}"
    return "" if known.get(WEIGHTS) == wanted[WEIGHTS] else "the weights are others"


def _changed(name: str, before: Any, now: Any) -> str:
    if isinstance(before, list) and before[:2] == now[:2]:
        return f"layer '{name}' {'is excluded now' if now[2] else 'was excluded, and is not any more'}"
    return f"layer '{name}' was {_told(before)} and is {_told(now)}"


def _told(layer: Any) -> str:
    shape, size, dense = layer if isinstance(layer, list) and len(layer) == 3 else (layer, None, "")
    return f"{shape}{f' at input size {size}' if size else ''}{', excluded' if dense else ''}"


def write_tables(folder: str, tables: Table, wanted: Mapping[str, Any]) -> None:
    make_folder(folder)
    said = {"onnxsparse_analysis": VERSION, "device": wanted["device"], "made_for": wanted, "levels": tables}
    write_text(os.path.join(folder, NAME), json.dumps(said, indent=2) + "\n", True)


# -- the table of the layers

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
