"""Output paths of a training: the model, what is written beside it, and what none of that may replace."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx import ModelProto

from onnxsparse.checkpoints import was_delivered
from onnxsparse.errors import OutputError
from onnxsparse.files import check_target
from onnxsparse.graph.external import named_by
from onnxsparse.graph.model import Model, Source
from onnxsparse.options import Path
from onnxsparse.planning.request import path_of


@dataclass(frozen=True)
class Destination:
    """The file of a result; None for one in memory. `apart` are paths that options name, by option."""

    target: str | None = None
    overwrite: bool = False
    apart: Mapping[str, Any] = field(default_factory=dict)

    def demand_free(self, model: Model) -> None:
        """Say now what would be in the way of the result, and that it would replace what it is made from."""
        if self.target is None:
            return
        for path in (self.target, *beside(self.target)):
            check_target(path, self.overwrite)
        for name, value in self.apart.items():
            demand_apart(self.target, name, value)
        if any(os.path.realpath(path) in map(os.path.realpath, model.inputs) for path in beside(self.target)):
            raise OutputError(f"a file beside {self.target} would replace one of the model; choose another name")


NOWHERE = Destination()


def beside(target: str) -> list[str]:
    """What is written beside a result: the recipe, and the history twice."""
    return [os.path.splitext(target)[0] + ending for ending in (".recipe.yaml", ".history.json", ".history.csv")]


def demand_apart(target: str, name: str, value: Any) -> None:
    """Neither a result nor what is written beside it is what an option names."""
    for path in (target, *beside(target)):
        if isinstance(value, (str, os.PathLike)) and _covers(os.fspath(value), path):
            raise OutputError(f"{path} would replace what --{name} names; choose another name for the result")


def _covers(given: str, path: str) -> bool:
    """Whether a path is the given file, or in the given folder."""
    ours, theirs = os.path.realpath(path), os.path.realpath(given)
    return ours == theirs or (os.path.isdir(theirs) and os.path.dirname(ours) == theirs and os.path.exists(ours))


def is_own(output: Path | None, source: Source, checkpoint: Path | None) -> bool:
    """Whether what is in the way of a result was delivered by the run that goes on; the model itself never was."""
    if output is None or checkpoint is None:
        return False
    target = path_of(output, "output")
    if not isinstance(source, ModelProto) and os.path.realpath(target) == os.path.realpath(os.fspath(source)):
        return False
    files = (target, *beside(target), *sorted(named_by(target)))
    return was_delivered(path_of(checkpoint, "checkpoint"), files)
