"""`finetune`: from a model, a recipe and data to a trained sparse model, by way of a run on an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnxsparse.api import Result
from onnxsparse.graph.model import Source
from onnxsparse.modifiers.training import OWN
from onnxsparse.passes.request import Masks, Names, Path, listed, path_of
from onnxsparse.passes.sample_axes import Axes
from onnxsparse.recipes import Recipe
from onnxsparse.recipes.flags import FLAGS, recipe_of, takes_frame
from onnxsparse.runs.job import Watcher
from onnxsparse.train.finetune import check_graph, finetuned


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
    pattern: str | None = None,
    target: str | None = None,
    sparsity: float | str | None = None,
    allocation: str | None = None,
    score: str | None = None,
    include: Names = (),
    exclude: Names = (),
    allow: Names = (),
    schedule: str | None = None,
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
    watch: Watcher | None = None,
) -> Result:
    """Make a model sparse and train what is left on data, with or without labels.

    The options say what `onnxsparse finetune --help` says of them; together they make a recipe, or one is given.
    In torch `optimizer` may be a function from parameters to an optimizer, `lr_scheduler` one from that to a scheduler.
    """
    given = {name: value for name, value in locals().items() if name in FLAGS}
    loaded = _loaded(recipe)
    names = {"include": list(listed(include)), "exclude": list(listed(exclude)), "allow": list(listed(allow))}
    made = recipe_of({**given, **_own(optimizer, lr_scheduler, loaded), **names}, loaded)
    return Result(
        *finetuned(
            source, made, data=data, output=output, engine=engine, device=device,
            optimizer=optimizer if callable(optimizer) else None, lr_scheduler=lr_scheduler,
            plan=plan, masks=masks, labels=labels, eval_data=eval_data, metrics=metrics,
            batch_axis=batch_axis, state=state, dims=dims, checkpoint=checkpoint, resume=resume, check=check,
            strict=strict, overwrite=overwrite, watch=watch, apart={"recipe": recipe},
        )
    )  # fmt: skip


def _own(optimizer: Any, lr_scheduler: Any, recipe: Recipe | None) -> dict[str, str | None]:
    """What a recipe says of functions of the user's."""
    word = OWN if recipe is None or takes_frame(recipe) else None
    named = {"optimizer": word} if callable(optimizer) else {}
    return {**named, **({"lr_schedule": word} if lr_scheduler is not None else {})}


def _loaded(recipe: Recipe | Path | None) -> Recipe | None:
    return recipe if recipe is None or isinstance(recipe, Recipe) else Recipe.load(path_of(recipe, "recipe"))


__all__ = ["check_graph", "finetune"]
