"""`levels`: from a model, a device and data to a verified file of every level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnxsparse import targets
from onnxsparse.api import Result
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Source
from onnxsparse.modifiers.levels import Levels, read_levels
from onnxsparse.passes.request import Path, path_of
from onnxsparse.passes.taken import taken
from onnxsparse.recipes.flags import recipe_of
from onnxsparse.runs.job import Watcher
from onnxsparse.train.levels import leveled

FLAGS = (
    "loss", "hardness", "temperature", "batch_size", "optimizer", "lr", "lr_schedule", "warm_up", "weight_decay",
    "clip", "train_bn", "seed", "include", "exclude", "allow", "allocation",
)  # fmt: skip


def levels(
    source: Source,
    *,
    data: Any,
    output: Path,
    levels: str | Sequence[float] = Levels.levels,
    target: str = "amba",
    labels: str | None = None,
    eval_data: Any = None,
    metrics: Sequence[Any] = (),
    epochs: float | None = None,
    steps: int | None = None,
    dims: Mapping[str, int] | None = None,
    engine: str = "auto",
    overwrite: bool = False,
    watch: Watcher | None = None,
    **options: Any,
) -> Result:
    """Train a model through all levels of a device, for `epochs` (1) or `steps` each, and leave a file of every level.

    Other options are those of `finetune` of the same name: loss, hardness, temperature, batch_size, optimizer, lr,
    lr_schedule, warm_up, weight_decay, clip, train_bn, seed, include, exclude, allow, allocation.
    """
    unknown = next((name for name in options if name not in FLAGS), None)
    if unknown is not None:
        raise OptionError(f"levels has no option {unknown!r:.40} (known: {', '.join(FLAGS)})")
    if targets.parse(target).tolerance is None:
        raise OptionError(f"levels needs --target amba or amba:CHIP: {target:.60} has none; finetune trains for it")
    text = levels if isinstance(levels, str) else ",".join(f"{one:g}" for one in levels)
    folder = path_of(output, "output")
    recipe = recipe_of({**options, "target": target, "sparsity": read_levels(text)[-1] / 100})
    return Result(
        *leveled(
            taken(source), recipe, text, folder, data=data, labels=labels, eval_data=eval_data, metrics=metrics,
            epochs=epochs, steps=steps, dims=dims, engine=engine, overwrite=overwrite, watch=watch,
        )
    )  # fmt: skip


__all__ = ["levels"]
