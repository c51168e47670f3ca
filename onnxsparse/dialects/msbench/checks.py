"""Checks of a training by a job file: data that fits, a checkpoint of the same job, a delivered file that verifies.

1. Batches can be made of the samples, and every label is one of the classes, before anything trains.
2. A checkpoint says what it was made by, and is gone on from by the same alone: else the result is of neither. What
   only says where something is stored, or what is said on the way, decides nothing. Neither does test data.
3. Of a start state the numbers count, and not its name; one that is not named any more is not asked for.
4. The delivered file is verified by its own record, with the sizes that the configuration says.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onnxsparse.checkpoints import Checkpoint
from onnxsparse.data import BOUNDLESS, LABELS, Samples, check_labels
from onnxsparse.data.samples import LEAST
from onnxsparse.dialects.msbench.configuration import PATHS, Configuration
from onnxsparse.dialects.msbench.job import Job
from onnxsparse.dialects.msbench.levels_options import dims_of
from onnxsparse.dialects.msbench.network_job import NetworkJob
from onnxsparse.dialects.msbench.trainer_section import TOTALS
from onnxsparse.engines.inference import Session
from onnxsparse.errors import MissingExtraError, ModelError, OptionError
from onnxsparse.graph.model import Model
from onnxsparse.losses import axis_of_labels
from onnxsparse.passes.verify import Verify
from onnxsparse.planning.macs import set_sizes
from onnxsparse.planning.rule import Rule
from onnxsparse.report.history import History
from onnxsparse.train.objective import declared_classes, goal_of
from onnxsparse.train.stepped_model import LoopOptions

HARMLESS = (*PATHS, *TOTALS.values(), "verbosity", "verbose", "do_sparse_analysis")
LOSS, RUNTIME = ("loss", "hardness", "temperature", "output"), ("engine", "seed")
EVALUATED, START = ("model", "net", "sparsity"), "pretrain_model"
STORED = ("meta_file", "image_dir", "num_workers", "pin_memory")
"""What of `dataset` only says where something is stored, or how it is read; its content has a fingerprint."""
FREQUENCIES = ("test_freq", "save_freq", "print_freq", "only_save_latest", "ema")


def decisive(job: Job, total: int, model: Model, start: str, samples: Samples) -> dict[str, str]:
    """A digest of each section."""
    options = {name: value for name, value in job.options.items() if value is not None}
    parts = {
        "model": model.sha256(),
        START: _content(start),
        "data": [samples.fingerprint, job.labels or "", job.batch],
        "trainer": [total, {name: one for name, one in options.items() if name not in (*LOSS, *RUNTIME)}],
        "loss": {name: options[name] for name in LOSS if name in options},
        "runtime": {name: options[name] for name in RUNTIME},
        "sparsity": _sparsity(job.sparsity),
    }
    return {name: _digest(part) for name, part in parts.items()}


def digests_of(job: NetworkJob, samples: Any, dense: str) -> dict[str, str]:
    """The same of a configuration that describes a network; `dense` is the file that it starts or learns from."""
    trainer = {name: one for name, one in dict(job.config.get("trainer") or {}).items() if name not in FREQUENCIES}
    dataset = {name: one for name, one in job.dataset.items() if name != "test"}
    parts = {
        "net": job.net,
        "dataset": [_without(dataset, STORED), getattr(samples, "fingerprint", "")],
        "trainer": trainer,
        "runtime": job.seed,
        "loss": job.distills,
        "sparsity": None if job.sparsity is None else _sparsity(job.sparsity),
    }
    return {**{name: _digest(part) for name, part in parts.items()}, START: _content(dense)}


def _without(value: Any, names: Sequence[str]) -> Any:
    """A section without some of its words, however deep they are."""
    if isinstance(value, Mapping):
        return {name: _without(one, names) for name, one in value.items() if name not in names}
    return [_without(one, names) for one in value] if isinstance(value, list) else value


def masks_digest(arrays: Mapping[str, Any]) -> str:
    """One digest of arrays by name."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def demand_same(folder: str, known: Any, now: Mapping[str, str], start: str, evaluates: bool) -> None:
    """A run that goes on is the one that wrote the checkpoint."""
    known = known if isinstance(known, Mapping) else {}
    going_on = [name for name in now if name != START or os.path.isfile(start)]
    asked = [name for name in EVALUATED if name in now] if evaluates else going_on
    other = [name for name in asked if known.get(name) != now[name]]
    if other:
        raise OptionError(
            f"{folder} holds checkpoints of another run: {', '.join(other)} {'differ' if other[1:] else 'differs'}; "
            "pass the same configuration, or another save_dir"
        )


