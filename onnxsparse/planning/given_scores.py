"""Scores given for a model's weights, as arrays by name: non-negative, of the shape of the weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxsparse.data.array_files import load_arrays
from onnxsparse.errors import OptionError, brief, nearest
from onnxsparse.graph.weights import Weight
from onnxsparse.math.values import Array
from onnxsparse.options import Masks
from onnxsparse.planning.request import path_of

Scores = Masks
LARGEST = 1e30
"""Sums of scores up to here stay below the largest float32."""


@dataclass(frozen=True, eq=False)
class GivenScores:
    """Scores by the name of the weight; each is read, and looked at, when it is asked for."""

    arrays: Mapping[str, Any]
    called: str

    @classmethod
    def of(cls, given: Scores, weights: Iterable[Weight]) -> GivenScores:
        """Open scores; a name that no weight has is an error."""
        named = isinstance(given, Mapping)
        path = "" if named else path_of(given, "scores")
        called = f"--scores {path}".strip()
        arrays: Any = given if named else load_arrays(path)
        if not isinstance(arrays, Mapping):
            raise OptionError(f"{called}: it is a single array; scores come as an .npz with one for each weight")
        known = [weight.name for weight in weights]
        odd = next((name for name in arrays if name not in known), None)
        if odd is not None:
            raise OptionError(f"{called}: the model has no weight {brief(odd)}{nearest(str(odd), known)}")
        return cls(arrays, called)

    def demand(self, weights: Iterable[Weight]) -> None:
        """All of these have scores."""
        missing = next((weight.name for weight in weights if weight.name not in self.arrays), None)
        if missing is not None:
            raise OptionError(
                f"{self.called}: it has none for '{missing}', which is to be pruned; add them, or --exclude it"
            )

    def scores(self, weight: Weight) -> Array:
        array = np.asarray(self.arrays[weight.name])
        where = f"{self.called}: that of '{weight.name}'"
        if array.dtype.kind not in "biuf":
            raise OptionError(f"{where} is of type {array.dtype}; scores are numbers")
        if array.shape != weight.shape:
            raise OptionError(f"{where} has shape {list(array.shape)}, the weight {list(weight.shape)}")
        with np.errstate(over="ignore"):  # it is infinite then
            scores = array.astype(np.float32 if array.dtype.itemsize < 8 else np.float64, copy=False)
        if array.size and not (np.isfinite(scores).all() and scores.min() >= 0):
            raise OptionError(f"{where} holds a number below 0, or one that is not finite; scores are at least 0")
        if array.size and scores.max() > LARGEST:
            raise OptionError(
                f"{where} holds {scores.max():.2g}, of which sums overflow; divide all scores by the same number"
            )
        return scores


__all__ = ["GivenScores", "Scores"]
