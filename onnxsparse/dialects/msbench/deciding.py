"""What decides how a training by a configuration ends, section by section.

1. A checkpoint says what it was made by, and is gone on from by the same alone: else the result is of neither.
2. What only says where something is stored, or what is said on the way, decides nothing. Neither does test data.
3. Of a start state the numbers count, and not its name; one that is not named any more is not asked for.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from onnxsparse.data import Samples
from onnxsparse.dialects.msbench.configuration import Configuration
from onnxsparse.dialects.msbench.job import Job
from onnxsparse.dialects.msbench.known import PATHS
from onnxsparse.errors import OptionError
from onnxsparse.graph.model import Model

TOTALS = {"AmbaLevelPruneScheduler": "total_iters", "ProbMaskPruneScheduler": "total_iterations"}
HARMLESS = (*PATHS, *TOTALS.values(), "verbosity", "verbose", "do_sparse_analysis")
LOSS, RUNTIME = ("loss", "hardness", "temperature", "output"), ("engine", "seed")
EVALUATED, START = ("model", "sparsity"), "pretrain_model"


def decisive(job: Job, total: int, source: str, start: str, samples: Samples) -> dict[str, str]:
    """A digest of each section."""
    options = {name: value for name, value in job.options.items() if value is not None}
    parts = {
        "model": Model.open(source).sha256(),
        START: _content(start),
        "data": [samples.fingerprint, job.labels or "", job.batch],
        "trainer": [total, {name: one for name, one in options.items() if name not in (*LOSS, *RUNTIME)}],
        "loss": {name: options[name] for name in LOSS if name in options},
        "runtime": {name: options[name] for name in RUNTIME},
        "sparsity": _sparsity(job.sparsity),
    }
    return {name: _digest(part) for name, part in parts.items()}


def demand_same(folder: str, known: Any, now: Mapping[str, str], start: str, evaluates: bool) -> None:
    """A run that goes on is the one that wrote the checkpoint."""
    known = known if isinstance(known, Mapping) else {}
    asked = EVALUATED if evaluates else [name for name in now if name != START or os.path.isfile(start)]
    other = [name for name in asked if known.get(name) != now[name]]
    if other:
        raise OptionError(
            f"{folder} holds checkpoints of another run: {', '.join(other)} {'differ' if other[1:] else 'differs'}; "
            "pass the same configuration, or another save_dir"
        )


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
