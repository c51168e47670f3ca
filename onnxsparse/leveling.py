"""`levels`: from a model, a device and data to a verified file of every level."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnxsparse import targets
from onnxsparse.api import Result
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Source
from onnxsparse.modifiers.levels import read_levels
from onnxsparse.options import Names, Path
from onnxsparse.passes.request import path_of
from onnxsparse.passes.taken import taken
from onnxsparse.recipes.flags import asked_of, recipe_of
from onnxsparse.train.levels import leveled


def levels(
    source: Source,
    *,
    data: Any,
    output: Path,
    levels: str | Sequence[float] = "30,40,50,60,70,80,90",
    target: str = "amba",
    allocation: str | None = None,
    labels: str | None = None,
    eval_data: Any = None,
    metrics: Sequence[Any] = (),
    epochs: float | None = None,
    steps: int | None = None,
    dims: Mapping[str, int] | None = None,
    include: Names = (),
    exclude: Names = (),
    allow: Names = (),
    engine: str = "auto",
    loss: str | None = None,
    hardness: float | None = None,
    temperature: float | None = None,
    batch_size: int | None = None,
    optimizer: str | None = None,
    lr: float | None = None,
    lr_schedule: str | None = None,
    warm_up: float | None = None,
    weight_decay: float | None = None,
    clip: float | None = None,
    train_bn: bool | None = None,
    seed: int | None = None,
    overwrite: bool = False,
    watch: Callable[[dict[str, Any]], None] | None = None,
) -> Result:
    """Train a model through all levels of a device, and leave a verified file of each.

    Arguments:
        source: the model: a path, its bytes, a ModelProto, or another model in memory; it is never changed.
        data: an .npz with one array for each input, first axis = samples; a folder of such files; an .npy for each
            input; or module:function, a function that yields dictionaries of arrays; or a mapping of arrays, or
            such a function. Example: data="samples.npz"
        output: the folder for a file of each level, the table and the picture: a new one, an empty one, or that of
            a run to go on with. Example: output="levels"
        levels: the levels in per cent, ascending (default 30,40,50,60,70,80,90). Example: levels="50,70,90"
        target: amba (default) or amba:CHIP. Example: target="amba:cv22"
        allocation: how a level is shared out (default energy). Example: allocation="erk"
        labels: the array of the labels (default: labels, label, targets, target or y). Example: labels="classes"
        eval_data: arrays to measure each level on, and the dense model (default: the samples held out). Example:
            eval_data="held_out.npz"
        metrics: what is measured: loss, accuracy, top-5, r2, mae, mse, agreement, distance, or module:function,
            called as f(outputs, batch) for each batch (default: by the data); or such a function. Example:
            metrics=["accuracy"]
        epochs: how long each level is trained (default 1). Example: epochs=2
        steps: how long each level is trained, in optimizer steps. Default: None. Example: steps=2000
        dims: the size of a dynamic dimension, such as dims={"height": 224}, or dims={"x.2": 224} for one without a
            name; asked for where the model does not say it. Default: None. Example: dims={"height": 224}
        include: only these: tensor or layer names, globs, re:PATTERN, operator kinds. Default: (). Example:
            include="head"
        exclude: all but these, in the same forms. Default: (). Example: exclude="stem"
        allow: prune what stays dense by default: embedding, tied-embedding, stem, depthwise, small, basis, output.
            Default: (). Example: allow="stem,output"
        engine: ort: onnxruntime-training; torch; or auto (default): the first, or torch where that is not
            installed, does not take the model, or lacks what is asked for. Example: engine="torch"
        loss: distill (default) or kl from the dense model; cross-entropy, mse, bce or l1 against labels. Example:
            loss="cross-entropy"
        hardness: the share of the distillation beside a loss against labels (default 0.7; 0 beside a recipe that
            sets learning rates or has a DistillationModifier). Example: hardness=0.5
        temperature: how much kl softens both models (default 2). Example: temperature=4
        batch_size: samples for one step (default 32). Example: batch_size=64
        optimizer: relative (default), adamw, adam, sgd, nesterov, with options such as sgd:momentum=0.8. Example:
            optimizer="adamw"
        lr: the highest learning rate of every level (default: by how much is pruned). Example: lr=0.001
        lr_schedule: how the rate goes within each level: cosine (default), constant, linear, step, .... Example:
            lr_schedule="linear"
        warm_up: at the beginning of each level: a share of it, or steps (default 0.05). Example: warm_up=0.1
        weight_decay: how much weights decay (default 0); biases never do. Example: weight_decay=0.01
        clip: the longest gradient, as a 2-norm over all weights (default: any). Example: clip=1.0
        train_bn: update the statistics of batch normalization (default: frozen). Example: train_bn=True
        seed: for the order of the samples (default 0). Example: seed=1
        overwrite: begin anew: what an earlier run left in the folder is removed, and nothing else. Default: False.
            Example: overwrite=True
        watch: called with every row of the history. Default: None. Example: watch=print
    """
    asked = asked_of({**locals(), "epochs": None, "steps": None})
    if targets.parse(target).tolerance is None:
        raise OptionError(f"levels needs --target amba or amba:CHIP: {target:.60} has none; finetune trains for it")
    text = levels if isinstance(levels, str) else ",".join(f"{one:g}" for one in levels)
    folder = path_of(output, "output")
    recipe = recipe_of({**asked, "sparsity": read_levels(text)[-1] / 100})
    return Result(
        *leveled(
            taken(source), recipe, text, folder, data=data, labels=labels, eval_data=eval_data, metrics=metrics,
            epochs=epochs, steps=steps, dims=dims, engine=engine, overwrite=overwrite, watch=watch,
        )
    )  # fmt: skip


__all__ = ["levels"]
