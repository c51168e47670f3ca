"""Arguments of the command line: flags made from `options.py`, and the values of a call made from what was typed."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from onnxsparse.errors import OptionError, OutputError
from onnxsparse.options import REQUIRED, Option, options_of

if TYPE_CHECKING:
    from onnxsparse.recipes import Recipe

TAKEN = (
    "model",
    "output",
    "plan",
    "masks",
    "dense",
    "sparse",
    "data",
    "recipe",
    "config",
    "scores",
    "apply",
    "save_permutation",
)
TYPES = {"whole": int, "number": float}
METAVARS = {"whole": "N", "number": "X"}


def add_model(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the .onnx file")


def add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - for standard output")


def add_options(parser: ArgumentParser, *commands: type, required: tuple[str, ...] = ()) -> None:
    """The flags of commands, each under the heading of its group."""
    groups: dict[str, Any] = {"": parser}
    for one in (one for command in commands for one in options_of(command).values() if one.flags):
        if one.group not in groups:
            groups[one.group] = parser.add_argument_group(one.group)
        about = {**_asked(one), "required": True} if one.name in required or one.default is REQUIRED else _asked(one)
        groups[one.group].add_argument(*one.flags, dest=one.name, **about)


def _asked(one: Option) -> dict[str, Any]:
    """How argparse takes an option."""
    about: dict[str, Any] = {"help": one.meaning.replace("`", "").replace("%", "%%")}
    default = None if one.default is REQUIRED else one.default
    if one.kind == "switch":
        return {**about, "action": "store_true", "default": default}
    if one.kind in ("names", "pairs"):
        several = {"nargs": "+", "action": "extend"} if one.kind == "names" else {"action": "append"}
        return {**about, **several, "default": [], "metavar": one.metavar}
    return {**about, "type": TYPES.get(one.kind), "default": default, "metavar": one.metavar or METAVARS.get(one.kind)}


def chosen(arguments: Namespace, command: type) -> dict[str, Any]:
    """What was typed, as the arguments of the function of a command."""
    names = [one.name for one in options_of(command).values() if one.flags]
    given = {name: getattr(arguments, name) for name in names}
    return {**given, "dims": dims_of(arguments)} if "dims" in given else given


def dims_of(arguments: Namespace) -> dict[str, int]:
    return dict(_dim(part) for text in arguments.dims for part in text.split(","))


def _dim(text: str) -> tuple[str, int]:
    name, _, size = text.rpartition("=")
    if not name or not (size.isascii() and size.isdigit() and 0 < int(size[:12]) < 1 << 31):
        raise OptionError(f"--dim takes NAME=SIZE such as --dim height=224, not {text[:40]!r}")
    return name, int(size)


def recipe_of_file(arguments: Namespace) -> Recipe | None:
    """The recipe that `--recipe` names, with the `--variables` beside it."""
    if arguments.recipe is None:
        if arguments.variables is not None or arguments.lenient:
            raise OptionError("--variables and --lenient speak of a recipe; pass --recipe too")
        return None
    from onnxsparse.recipes import Recipe

    return Recipe.load(arguments.recipe, arguments.variables, strict=not arguments.lenient)


def check_report_target(arguments: Namespace) -> None:
    """Say before the work starts when the JSON report could not be written, or would replace something else."""
    target = getattr(arguments, "json", None)
    if not target or target == "-":
        return
    folder = os.path.dirname(os.path.abspath(target))
    if os.path.isdir(target) or not os.path.isdir(folder):
        raise OutputError(
            f"--json {target}: "
            + ("is a folder; name a file" if os.path.isdir(target) else "its folder does not exist")
        )
    if not os.access(folder, os.W_OK):
        raise OutputError(f"--json {target}: its folder cannot be written to; choose another one")
    taken = [getattr(arguments, name, None) for name in TAKEN]
    taken += [f"{path}.data" for path in [getattr(arguments, "output", None)] if path]
    if os.path.realpath(target) in {os.path.realpath(path) for path in taken if path}:
        raise OutputError(f"--json {target} is another file of this command; choose another name")
    if os.path.exists(target) and not os.path.isfile(target):  # to read a pipe would wait for ever
        raise OutputError(f"--json {target} is not an ordinary file; - is standard output")
    if os.path.exists(target) and not _is_report(target):
        raise OutputError(f"--json {target} exists and is no report of ours; choose another name")


def _is_report(path: str) -> bool:
    """Only an earlier report may be replaced: any other file may be somebody's data."""
    try:
        with open(path, "rb") as file:
            return b'"tool": "onnxsparse"' in file.read(200)
    except OSError:
        return False
