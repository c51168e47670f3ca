"""The table of all levels: sparsity, figures, what is left to multiply, and whether the file verifies."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from onnxsparse.report.rows import Report


def levels_table(report: Report) -> Table:
    found: Any = report.details["levels"]
    dense: Any = report.details["dense"]
    names = list(dict.fromkeys(name for row in found for name in row["metrics"]))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("level", "sparsity", *names, "MACs left", ""):
        table.add_column(title, justify="right" if title else "left", overflow="fold")
    table.add_column("file", overflow="fold")
    if dense:
        table.add_row("dense", "", *(f"{dense[name]:.4f}" if name in dense else "" for name in names), "", "", "")
    for row in found:
        metrics = [f"{row['metrics'][name]:.4f}" if name in row["metrics"] else "" for name in names]
        left = f"{100 * row['macs_left'] / row['macs']:.1f} %" if row["macs"] else ""
        beyond = row["verified"] and any("is passed" in note for note in row["notes"])
        verdict = "passed already" if beyond else "holds" if row["verified"] else "DOES NOT HOLD"
        style = "yellow" if beyond else "green" if row["verified"] else "red"
        cells = [f"{row['level']:g}", f"{100 * row['sparsity']:.2f} %", *metrics, left]
        table.add_row(*cells, Text(verdict, style=style), Text(row["file"]))
    return table


def levels_lines(report: Report) -> list[str]:
    found: Any = report.details["levels"]
    right = sum(row["verified"] for row in found)
    return ["", f"{right} of {len(found)} levels verified", *report.notes, f"written: {report.output}"]
