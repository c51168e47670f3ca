"""The commands that train: `finetune` and `levels`; and the line that says how far training is."""

from __future__ import annotations

import math
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

from onnxsparse import options
from onnxsparse.cli.arguments import add_json, add_model, add_options, chosen, recipe_of_file
from onnxsparse.engines.processes import demand_alone, is_first
from onnxsparse.errors import OptionError

if TYPE_CHECKING:
    from onnxsparse.recipes import Recipe
    from onnxsparse.train.outcome import Watcher

APART = 10.0
"""Seconds between two lines about the progress that are no terminal's."""
_QUIET = Namespace(quiet=True)


def add_arguments(name: str, parser: ArgumentParser) -> Callable[[Namespace], int]:
    """The arguments of a command, and what runs it."""
    add_model(parser)
    add_options(parser, *options.COMMANDS[name])
    add_json(parser)
    if name == "levels":  # None says that nobody typed it, and what a configuration says counts
        parser.set_defaults(target=None, levels=None)
        return _levels
    return _finetune


# -- finetune


def _finetune(arguments: Namespace) -> int:
    from onnxsparse.cli.output import interruptible
    from onnxsparse.recipes.flags import asked_of, recipe_of
    from onnxsparse.train.finetune import finetuned

    _demand_paths(arguments)
    file = recipe_of_file(arguments)
    flags = asked_of(vars(arguments))
    recipe = recipe_of(flags, file)
    if arguments.verbose and is_first():
        sys.stderr.write(recipe.to_yaml())
    if arguments.check:
        demand_alone("finetune --check")
        return _check(arguments, recipe)
    if arguments.output is None:
        raise OptionError("finetune needs -o OUT, the model to write (or --check to prove the training graph only)")
    if arguments.resume and not arguments.checkpoint:
        raise OptionError("--resume goes on with a run in a folder; pass --checkpoint DIR too")
    from onnxsparse.cli.output import finish

    asked = chosen(arguments, options.FinetuneOptions)
    given = {name: value for name, value in asked.items() if name not in flags and name != "recipe"}
    with _quiet_functions(), training_progress(arguments if is_first() else _QUIET) as watch, interruptible(arguments):
        report = finetuned(arguments.model, recipe, **given, watch=watch).report
    return finish(report, arguments) if is_first() else int(not report.ok)


def _demand_paths(arguments: Namespace) -> None:
    """Paths that are empty, and a report that would replace what is written beside the model."""
    for name in ("data", "eval_data", "checkpoint", "recipe", "output"):
        if getattr(arguments, name) == "":
            raise OptionError(f"--{name.replace('_', '-')} is empty; name a file or folder")
    if arguments.recipe and arguments.output:
        from onnxsparse.train.side_files import demand_apart

        demand_apart(arguments.output, "recipe", arguments.recipe)
    if arguments.json and arguments.output:
        from onnxsparse.train.side_files import beside

        if os.path.realpath(arguments.json) in map(os.path.realpath, beside(arguments.output)):
            raise OptionError(f"--json {arguments.json} is what finetune itself writes beside OUT; choose another name")


def _quiet_functions() -> AbstractContextManager[Any]:
    """What functions of the user's print goes to the errors: the output is the report."""
    return redirect_stdout(sys.stderr)


def _check(arguments: Namespace, recipe: Recipe) -> int:
    """Say what the proof of the training graph found: 0 when every gradient is right, else 1."""
    from onnxsparse.cli.output import finish
    from onnxsparse.data.images import as_images
    from onnxsparse.training_api import check_graph

    names = ("plan", "masks", "labels", "batch_axis", "state", "until")
    images = (arguments.resize, arguments.mean, arguments.std, arguments.layout)
    with _quiet_functions():
        (data,) = as_images([arguments.data], *images)
        given = {name: getattr(arguments, name) for name in names}
        report = check_graph(arguments.model, recipe=recipe, data=data, **given)
    return finish(report, arguments)


# -- levels


def _levels(arguments: Namespace) -> int:
    from onnxsparse.cli.output import finish
    from onnxsparse.training_api import levels

    with training_progress(arguments) as watch:
        result = levels(arguments.model, watch=watch, **_with_configuration(arguments))
    return finish(result.report, arguments)


def _with_configuration(arguments: Namespace) -> dict[str, Any]:
    """What the configuration says, and what the flags say beside it."""
    said: dict[str, Any] = {}
    if arguments.config is not None:
        from onnxsparse.dialects.msbench.levels_options import options_of

        notes: list[str] = []
        said = options_of(arguments.config, arguments.model, notes)
        for note in [] if arguments.quiet else notes:
            print(f"note: {note}", file=sys.stderr)  # noqa: T201 - a remark
    typed = chosen(arguments, options.LevelsOptions)
    if typed["epochs"] is not None:
        said.pop("steps", None)
    merged = {**said, **{name: value for name, value in typed.items() if value is not None}}
    for name in ("include", "exclude", "allow"):
        merged[name] = [*said.get(name, []), *typed[name]]
    merged["dims"] = {**said.get("dims", {}), **typed["dims"]}
    return merged


# -- how far it is


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
