"""`onnxsparse mask MODEL -o OUT`"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onnxsparse.cli import arguments as shared
from onnxsparse.errors import OptionError

if TYPE_CHECKING:
    from onnxsparse.recipes import Recipe


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_model(parser)
    shared.add_output(parser, "the masked model to write")
    shared.add_rule(parser)
    shared.add_level(parser)
    shared.add_plan(parser)
    _add_schedules(parser)
    shared.add_strict(parser)
    shared.add_json(parser)
    form = (
        "mul: a mask of the weight's type (default); bool or uint8: a small mask and a Cast; where: Where(mask, w, 0)"
    )
    parser.add_argument("--form", default="mul", help=form)


def _add_schedules(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("masks of a schedule, at one moment of it (the end, where none is said)")
    group.add_argument(
        "--config", metavar="SPARSITY.yaml", help="MSBench's sections: mask_generator, fake_sparse, scheduler"
    )
    group.add_argument("--iteration", type=int, metavar="N", help="before which iteration; or --level N")
    group.add_argument(
        "--expected", action="store_true", help="of masks that are drawn: the most probable numbers, without chance"
    )
    group.add_argument("--recipe", metavar="RECIPE.md", help="what a SparseML recipe has masked")
    group.add_argument("--variables", metavar="NAME=VALUE,...", help="other values of the recipe's variables")
    group.add_argument("--lenient", action="store_true", help="leave out of the recipe what nothing runs, and say it")
    group.add_argument("--epoch", type=float, metavar="E", help="before the step at which epoch")
    group.add_argument(
        "--steps-per-epoch", type=int, metavar="N", help="the steps by which the recipe's clock goes (default: any)"
    )


def _recipe(arguments: Namespace) -> Recipe | None:
    from onnxsparse.recipes import Recipe

    if arguments.recipe is not None:
        return Recipe.load(arguments.recipe, arguments.variables, strict=not arguments.lenient)
    if arguments.variables is not None or arguments.lenient:
        raise OptionError("--variables and --lenient speak of a recipe; pass --recipe too")
    return None


def run(arguments: Namespace) -> int:
    from onnxsparse.cli.finish import finish, watched
    from onnxsparse.dialects.masking import insert_masks

    with watched(arguments):
        result = insert_masks(
            arguments.model,
            output=arguments.output,
            overwrite=arguments.overwrite,
            plan=arguments.plan,
            masks=arguments.masks,
            config=arguments.config,
            iteration=arguments.iteration,
            expected=arguments.expected,
            recipe=_recipe(arguments),
            epoch=arguments.epoch,
            steps_per_epoch=arguments.steps_per_epoch,
            strict=arguments.strict,
            form=arguments.form,
            level=arguments.level,
            dims=shared.dims_of(arguments),
            **shared.rule_of(arguments),
        )
    return finish(result.report, arguments)
