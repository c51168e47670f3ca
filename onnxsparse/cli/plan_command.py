"""`onnxsparse plan MODEL -o plan.yaml`"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from onnxsparse.cli import arguments as shared


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_model(parser)
    shared.add_output(parser, "the plan to write (YAML)")
    shared.add_rule(parser)
    shared.add_level(parser)
    shared.add_plan(parser)
    shared.add_json(parser)


def run(arguments: Namespace) -> int:
    from onnxsparse import api
    from onnxsparse.cli.finish import finish, watched

    with watched(arguments):
        result = api.plan(
            arguments.model,
            output=arguments.output,
            overwrite=arguments.overwrite,
            plan=arguments.plan,
            masks=arguments.masks,
            level=arguments.level,
            dims=shared.dims_of(arguments),
            **shared.rule_of(arguments),
        )
    return finish(result.report, arguments)
