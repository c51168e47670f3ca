"""Labels are numbers of classes from 0, or -100 for what is to be left out of the loss."""

from __future__ import annotations

import numpy as np

from onnxsparse.data.field import IGNORED, all_ignored
from onnxsparse.data.samples import Samples
from onnxsparse.data.stream import Stream
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array

BLOCK = 1 << 16
BOUNDLESS = 1 << 63
"""More classes than any model tells apart: any number from 0 is one."""


def check_labels(samples: Samples | Stream, classes: int) -> None:
    """Every label of all samples is one of the classes; those of a stream are checked as they come."""
    if not samples.has_labels:
        raise OptionError(f"{samples.called} has no labels; name their array, or train without labels")
    if isinstance(samples, Stream):
        samples.check_with(lambda labels, start: check_block(labels, start, classes, samples.called))
        return
    used = 0
    for start in range(0, samples.count, BLOCK):
        block = samples.labels(np.arange(start, min(start + BLOCK, samples.count)))
        used += check_block(block, start, classes, samples.called)
    if not used:
        raise all_ignored(samples.called)


def check_block(labels: Array, start: int, classes: int, source: str) -> int:
    """How many labels are used; the first that is no class is an error. `start` is the number of the first sample."""
    ignored = labels == IGNORED
    wrong = ((labels < 0) | (labels > classes - 1)) & ~ignored
    if wrong.any():
        place = np.argwhere(wrong)[0]
        which = "none of the classes, which count from 0"
        if classes < BOUNDLESS:
            which = f"none of the model's {classes} classes, which count from 0 to {classes - 1}"
        raise OptionError(
            f"label {labels[tuple(place)]} of sample {start + place[0]} of {source} is {which} "
            f"({IGNORED} leaves a sample out)"
        )
    return int(labels.size - np.count_nonzero(ignored))
