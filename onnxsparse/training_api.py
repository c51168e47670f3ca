"""`finetune` and `levels`, the functions that train: their arguments written out; `train/` does the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnxsparse import targets
from onnxsparse.api import Result
from onnxsparse.data.images import as_images
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Source
from onnxsparse.options import Axes, Masks, Names, Path
from onnxsparse.passes.sources import taken
from onnxsparse.planning.request import path_of
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.flags import asked_of, recipe_of, takes_training_flags
from onnxsparse.recipes.modifiers.levels import read_levels
from onnxsparse.recipes.modifiers.training import OWN
from onnxsparse.train.finetune import check_graph, finetuned
from onnxsparse.train.levels import leveled

__all__ = ["check_graph", "finetune", "levels"]


def finetune(
    source: Source,
    *,
    data: Any,
    output: Path | None = None,
    recipe: Recipe | Path | None = None,
    engine: str = "auto",
    plan: Path | None = None,
    masks: Masks | None = None,
    labels: str | None = None,
    eval_data: Any = None,
    metrics: Sequence[str | Callable[..., Any]] = (),
    batch_axis: Axes = None,
    state: Axes = None,
    until: Names | None = None,
    resize: str | Sequence[int] | None = None,
    mean: str | float | Sequence[float] | None = None,
    std: str | float | Sequence[float] | None = None,
    layout: str | None = None,
    pattern: str | None = None,
    target: str | None = None,
    sparsity: float | str | None = None,
    allocation: str | None = None,
    score: str | None = None,
    include: Names = (),
    exclude: Names = (),
    allow: Names = (),
    tie_equal: bool | None = None,
    level: float | str | None = None,
    schedule: str | None = None,
    init: str | None = None,
    start_sparsity: float | None = None,
    prune_begin: float | None = None,
    prune_end: float | None = None,
    updates: int | None = None,
    regrow: str | None = None,
    sparser: str | None = None,
    loss: str | None = None,
    hardness: float | None = None,
    temperature: float | None = None,
    distillation: str | None = None,
    loss_output: str | None = None,
    quantize: str | None = None,
    learn_scales: bool | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    steps_per_epoch: int | None = None,
    batch_size: int | None = None,
    accumulate: int | None = None,
    precision: str | None = None,
    device: str | None = None,
    optimizer: str | Callable[[Any], Any] | None = None,
    lr: float | None = None,
    lr_schedule: str | None = None,
    lr_scheduler: Callable[[Any], Any] | None = None,
    warm_up: float | None = None,
    weight_decay: float | None = None,
    clip: float | None = None,
    train_bn: bool | None = None,
    seed: int | None = None,
    dims: Mapping[str, int] | None = None,
    checks: int | None = None,
    retries: int | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
    check: bool = False,
    strict: bool = False,
    overwrite: bool = False,
    watch: Callable[[dict[str, Any]], None] | None = None,
) -> Result:
    """Make a model sparse and train what is left on data, with or without labels.

    The options make a recipe together, or one is given.

    Arguments:
        source: the model: a path, its bytes, a ModelProto, or another model in memory; it is never changed.
        data: an .npz with one array for each input, first axis = samples; a folder of such files, or of images; an
            .npy for each input; or module:function, a function that yields dictionaries of arrays; or a mapping of
            arrays, or such a function. Example: data="samples.npz"
        output: the sparse, trained model to write; without it `Result.model` has it in memory. Default: None.
            Example: output="sparse.onnx"
        recipe: all of that from a file, as it is saved beside the output, or a recipe of SparseML; a path or a
            Recipe. Default: None. Example: recipe="recipe.yaml"
        engine: ort: onnxruntime-training; torch; or auto (default): the first, or torch where that is not
            installed, does not take the model, or lacks what is asked for. Example: engine="torch"
        plan: a plan written by onnxsparse plan, perhaps edited. Default: None. Example: plan="plan.yaml"
        masks: masks of your own: an .npz with one array for each tensor name, non-zero = keep; or a mapping of such
            arrays. Default: None. Example: masks="masks.npz"
        labels: the array of the labels (default: labels, label, targets, target or y). Example: labels="classes"
        eval_data: arrays to measure on before, during and after. Default: None. Example: eval_data="held_out.npz"
        metrics: what is measured: loss, accuracy, top-5, r2, mae, mse, agreement, distance, or module:function,
            called as f(outputs, batch) for each batch (default: by the data); or such a function. Example:
            metrics=["accuracy"]
        batch_axis: INPUT=AXIS: the axis of the samples where it is not the first (default: the one named as such).
            Example: batch_axis={"state": 1}
        state: INPUT=OUTPUT: an input that is the output of the step before, in sequences of samples. Default: None.
            Example: state={"state": "stateN"}
        until: train and measure up to these tensors, and deliver the whole file; auto: the last ones that weights
            make, before boxes are decoded and chosen. Default: None. Example: until="auto"
        resize: HxW, to which images are scaled; what is too long on one side is cut off evenly (default: the size
            that the model declares). Example: resize="224x224"
        mean: what is taken from pixels between 0 and 1, a number or one for each channel. Default: None. Example:
            mean="0.485,0.456,0.406"
        std: what they are divided by then, in the same form. Default: None. Example: std="0.229,0.224,0.225"
        layout: NCHW or NHWC (default: by the model). Example: layout=NHWC
        pattern: the layout of the zeros: 2:4, any N:M, N:M:transposable, unstructured, alive, block:RxC, tile:RxC,
            filter or channel. Default: None. Example: pattern="2:4"
        target: a device instead of a pattern: ampere or ampere:PROFILE; amba or amba:CHIP; vnni. Default: None.
            Example: target="ampere"
        sparsity: the share that goes, such as 0.8 or 80%; N:M fixes its own. Default: None. Example: sparsity=0.8
        allocation: how the share is spread over the weights: sensitivity (default here, from a calibrated start),
            erk (default here, from a plain one), uniform or global. Example: allocation="erk"
        score: what goes first: magnitude (default), random, squared, fpgm or nuclear. Example: score="magnitude"
        include: only these: tensor or layer names, globs, re:PATTERN, operator kinds. Default: (). Example:
            include="head"
        exclude: all but these, in the same forms. Default: (). Example: exclude="stem"
        allow: prune what stays dense by default: embedding, tied-embedding, stem, depthwise, small, basis, output.
            Default: (). Example: allow="stem,output"
        tie_equal: weights that are equal, or equal up to a scale for each output, are one: the same zeros, counted
            once. Default: None. Example: tie_equal=True
        level: the network sparsity in per cent, such as 70, of a target that knows levels: amba. Default: None.
            Example: level=70
        schedule: how the level rises: cubic (default), linear, one-shot, ... (see onnxsparse list schedules).
            Example: schedule="linear"
        init: what training starts from: calibrated (default; plain beside a recipe): masks and refitted numbers
            from 1,024 of the samples, the masks stand still; or plain: the dense numbers. Example: init="plain"
        start_sparsity: the share of the goal to start from (default 0). Example: start_sparsity=0.3
        prune_begin: when the level starts to rise, as a share of the run (default 0). Example: prune_begin=0.1
        prune_end: when the goal is reached, exactly; the masks stand still from there (default 0.6). Example:
            prune_end=0.8
        updates: how often the masks move in between (default 60). Example: updates=20
        regrow: let places come back: none (default), weights (by the numbers that masked places had) or gradient
            (by the dense gradient). Example: regrow="gradient"
        sparser: what stands in for a weight until then: mask (default), or one that learns which places stay (see
            onnxsparse list sparsers). Example: sparser="probabilistic"
        loss: distill (default) or kl from the dense model; cross-entropy, mse, bce or l1 against labels. Example:
            loss="cross-entropy"
        hardness: the share of the distillation beside a loss against labels (default 0.7; 0 beside a recipe that
            sets learning rates or has a DistillationModifier). Example: hardness=0.5
        temperature: how much kl softens both models (default 2). Example: temperature=4
        distillation: the distillation beside labels: distill (default) or kl. Example: distillation="kl"
        loss_output: the output that the labels belong to (default: the first float one). Example:
            loss_output="logits"
        quantize: int8: train the last part of the run with rounded weights and values, and deliver integers.
            Default: None. Example: quantize="int8"
        learn_scales: with quantize=: scales train along, in place of following the numbers that they round.
            Default: None. Example: learn_scales=True
        epochs: how long (default 3, and at least 1500 steps). Example: epochs=10
        steps: how long, in optimizer steps. Default: None. Example: steps=2000
        steps_per_epoch: what counts as an epoch, where the data does not say it. Default: None. Example:
            steps_per_epoch=100
        batch_size: samples at a time, of all processes together (default 32). Example: batch_size=64
        accumulate: so many batches make one step (default 1). Example: accumulate=4
        precision: float32 (default); bfloat16 or float16 in torch, where that is enough. Example:
            precision="bfloat16"
        device: in torch: cpu (default), cuda, cuda:1, mps or whatever torch knows. Example: device="cuda"
        optimizer: relative (default), adamw, adam, sgd, nesterov, with options such as sgd:momentum=0.8; ort-adamw;
            in torch also a function from parameters to an optimizer. Example: optimizer="adamw"
        lr: the highest learning rate (default: by how much is pruned). Example: lr=0.001
        lr_schedule: cosine (default), constant, linear, step, multi-step or exponential. Example:
            lr_schedule="linear"
        lr_scheduler: in torch a function from your optimizer to a scheduler of its rates. Default: None. Example:
            lr_scheduler=make_scheduler
        warm_up: a share of the run, or a number of steps (default 0.05, and at least 10 steps where the run has 50
            or more). Example: warm_up=0.1
        weight_decay: how much weights decay (default 0); biases never do. Example: weight_decay=0.01
        clip: the longest gradient, as a 2-norm over all weights (default: any). Example: clip=1.0
        train_bn: update the statistics of batch normalization (default: frozen). Example: train_bn=True
        seed: for scores that draw numbers, and for the order of the samples (default 0). Example: seed=1
        dims: the size of a dynamic dimension, such as dims={"height": 224}, or dims={"x.2": 224} for one without a
            name; multiply-accumulates need it, and the allocation energy asks for it. Default: None. Example:
            dims={"height": 224}
        checks: how often the best state is looked for (default 20). Example: checks=50
        retries: how often it begins again with a lower rate, where training did not help (default 3). Example:
            retries=0
        checkpoint: save the state of the run in this folder, again and again. Default: None. Example:
            checkpoint="run"
        resume: go on with the run in checkpoint=, to the same result as if it had not stopped. Default: False.
            Example: resume=True
        check: prove every gradient of the training graph against finite differences. Default: False. Example:
            check=True
        strict: write nothing, with exit code 1, when a weight stays dense that you did not exclude, or no training
            was better than pruning alone. Default: False. Example: strict=True
        overwrite: replace the output if it exists. Default: False. Example: overwrite=True
        watch: called with every row of the history. Default: None. Example: watch=print
    """
    given = asked_of(locals())
    loaded = _loaded(recipe)
    made = recipe_of({**given, **_own(optimizer, lr_scheduler, loaded)}, loaded)
    return Result(
        *finetuned(
            source, made, data=data, output=output, engine=engine, device=device,
            optimizer=optimizer if callable(optimizer) else None, lr_scheduler=lr_scheduler,
            plan=plan, masks=masks, labels=labels, eval_data=eval_data, metrics=metrics,
            resize=resize, mean=mean, std=std, layout=layout,
            batch_axis=batch_axis, state=state, until=until, dims=dims,
            checkpoint=checkpoint, resume=resume, check=check,
            strict=strict, overwrite=overwrite, watch=watch, apart={"recipe": recipe},
        )
    )  # fmt: skip


def _own(optimizer: Any, lr_scheduler: Any, recipe: Recipe | None) -> dict[str, str | None]:
    """What a recipe says of functions of the user's."""
    word = OWN if recipe is None or takes_training_flags(recipe) else None
    named = {"optimizer": word} if callable(optimizer) else {}
    return {**named, **({"lr_schedule": word} if lr_scheduler is not None else {})}


