"""Whether a model can be trained or measured with samples, found before it is: the size of a batch, and every label."""

from __future__ import annotations

import numpy as np

from onnxsparse.data import BOUNDLESS, LABELS, Samples, check_labels
from onnxsparse.dialects.msbench.job import Job
from onnxsparse.errors import MissingExtraError, ModelError, OptionError
from onnxsparse.graph.model import Model
from onnxsparse.loops.options import LoopOptions
from onnxsparse.losses import axis_of_labels
from onnxsparse.passes.outputs import Session
from onnxsparse.runs.classes import declared_classes
from onnxsparse.runs.feeding import LEAST
from onnxsparse.runs.goal import goal_of


def demand_fitting(job: Job, source: str, samples: Samples, trains: bool) -> None:
    """Batches can be made of the samples, and every label is one of the classes."""
    if trains and job.batch > max(samples.count, LEAST):
        raise OptionError(
            f"a batch of {job.batch} cannot be made of the {samples.count} samples of {samples.called}; "
            f"data.batch_size is at most {max(samples.count, LEAST)}"
        )
    if not samples.has_labels or job.options.get("loss") not in (None, "cross-entropy") or samples.numbers:
        return
    objective = LoopOptions(**{**job.options, "loss": "cross-entropy"}).objective(samples.labels(np.zeros(1, np.int64)))
    declared = declared_classes(Model.open(source), goal_of(objective, samples))
    check_labels(samples, declared if declared < BOUNDLESS else _classes_seen(job, source, samples))


def _classes_seen(job: Job, source: str, samples: Samples) -> int:
    """How many classes a model tells apart that does not declare it: as they come out, where it can be run as it is."""
    batch = samples.take(np.resize(np.arange(samples.count), job.batch))
    labels = batch.pop(LABELS).shape
    try:
        found = Session(source).run(batch)
    except (ModelError, MissingExtraError):
        return BOUNDLESS  # the first batch says it
    logits = found.get(job.options.get("output") or next(iter(found)))
    shape = getattr(logits, "shape", ())
    axis = axis_of_labels((None, *shape[1:]), (None, *labels[1:])) if len(shape) > 1 else None
    return BOUNDLESS if axis is None else int(shape[axis])
