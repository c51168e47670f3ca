"""A configuration of AmbaLevelPruneScheduler as the options of `levels`: no loop of one's own is needed."""

from __future__ import annotations

from typing import Any

from onnxsparse.dialects.msbench.configuration import Source, read, words
from onnxsparse.dialects.msbench.schedulers.amba import AmbaLevelPruneScheduler
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.graph.model import Source as ModelSource
from onnxsparse.passes.fields import fields_of
from onnxsparse.passes.plan import names_of


def options_of(config: Source, model: ModelSource) -> dict[str, Any]:
    """Levels, target, allocation, excluded layers, steps of each level and sizes."""
    found = read(config)
    if found.scheduler.type != "AmbaLevelPruneScheduler":
        raise OptionError(f"levels needs a configuration of AmbaLevelPruneScheduler, not of {found.scheduler.type}")
    scheduler = AmbaLevelPruneScheduler(found)
    kwargs, opened = scheduler.kwargs, Model.open(model)
    return {
        "levels": ",".join(f"{level:g}" for level in scheduler.levels),
        "target": scheduler.device.text,
        "allocation": scheduler.allocation.text,
        "exclude": _excluded(opened, kwargs),
        "steps": max(1, scheduler.stages.total // len(scheduler.levels)),
        "dims": _dims(opened, kwargs["default_input_shape"]),
    }


def _excluded(model: Model, kwargs: Any) -> list[str]:
    """The names of all weights that a keyword is part of, or that a name is that of."""
    keywords = words(kwargs["no_prune_keyword"], "no_prune_keyword")
    exact = words(kwargs["no_prune_layer"], "no_prune_layer")
    names = names_of(model.weights)
    found = []
    for weight in model.weights:
        name = names[id(weight)]
        stem = name[: -len(".weight")] if name.endswith(".weight") else name
        known = (stem, name, *weight.layers)
        if any(word in one for word in keywords for one in known) or any(one in exact for one in known):
            found.append(name)
    return found


def _dims(model: Model, shape: Any) -> dict[str, int]:
    """Sizes that the model leaves open, from the shape of its first input."""
    fields = fields_of(model)
    if not shape or not fields:
        return {}
    dims = fields[0].shape or ()
    return {
        f"{fields[0].name}.{axis}": int(shape[axis])
        for axis in range(1, min(len(dims), len(shape)))
        if dims[axis] is None
    }
