"""The tables of bench_calibration.py, and the bars that their rows are held to.

Bars are points below the dense accuracy, by the kind that data.json says of a network: one that is `given` has its own,
in per cent; others are held back (`plain`), `recurrent` or `int8`. A goal is said, and misses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from tools.bench.calibration_ways import (
    LEVELS,
    LONG,
    LONG_PLAIN,
    ONE_SHOT,
    OTHERS,
    OTHERWISE,
    QUANTIZED,
    TUNED,
    VARIANTS,
)

Row = dict[str, Any]
LOST = {
    "plain": {"2:4": 0.6, "70 %": 0.6, "80 %": 0.7, "90 %": 1.5, "95 %": 5.0},
    "recurrent": {"2:4": 0.6, "70 %": 0.6, "80 %": 1.2, "90 %": 3.0, "95 %": 14.0},
    "int8": {"2:4": 1.0, "50 %": 1.0, "70 %": 1.0, "80 %": 1.0},
}
GIVEN = {"2:4": 89.7, "50 %": 89.9, "70 %": 89.8, "80 %": 89.7, "90 %": 89.3, "95 %": 88.3}
GIVEN_LONG = {"2:4": 90.1, "80 %": 89.9, "90 %": 89.75, "95 %": 89.4}
LOST_TUNED = {"2:4": 0.4, "80 %": 0.4, "90 %": 0.9, "95 %": 2.5}
LOST_QUANTIZED = {"2:4": 1.0, "80 %": 1.5}
GIVEN_QUANTIZED = {"2:4": 89.5}
BELOW_ONE_SHOT = 0.1
SECONDS, EXTRA_SECONDS = 90.0, 45.0
"""Of one run on the file that is given, and what calibration may add to tuning there."""
LIMITS = {"resnet50": (900.0, 3e9), "bert_base": (900.0, 4e9)}
CORRELATION = 0.99
FEW = 0.75


@dataclass(frozen=True)
class Results:
    """All rows, by what they are of, and the networks."""

    rows: Sequence[Row]
    nets: dict[str, Row]

    def of(self, net: str, level: str, way: str) -> list[Row]:
        wanted = (net, level, way)
        rows = [row for row in self.rows if (row["net"], row["level"], row["way"]) == wanted]
        return sorted((row for row in rows if not row["failed"]), key=lambda row: int(row["draw"]))

    def failure(self, net: str, level: str, way: str) -> str:
        failed = [row["failed"] for row in self.rows if (row["net"], row["level"], row["way"]) == (net, level, way)]
        return next(iter(filter(None, failed)), "")

    def accuracy(self, net: str, level: str, way: str) -> float | None:
        found = self.of(net, level, way)
        return mean(row["accuracy"] for row in found) if found else None

    def named(self, way: str) -> list[str]:
        """The networks that a way was measured on."""
        measured = {row["net"] for row in self.rows if row["way"] == way}
        return [name for name in self.nets if name in measured]


Bar = Callable[[Results, str, str], "float | None"]


def least(results: Results, net: str, lost: dict[str, dict[str, float]] | dict[str, float], level: str) -> float | None:
    """The dense accuracy less what may be lost."""
    table: Any = lost.get(results.nets[net]["bars"], lost) if isinstance(next(iter(lost.values())), dict) else lost
    return results.nets[net]["dense"] - table[level] if level in table else None


def one_shot(results: Results, net: str, level: str) -> float | None:
    given = results.nets[net]["bars"] == "given"
    return GIVEN.get(level) if given else least(results, net, LOST, level)


def tuned(results: Results, net: str, level: str) -> float | None:
    """The bar, or the accuracy without training where that is higher."""
    bars = [] if (bar := least(results, net, LOST_TUNED, level)) is None else [bar]
    if (start := results.accuracy(net, level, ONE_SHOT)) is not None:
        bars.append(start - BELOW_ONE_SHOT)
    return max(bars, default=None)


def quantized(results: Results, net: str, level: str) -> float | None:
    given = results.nets[net]["bars"] == "given"
    return GIVEN_QUANTIZED.get(level) if given else least(results, net, LOST_QUANTIZED, level)


def long(results: Results, net: str, level: str) -> float | None:
    return GIVEN_LONG.get(level) if results.nets[net]["bars"] == "given" else None


# -- tables


def cell(results: Results, net: str, level: str, way: str, bar: float | None = None) -> tuple[str, bool]:
    """The mean, the bar, and whether it holds."""
    found = results.accuracy(net, level, way)
    if found is None:
        failure = results.failure(net, level, way)
        return (f"fails: {failure.replace('|', '/')[:60]}" if failure else ""), not failure or bar is None
    if bar is None:
        return f"{found:.2f}", True
    good = found >= bar - 1e-9
    return f"{found:.2f} / {bar:.2f} {'yes' if good else '**no**'}", good


def spent(results: Results, net: str, way: str) -> list[str]:
    """The largest deviation over the draws, the most CPU seconds and memory."""
    groups = [group for level in LEVELS if (group := results.of(net, level, way))]
    rows = [row for group in groups for row in group]
    if not rows:
        return ["", "", ""]
    several = [[row["accuracy"] for row in group] for group in groups if len(group) > 1]
    seconds, memory = (max(row[name] for row in rows) for name in ("seconds", "memory"))
    deviation = f"{max(map(stdev, several)):.2f}" if several else ""
    return [deviation, f"{seconds:.1f}", f"{memory / 1e6:,.0f}"]


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines)) + "\n"


def held(results: Results, way: str, bar: Bar) -> tuple[str, bool]:
    """A table of networks by levels."""
    lines, holds = [], True
    for net in results.named(way):
        cells = [cell(results, net, level, way, bar(results, net, level)) for level in LEVELS]
        holds &= all(good for _, good in cells)
        lines.append(
            [net, f"{results.nets[net]['dense']:.2f}", *(text for text, _ in cells), *spent(results, net, way)]
        )
    head = ["", "dense", *LEVELS, "deviation, most", "CPU s, most", "peak RSS, MB, most"]
    return (markdown(head, lines) if lines else ""), holds


def side_by_side(results: Results, net: str) -> str:
    """The ways on one network."""
    lines = []
    for way in (ONE_SHOT, *(one.title for one in (*VARIANTS, *OTHERS))):
        cells = [cell(results, net, level, way)[0] + fewer(results, net, level, way) for level in LEVELS]
        if any(cells):
            lines.append([way, *cells, spent(results, net, way)[1]])
    return markdown(["", *LEVELS, "CPU s, most"], lines) if len(lines) > 1 else ""


def fewer(results: Results, net: str, level: str, way: str) -> str:
    """How many zeros there are where a way left most of the network dense, so that its accuracy says little."""
    share = mean([row["zeros"] for row in results.of(net, level, way)] or [100.0])
    return f" ({share:.0f} % zeros)" if share < FEW * 100 * LEVELS[level] else ""


def lengthened(results: Results) -> tuple[str, bool]:
    """Tuning on 20,000 images, and what calibration adds to its time."""
    text, holds = held(results, LONG, long)
    lines = []
    for net in results.named(LONG):
        for level in LEVELS:
            pair = [results.of(net, level, way) for way in (LONG, LONG_PLAIN)]
            if all(pair):
                (after, before) = (mean(row["seconds"] for row in rows) for rows in pair)
                good = after - before <= EXTRA_SECONDS
                holds &= good
                plain = f"{results.accuracy(net, level, LONG_PLAIN):.2f}"
                lines.append([f"{net}, {level}", plain, f"{before:.0f}", f"{after - before:+.0f}", said(good)])
    head = ["", "plain start, %", "CPU s of it", "calibration adds", f"at most {EXTRA_SECONDS:.0f} s"]
    return text + ("\n" + markdown(head, lines) if lines else ""), holds


def full_size(results: Results) -> tuple[str, bool]:
    lines, holds = [], True
    for row in results.rows:
        if row["net"] in LIMITS and not row["failed"]:
            seconds, memory = LIMITS[row["net"]]
            good = row["seconds"] <= seconds and row["memory"] <= memory
            bar = f"{seconds / 60:.0f} min, {memory / 1e9:.0f} GB"
            cells = [f"{row['seconds'] / 60:.1f}", f"{row['memory'] / 1e9:.2f}", "", bar, said(good)]
        elif row["net"] == "minilm" and not row["failed"]:
            good, bar = True, f"goal {CORRELATION}"
            right = said(row["accuracy"] >= CORRELATION)
            cells = [f"{row['seconds'] / 60:.1f}", f"{row['memory'] / 1e9:.2f}", f"{row['accuracy']:.4f}", bar, right]
        elif row["net"] in (*LIMITS, "minilm"):
            good, cells = False, ["", "", "", f"fails: {row['failed'][:60]}", said(False)]
        else:
            continue
        holds &= good
        lines.append([row["net"], row["level"], str(row["draw"]), *cells])
    head = ["", "level", "draw", "CPU min", "peak RSS, GB", "correlation", "bar", "holds"]
    return (markdown(head, lines) if lines else ""), holds


def said(good: bool) -> str:
    return "yes" if good else "**no**"


def in_time(results: Results) -> tuple[str, bool]:
    """Whether runs on the given file keep to their seconds; nothing where there are none."""
    rows = [row for row in results.rows if row["way"] == ONE_SHOT and not row["failed"]]
    spent = [row["seconds"] for row in rows if results.nets.get(row["net"], {}).get("bars") == "given"]
    good = max(spent, default=0.0) <= SECONDS
    return (f"\nA run on the given file takes at most {SECONDS:.0f} CPU s: {said(good)}.\n" if spent else ""), good


def parts(results: Results) -> Iterator[tuple[str, str, bool]]:
    """Titles, tables, and whether their bars hold."""
    text, holds = held(results, ONE_SHOT, one_shot)
    limit, quick = in_time(results)
    yield "One-shot, 256 unlabelled samples, all defaults", text and text + limit, holds and quick
    yield "Tuned, 6,000 unlabelled samples, all defaults", *held(results, TUNED, tuned)
    for way in OTHERWISE:
        yield way.title.capitalize(), *held(results, way.title, lambda *_: None)
    yield "Tuned on 20,000 unlabelled images", *lengthened(results)
    yield "Pruned and quantized, the same 256 samples", *held(results, QUANTIZED, quantized)
    yield "Networks of full size", *full_size(results)
    for net in results.nets:
        yield f"{net}, dense {results.nets[net]['dense']:.2f} %, side by side", side_by_side(results, net), True


def tables(rows: Sequence[Row], nets: dict[str, Row], absent: dict[str, str]) -> tuple[str, bool]:
    """All tables that have rows, whether all bars hold, and the peers of which there are none."""
    found = [part for part in parts(Results(rows, nets)) if part[1]]
    text = "".join(f"\n### {title}\n\n{table}" for title, table, _ in found)
    measured = {way.peer for way in OTHERS if any(row["way"] == way.title for row in rows)}
    told = "".join(f"\nNot measured: {name}; {absent[name]}.\n" for name in absent if name not in measured)
    return text + told, all(good for _, _, good in found)
