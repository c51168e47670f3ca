"""`onnxsparse fold MODEL -o OUT`"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from onnxsparse.cli import arguments as shared


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_model(parser)
    shared.add_output(parser, "the model without masks to write")
    parser.add_argument("--discard", action="store_true", help="drop the masks instead; the weights stay as they are")
    shared.add_rule_to_check(parser, "what has to hold (without any: what the model's metadata records)")
    shared.add_level(parser)
    shared.add_names(parser)
    shared.add_strict(parser)
    shared.add_full(parser)
    shared.add_json(parser)


def run(arguments: Namespace) -> int:
    from onnxsparse import api
    from onnxsparse.cli.finish import finish, watched

    with watched(arguments):
        result = api.fold_masks(
            arguments.model,
            output=arguments.output,
            overwrite=arguments.overwrite,
            discard=arguments.discard,
            plan=arguments.plan,
            strict=arguments.strict,
            full=arguments.full,
            level=arguments.level,
            dims=shared.dims_of(arguments),
            **shared.rule_of(arguments, shared.CHECKED),
        )
    return finish(result.report, arguments)
