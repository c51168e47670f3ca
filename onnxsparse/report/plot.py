"""A picture of accuracy and multiply-accumulates against the level, where matplotlib is installed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from onnxsparse.errors import MissingExtraError

SIZE = (7.0, 4.2)
LEFT = "multiply-accumulates left, %"


def draw_levels(path: str, rows: Sequence[Mapping[str, Any]], metric: str | None, dense: float | None = None) -> None:
    """Write a PNG: the metric, if one was measured, and the share of MACs that is left, by level.

    `dense` is the metric of the dense model.
    """
    try:
        figure_module = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise MissingExtraError("a picture needs matplotlib: pip install 'onnxsparse[plot]'") from None
    figure = figure_module.Figure(figsize=SIZE)
    axes = figure.add_subplot()
    axes.set_xlabel("level: network sparsity in per cent")
    lines = _draw_metric(axes, rows, metric, dense) if metric is not None else []
    lines += _draw_macs(axes.twinx() if lines else axes, rows)
    axes.legend(lines, [line.get_label() for line in lines], loc="lower left")
    figure.tight_layout()
    waiting = f"{path}.part"
    figure.savefig(waiting, format="png", dpi=150)
    os.replace(waiting, path)


def _draw_metric(axes: Any, rows: Sequence[Mapping[str, Any]], metric: str, dense: float | None) -> list[Any]:
    figures = [row["metrics"].get(metric) for row in rows]
    lines: list[Any] = axes.plot([row["level"] for row in rows], figures, "o-", color="C0", label=metric)
    if dense is not None:
        lines.append(axes.axhline(dense, color="C0", linestyle=":", label=f"{metric} of the dense model"))
    axes.set_ylabel(metric)
    return lines


def _draw_macs(axes: Any, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    shares = [100 * row["macs_left"] / row["macs"] if row["macs"] else None for row in rows]
    axes.set_ylabel(LEFT)
    axes.set_ylim(0, 100)
    lines: list[Any] = axes.plot([row["level"] for row in rows], shares, "s--", color="C1", label=LEFT)
    return lines
