"""Training history, as `history.json` and `history.csv` beside the model, and as a picture."""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from onnxsparse.errors import MissingExtraError, OptionError
from onnxsparse.report.rows import finite

VERSION = 1
NAMES = ("history.json", "history.csv")
Write = Callable[[str, str], None]


@dataclass(frozen=True)
class Moment:
    """What was measured after a step. None is what was not measured there."""

    epoch: float
    step: int
    loss: float | None = None
    sparsity: float | None = None
    rate: float | None = None
    samples_per_second: float | None = None
    probe: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


COLUMNS = tuple(each.name for each in fields(Moment) if each.name != "metrics")
MEASURED = "eval_"
"""What the columns of metrics begin with in a table: one of them may be called as a column is."""


class History:
    """The rows of a run, in the order of its steps. `about` says what run it was: the model, the seed, the options."""

    def __init__(self, about: Mapping[str, Any] | None = None) -> None:
        self.about = dict(about or {})
        self.rows: list[Moment] = []

    def add(self, moment: Moment) -> None:
        self.rows.append(moment)

    def until(self, step: int) -> None:
        """Forget what comes after a step: the run goes on from there."""
        self.rows = [row for row in self.rows if row.step <= step]

    @property
    def metrics(self) -> list[str]:
        """The names of all metrics, in the order in which they came up."""
        return list(dict.fromkeys(name for row in self.rows for name in row.metrics))

    def best(self, metric: str, higher: bool = True) -> Moment | None:
        """The first row with the best figure of a column or a metric; NaN is never the best."""
        known = [(_figure(row, metric), row) for row in self.rows]
        found = [(figure if higher else -figure, row) for figure, row in known if figure is not None]
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def to_facts(self) -> dict[str, Any]:
        """All of it as plain dictionaries and lists."""
        return {"version": VERSION, "about": self.about, "rows": [asdict(row) for row in self.rows]}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> History:
        """The history that `to_facts` gave; figures that JSON could not hold come back as None."""
        try:
            if facts["version"] != VERSION:
                raise OptionError(f"the history is of version {facts['version']}, which this version cannot read")
            history = cls(facts["about"])
            history.rows = [Moment(**row) for row in facts["rows"]]
        except (KeyError, TypeError, ValueError) as error:
            raise OptionError("the history is not one that onnxsparse wrote") from error
        return history

    def to_json(self) -> str:
        return json.dumps(finite(self.to_facts()), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def to_csv(self) -> str:
        """One line a row; what was not measured is empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        metrics = self.metrics
        writer.writerow([*COLUMNS, *(MEASURED + name for name in metrics)])
        for row in self.rows:
            writer.writerow([*(getattr(row, name) for name in COLUMNS), *(row.metrics.get(name) for name in metrics)])
        return text.getvalue()

    def write(self, model: str, write: Write, names: Sequence[str] = NAMES) -> tuple[str, ...]:
        """Write both files beside a model; `write(path, text)` is to write all of a file or nothing."""
        folder = os.path.dirname(model)
        paths = tuple(os.path.join(folder, name) for name in names)
        for path, text in zip(paths, (self.to_json(), self.to_csv())):
            write(path, text)
        return paths


def _figure(row: Moment, name: str) -> float | None:
    found: float | None = getattr(row, name) if name in COLUMNS else row.metrics.get(name)
    return None if found is None or math.isnan(found) else found


# -- A picture of accuracy and multiply-accumulates against the level, where matplotlib is installed.


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
