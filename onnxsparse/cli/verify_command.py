"""`onnxsparse verify MODEL`"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from onnxsparse.cli import arguments as shared


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_model(parser)
    group = parser.add_argument_group("against what (without any: what the model's metadata records)")
    group.add_argument("--pattern", help="2:4, any N:M, unstructured, block:RxC, filter or channel")
    group.add_argument("--target", help=shared.TARGETS)
    group.add_argument("--sparsity", metavar="SHARE", help="the level, where the pattern takes one")
    group.add_argument("--plan", metavar="PLAN.yaml", help="a plan written by `onnxsparse plan`")
    shared.add_level(parser)
    shared.add_names(parser)
    shared.add_strict(parser)
    parser.add_argument("--full", action="store_true", help="evaluate all numbers of very large values, not samples")
    shared.add_json(parser)


def run(arguments: Namespace) -> int:
    from onnxsparse import api
    from onnxsparse.cli.finish import finish, watched

    options = shared.rule_of(arguments, ("pattern", "target", "sparsity", "include", "exclude", "allow"))
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
