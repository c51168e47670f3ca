"""A configuration of AmbaLevelPruneScheduler translated to the options of `levels`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnxsparse.dialects.msbench.configuration import Configuration, Source, read
from onnxsparse.dialects.msbench.left_dense import Excluded
from onnxsparse.dialects.msbench.schedulers.amba import AmbaLevelPruneScheduler
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model
from onnxsparse.graph.model import Source as ModelSource
from onnxsparse.passes.sources import taken
from onnxsparse.planning.model_inputs import fields_of
from onnxsparse.train.stepped_model import LoopOptions, SteppedModel


def options_of(config: Source, model: ModelSource, notes: list[str] | None = None) -> dict[str, Any]:
    """Levels, target, allocation, excluded layers, steps of each level and sizes; what means nothing is a note."""
    found, opened = read(config), Model.open(taken(model))
    if found.scheduler.type != "AmbaLevelPruneScheduler":
        raise OptionError(f"levels needs a configuration of AmbaLevelPruneScheduler, not of {found.scheduler.type}")
    scheduler = AmbaLevelPruneScheduler(found)
    dense, unknown = _excluded(found, opened)
    if notes is not None:
        notes += unknown
    return {
        "levels": ",".join(f"{level:g}" for level in scheduler.levels),
        "target": scheduler.device.text,
        "allocation": scheduler.allocation.text,
        "exclude": dense,
        "init": "plain",
        "steps": max(1, scheduler.stages.total // len(scheduler.levels)),
        "dims": dims_of(opened, scheduler.kwargs["default_input_shape"]),
    }


def _excluded(found: Configuration, model: Model) -> tuple[list[str], list[str]]:
    """The names of all weights that stay dense, and remarks on names that mean none."""
    network, excluded = SteppedModel(model, LoopOptions()), Excluded.of(found)
    names = network.names()
    return [names[key] for key in excluded.reasons(network.sites)], excluded.unknown(network.sites)


def dims_of(model: Model, shape: Any) -> dict[str, int]:
    """Sizes that the model leaves open, from the shape of its first input."""
    fields = fields_of(model)
    if isinstance(shape, Mapping) and fields:
        shape = shape.get(fields[0].name)
    if not shape or not fields:
        return {}
    dims = fields[0].shape or ()
    return {
        f"{fields[0].name}.{axis}": int(shape[axis])
        for axis in range(1, min(len(dims), len(shape)))
        if dims[axis] is None
    }