def _loaded(recipe: Recipe | Path | None) -> Recipe | None:
    return recipe if recipe is None or isinstance(recipe, Recipe) else Recipe.load(path_of(recipe, "recipe"))


# -- `levels`: from a model, a device and data to a verified file of every level.


def levels(
    source: Source,
    *,
    data: Any,
    output: Path,
    levels: str | Sequence[float] = "30,40,50,60,70,80,90",
    target: str = "amba",
    allocation: str | None = None,
    labels: str | None = None,
    until: Names | None = None,
    resize: str | Sequence[int] | None = None,
    mean: str | float | Sequence[float] | None = None,
    std: str | float | Sequence[float] | None = None,
    layout: str | None = None,
    eval_data: Any = None,
    metrics: Sequence[Any] = (),
    epochs: float | None = None,
    steps: int | None = None,
    dims: Mapping[str, int] | None = None,
    include: Names = (),
    exclude: Names = (),
    allow: Names = (),
    tie_equal: bool | None = None,
    init: str | None = None,
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
        data: an .npz with one array for each input, first axis = samples; a folder of such files, or of images; an
            .npy for each input; or module:function, a function that yields dictionaries of arrays; or a mapping of
            arrays, or such a function. Example: data="samples.npz"
        output: the folder for a file of each level, the table and the picture: a new one, an empty one, or that of
            a run to go on with. Example: output="levels"
        levels: the levels in per cent, ascending (default 30,40,50,60,70,80,90). Example: levels="50,70,90"
        target: amba (default) or amba:CHIP. Example: target="amba:cv22"
        allocation: how a level is shared out (default energy). Example: allocation="erk"
        labels: the array of the labels (default: labels, label, targets, target or y). Example: labels="classes"
        until: train and measure up to these tensors, and deliver the whole file; auto: the last ones that weights
            make, before boxes are decoded and chosen. Default: None. Example: until="auto"
        resize: HxW, to which images are scaled; what is too long on one side is cut off evenly (default: the size
            that the model declares). Example: resize="224x224"
        mean: what is taken from pixels between 0 and 1, a number or one for each channel. Default: None. Example:
            mean="0.485,0.456,0.406"
        std: what they are divided by then, in the same form. Default: None. Example: std="0.229,0.224,0.225"
        layout: NCHW or NHWC (default: by the model). Example: layout=NHWC
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
        tie_equal: weights that are equal, or equal up to a scale for each output, are one: the same zeros, counted
            once. Default: None. Example: tie_equal=True
        init: what each level starts from: calibrated (default; plain beside a configuration): masks and refitted
            numbers from 1,024 of the samples, for the network of the level before; or plain: that network, its
            smallest numbers pruned. Example: init="plain"
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
    data, eval_data = as_images([data, eval_data], resize, mean, std, layout)
    return Result(
        *leveled(
            taken(source), recipe, text, folder, data=data, labels=labels, until=until, eval_data=eval_data,
            metrics=metrics, epochs=epochs, steps=steps, dims=dims, engine=engine, overwrite=overwrite, watch=watch,
        )
    )  # fmt: skip
