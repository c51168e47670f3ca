"""Options that several commands share, said once."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from typing import Any

from onnxsparse.errors import OptionError, OutputError

TAKEN = ("model", "output", "plan", "masks", "dense", "sparse", "data", "recipe", "config")
RULE = ("pattern", "target", "sparsity", "score", "allocation", "include", "exclude", "allow", "seed")
CHECKED = ("pattern", "target", "sparsity", "include", "exclude", "allow")
TARGETS = "a device: ampere or ampere:PROFILE; amba or amba:CHIP"


def add_model(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the .onnx file")


def add_output(parser: ArgumentParser, what: str, required: bool = True) -> None:
    parser.add_argument("-o", "--output", metavar="OUT", required=required, help=what)
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")


def add_rule(parser: ArgumentParser, allocation: str = "uniform (default), global, erk or energy") -> None:
    """What to prune, how much, and which weights."""
    group = parser.add_argument_group("which zeros")
    group.add_argument("--pattern", help="2:4, any N:M, unstructured, block:RxC, filter or channel")
    group.add_argument("--target", help="instead of a pattern " + TARGETS)
    group.add_argument("--sparsity", metavar="SHARE", help="how much goes, such as 0.8 or 80%% (N:M fixes its own)")
    group.add_argument("--score", help="what goes first: magnitude (default) or random")
    group.add_argument("--allocation", help=f"how it is shared out: {allocation}")
    group.add_argument("--seed", type=int, help="for scores that draw numbers (default 0)")
    add_names(parser)


def add_rule_to_check(parser: ArgumentParser, title: str) -> None:
    """Where zeros have to be in a model that has them."""
    group = parser.add_argument_group(title)
    group.add_argument("--pattern", help="2:4, any N:M, unstructured, block:RxC, filter or channel")
    group.add_argument("--target", help=TARGETS)
    group.add_argument("--sparsity", metavar="SHARE", help="the level, where the pattern takes one")
    group.add_argument("--plan", metavar="PLAN.yaml", help="a plan written by `onnxsparse plan`")


def add_full(parser: ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help="evaluate all numbers of very large values, not samples")


def add_level(parser: ArgumentParser) -> None:
    """For devices that know levels, whose layers depend on sizes inside the model."""
    group = parser.add_argument_group("levels of a device")
    group.add_argument("--level", metavar="N", help="the network sparsity in per cent, such as 70, of --target amba")
    add_dim(group, "for multiply-accumulates, and asked for by --target amba")


def add_dim(parser: Any, remark: str) -> None:
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help=f"the size of a dynamic dimension, by its name or as INPUT.AXIS ({remark})",
    )


def add_sample_axes(parser: Any) -> None:
    parser.add_argument(
        "--batch-axis",
        action="append",
        default=[],
        metavar="INPUT=AXIS",
        help="the axis of the samples where it is not the first (default: the one named as such)",
    )
    parser.add_argument(
        "--state",
        action="append",
        default=[],
        metavar="INPUT=OUTPUT",
        help="an input that is the output of the step before, in sequences of samples",
    )


def dims_of(arguments: Namespace) -> dict[str, int]:
    return dict(_dim(part) for text in arguments.dim for part in text.split(","))


def _dim(text: str) -> tuple[str, int]:
    name, _, size = text.rpartition("=")
    if not name or not (size.isascii() and size.isdigit() and 0 < int(size[:12]) < 1 << 31):
        raise OptionError(f"--dim takes NAME=SIZE such as --dim height=224, not {text[:40]!r}")
    return name, int(size)


def add_names(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("which weights")
    names = {"nargs": "+", "action": "extend", "default": [], "metavar": "X"}
    group.add_argument(
        "--include", help="only these: tensor or layer names, globs, re:PATTERN, operator kinds", **_plain(names)
    )
    group.add_argument("--exclude", help="all but these", **_plain(names))
    allow = "prune what stays dense by default: embedding, tied-embedding, stem, depthwise, small, basis, output"
    group.add_argument("--allow", metavar="WORD,...", nargs="+", action="extend", default=[], help=allow)


def _plain(options: dict[str, Any]) -> Any:
    return {**options, "default": []}


def add_plan(parser: ArgumentParser, masks: bool = True) -> None:
    parser.add_argument("--plan", metavar="PLAN.yaml", help="a plan written by `onnxsparse plan`, perhaps edited")
    if masks:
        parser.add_argument("--masks", metavar="MASKS.npz", help="masks of your own by tensor name, non-zero = keep")


def add_strict(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--strict", action="store_true", help="exit 1 when anything is left out that you did not exclude"
    )


def add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - for standard output")


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


def rule_of(arguments: Namespace, names: tuple[str, ...] = RULE) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in names}
