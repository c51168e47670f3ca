"""Terminal reports: tables with totals, the reason for whatever stayed dense, and what to do next."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onnxsparse.errors import spelled
from onnxsparse.report.analysis_table import lines as analysis_lines
from onnxsparse.report.analysis_table import measured_on, spending, weights_cost
from onnxsparse.report.channels_table import classes_table, gains_table, proof_line, to_be_pruned
from onnxsparse.report.channels_table import summary as channels_summary
from onnxsparse.report.rows import DENSE, NOTHING, TIED, Report, Row
from onnxsparse.report.weights_table import printable as _printable
from onnxsparse.report.weights_table import share as _share
from onnxsparse.report.weights_table import weights_table

WIDE, SHOWN = 160, 8
_DONE = ("planned", "pruned", "masked")
_VERBS = {
    "inspect": "prunable",
    "plan": "planned",
    "prune": "pruned",
    "mask": "masked",
    "fold": "folded",
    "finetune": "pruned and trained",
    "quantize": "quantized",
}
_LEFT = {"quantize": "left in float:"}
DISTANCE, HELD_OUT = "distance", "samples held out"
UNTRAINED, _WERE, NAMED = "was pruned, but not trained", "were pruned, but not trained", 3
_CPU = "A CPU runtime will not run this file faster: the zeros pay on the device, or in the size of a compressed file."


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """The command line decides what a closed pipe means, not the library."""
        raise BrokenPipeError


def text_of(report: Report) -> str:
    """What `print(report)` shows: the table, as wide as the terminal, with options as arguments of Python."""
    width = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else _width()
    with redirect_stdout(io.StringIO()) as text:
        show(report, 0, width)
    return spelled(text.getvalue().rstrip("\n"))


def show(report: Report, verbosity: int, width: int | None = None) -> None:
    """Print a report; with verbosity below 0 only when something does not hold."""
    console = _Console(soft_wrap=False, width=width or (None if sys.stdout.isatty() else _width()), highlight=False)
    if report.command in _OWN:
        if verbosity >= 0 or not report.ok:
            _OWN[report.command](console, report, verbosity)
        return
    if verbosity < 0:
        if not report.ok:
            _print(console, [_summary(report)])
        elif report.command in ("prune", "mask", "finetune") and not report.totals.done:
            _print(_Console(stderr=True, highlight=False), ["; ".join([_summary(report), *_closing(report)])])
        return
    if report.command == "compare":
        _print(console, [report.rule])
        console.print(_distances(report))
        _print(console, report.notes)
        return
    _print_weights(console, report, verbosity)
    closing = _closing(report)
    _print(console, [*_lines(report, verbosity), *_reasons(report, verbosity), *([""] if closing else []), *closing])


def _show_check(console: Console, report: Report, _: int) -> None:
    _print(console, check_lines(report))


def _show_levels(console: Console, report: Report, _: int) -> None:
    console.print(levels_table(report))
    _print(console, levels_lines(report))


def _show_channels(console: Console, report: Report, verbosity: int) -> None:
    searched = report.command == "permute"
    console.print(gains_table(report) if searched else classes_table(report, verbosity))
    details: Any = report.details.get("permutation")
    lines = ["", channels_summary(report), *([proof_line(details)] if searched else []), *report.notes]
    lines += [f"written: {report.output}"] if report.output else []
    staying = [row for row in report.rows if row.reason and (not searched or row.name in to_be_pruned(report))]
    title = "no better order:" if searched else "nothing moves along the reduction of:"
    _print(console, [*lines[:1], *filter(None, lines[1:]), *_grouped(title, staying, verbosity)])


def _show_analysis(console: Console, report: Report, verbosity: int) -> None:
    if report.details["analysis"]["weights"]:  # type: ignore[index]
        console.print(weights_cost(report))
        console.print()
        most, count = len(report.rows) if verbosity > 0 else SHOWN, len(report.details["analysis"]["weights"])  # type: ignore[index]
        console.print(spending(report, most))
        if count > most:
            _print(
                console, [f"the levels of the first {most} of {count} weights; --verbose, --json and --html have all"]
            )
    staying = [row for row in report.rows if row.reason]
    written = [f"written: {report.output}"] if report.output else []
    _print(console, ["", *analysis_lines(report), *written, *_grouped("not looked at:", staying, verbosity)])


_OWN: dict[str, Callable[[Console, Report, int], None]] = {
    "analyze": _show_analysis,
    "check": _show_check,
    "levels": _show_levels,
    "channels": _show_channels,
    "permute": _show_channels,
}
"""Commands whose reports are no table of weights with their zeros."""


def _print_weights(console: Console, report: Report, verbosity: int) -> None:
    if not report.rows:
        return
    made = weights_table(report, verbosity, console.width)
    if made.prefix:
        _print(console, [f"names without the prefix {made.prefix}"])
    _Console(width=max(console.width, made.width), highlight=False).print(made.table)


def _width() -> int:
    return int(os.environ["COLUMNS"]) if os.environ.get("COLUMNS", "").isdigit() else WIDE


def _print(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(Text(_printable(line)), soft_wrap=True)


def _summary(report: Report) -> str:
    totals = report.totals
    bad = sum(row.status == "violated" for row in report.rows)
    if report.command == "verify" or (report.command == "fold" and not report.ok):
        verdict = ("holds" if report.ok else "DOES NOT HOLD") + (" (sampled)" if report.sampled else "")
        good = sum(row.status != "violated" and row.pattern != DENSE for row in report.rows)
        counts = f"{good} of {totals.weights} weights hold, {bad} do not, {totals.weights - good - bad} unchecked"
        folded = (", folded,", "; nothing was written") if report.command == "fold" else ("", "")
        return f"{verdict}: {report.model}{folded[0]} against {report.rule}: {counts}{_why(report)}{folded[1]}"
    share = f", {_share(totals.zeros, totals.elements)} of all weight elements are zero" if totals.elements else ""
    if report.command == "inspect":
        held = sum(bool(row.words) for row in report.rows)
        more = f", {held} more {'stays' if held == 1 else 'stay'} dense by default (--allow)" if held else ""
        return f"{totals.done} of {totals.weights} weights prunable{more}{share}"
    verb = _VERBS[report.command if _is_trained(report.details) else "prune"]
    untrained = sum(UNTRAINED in note for note in report.notes)
    if untrained and verb == _VERBS["finetune"]:
        verb = f"pruned, {max(0, totals.done - untrained)} of them trained"
    integers = sum(bool(row.quantized) for row in report.rows)
    rounded = f", {integers} rounded" if integers and report.command == "finetune" else ""
    return f"{totals.done} of {totals.weights} weights {verb}{rounded}{share}"


def _why(report: Report) -> str:
    """What does not hold: of the network, and of the first weight."""
    bad = next((row for row in report.rows if row.status == "violated"), None)
    weight = [f"{bad.name}: {bad.reason}"] if bad is not None else []
    return "".join(f"; {fault}" for fault in (*report.faults, *weight))


def _together(notes: Sequence[str], verbosity: int) -> list[str]:
    """Notes; weights that were not trained for one reason share a line, unless all shall be named."""
    alike: dict[str, list[str]] = {}
    for note in notes:
        name, found, reason = note.partition(f" {UNTRAINED}")
        alike.setdefault(reason if found else note, []).append(name)
    lines = []
    for reason, names in alike.items():
        if len(names) == 1 or verbosity > 0:
            lines += [name if name == reason else f"{name} {UNTRAINED}{reason}" for name in names]
            continue
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        lines.append(f"{', '.join(names[:NAMED])}{more} {_WERE}{reason}")
    return lines


def _lines(report: Report, verbosity: int) -> list[str]:
    totals = report.totals
    lines = ["", _summary(report)]
    if report.command in ("plan", "prune", "mask", "finetune", "verify") and totals.bytes_dense:
        lines.append(f"weights: {_bytes(totals.bytes_dense)} dense, {_bytes(totals.bytes_sparse)} once stored sparse")
    if totals.macs and totals.macs_left is not None:
        left = f", {_count(totals.macs_left)} left ({_share(totals.macs_left, totals.macs)})" if totals.zeros else ""
        lines.append(f"multiply-accumulates: {_count(totals.macs)}{left}")
    notes = [note for note in report.notes if not note.startswith(NOTHING)]
    lines += [*_training(report), *_quantizing(report), *_measuring(report)]
    lines += [*_slow(report), *_together(notes, verbosity)]
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
    done = {"pruned": report.totals.done, "rounded": any(row.quantized for row in report.rows)}
    without = " and ".join(word for word, any_of in done.items() if any_of) or "untrained"
    lines = [f"loss on samples held out: {before:.4g} {without}, {came_to}{unit}"]
    stages = [("dense", found["metrics_dense"]), (without, found["metrics_without_training"])]
    stages += [("trained", found["metrics"])] if trained else []
    measured_on = str(found.get("measured_on", ""))
    on = f" on {measured_on}" if measured_on.startswith(HELD_OUT) or "," in measured_on else ""
    for name in found["metrics"]:
        own = name.partition(":")[0] == DISTANCE  # the dense model is no way off itself
        told = [f"{one[name]:.4g} {stage}" for stage, one in stages if name in one and not (own and stage == "dense")]
        several = name == DISTANCE and any(one.startswith(f"{DISTANCE}:") for one in found["metrics"])
        lines.append(f"{'largest ' if several else ''}{_metric(name)}{on}: {', '.join(told)}")
    whole = found.get("distance_of_file")
    if whole:
        told = [f"{whole['pruned']:.4g} {without}", f"{whole['trained']:.4g} trained"]
        lines.append(f"relative distance of the whole file's outputs: {', '.join(told)}")
    return lines


def _quantizing(report: Report) -> list[str]:
    """What quantization came to: where the scales are from, what both models are measured at, how large they are."""
    if report.command != "quantize":
        return []
    found: Any = report.details
    values = f": {found['values']} values" if found["values"] else ""
    values += f", scales from {found['samples']} samples" if values and found["samples"] else ""
    lines = [f"{report.rule}{values}"]
    for name, value in found.get("metrics", {}).items():
        before = f"{found['metrics_dense'][name]:.4g} float, " if name in found["metrics_dense"] else ""
        lines.append(f"{_metric(name)} on {found['measured_on']}: {before}{value:.4g} quantized")
    sizes = f"{_bytes(found['file_bytes_before'])} float, {_bytes(found['file_bytes'])} quantized"
    packed = f"; zipped {_bytes(found['zipped_bytes_before'])}, {_bytes(found['zipped_bytes'])}"
    return [*lines, f"file: {sizes}{packed if 'zipped_bytes' in found else ''}"]


def _measuring(report: Report) -> list[str]:
    """What was measured of a calibrated model, beside the dense one."""
    if report.command not in ("prune", "plan", "mask") or "measured_samples" not in report.details:
        return []
    found: Any = report.details
    before = {name: f"{value:.4g} dense, " for name, value in found["metrics_dense"].items()}
    return [
        f"{_metric(name)} on {measured_on(report)}: {before.get(name, '')}{value:.4g} sparse"
        for name, value in found["metrics"].items()
    ]


def _metric(name: str) -> str:
    """The name of a metric; of that of `compare` in its words."""
    word, _, output = name.partition(":")
    return f"relative distance{f' of {output}' if output else ''}" if word == DISTANCE else name


def _is_trained(details: Mapping[str, Any]) -> bool:
    """Whether the weights are those of a training; the last ones are delivered even if they are no better."""
    return bool(details.get("trained", details.get("helped", True)))


def _closing(report: Report) -> list[str]:
    """What is said last: that nothing was done."""
    return [note for note in report.notes if note.startswith(NOTHING)]


def _slow(report: Report) -> list[str]:
    """Weights whose zeros the device may use but which are too small to win by it, and what that comes to."""
    sparse = [row for row in report.rows if any(use.pays is not None for use in row.uses) and row.status != "violated"]
    found = [row for row in sparse if any(use.pays is False for use in row.uses)]
    lines = []
    if found:
        remark = next(use.remark for use in found[0].uses if use.pays is False)
        which = "" if len(sparse) == 1 else f"first {found[0].name}: "
        lines.append(f"unlikely to pay: {len(found)} of {_weights(len(sparse))} ({which}{remark})")
    return [*lines, *([f"verdict: {report.verdict}"] if report.verdict else [])]


def _weights(count: int) -> str:
    return "1 weight" if count == 1 else f"{count} weights"


def _reasons(report: Report, verbosity: int) -> list[str]:
    """The weights that stayed dense, those that became smaller, and those that are read elsewhere, too."""
    whole = [row for row in report.rows if row.reason and row.status in _DONE and not row.ragged]
    elsewhere = [row for row in whole if row.others]
    copies = [row for row in whole if not row.others and row.reason.startswith(TIED)]
    smaller = [row for row in whole if not row.others and row not in copies]
    others = [row for row in report.rows if row.reason and row not in whole]
    sampled = "calibration" in report.details or any(row.reason.startswith("refitted") for row in smaller)
    what = "by samples:" if sampled else "smaller than they were:"
    return [
        *_grouped(what, smaller, verbosity),
        *_grouped(_LEFT.get(report.command, "left dense, not checked, or not whole:"), others, verbosity),
        *_grouped("not read by layers alone:", elsewhere, verbosity),
        *_grouped("copies, with the zeros of what they are copies of:", copies, verbosity),
    ]


def _grouped(title: str, rows: Sequence[Row], verbosity: int) -> list[str]:
    """The names by reason, so that a hundred alike take one line."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        groups.setdefault((row.reason, row.advice), []).append(row.name)
    lines = ["", title] if groups else []
    for (reason, advice), names in groups.items():
        shown = names if verbosity > 0 else names[:3]
        more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
        lines.append(f"  {', '.join(shown)}{more}: {reason}" + (f" -> {advice}" if advice else ""))
    return lines


