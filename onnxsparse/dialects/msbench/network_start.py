"""Where the training of a network starts: a checkpoint of a run, numbers of a network, or its initializers.

1. The first of these that exists: the newest checkpoint in save_dir (with auto_resume), the one of the command line,
   saver.resume_model, saver.pretrain_model. One that does not exist is named, and left out.
2. A checkpoint of a run is a folder: what `checkpoints` wrote, or the save_dir that has it. A run goes on from it.
3. Numbers are a checkpoint of torch, an .npz, or exported ONNX files of the same network; the iteration is 0 then.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnxsparse import checkpoints
from onnxsparse.dialects.msbench.builders import Builders
from onnxsparse.dialects.msbench.network_job import NetworkJob
from onnxsparse.dialects.msbench.start_state import is_onnx, named_numbers, read_state
from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OptionError

STATE, LATEST, BEST = "state", "ckpt_latest.pth", "ckpt_best.pth"
INITIALIZERS = (
    "the network starts from its initializers; train the float network first (runner: base), or name its file"
)


@dataclass(frozen=True)
class NetworkStart:
    """The checkpoint to go on from, or the file of numbers; and what has to be said of it."""

    found: checkpoints.Checkpoint | None = None
    numbers: str = ""
    dense: str = ""
    """The float network to learn from."""
    notes: tuple[str, ...] = ()


def start_of_network(job: NetworkJob, given: str, evaluates: bool) -> NetworkStart:
    """What the command line and the configuration say, as far as it exists."""
    notes: list[str] = []
    own = os.path.join(job.save_dir, STATE)
    named = [one for one in (given, job.resume) if one]
    lost = next((one for one in named if not os.path.exists(one)), "")
    if lost:
        raise OptionError(f"{lost} does not exist: it was named to start from")
    if os.path.isdir(job.pretrained):
        raise OptionError(f"saver.pretrain_model {job.pretrained} is a folder; name the file in it, such as {LATEST}")
    dense = job.pretrained if os.path.exists(job.pretrained) else ""
    gone = f"saver.pretrain_model {job.pretrained} does not exist" if job.pretrained and not dense else ""
    found = checkpoints.newest(own, notes) if not (evaluates and named) else None
    if found is not None and not (job.auto_resume or evaluates):
        raise OptionError(f"{own} holds checkpoints; set saver.auto_resume to go on, or take another save_dir")
    if found is None and named and os.path.isdir(named[0]):
        return NetworkStart(_checkpoint_in(named[0]), "", dense, tuple(notes))
    if found is None and evaluates and not named:
        raise OptionError(f"{own} holds no checkpoint to evaluate; name one behind -e")
    numbers = "" if found is not None else named[0] if named else dense
    if found is None and not numbers and (gone or job.sparsity is not None):
        notes.append(f"{gone or 'no checkpoint is named'}: {INITIALIZERS}")
    elif gone and not evaluates:
        notes.append(f"{gone}: the run goes on without it")
    return NetworkStart(found, numbers, dense, tuple(notes))


def _checkpoint_in(folder: str) -> checkpoints.Checkpoint:
    """A folder that is a checkpoint, or that has some."""
    if checkpoints.STEP.fullmatch(os.path.basename(os.path.normpath(folder))):
        try:
            return checkpoints.open_checkpoint(folder)
        except checkpoints.DamageError as error:
            raise OptionError(f"{folder} is no whole checkpoint: {error}") from error
    inside = os.path.join(folder, STATE)
    found = checkpoints.newest(inside if os.path.isdir(inside) else folder)
    if found is None:
        raise OptionError(f"{folder} holds no checkpoint of a run")
    return found


def loaded(builders: Builders, network: Any, path: str) -> list[str]:
    """Fill a network with the numbers of a file; what has to be said of it."""
    numbers, notes = _numbers_of(path) if is_onnx(path) else read_state(path)
    state: Mapping[str, Any] = {name: torch().from_numpy(array) for name, array in numbers.items()}
    return [*notes, *builders.load(network, state)]


def _numbers_of(path: str) -> tuple[Mapping[str, Any], list[str]]:
    """Those of an exported file, and of the files of the other parts beside it."""
    stem = re.fullmatch(r"(.*)\.net\d+\.onnx", path)
    files = sorted(glob.glob(f"{glob.escape(stem[1])}.net*.onnx")) if stem else [path]
    return {name: one for file in files for name, one in named_numbers(file).items()}, []
