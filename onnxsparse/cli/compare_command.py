"""`onnxsparse compare DENSE SPARSE`"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from onnxsparse.cli import arguments as shared
from onnxsparse.errors import OptionError


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("dense", metavar="DENSE", help="the dense .onnx file")
    parser.add_argument("sparse", metavar="SPARSE", help="its sparse form")
    data = "an .npz with arrays named as the inputs, or an .npy for the only one; first axis = samples"
    parser.add_argument("--data", metavar="DATA", help=data)
    parser.add_argument("--samples", type=int, help="how many samples (default: all of the data, or 8 random ones)")
    parser.add_argument("--seed", type=int, default=0, help="for random inputs (default 0)")
    shared.add_dim(parser, "default: chosen by what the model needs, and said")
    axis = "the axis of the classes, of all outputs or of one (default: where the graph says it)"
    parser.add_argument("--axis", metavar="AXIS", action="append", default=[], help=axis + "; AXIS or OUTPUT=AXIS")
    shared.add_sample_axes(parser)
    shared.add_json(parser)


def run(arguments: Namespace) -> int:
    from onnxsparse import api
    from onnxsparse.cli.finish import finish, watched

    if arguments.samples is not None and arguments.samples < 1:
        raise OptionError(f"--samples takes a number from 1, not {arguments.samples}")
    if arguments.data == "":
        raise OptionError("--data is empty; name a file")
    axis = arguments.axis
    with watched(arguments):
        report = api.compare(
            arguments.dense,
            arguments.sparse,
            data=arguments.data,
            samples=arguments.samples,
            seed=arguments.seed,
            dims=shared.dims_of(arguments),
            axis=axis[0] if len(axis) == 1 and "=" not in axis[0] else axis,
            batch_axis=arguments.batch_axis,
            state=arguments.state,
        ).report
    return finish(report, arguments)
