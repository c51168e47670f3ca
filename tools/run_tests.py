"""Runs targets of the Makefile one after the other, whatever each comes to, and sums up their tests.

    python tools/run_tests.py TARGET...

1. Every target runs, also after one that failed, and one line tells what each came to.
2. A target that fails without a failed test (a linter, an installation, a runtime that dies) counts as one failure.
3. The last line has the form `N passed, N failed, N skipped`. The exit code is 0 where nothing failed, otherwise 1.

A target that runs tests hands `RESULTS=FILE` on to pytest, as `--junit-xml`. It needs nothing but Python's library.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

INTERRUPTED = 130


class Counts(NamedTuple):
    """What tests came to."""

    passed: int
    failed: int
    skipped: int

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def counted(results: Path, code: int) -> Counts:
    """What stands in a file of pytest's results, if there is one; a failure that does not is one more."""
    try:
        suites = list(ElementTree.parse(results).iter("testsuite"))  # noqa: S314 - written by our own pytest
    except (OSError, ElementTree.ParseError):
        suites = []
    total, failures, errors, skipped = (
        sum(int(suite.get(name, "0")) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    return Counts(max(0, total - failed - skipped), failed or int(code != 0), skipped)


def run(target: str, results: Path) -> Counts:
    """One target, in a make of its own."""
    command = [os.environ.get("MAKE", "make"), "--no-print-directory", target, f"RESULTS={results}"]
    return counted(results, subprocess.run(command, check=False).returncode)


def main(targets: list[str]) -> int:
    found: dict[str, Counts] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for target in targets:
                found[target] = run(target, Path(folder) / f"{target}.xml")
    except KeyboardInterrupt:
        return INTERRUPTED
    for target, counts in found.items():
        print(f"{target:14}  {counts if sum(counts) != counts.failed else 'failed' if counts.failed else 'passed'}")
    total = Counts(*(sum(column) for column in zip(*found.values()))) if found else Counts(0, 0, 0)
    print(total, flush=True)
    return int(total.failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
