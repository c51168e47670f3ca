"""A line that says how far training is; nothing where nobody watches.

On a terminal it is one line that changes. Elsewhere, such as in the log of a job, a line comes every so often, and only
with --verbose.
"""

from __future__ import annotations

import math
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onnxsparse.runs.run import Watcher

APART = 10.0
"""Seconds between two lines that are no terminal's."""


@contextmanager
def training_progress(arguments: Namespace) -> Iterator[Watcher | None]:
    """What a run is to call with each of its rows."""
    if arguments.quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield _lines() if arguments.verbose else None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("making and proving the training graph", total=None, told="")

        def watch(row: dict[str, Any]) -> None:
            bar.update(task, description="training", total=row["of"], completed=row["step"], told=told(row))

        yield watch


def _lines() -> Watcher:
    """Writes the first row, the last one, and those that come long enough after the one before."""
    last = [-math.inf]

    def watch(row: dict[str, Any]) -> None:
        now = time.monotonic()
        if now - last[0] >= APART or row["step"] == row["of"]:
            last[0] = now
            sys.stderr.write(told(row) + "\n")
            sys.stderr.flush()

    return watch


def told(row: dict[str, Any]) -> str:
    """One row in a few words."""
    parts = [
        f"epoch {row['epoch']:.2f}",
        f"step {row['step']}/{row['of']}",
        f"loss {row['loss']:.4g}",
        f"zeros {row['sparsity']:.1%}",
        f"lr {row['rate']:.2g}",
        f"{row['samples_per_second']:.0f} samples/s",
    ]
    again = [f"attempt {row['attempt']}"] if row["attempt"] > 1 else []
    return "  ".join([*again, *parts])
