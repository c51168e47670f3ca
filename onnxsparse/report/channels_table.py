"""Terminal reports of `channels` and `permute`: classes of channels, and what an order gains of each weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from onnxsparse.report.rows import Report
from onnxsparse.report.weights_table import printable

NAMED = 3
"""How many names of a class are shown, unless all shall be."""
ROUNDING = 1e-9
"""A share of scores in another order of summing differs by less."""
_STYLES = {"permuted": "green", "keeps less": "red", "stays": "yellow"}


def classes_table(report: Report, verbosity: int) -> Table:
    """A line for each class: how many channels, where they lie, and which weights reduce over them."""
    found: Any = report.details["classes"]
    table = _table(("class", "channels"), ("tensors", "read by"))
    for one in found:
        members = [f"{member['tensor']} {_axes(member['axes'])}" for member in one["members"]]
        cells = _some(members, verbosity), _some(one["readers"], verbosity)
        table.add_row(str(one["class"]), str(one["size"]), *map(Text, map(printable, cells)))
    return table


def _axes(axes: Sequence[int]) -> str:
    return f"axis {axes[0]}" if len(axes) == 1 else f"axes {','.join(map(str, axes))}"


def _some(names: Sequence[str], verbosity: int) -> str:
    shown = names if verbosity > 0 else names[:NAMED]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def gains_table(report: Report) -> Table:
    """A line for each weight that the pattern prunes: the share of its scores that is kept, and the efficacy."""
    details: Any = report.details["permutation"]
    figures = {one["name"]: one for one in details["weights"]}
    table = _table(("kept before", "after", "unstructured", "efficacy"), ("",), first="weight")
    for row in report.rows:
        one = figures.get(row.name)
        if one is not None:
            kept = [f"{100 * one[key]:.2f} %" for key in ("before", "after", "unstructured")]
            status = "keeps less" if one["before"] - one["after"] > ROUNDING else row.status
            cells = [printable(row.name), *kept, f"{100 * one['efficacy']:.1f} %"]
            table.add_row(*map(Text, cells), Text(status, style=_STYLES.get(status, "dim")))
    return table


def to_be_pruned(report: Report) -> set[str]:
    """The names of the weights whose order was looked at."""
    details: Any = report.details["permutation"]
    return {one["name"] for one in details["weights"]}


def _table(numbers: Sequence[str], texts: Sequence[str], first: str = "") -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    if first:
        table.add_column(first, overflow="fold")
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    for title in texts:
        table.add_column(title, overflow="fold")
    return table


def summary(report: Report) -> str:
    """One line: how many classes there are or moved, and what it gained."""
    details: Any = report.details if report.command == "channels" else report.details["permutation"]
    count, size = len(details["classes"]), sum(one["size"] for one in details["classes"])
    classes = f"{count} {'class' if count == 1 else 'classes'} of {size} channels"
    if report.command == "channels":
        return (
            f"{classes}; along the reduction of {report.totals.done} of {report.totals.weights} weights they can move"
        )
    gains = [one["after"] - one["before"] for one in details["weights"]]
    more, less = (sum(sign * gain > ROUNDING for gain in gains) for sign in (1, -1))
    losing = f", {less} {'loses' if less == 1 else 'lose'}" if less else ""
    return f"{classes} moved; {more} of {len(gains)} weights to be pruned gain{losing}"


def proof_line(details: Mapping[str, Any]) -> str:
    """What the proof was, by the details of a permutation."""
    proof = details["proof"]
    if proof is None:
        return "NOT proven in the runtime" if details["classes"] else ""
    shapes = "; ".join(", ".join(f"{name} {size}" for name, size in one.items()) for one in proof["shapes"])
    held = ", no more than 4 times as far as rounding alone moves them" if proof["rounded"] else ""
    count = f"{proof['inputs']} random input{'s' if proof['inputs'] > 1 else ''}"
    far = f"elements of outputs differ by {proof['furthest']:.1g} of their size at most"
    return f"proven on {count} ({shapes}): {far}{held}"


__all__ = ["classes_table", "gains_table", "proof_line", "summary", "to_be_pruned"]
