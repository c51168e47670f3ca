"""`onnxsparse levels MODEL --data DATA -o FOLDER`"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from onnxsparse.cli import arguments as shared
from onnxsparse.cli.finetune_command import DATA, METRIC

_TRAINING = {
    "--epochs": (float, "how long each level is trained (default 1)"),
    "--steps": (int, "the same in optimizer steps"),
    "--batch-size": (int, "samples for one step (default 32)"),
    "--optimizer": (str, "relative (default), adamw, adam, sgd, nesterov, with options such as sgd:momentum=0.8"),
    "--lr": (float, "the highest learning rate of every level (default: by how much is pruned)"),
    "--lr-schedule": (str, "how it goes within each level: cosine (default), constant, linear, step, ..."),
    "--warm-up": (float, "at the beginning of each level: a share of it, or steps (default 0.05)"),
    "--weight-decay": (float, "(default 0)"),
    "--clip": (float, "the longest gradient, as a 2-norm over all weights (default: any)"),
    "--loss": (str, "distill (default) or kl from the dense model; cross-entropy, mse, bce or l1 against labels"),
    "--hardness": (float, "the share of the distillation beside a loss against labels (default 0.7)"),
    "--temperature": (float, "how much kl softens both models (default 2)"),
    "--seed": (int, "for the order of the samples (default 0)"),
}


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_model(parser)
    shared.add_output(parser, "the folder for a file of each level, the table and the picture")
    data = parser.add_argument_group("data")
    data.add_argument("--data", metavar="DATA", required=True, help=DATA)
    data.add_argument("--labels", metavar="NAME", help="the array of the labels")
    data.add_argument("--eval-data", metavar="DATA", help="arrays to measure each level on")
    data.add_argument("--metric", metavar="M", nargs="+", action="extend", default=[], help=METRIC)
    levels = parser.add_argument_group("levels")
    levels.add_argument("--target", help="amba (default) or amba:CHIP")
    levels.add_argument("--levels", metavar="N,N,...", help="in per cent, ascending (default 30,40,50,60,70,80,90)")
    levels.add_argument("--allocation", help="how a level is shared out (default energy)")
    levels.add_argument("--config", metavar="C.yaml", help="an MSBench configuration of AmbaLevelPruneScheduler")
    shared.add_dim(levels, "asked for where the model does not say it")
    shared.add_names(parser)
    training = parser.add_argument_group("training")
    for name, (kind, text) in _TRAINING.items():
        metavar = {str: "WORD", int: "N"}.get(kind, "X")
        training.add_argument(name, type=kind, metavar=metavar, help=text)
    training.add_argument("--train-bn", action="store_true", default=None, help="update batch statistics")
    training.add_argument("--engine", default="auto", help="auto (default), ort or torch")
    shared.add_json(parser)


def run(arguments: Namespace) -> int:
    from onnxsparse.cli.finish import finish
    from onnxsparse.cli.training_progress import training_progress
    from onnxsparse.leveling import levels

    with training_progress(arguments) as watch:
        result = levels(
            arguments.model,
            data=arguments.data,
            output=arguments.output,
            labels=arguments.labels,
            eval_data=arguments.eval_data,
            metrics=arguments.metric,
            engine=arguments.engine,
            overwrite=arguments.overwrite,
            watch=watch,
            **_options(arguments),
        )
    return finish(result.report, arguments)


def _options(arguments: Namespace) -> dict[str, Any]:
    """What the configuration says, and what the flags say beside it."""
    options: dict[str, Any] = {}
    if arguments.config is not None:
        from onnxsparse.dialects.msbench.leveled import options_of

        notes: list[str] = []
        options = options_of(arguments.config, arguments.model, notes)
        for note in [] if arguments.quiet else notes:
            print(f"note: {note}", file=sys.stderr)  # noqa: T201 - a remark
    names = ["target", "levels", "allocation", "train_bn", *(name[2:].replace("-", "_") for name in _TRAINING)]
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if "epochs" in given:
        options.pop("steps", None)
    merged = {**options, **given}
    for name in ("include", "exclude", "allow"):
        merged[name] = [*options.get(name, []), *getattr(arguments, name)]
    merged["dims"] = {**options.get("dims", {}), **shared.dims_of(arguments)}
    return merged
