"""`onnxsparse prune MODEL -o OUT`"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from onnxsparse.cli import arguments as shared


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_model(parser)
    shared.add_output(parser, "the sparse model to write")
    shared.add_rule(parser)
    shared.add_level(parser)
    shared.add_plan(parser)
    shared.add_strict(parser)
    shared.add_json(parser)


def run(arguments: Namespace) -> int:
    from onnxsparse import api
    from onnxsparse.cli.finish import finish, watched

    with watched(arguments):
        result = api.prune(
            arguments.model,
            output=arguments.output,
            overwrite=arguments.overwrite,
            plan=arguments.plan,
            masks=arguments.masks,
            strict=arguments.strict,
            level=arguments.level,
            dims=shared.dims_of(arguments),
            **shared.rule_of(arguments),
        )
    return finish(result.report, arguments)
