"""The commands that work on one model, `compare`, and `list`.

A command is a thin layer over the function of its name in `onnxsparse`: what was typed goes in, the report is shown.
"""

from __future__ import annotations

import importlib
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import redirect_stdout

from onnxsparse import options, plugins
from onnxsparse.cli.arguments import add_json, add_model, add_options, chosen, recipe_of_file
from onnxsparse.errors import OptionError, nearest

KINDS = (
    "patterns", "scores", "allocations", "targets", "schedules", "sparsers", "losses", "optimizers", "rates", "metrics",
    "modifiers", "observers", "solvers",
)  # fmt: skip
WRITES = ("plan", "permute", "prune", "mask", "fold", "quantize", "oneshot")


def add_arguments(name: str, parser: ArgumentParser) -> Callable[[Namespace], int]:
    """The arguments of a command, and what runs it."""
    if name == "list":
        parser.add_argument("kind", nargs="?", metavar="KIND", help=f"one of {', '.join(KINDS)} (default: all)")
        return _list
    if name == "compare":
        parser.add_argument("dense", metavar="DENSE", help="the dense .onnx file")
        parser.add_argument("sparse", metavar="SPARSE", help="its sparse form")
    else:
        add_model(parser)
    add_options(parser, *options.COMMANDS[name], required=("output",) if name in WRITES else ())
    add_json(parser)
    return {"mask": _mask, "compare": _compare, "quantize": _quantize, "oneshot": _oneshot}.get(name, _run)


def _run(arguments: Namespace) -> int:
    from onnxsparse import api
    from onnxsparse.cli.output import calibrating, finish, watched

    name = arguments.command
    function = api.fold_masks if name == "fold" else getattr(api, name)
    with watched(arguments), calibrating(arguments):
        result = function(arguments.model, **chosen(arguments, options.COMMANDS[name][0]))
    return finish(result.report, arguments)


def _mask(arguments: Namespace) -> int:
    from onnxsparse.cli.output import calibrating, finish, watched
    from onnxsparse.dialects.masking import insert_masks

    with watched(arguments), calibrating(arguments):
        given = {**chosen(arguments, options.MaskOptions), "recipe": recipe_of_file(arguments)}
        result = insert_masks(arguments.model, **given)
    return finish(result.report, arguments)


def _compare(arguments: Namespace) -> int:
    from onnxsparse import api
    from onnxsparse.cli.output import finish, watched

    if arguments.samples is not None and arguments.samples < 1:
        raise OptionError(f"--samples takes a number from 1, not {arguments.samples}")
    if arguments.data == "":
        raise OptionError("--data is empty; name a file")
    given, axis = chosen(arguments, options.CompareOptions), arguments.axis
    given["axis"] = axis[0] if len(axis) == 1 and "=" not in axis[0] else axis
    with watched(arguments):
        report = api.compare(arguments.dense, arguments.sparse, **given).report
    return finish(report, arguments)


def _quantize(arguments: Namespace) -> int:
    from onnxsparse import api
    from onnxsparse.cli.output import finish, watched

    with watched(arguments), redirect_stdout(sys.stderr):  # users' functions may print
        result = api.quantize(arguments.model, **chosen(arguments, options.QuantizeOptions))
    return finish(result.report, arguments)


def _oneshot(arguments: Namespace) -> int:
    from onnxsparse.cli.output import finish, watched
    from onnxsparse.dialects.oneshot import oneshot

    with watched(arguments), redirect_stdout(sys.stderr):  # users' functions may print
        given = {**chosen(arguments, options.OneshotOptions), "recipe": recipe_of_file(arguments)}
        result = oneshot(arguments.model, **given)
    return finish(result.report, arguments)


def _list(arguments: Namespace) -> int:
    if arguments.kind and arguments.kind not in KINDS:
        raise OptionError(
            f"there is no kind {arguments.kind[:40]!r}{nearest(arguments.kind, KINDS)}; known: {', '.join(KINDS)}"
        )
    for kind in [arguments.kind] if arguments.kind else KINDS:
        sys.stdout.write(_described(kind))
    return 0


def _described(kind: str) -> str:
    lines = [f"{kind}:"]
    for entry in importlib.import_module(plugins.home_of(kind)).available():
        lines.append(f"  {entry.syntax:<28} {entry.description}")
        lines += [f"      {o.name} ({o.type}{_default(o.default)})" for o in entry.options]
    return "\n".join(lines) + "\n\n"


def _default(text: str) -> str:
    return ", required" if text == "required" else f", default {text}" if text else ""