def still_decisive(folder: str, known: Any, now: Mapping[str, str], dense: str, evaluates: bool) -> dict[str, str]:
    """What decides the rest of a run of a network: it goes on as what it was. To evaluate it, its network is enough."""
    if not isinstance(known, Mapping):
        raise OptionError(f"{folder} holds checkpoints of another kind of run")
    asked = {name: one for name, one in now.items() if name != START or known.get(START)}
    demand_same(folder, known, {"net": now["net"]} if evaluates else asked, dense, evaluates)
    return {**now, START: str(known.get(START, ""))}


def _sparsity(config: Configuration) -> dict[str, Any]:
    kwargs = {name: one for name, one in config.scheduler.kwargs.items() if name not in HARMLESS}
    parts = [[part.type, part.kwargs] for part in (config.mask_generator, config.fake_sparse)]
    others = [sorted(config.leaf_module), config.fuse_bn, config.target_sparsity, config.uniform]
    return {"scheduler": [config.scheduler.type, kwargs], "parts": parts, "others": others}


def _digest(value: Any) -> str:
    text = json.dumps(_same(value), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _same(value: Any) -> Any:
    """30 and 30.0 are the same."""
    if isinstance(value, Mapping):
        return {str(key): _same(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_same(one) for one in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _content(path: str) -> str:
    """The digest of a file's bytes."""
    if not os.path.isfile(path):
        return ""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


# -- checkpoints


def run_facts(found: Checkpoint) -> Mapping[str, Any]:
    """Where a checkpoint stands; those of the version before, of a loop of its own, say the same in another order."""
    facts = found.facts
    if "network" in facts:
        return facts
    part = (facts.get("parts") or [{}])[-1]
    if "network" not in part:
        return {}  # of a run that no job file began
    return {**part, "network": {"engine": facts["engine"], **part["network"]}, "iteration": facts["step"]}


def as_of_run(found: Checkpoint) -> Checkpoint:
    """A checkpoint as a run of ours writes it; one of the version before has no history."""
    if "network" not in found.facts:
        return found
    facts = run_facts(found)
    account: dict[str, Any] = {"history": History().to_facts(), "sum": 0.0, "since": 0}
    host: dict[str, Any] = {"rate": None, "decay": None, "held": [], "masks": {}}
    made = {"engine": facts["network"]["engine"], "parts": [{}, facts], "host": host, "account": account, "notes": []}
    return replace(found, facts={**made, "attempt": 0, "step": facts["iteration"]})


# -- data


def demand_fitting(job: Job, model: Model, samples: Samples, trains: bool) -> None:
    """Batches can be made of the samples, and every label is one of the classes."""
    if trains and job.batch > max(samples.count, LEAST):
        raise OptionError(
            f"a batch of {job.batch} cannot be made of the {samples.count} samples of {samples.called}; "
            f"data.batch_size is at most {max(samples.count, LEAST)}"
        )
    if not samples.has_labels or job.task not in ("", "cross-entropy") or samples.numbers:
        return
    objective = LoopOptions(**{**job.options, "loss": "cross-entropy"}).objective(samples.labels(np.zeros(1, np.int64)))
    declared = declared_classes(model, goal_of(objective, samples))
    check_labels(samples, declared if declared < BOUNDLESS else _classes_seen(job, model, samples))


def _classes_seen(job: Job, model: Model, samples: Samples) -> int:
    """How many classes a model tells apart that does not declare it: as they come out, where it can be run as it is."""
    batch = samples.take(np.resize(np.arange(samples.count), job.batch))
    labels = batch.pop(LABELS).shape
    try:
        found = Session(model.path).run(batch)
    except (ModelError, MissingExtraError):
        return BOUNDLESS  # the first batch says it
    logits = found.get(job.options.get("output") or next(iter(found)))
    shape = getattr(logits, "shape", ())
    axis = axis_of_labels((None, *shape[1:]), (None, *labels[1:])) if len(shape) > 1 else None
    return BOUNDLESS if axis is None else int(shape[axis])


# -- the delivered file


def why_not(written: Model, called: str, shape: Any) -> str:
    """What does not hold in a file; nothing where all of it does. `shape` says sizes that the model leaves open."""
    set_sizes(written, dims_of(written, shape))
    report = Verify(called, Rule.make())(written)
    if report.ok:
        return ""
    broken = [f"{row.name} is {row.status}" for row in report.rows if row.status == "violated"]
    more = [f"{len(broken) - 3} layers more"] if len(broken) > 3 else []
    return "; ".join([*report.faults, *broken[:3], *more]) or "no layer holds what the record says"