def _distances(report: Report) -> Table:
    """A line an output; columns that say nothing of any output are left out."""
    found: Any = report.details["outputs"]
    columns: dict[str, Callable[[Any], str]] = {
        "output": lambda entry: str(entry["output"]),
        "relative distance": lambda entry: _figure(entry["relative"], ".4g"),
        "largest difference": lambda entry: _figure(entry["largest"], ".4g"),
        "cosine": lambda entry: _figure(entry["cosine"], ".5f"),
        "same winner": lambda entry: _share_if(entry["agreement"]),
        "equal": lambda entry: _share_if(entry["equal"]),
    }
    optional = {"same winner", "equal"}
    shown = [title for title, cell in columns.items() if title not in optional or any(map(cell, found))]
    table = Table(box=None, pad_edge=False, header_style="bold", title=None)
    for title in shown:
        table.add_column(title, justify="left" if title == "output" else "right")
    for entry in found:
        table.add_row(*(Text(_printable(columns[title](entry))) for title in shown))
    return table


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _share_if(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


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


# -- What `finetune --check` says of a training graph.


def check_lines(report: Report) -> list[str]:
    """A line for each thing that is not as it should be, between what was checked and the verdict."""
    found: dict[str, Any] = dict(report.details)
    count, lost = found["checked"], len(found["unreached"])
    trains = f"{count} tensor{' trains' if count == 1 else 's train'}"
    return [
        f"training graph of batch {found['batch']}: {trains}, {lost} cannot",
        f"the dense model against itself: loss {found['loss_at_rest']:.3g}",
        *(f"note: {note}" for note in report.notes),
        *(f"not reached: {name}: {reason}" for name, reason in found["unreached"].items()),
        *(f"no gradient: {name}" for name in found["silent"]),
        *(f"WRONG gradient: {name}" for name in found["wrong"]),
        "every gradient agrees with finite differences" if report.ok else "some gradients are WRONG",
    ]


# -- The table of all levels: sparsity, figures, what is left to multiply, and whether the file verifies.


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
