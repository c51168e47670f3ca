"""Reports for people: one table with totals, the reason for whatever stayed dense, and what to do next."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onnxsparse.report.check_lines import check_lines
from onnxsparse.report.levels_table import levels_lines, levels_table
from onnxsparse.report.rows import DENSE, Report, Row

WIDE = 160
SHORTEST = 28
_STYLES = {
    "pruned": "green",
    "masked": "green",
    "folded": "green",
    "holds": "green",
    "planned": "green",
    "violated": "red",
    "left": "yellow",
}
_VERBS = {
    "inspect": "prunable",
    "plan": "planned",
    "prune": "pruned",
    "mask": "masked",
    "fold": "folded",
    "finetune": "pruned and trained",
}
DISTANCE, HELD_OUT = "distance", "samples held out"
UNTRAINED = "was pruned, but not trained"
_CPU = "A CPU runtime will not run this file faster: the zeros pay on the device, or in the size of a compressed file."


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """The command line decides what a closed pipe means, not the library."""
        raise BrokenPipeError


def show(report: Report, verbosity: int) -> None:
    """Print a report; with verbosity below 0 only when something does not hold."""
    console = _Console(soft_wrap=False, width=None if sys.stdout.isatty() else _width(), highlight=False)
    if report.command == "check":
        if verbosity >= 0 or not report.ok:
            _print(console, check_lines(report))
        return
    if report.command == "levels":
        if verbosity >= 0 or not report.ok:
            console.print(levels_table(report))
            _print(console, levels_lines(report))
        return
    if verbosity < 0:
        if not report.ok:
            _print(console, [_summary(report)])
        elif report.command in ("prune", "mask", "finetune") and not report.totals.done:
            _print(_Console(stderr=True, highlight=False), [_summary(report)])
        return
    if report.command == "compare":
        console.print(_distances(report))
        return
    if report.rows:
        console.print(_table(report, verbosity, console.width))
    _print(console, [*_lines(report), *_reasons(report.rows, verbosity)])


def _width() -> int:
    return int(os.environ["COLUMNS"]) if os.environ.get("COLUMNS", "").isdigit() else WIDE


def _print(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(Text(_printable(line)), soft_wrap=True)


_COLUMNS: tuple[str, ...] = ("weight", "used by", "shape", "type", "matrix", "pattern", "zeros", "")
_RIGHT = ("pattern", "zeros", "density", "target density", "wasted")


_LEVELS = ("density", "target density", "wasted")


def _columns(report: Report) -> tuple[str, ...]:
    """Where a device says what it can use, that is what one looks for."""
    if all(row.target_density is None for row in report.rows):
        return _COLUMNS
    return ("weight", "used by", "shape", "matrix", "zeros", *_LEVELS, "")


def _table(report: Report, verbosity: int, width: int) -> Table:
    """One line a weight; on a narrow terminal columns go and names lose their middle, unless all was asked for."""
    every, columns = (*_COLUMNS, *_LEVELS), _columns(report)
    rows = [dict(zip(every, [*_cells(row, report.command, verbosity), *_densities(row)])) for row in report.rows]
    widths = {title: max(len(title), *(len(row[title]) for row in rows)) for title in columns}
    shown, room = _fitting(columns, widths, width) if verbosity < 1 else (columns, widths["weight"])
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in shown:
        table.add_column(title, justify="right" if title in _RIGHT else "left", no_wrap=verbosity < 1, overflow="fold")
    for row, cells in zip(report.rows, rows):
        cells["weight"] = _shortened(cells["weight"], room)
        style = _STYLES.get(row.status, "dim")
        table.add_row(*(Text(cells[title], style="" if title else style) for title in shown))
    return table


def _fitting(columns: tuple[str, ...], widths: dict[str, int], width: int) -> tuple[tuple[str, ...], int]:
    """The columns that fit, and what is left for the names."""
    shown = columns
    for dropped in ("", "matrix", "type", "shape", "used by"):
        shown = tuple(title for title in shown if title != dropped or not dropped)
        room = width - sum(widths[title] + 2 for title in shown if title != "weight")
        if room >= min(SHORTEST, widths["weight"]):
            break
    return shown, max(room, SHORTEST)


def _shortened(name: str, room: int) -> str:
    """The end of a name says more than its middle."""
    head = room // 3
    return name if len(name) <= room else f"{name[:head]}...{name[len(name) - room + head + 3 :]}"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _cells(row: Row, command: str, verbosity: int) -> list[str]:
    return [
        _printable(row.name),
        _printable(_users(row, verbosity)),
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
    return "" if zeros is None or not row.size else _share(zeros, row.size)


def _share(part: int, whole: int) -> str:
    """Rounded, but never to all or nothing when it is neither."""
    share = 100 * part / whole
    return f"{min(max(share, 0.1), 99.9) if 0 < part < whole else share:.1f} %"


def _summary(report: Report) -> str:
    totals = report.totals
    bad = sum(row.status == "violated" for row in report.rows)
    if report.command == "verify":
        verdict = "holds" if report.ok else "DOES NOT HOLD"
        open_rows = totals.weights - totals.done - bad
        counts = f"{totals.done} of {totals.weights} weights hold, {bad} do not, {open_rows} unchecked"
        return f"{verdict}: {report.model} against {report.rule}: {counts}{_why(report)}"
    share = f", {_share(totals.zeros, totals.elements)} of all weight elements are zero" if totals.elements else ""
    verb = _VERBS[report.command if _is_trained(report.details) else "prune"]
    untrained = sum(UNTRAINED in note for note in report.notes)
    if untrained and verb == _VERBS["finetune"]:
        verb = f"pruned, {max(0, totals.done - untrained)} of them trained"
    return f"{totals.done} of {totals.weights} weights {verb}{share}"


def _why(report: Report) -> str:
    """What does not hold: of the network, and of the first weight."""
    bad = next((row for row in report.rows if row.status == "violated"), None)
    weight = [f"{bad.name}: {bad.reason}"] if bad is not None else []
    return "".join(f"; {fault}" for fault in (*report.faults, *weight))


def _lines(report: Report) -> list[str]:
    totals = report.totals
    lines = ["", _summary(report)]
    if report.command in ("plan", "prune", "mask", "finetune", "verify") and totals.bytes_dense:
        lines.append(f"weights: {_bytes(totals.bytes_dense)} dense, {_bytes(totals.bytes_sparse)} once stored sparse")
    if totals.macs and totals.macs_left is not None:
        left = f", {_count(totals.macs_left)} left ({_share(totals.macs_left, totals.macs)})" if totals.zeros else ""
        lines.append(f"multiply-accumulates: {_count(totals.macs)}{left}")
    lines += [*_training(report), *_slow(report), *report.notes]
    if report.output:
        lines.append(f"written: {report.output}")
    if report.next_step:
        lines += [f"next, on the device: {report.next_step}", _CPU]
    elif report.command in ("prune", "finetune") and totals.done:
        lines.append(_CPU)
    return lines


def _training(report: Report) -> list[str]:
    """What training came to, in figures: dense, right after pruning, and now."""
    if report.command != "finetune":
        return []
    found: Any = report.details
    if not found["attempts"]:
        return []
    before, after = found["loss_without_training"], found["loss"]
    trained = _is_trained(found)
    came_to = f"{after:.4g} trained ({found['steps']} steps)" if trained else "training did not help"
    unit = f"; {found['loss_unit']}" if found.get("loss_unit") else ""
    lines = [f"loss on samples held out: {before:.4g} pruned, {came_to}{unit}"]
    stages = [("dense", found["metrics_dense"]), ("pruned", found["metrics_without_training"])]
    stages += [("trained", found["metrics"])] if trained else []
    on = f" on {HELD_OUT}" if found.get("measured_on") == HELD_OUT else ""
    for name in found["metrics"]:
        own = name.partition(":")[0] == DISTANCE  # the dense model is no way off itself
        told = [f"{one[name]:.4g} {stage}" for stage, one in stages if name in one and not (own and stage == "dense")]
        lines.append(f"{_metric(name)}{on}: {', '.join(told)}")
    return lines


def _metric(name: str) -> str:
    """The name of a metric; of that of `compare` in its words."""
    word, _, output = name.partition(":")
    return f"relative distance{f' of {output}' if output else ''}" if word == DISTANCE else name


def _is_trained(details: Mapping[str, Any]) -> bool:
    """Whether the weights are those of a training; the last ones are delivered even if they are no better."""
    return bool(details.get("trained", details.get("helped", True)))


def _slow(report: Report) -> list[str]:
    """Weights whose zeros the device may use but which are too small to win by it."""
    found = [row for row in report.rows if row.status == "holds" and any(use.pays is False for use in row.uses)]
    if not found:
        return []
    remark = next(use.remark for use in found[0].uses if use.pays is False)
    return [f"unlikely to pay: {len(found)} of the weights that hold (first {found[0].name}: {remark})"]


def _reasons(rows: Sequence[Row], verbosity: int) -> list[str]:
    """The weights that stayed dense by reason, so that a hundred alike take one line."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.reason:
            groups.setdefault((row.reason, row.advice), []).append(row.name)
    lines = ["", "left dense, not checked, or not whole:"] if groups else []
    for (reason, advice), names in groups.items():
        shown = names if verbosity > 0 else names[:3]
        more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
        lines.append(f"  {', '.join(shown)}{more}: {reason}" + (f" -> {advice}" if advice else ""))
    return lines


def _distances(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title=None)
    for title in ("output", "relative distance", "largest difference", "cosine", "same winner"):
        table.add_column(title, justify="left" if title == "output" else "right")
    found: Any = report.details["outputs"]
    for entry in found:
        agreement = "" if entry["agreement"] is None else f"{100 * entry['agreement']:.1f} %"
        table.add_row(
            Text(entry["output"]),
            f"{entry['relative']:.4g}",
            f"{entry['largest']:.4g}",
            f"{entry['cosine']:.5f}",
            agreement,
        )
    return table


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _count(count: int) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return str(count)
