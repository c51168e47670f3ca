"""`onnxsparse list [KIND]`"""

from __future__ import annotations

import importlib
import sys
from argparse import ArgumentParser, Namespace

from onnxsparse.errors import OptionError, nearest

KINDS = (
    "patterns", "scores", "allocations", "targets", "schedules", "sparsers", "losses", "optimizers", "rates", "metrics",
    "modifiers",
)  # fmt: skip


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", metavar="KIND", help=f"one of {', '.join(KINDS)} (default: all)")


def run(arguments: Namespace) -> int:
    if arguments.kind and arguments.kind not in KINDS:
        raise OptionError(
            f"there is no kind {arguments.kind[:40]!r}{nearest(arguments.kind, KINDS)}; known: {', '.join(KINDS)}"
        )
    for kind in [arguments.kind] if arguments.kind else KINDS:
        sys.stdout.write(_described(kind))
    return 0


def _described(kind: str) -> str:
    lines = [f"{kind}:"]
    for entry in importlib.import_module(f"onnxsparse.{kind}").available():
        lines.append(f"  {entry.syntax:<28} {entry.description}")
        lines += [f"      {o.name} ({o.type}{_default(o.default)})" for o in entry.options]
    return "\n".join(lines) + "\n\n"


def _default(text: str) -> str:
    return ", required" if text == "required" else f", default {text}" if text else ""
