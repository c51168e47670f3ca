"""`onnxsparse inspect MODEL`"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from onnxsparse.cli import arguments as shared


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_model(parser)
    shared.add_dim(parser, "for multiply-accumulates")
    shared.add_json(parser)


def run(arguments: Namespace) -> int:
    from onnxsparse import api
    from onnxsparse.cli.finish import finish, watched

    with watched(arguments):
        report = api.inspect(arguments.model, dims=shared.dims_of(arguments)).report
    return finish(report, arguments)
