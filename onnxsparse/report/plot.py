"""A picture of accuracy and multiply-accumulates against the level, where matplotlib is installed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from onnxsparse.errors import MissingExtraError

SIZE = (7.0, 4.2)


def draw_levels(path: str, rows: Sequence[Mapping[str, Any]], metric: str, dense: float | None = None) -> None:
    """Write a PNG: the metric and the share of MACs that is left, by level; `dense` is that of the dense model."""
    try:
        figure_module = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise MissingExtraError("a picture needs matplotlib: pip install 'onnxsparse[plot]'") from None
    figure = figure_module.Figure(figsize=SIZE)
    left = figure.add_subplot()
    levels = [row["level"] for row in rows]
    lines = left.plot(levels, [row["metrics"].get(metric) for row in rows], "o-", color="C0", label=metric)
    if dense is not None:
        lines.append(left.axhline(dense, color="C0", linestyle=":", label=f"{metric} of the dense model"))
    left.set_xlabel("level: network sparsity in per cent")
    left.set_ylabel(metric)
    right = left.twinx()
    shares = [100 * row["macs_left"] / row["macs"] if row["macs"] else None for row in rows]
    lines += right.plot(levels, shares, "s--", color="C1", label="multiply-accumulates left, %")
    right.set_ylabel("multiply-accumulates left, %")
    right.set_ylim(0, 100)
    left.legend(lines, [line.get_label() for line in lines], loc="lower left")
    figure.tight_layout()
    waiting = f"{path}.part"
    figure.savefig(waiting, format="png", dpi=150)
    os.replace(waiting, path)
