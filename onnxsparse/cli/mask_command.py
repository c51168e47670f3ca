"""`onnxsparse mask MODEL -o OUT`"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from onnxsparse.cli import arguments as shared


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_model(parser)
    shared.add_output(parser, "the masked model to write")
    shared.add_rule(parser)
    shared.add_level(parser)
    shared.add_plan(parser)
    shared.add_strict(parser)
    shared.add_json(parser)
    form = (
        "mul: a mask of the weight's type (default); bool or uint8: a small mask and a Cast; where: Where(mask, w, 0)"
    )
    parser.add_argument("--form", default="mul", help=form)


def run(arguments: Namespace) -> int:
    from onnxsparse import api
    from onnxsparse.cli.finish import finish, watched

    with watched(arguments):
        result = api.insert_masks(
            arguments.model,
            output=arguments.output,
            overwrite=arguments.overwrite,
            plan=arguments.plan,
            masks=arguments.masks,
            strict=arguments.strict,
            form=arguments.form,
            level=arguments.level,
            dims=shared.dims_of(arguments),
            **shared.rule_of(arguments),
        )
    return finish(result.report, arguments)
