"""Reports of `analyze`: what zeros cost weight by weight, and where to spend them, as tables and as a page of HTML.

The page stands alone: no script, no font and no picture is fetched.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from onnxsparse.report.rows import Report
from onnxsparse.report.weights_table import printable

WIDTH, HEIGHT, MARGIN = 640, 320, 48
_COLORS = ("#1b6ca8", "#c0392b", "#1e8449", "#8e44ad", "#b9770e", "#117a65", "#5d6d7e", "#a93226")
_STYLE = (
    "body{font:15px system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .8em;text-align:right;"
    "border-bottom:1px solid #ddd}"
    "td:first-child,th:first-child{text-align:left}svg{background:#fafafa;border:1px solid #ddd}"
)


def headings(report: Report) -> list[str]:
    """The columns of the weights: levels, and patterns that fix their own."""
    first = analysis_of(report)["weights"][:1]
    levels = [f"{point['sparsity']:.0%}" for one in first for point in one["points"]]
    return levels + [point["pattern"] for one in first for point in one["patterns"]]


def analysis_of(report: Report) -> Any:
    return report.details["analysis"]


def cells(one: dict[str, Any]) -> list[str]:
    """What each level and pattern costs a weight: the predicted distance, and the first metric that was measured."""
    return [_cell(point) for point in (*one["points"], *one["patterns"])]


def _cell(point: dict[str, Any]) -> str:
    if "distance" not in point:
        return "-"  # the pattern does not fit
    metrics = point.get("metrics") or {}
    first = next(iter(metrics.values()), None)
    return f"{point['distance']:.3f}" + ("" if first is None else f" ({first:.4g})")


def ways(report: Report) -> Iterator[tuple[str, str, str, list[str]]]:
    """A line for each level and allocation: the level, the allocation, what it costs, and the level of each weight."""
    names = [one["name"] for one in analysis_of(report)["weights"]]
    for level in analysis_of(report)["levels"]:
        for way in level["ways"]:
            shares = [f"{way['weights'].get(name, 0.0):.0%}" for name in names]
            yield f"{level['sparsity']:.0%}", way["allocation"], f"{way['distance']:.3f}", shares


def weights_cost(report: Report) -> Table:
    table = _table(["weight", "numbers", *headings(report)])
    for one in analysis_of(report)["weights"]:
        table.add_row(*map(Text, map(printable, [one["name"], f"{one['size']:,}", *cells(one)])))
    return table


def spending(report: Report, most: int) -> Table:
    """Where to spend zeros; of many weights the first ones."""
    names = [one["name"] for one in analysis_of(report)["weights"]][:most]
    table = _table(["level", "allocation", "distance", *names])
    for level, allocation, cost, shares in ways(report):
        table.add_row(*map(Text, map(printable, [level, allocation, cost, *shares[:most]])))
    return table


def lines(report: Report) -> list[str]:
    """What the figures are."""
    dense = report.details.get("metrics_dense")
    found = dict(dense) if isinstance(dense, dict) else {}
    first = next(iter(found.items()), None)
    beside = "" if first is None else f", and in brackets {first[0]} (dense {first[1]:.4g})"
    on = "" if first is None else f", measured on {measured_on(report)}"
    said = f"each cell: how far the outputs move when this weight alone goes so far{beside}{on}"
    return [said, *_misfits(report), *report.notes]


def _misfits(report: Report) -> Iterator[str]:
    """Which patterns do not fit which weights."""
    for one in analysis_of(report)["weights"]:
        for point in one["patterns"]:
            if "reason" in point:
                yield f"{one['name']} cannot be {point['pattern']}: {point['reason']}"


def measured_on(report: Report) -> str:
    """On how many samples was measured, and which these are."""
    on = str(report.details["measured_on"])
    return f"{report.details['measured_samples']} {f'samples of {on}' if on.startswith('--') else on}"


def _table(titles: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, title in enumerate(titles):
        table.add_column(printable(title), justify="right" if number else "left", overflow="fold")
    return table


# -- the page


def page(report: Report) -> str:
    """The report as HTML."""
    found = analysis_of(report)["weights"]
    title = html.escape(f"onnxsparse analyze {report.model}")
    reasons = [[row.name, row.reason] for row in report.rows if row.reason]
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>",
        f"<h1>{title}</h1><p>{html.escape(report.rule)}</p>",
        *(f"<p>{html.escape(line)}</p>" for line in lines(report)),
        "<h2>What zeros cost, weight by weight</h2>",
        _chart(found),
        _rows(["weight", "numbers", *headings(report)], [[o["name"], f"{o['size']:,}", *cells(o)] for o in found]),
        "<h2>Where to spend them</h2>",
        _rows(
            ["level", "allocation", "distance", *(o["name"] for o in found)], [[*w[:3], *w[3]] for w in ways(report)]
        ),
        "<h2>Not looked at</h2>" + _rows(["weight", "why"], reasons) if reasons else "",
        "</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _rows(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(one)}</th>" for one in titles)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(one)}</td>" for one in row) + "</tr>\n" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}</table>"


def _chart(weights: Sequence[dict[str, Any]]) -> str:
    """The curves, by the logarithm of the distance."""
    logs = [math.log10(point["distance"]) for one in weights for point in one["points"] if point["distance"] > 0]
    if not logs:
        return ""
    low, high = math.floor(min(logs)), math.ceil(max(logs))
    lined = [_line(one, _COLORS[number % len(_COLORS)], low, max(high, low + 1)) for number, one in enumerate(weights)]
    axes = f"<text x=8 y=20>10^{high}</text><text x=8 y={HEIGHT - MARGIN + 4}>10^{low}</text>"
    return f"<svg width={WIDTH} height={HEIGHT} role=img aria-label='distance by sparsity'>{axes}{''.join(lined)}</svg>"


def _line(one: dict[str, Any], color: str, low: int, high: int) -> str:
    points = [point for point in one["points"] if point["distance"] > 0]
    places = [(_across(point["sparsity"]), _down(math.log10(point["distance"]), low, high)) for point in points]
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    name = html.escape(one["name"])
    marks = "".join(f"<circle cx={x:.1f} cy={y:.1f} r=3 fill='{color}'/>" for x, y in places)
    return f"<g><title>{name}</title><polyline points='{drawn}' fill=none stroke='{color}'/>{marks}</g>"


def _across(sparsity: float) -> float:
    return MARGIN + (WIDTH - 2 * MARGIN) * (sparsity - 0.5) / 0.5


def _down(log: float, low: int, high: int) -> float:
    return MARGIN / 2 + (HEIGHT - 1.5 * MARGIN) * (high - log) / (high - low)


__all__ = ["lines", "measured_on", "page", "spending", "weights_cost"]
