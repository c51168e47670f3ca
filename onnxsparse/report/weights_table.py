"""The table of weights, on a screen of any width: no two of its rows look alike.

1. Where names do not fit, what all of them begin with is cut, and said once above the table.
2. Then columns go, until there is room for the names; then a name takes several lines, cut behind its separators.
3. With verbosity every column is there, and whatever is too long takes several lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from onnxsparse.report.rows import DENSE, Report, Row

SHORTEST, LEAST, NARROWEST = 28, 12, 60
"""Room for names below which columns go; the least there is; and the least for a table of all columns."""
SEPARATORS, MARGIN = "./:_-", "  "
_STYLES = {
    "pruned": "green",
    "masked": "green",
    "folded": "green",
    "holds": "green",
    "planned": "green",
    "quantized": "green",
    "violated": "red",
    "left": "yellow",
}
_COLUMNS: tuple[str, ...] = ("weight", "used by", "shape", "type", "matrix", "pattern", "zeros", "")
_LEVELS = ("density", "target density", "wasted")
_INTEGERS = ("stored as", "zeros before")
_RIGHT = ("pattern", "zeros", "zeros before", *_LEVELS)


def _columns(report: Report) -> tuple[str, ...]:
    """Where a device says what it can use, that is what one looks for."""
    if report.command == "quantize":
        return ("weight", "used by", "shape", "stored as", "pattern", "zeros before", "zeros", "")
    if all(row.target_density is None for row in report.rows):
        return _COLUMNS
    return ("weight", "used by", "shape", "matrix", "zeros", *_LEVELS, "")


@dataclass(frozen=True)
class WeightsTable:
    """The table, what was cut from the front of all its names, and how wide it has to be at least."""

    table: Table
    prefix: str
    width: int


def weights_table(report: Report, verbosity: int, width: int) -> WeightsTable:
    """A line for each weight, and more where its name is long; with verbosity all columns."""
    every, columns = (*_COLUMNS, *_LEVELS, *_INTEGERS), _columns(report)
    cells_of = [(*_cells(row, report.command, verbosity), *_densities(row), *_integers(row)) for row in report.rows]
    rows = [dict(zip(every, cells)) for cells in cells_of]
    prefix, shown, room = _layout(rows, columns, width) if verbosity < 1 else ("", columns, 0)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in shown:
        table.add_column(title, justify="right" if title in _RIGHT else "left", no_wrap=verbosity < 1, overflow="fold")
    for row, cells in zip(report.rows, rows):
        name = cells["weight"][len(prefix) :]
        cells["weight"] = "\n".join(_wrapped(name, room)) if room else name
        style = _STYLES.get(row.status, "dim")
        table.add_row(*(Text(cells[title], style="" if title else style) for title in shown))
    return WeightsTable(table, prefix, NARROWEST if verbosity > 0 else _least(rows, shown))


def _least(rows: Sequence[Mapping[str, str]], shown: Sequence[str]) -> int:
    """How wide the columns are."""
    found = ((title, *(line for row in rows for line in row[title].split("\n"))) for title in shown)
    return sum(2 + max(map(cell_len, lines)) for lines in found)


def _layout(
    rows: Sequence[Mapping[str, str]], columns: tuple[str, ...], width: int
) -> tuple[str, tuple[str, ...], int]:
    """What is cut from the names, the columns that are shown, and the room for a line of a name."""
    widths = {title: max(len(title), *(len(row[title]) for row in rows)) for title in columns}
    _, room = _fitting(columns, widths, width)
    prefix = _prefix([row["weight"] for row in rows]) if widths["weight"] > room else ""
    widths["weight"] = max(len("weight"), widths["weight"] - len(prefix))
    return (prefix, *_fitting(columns, widths, width))


def _fitting(columns: tuple[str, ...], widths: dict[str, int], width: int) -> tuple[tuple[str, ...], int]:
    """The columns that fit, and what is left for the names."""
    shown = columns
    for dropped in ("", "matrix", "type", "zeros before", "shape", "used by", "pattern", "zeros"):
        shown = tuple(title for title in shown if title != dropped or not dropped)
        room = width - sum(widths[title] + 2 for title in shown if title != "weight")
        if room >= min(SHORTEST, widths["weight"]):
            break
    return shown, max(room, LEAST)


def _prefix(names: Sequence[str]) -> str:
    """What all names begin with, up to the end of a part of them; something is left of every name."""
    first, last = min(names), max(names)
    same = next((at for at, (one, other) in enumerate(zip(first, last)) if one != other), len(first))
    room = min(same, *(len(name) - 1 for name in names)) if len(names) > 1 else 0
    return first[: max((at + 1 for at in range(room) if first[at] in SEPARATORS), default=0)]


def _wrapped(name: str, room: int) -> list[str]:
    """A name in lines: cut behind the last separator that fits, where one is in the second half of the line."""
    lines, margin = [], ""
    while len(margin + name) > room:
        end = room - len(margin)
        end = next((at + 1 for at in range(end - 1, end // 2, -1) if name[at] in SEPARATORS), end)
        lines.append(margin + name[:end])
        name, margin = name[end:], MARGIN
    return [*lines, margin + name]


def printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _cells(row: Row, command: str, verbosity: int) -> list[str]:
    return [
        printable(row.name),
        printable(_users(row, verbosity)),
        "x".join(map(str, row.shape)) or "scalar",
        row.dtype,
        _matrix(row),
        "" if row.pattern == DENSE else row.pattern,
        _percent(row),
        _status(row, command),
    ]


def _densities(row: Row) -> list[str]:
    """The share of kept numbers, the one below which nothing is gained, and the zeros beyond."""
    zeros = row.zeros if row.zeros is not None else row.dropped
    density = "" if zeros is None or not row.size else f"{1 - zeros / row.size:.3f}"
    bound = "" if row.target_density is None else f"{row.target_density:.3f}"
    return [density, bound, "" if row.wasted is None else str(row.wasted)]


def _integers(row: Row) -> list[str]:
    before = row.zeros_before
    return [row.quantized or row.dtype, "" if before is None or not row.size else share(before, row.size)]


def _status(row: Row, command: str) -> str:
    if command == "inspect":
        return ", ".join(row.words) or ("cannot" if row.status == DENSE else "masked" if row.masked else "")
    return row.status + (" *" if row.ragged and row.pattern != DENSE else "")


def _users(row: Row, verbosity: int) -> str:
    if verbosity > 0:
        return ", ".join(f"{use.op} {use.node}" for use in row.uses)
    operators = [use.op for use in row.uses]
    counts = {op: operators.count(op) for op in operators}
    return ", ".join(op if count == 1 else f"{op} x{count}" for op, count in counts.items())


def _matrix(row: Row) -> str:
    """What the hardware sees: groups x outputs x inputs x taps, without ones."""
    if not row.uses:
        return ""
    group, out, inputs, taps = row.uses[0].matrix
    return (f"{group} x " if group > 1 else "") + f"{out} <- {inputs}" + (f" x {taps}" if taps > 1 else "")


def _percent(row: Row) -> str:
    zeros = row.zeros if row.zeros is not None else row.dropped
    return "" if zeros is None or not row.size else share(zeros, row.size)


def share(part: int, whole: int) -> str:
    """Rounded, but never to all or nothing when it is neither."""
    rate = 100 * part / whole
    return f"{min(max(rate, 0.1), 99.9) if 0 < part < whole else rate:.1f} %"
