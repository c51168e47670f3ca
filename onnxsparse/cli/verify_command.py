"""`onnxsparse verify MODEL`"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from onnxsparse.cli import arguments as shared


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_model(parser)
    shared.add_rule_to_check(parser, "against what (without any: what the model's metadata records)")
    shared.add_level(parser)
    shared.add_names(parser)
    shared.add_strict(parser)
    shared.add_full(parser)
    shared.add_json(parser)


def run(arguments: Namespace) -> int:
    from onnxsparse import api
    from onnxsparse.cli.finish import finish, watched

    options = shared.rule_of(arguments, shared.CHECKED)
    with watched(arguments):
        result = api.verify(
            arguments.model,
            plan=arguments.plan,
            strict=arguments.strict,
            full=arguments.full,
            level=arguments.level,
            dims=shared.dims_of(arguments),
            **options,
        )
    return finish(result.report, arguments)
