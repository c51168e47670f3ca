"""Distillation terms in a training graph: values of a model that are brought near values of a teacher.

    gain * mean((projected - taught)^2) / (mean(taught^2) + epsilon), summed over pairs of layers

1. `projected` is a value times a matrix, which trains beside the weights and is delivered nowhere. It begins as a
   linear layer of torch does: evenly within 1 / sqrt(inputs), drawn by its place among those of a modifier.
2. The teacher is the dense model, or an ONNX file, whose values onnxruntime computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from onnxsparse.engines.other_teacher import OtherTeacher
from onnxsparse.errors import ModelError
from onnxsparse.math.values import Array

PROJECTION = "projection"
"""What the keys of projections begin with among an engine's weights: `projection/2_0`."""


@dataclass(frozen=True)
class LayerTerm:
    """One pair: values by name in both graphs, and the sizes of the projection, outputs first; none where there is
    none. `axis` is that of the channels, `key` the modifier's number and the place among its pairs."""

    student: str
    taught: str
    gain: float
    normalize: bool
    epsilon: float
    projection: tuple[int, ...] = ()
    axis: int = 1
    teacher: str = ""
    key: tuple[int, int] = (0, 0)

    @property
    def projected_by(self) -> str:
        """The name of the projection, which is the same in every training graph of a run."""
        return "_".join(map(str, self.key))

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> LayerTerm:
        return cls(**{**found, **{name: tuple(found[name]) for name in ("projection", "key")}})

    def start(self) -> Array:
        """The numbers that a projection begins with."""
        bound = 1 / math.sqrt(self.projection[1])
        drawn = np.random.Generator(np.random.Philox(key=self.key[1])).uniform(-bound, bound, self.projection)
        return drawn.astype(np.float32)


def unlike(term: LayerTerm, ours: Sequence[int], theirs: Sequence[int]) -> str:
    """What to say of two layers that give tensors of other shapes."""
    return (
        f"what '{term.student}' gives is {list(ours)}, and '{term.taught}' of the teacher {list(theirs)}; take layers "
        "of the same sizes, or project_features for other channels"
    )


class LayersOfFile:
    """Values inside of a teacher that is a file, for the inputs of a batch."""

    def __init__(self, path: str, names: Sequence[str]) -> None:
        proto = onnx.load(path)
        known = {value.name for value in proto.graph.output}
        for name in dict.fromkeys(names):
            if name not in known:
                proto.graph.output.add(name=name)
        try:
            held = proto.SerializeToString()
        except ValueError as error:
            raise ModelError(f"the teacher {path} is over 2 GB, too large for what its layers give") from error
        self._asked, self._names = OtherTeacher(path, held=held), list(dict.fromkeys(names))

    def __call__(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        return self._asked.values(feed, self._names)
