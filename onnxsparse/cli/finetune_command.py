"""`onnxsparse finetune MODEL -o OUT --data DATA`"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

from onnxsparse.cli import arguments as shared
from onnxsparse.engines.processes import demand_alone, is_first, speaks
from onnxsparse.errors import OptionError, Stopped, StoppedError

if TYPE_CHECKING:
    from onnxsparse.recipes import Recipe

_PRUNING = {
    "--schedule": "how the level rises: cubic (default), linear, one-shot, ... (see `onnxsparse list schedules`)",
    "--start-sparsity": "the share of the goal to start from (default 0)",
    "--prune-begin": "when it starts to rise, as a share of the run (default 0)",
    "--prune-end": "when the goal is reached; the masks stand still from there (default 0.6)",
    "--updates": "how often the masks move in between (default 60)",
    "--regrow": "let places come back: none (default), weights or gradient",
    "--sparser": "what stands in for a weight: mask (default), or one that learns (see `onnxsparse list sparsers`)",
}
_LOSS = {
    "--loss": "distill (default) or kl from the dense model; cross-entropy, mse, bce or l1 against labels",
    "--hardness": "the share of the distillation beside a loss against labels (default 0.7)",
    "--temperature": "how much kl softens both models (default 2)",
    "--distillation": "the distillation beside labels: distill (default) or kl",
    "--loss-output": "the output that the labels belong to (default: the first float one)",
}
_TRAINING = {
    "--epochs": "how long (default 3, and at least 500 steps)",
    "--steps": "how long, in optimizer steps",
    "--steps-per-epoch": "what counts as an epoch, where the data does not say it",
    "--batch-size": "samples at a time, of all processes together (default 32)",
    "--accumulate": "so many batches make one step (default 1)",
    "--precision": "float32 (default); bfloat16 or float16 in torch, where that is enough",
    "--optimizer": "relative (default), adamw, adam, sgd, nesterov, with options such as sgd:momentum=0.8; ort-adamw",
    "--lr": "the highest learning rate (default: by how much is pruned)",
    "--lr-schedule": "cosine (default), constant, linear, step, multi-step or exponential",
    "--warm-up": "a share of the run, or a number of steps (default 0.05, at least 10 steps of 50 or more)",
    "--weight-decay": "(default 0)",
    "--clip": "the longest gradient, as a 2-norm over all weights (default: any)",
}
_WHOLE = ("--updates", "--steps", "--steps-per-epoch", "--batch-size", "--accumulate")
_TEXT = (
    "--schedule",
    "--regrow",
    "--sparser",
    "--loss",
    "--distillation",
    "--loss-output",
    "--precision",
    "--optimizer",
    "--lr-schedule",
)


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_model(parser)
    shared.add_output(parser, "the sparse, trained model to write", required=False)
    data = parser.add_argument_group("data")
    data.add_argument("--data", metavar="DATA", required=True, help=DATA)
    data.add_argument(
        "--labels", metavar="NAME", help="the array of the labels (default: labels, label, targets, target or y)"
    )
    data.add_argument("--eval-data", metavar="DATA", help="arrays to measure on before, during and after")
    shared.add_sample_axes(data)
    data.add_argument("--metric", metavar="M", nargs="+", action="extend", default=[], help=METRIC)
    shared.add_rule(parser, allocation="erk where it can be (default here), uniform or global")
    shared.add_dim(parser, "for multiply-accumulates, and asked for by --target amba")
    shared.add_plan(parser)
    _add(parser.add_argument_group("how the masks move"), _PRUNING)
    _add(parser.add_argument_group("what is made small"), _LOSS)
    training = parser.add_argument_group("training")
    _add(training, _TRAINING)
    training.add_argument(
        "--train-bn", action="store_true", default=None, help="update batch statistics (default: frozen)"
    )
    training.add_argument("--recipe", metavar="R.yaml", help="all of that from a file, as saved beside OUT")
    training.add_argument("--variables", metavar="NAME=VALUE,...", help="other values of the recipe's variables")
    training.add_argument(
        "--lenient", action="store_true", help="leave out of the recipe what nothing runs, and say it"
    )
    training.add_argument("--engine", default="auto", help="auto (default), ort or torch")
    training.add_argument("--device", metavar="D", help="cpu (default), cuda, cuda:1, mps, ... in torch")
    keeping = parser.add_argument_group("safety")
    keeping.add_argument("--checkpoint", metavar="DIR", help="save the state of the run there, again and again")
    keeping.add_argument("--resume", action="store_true", help="go on with the run in --checkpoint")
    keeping.add_argument("--check", action="store_true", help="prove every gradient of the training graph, and stop")
    shared.add_strict(parser)
    shared.add_json(parser)


_QUIET = Namespace(quiet=True)
DATA = (
    "an .npz with the inputs by name, first axis = samples; a folder of such files; an .npy for each input; or "
    "module:function that yields dictionaries of arrays"
)
METRIC = (
    "loss, accuracy, top-5, r2, mae, mse, agreement, distance, or module:function, called as f(outputs, batch) for "
    "each batch (default: by the data)"
)


def _add(group: Any, options: dict[str, str]) -> None:
    for name, text in options.items():
        kind = str if name in _TEXT else int if name in _WHOLE else float
        metavar = "WORD" if name in _TEXT else "N" if name in _WHOLE else "X"
        group.add_argument(name, type=kind, metavar=metavar, help=text)


def run(arguments: Namespace) -> int:
    from onnxsparse.recipes.flags import FLAGS, recipe_of
    from onnxsparse.train.finetune import finetuned

    _demand_paths(arguments)
    file = _recipe(arguments)
    flags = {name: getattr(arguments, name) for name in FLAGS if hasattr(arguments, name)}
    recipe = recipe_of(flags, file)
    if arguments.verbose and is_first():
        sys.stderr.write(recipe.to_yaml())
    if arguments.check:
        demand_alone("finetune --check")
        return _check(arguments, recipe)
    if arguments.output is None:
        raise OptionError("finetune needs -o OUT, the model to write (or --check to prove the training graph only)")
    if arguments.resume and not arguments.checkpoint:
        raise OptionError("--resume goes on with a run in a folder; pass --checkpoint DIR too")
    from onnxsparse.cli.finish import finish
    from onnxsparse.cli.training_progress import training_progress

    with _quiet_functions(), training_progress(arguments if is_first() else _QUIET) as watch, _interruptible(arguments):
        report = finetuned(
            arguments.model,
            recipe,
            data=arguments.data,
            output=arguments.output,
            engine=arguments.engine,
            device=arguments.device,
            plan=arguments.plan,
            masks=arguments.masks,
            labels=arguments.labels,
            eval_data=arguments.eval_data,
            metrics=arguments.metric,
            batch_axis=arguments.batch_axis,
            state=arguments.state,
            checkpoint=arguments.checkpoint,
            resume=arguments.resume,
            dims=shared.dims_of(arguments),
            strict=arguments.strict,
            overwrite=arguments.overwrite,
            watch=watch,
        ).report
    return finish(report, arguments) if is_first() else int(not report.ok)


def _recipe(arguments: Namespace) -> Recipe | None:
    from onnxsparse.recipes import Recipe

    if arguments.recipe is not None:
        return Recipe.load(arguments.recipe, arguments.variables, strict=not arguments.lenient)
    if arguments.variables is not None or arguments.lenient:
        raise OptionError("--variables and --lenient speak of a recipe; pass --recipe too")
    return None


def _demand_paths(arguments: Namespace) -> None:
    """Paths that are empty, and a report that would replace what is written beside the model."""
    for name in ("data", "eval_data", "checkpoint", "recipe", "output"):
        if getattr(arguments, name) == "":
            raise OptionError(f"--{name.replace('_', '-')} is empty; name a file or folder")
    if arguments.recipe and arguments.output:
        from onnxsparse.runs.beside import demand_apart

        demand_apart(arguments.output, "recipe", arguments.recipe)
    if arguments.json and arguments.output:
        from onnxsparse.runs.beside import beside

        if os.path.realpath(arguments.json) in map(os.path.realpath, beside(arguments.output)):
            raise OptionError(f"--json {arguments.json} is what finetune itself writes beside OUT; choose another name")


def _quiet_functions() -> AbstractContextManager[Any]:
    """What functions of the user's print goes to the errors: the output is the report."""
    return redirect_stdout(sys.stderr)


@contextmanager
def _interruptible(arguments: Namespace) -> Iterator[None]:
    """What an interrupted run leaves, in words."""
    try:
        yield
    except KeyboardInterrupt:
        raise StoppedError(f"interrupted; {_left(arguments)}") from None
    except Stopped:
        if speaks():
            sys.stderr.write(f"onnxsparse: stopped by a signal; {_left(arguments)}\n")
        raise


def _left(arguments: Namespace) -> str:
    if arguments.checkpoint:
        return f"go on with --checkpoint {arguments.checkpoint} --resume"
    return "nothing was kept (with --checkpoint DIR the state would be)"


def _check(arguments: Namespace, recipe: Recipe) -> int:
    """Say what the proof of the training graph found: 0 when every gradient is right, else 1."""
    from onnxsparse.cli.finish import finish
    from onnxsparse.finetuning import check_graph

    with _quiet_functions():
        report = check_graph(
            arguments.model,
            data=arguments.data,
            recipe=recipe,
            plan=arguments.plan,
            masks=arguments.masks,
            labels=arguments.labels,
            batch_axis=arguments.batch_axis,
            state=arguments.state,
        )
    return finish(report, arguments)
