"""Outputs that hold a score for every class: which one it is, where its classes lie, and which ones win.

1. An output that is named is taken. Otherwise it is the first float output that has one axis more than the labels.
2. The classes lie where cross-entropy looks for them: along the second axis, or, where the others are not those of
   the labels, along the last one.
3. Among equal scores the lower class wins. NaN is no score: nothing wins where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from onnxsparse.data.field import IGNORED
from onnxsparse.errors import OptionError, nearest
from onnxsparse.losses.cross_entropy import class_axis
from onnxsparse.values import Array

NO_ARRAYS = (
    " is an array of floats; convert models of scikit-learn with options={'zipmap': False}, or choose --metric loss"
)


def named_output(outputs: Mapping[str, Array], name: str) -> Array:
    if name not in outputs:
        raise OptionError(f"the model has no output '{name}'{nearest(name, outputs) or f' (it has {_shown(outputs)})'}")
    return outputs[name]


def scores_of(outputs: Mapping[str, Array], name: str, labels: Array) -> tuple[Array, Array]:
    """Rows of scores and the class that each row is to have; what is to be left out is left out."""
    candidates = [named_output(outputs, name)] if name else [a for a in outputs.values() if a.dtype.kind == "f"]
    fitting = (_last(array, labels) for array in candidates)
    scores = next((array for array in fitting if array is not None), None)
    if scores is None:
        raise OptionError(
            f"no float output has a row of classes for each label of {list(labels.shape)}; outputs: {_shown(outputs)}"
            + ("" if outputs else NO_ARRAYS)
        )
    used = labels.reshape(-1) != IGNORED
    return scores.reshape(-1, scores.shape[-1])[used], labels.reshape(-1)[used]


def _last(array: Array, labels: Array) -> Array | None:
    """The array with its classes along the last axis, if they are along any."""
    axis = class_axis(array.shape, labels.shape)
    return None if axis is None else np.moveaxis(array, axis, -1)


def winning(scores: Array, classes: Array, k: int) -> Array:
    """For each row, whether its class is among the k best."""
    safe = np.clip(classes, 0, scores.shape[-1] - 1)
    own = np.take_along_axis(scores, safe[:, None], axis=-1)
    lower = np.arange(scores.shape[-1]) < safe[:, None]
    better = np.count_nonzero((scores > own) | ((scores == own) & lower), axis=-1)
    right: Array = (better < k) & (safe == classes) & ~np.isnan(scores).any(axis=-1)
    return right


def _shown(outputs: Mapping[str, Array]) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items()) or "none"
