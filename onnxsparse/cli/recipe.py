"""`onnxsparse recipe check RECIPE`, `onnxsparse recipe show RECIPE` and `onnxsparse recipe create MODEL`"""

from __future__ import annotations

import dataclasses
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from typing import Any

from onnxsparse.cli.arguments import add_json, add_options, check_report_target, chosen
from onnxsparse.errors import OptionError
from onnxsparse.options import CreateOptions, RecipeOptions, options_of

CREATE = "create"
ACTIONS = ("check", "show", CREATE)
READ = ("model", "steps_per_epoch", "optimizer", "lenient")
"""Options that speak of a recipe that there is."""
COUNTS = ("data_size", "batch_size", "steps_per_epoch")


def add_arguments(_: str, parser: ArgumentParser) -> Callable[[Namespace], int]:
    """The arguments of the command, and what runs it."""
    parser.add_argument(
        "action",
        choices=ACTIONS,
        metavar="check|show|create",
        help="find mistakes; tell what happens when; or make the recipe that fits a model",
    )
    parser.add_argument(
        "recipe",
        metavar="RECIPE|MODEL",
        help="a recipe: .yaml, .yml, .json, or .md that begins with it; of create the .onnx file",
    )
    add_options(parser, RecipeOptions, CreateOptions)
    add_json(parser)
    return _recipe


def _recipe(arguments: Namespace) -> int:
    from onnxsparse.recipes import Recipe

    for name in COUNTS:
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise OptionError(f"--{name.replace('_', '-')} is a whole number from 1, not {value}")
    if arguments.action == CREATE:
        return _create(arguments)
    _demand_unused(arguments, options_of(CreateOptions), "is of recipe create")
    recipe = Recipe.load(arguments.recipe, arguments.variables, strict=not arguments.lenient)
    return _check(arguments, recipe) if arguments.action == "check" else _show(arguments, recipe)


def _demand_unused(arguments: Namespace, names: Iterable[str], why: str) -> None:
    """No option of another action is passed over in silence."""
    known = {**options_of(CreateOptions), **options_of(RecipeOptions)}
    used = [name for name in names if getattr(arguments, name) not in (known[name].default, [], None)]
    if used:
        raise OptionError(f"{known[used[0]].flags[-1]} {why}; leave it out")


def _create(arguments: Namespace) -> int:
    """The recipe goes to the output, or to standard output."""
    from onnxsparse.cli.output import as_far_as_read
    from onnxsparse.dialects.create.models import create_recipe
    from onnxsparse.recipes.variables import words

    _demand_unused(arguments, READ, "speaks of a recipe that there is")
    given = {**chosen(arguments, CreateOptions), "data_size": arguments.data_size, "batch_size": arguments.batch_size}
    if given["output"] is None and arguments.json != "-":
        given["output"] = "-"
    given["variables"] = words(arguments.variables)
    made: list[Any] = []
    as_far_as_read(lambda: made.append(create_recipe(arguments.recipe, **given)))
    if arguments.json is not None and made:
        _tell(arguments, "", {"ok": True, **_described(made[0])})
    return 0


def _check(arguments: Namespace, recipe: Any) -> int:
    """0: nothing is found but what is worth a note, or 1."""
    from onnxsparse.recipes.checking import NOTE, check

    all_ = check(
        recipe,
        model=arguments.model,
        data_size=arguments.data_size,
        batch_size=arguments.batch_size,
        steps_per_epoch=arguments.steps_per_epoch,
        optimizer=arguments.optimizer,
    )
    found = [one for one in all_ if one.level != NOTE]
    lines = [f"{one}\n" for one in all_]
    count = f"{len(recipe.modifiers)} modifiers, {_epochs(recipe)}{_steps(arguments, recipe)}"
    verdict = f"{len(found)} findings" if len(found) > 1 else "1 finding" if found else "nothing is found"
    if not arguments.quiet:
        lines.append(f"{arguments.recipe}: {count}: {verdict}\n")
    findings = [dataclasses.asdict(one) for one in all_]
    _tell(arguments, "".join(lines), {"ok": not found, "findings": findings, **_described(recipe)})
    return 1 if found else 0


def _show(arguments: Namespace, recipe: Any) -> int:
    from onnxsparse.recipes.checking import steps_of_data
    from onnxsparse.recipes.outline import outline, table

    steps = arguments.steps_per_epoch
    if steps is None and arguments.data_size is not None:
        steps = steps_of_data(recipe, arguments.data_size, arguments.batch_size)[0]
    rows = outline(recipe, steps)
    text = "" if arguments.quiet else f"{recipe}\n{table(rows)}"
    _tell(arguments, text, {"ok": True, "epochs": [dataclasses.asdict(row) for row in rows], **_described(recipe)})
    return 0


def _epochs(recipe: Any) -> str:
    return f"{recipe.max_epochs} epochs" if recipe.max_epochs >= 0 else "no epochs"


def _steps(arguments: Namespace, recipe: Any) -> str:
    """What the samples make, where they are said."""
    from onnxsparse.recipes.checking import steps_of_data

    if arguments.data_size is None:
        return ""
    steps, held = steps_of_data(recipe, arguments.data_size, arguments.batch_size)
    return f", {steps} steps an epoch ({held} of {arguments.data_size} samples are held out)"


def _described(recipe: Any) -> dict[str, Any]:
    """What is said of a recipe in either report."""
    from onnxsparse.recipes.writing import identifier, tag_of

    modifiers = [
        {"tag": tag_of(one), "identifier": identifier(one), "not_applied": one.missing} for one in recipe.modifiers
    ]
    counts = {"min_epochs": recipe.min_epochs, "max_epochs": recipe.max_epochs}
    return {"modifiers": modifiers, **counts, "recipe": str(recipe)}


def _tell(arguments: Namespace, text: str, report: dict[str, Any]) -> None:
    from onnxsparse.cli.output import as_far_as_read
    from onnxsparse.files import write_text
    from onnxsparse.version import __version__

    head = {"tool": "onnxsparse", "version": __version__, "command": f"recipe {arguments.action}"}
    target = arguments.json
    if target is not None:
        document = json.dumps({**head, **report}, indent=2, allow_nan=False) + "\n"
        if target != "-":
            check_report_target(arguments)
            write_text(target, document, overwrite=True)
        else:
            text = document
    as_far_as_read(lambda: _write(text))


def _write(text: str) -> None:
    sys.stdout.write(text)
