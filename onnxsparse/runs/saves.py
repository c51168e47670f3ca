"""The checkpoints of a run: when one is due, and which one it goes on from.

1. A checkpoint is due at twenty places of a run, when a minute has passed, and at the end; but never so often that the
   writing takes more than a twentieth of the time. When it is written changes nothing in the run.
2. Of several processes the first one saves, and tells the others what it goes on from.
3. A folder with checkpoints of another model, plan, masks, recipe, number of processes or version is refused.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxsparse import checkpoints
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.runs.job import Job
from onnxsparse.version import __version__

PLACES, SECONDS, APART = 20, 60.0, 20.0
"""Places in a run, seconds between two, and how many times as long as the writing of the last one they lie apart."""


class Saves:
    """The checkpoints of one job; a job without a folder has none."""

    def __init__(self, job: Job, total: int) -> None:
        self._job, self._total, self._every = job, total, max(1, total // PLACES)
        self._digest = _digest(job)
        self._at, self._took = time.monotonic(), 0.0

    def is_due(self, step: int) -> bool:
        """Whether to save before a step."""
        if self._job.folder is None:
            return False
        passed = time.monotonic() - self._at
        wanted = step % self._every == 0 or passed > SECONDS
        return step == self._total or (wanted and passed >= APART * self._took)

    def write(self, attempt: int, step: int, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        """Save a state; later attempts count as later."""
        assert self._job.folder is not None
        begun = time.monotonic()
        known = {"job": self._digest, "data": self._job.feeding.fingerprint, "attempt": attempt, "step": step}
        known["total"] = self._total
        checkpoints.save(self._job.folder, attempt * (self._total + 1) + step, arrays, {**facts, **known})
        checkpoints.clean(self._job.folder)
        self._at = time.monotonic()
        self._took = self._at - begun

    def find(self, notes: list[str]) -> checkpoints.Checkpoint | None:
        """The checkpoint to go on from, if there is one and that is wanted."""
        if self._job.processes.count == 1:
            return self._here(notes)
        arrays, facts = self._job.processes.handed(lambda: _as_told(self._here(notes)))
        if facts is None:
            return None
        return checkpoints.Checkpoint(facts["path"], facts["step"], arrays, facts["facts"])

    def _here(self, notes: list[str]) -> checkpoints.Checkpoint | None:
        folder = self._job.folder
        if folder is None:
            return None
        checkpoints.claim(folder)
        found = checkpoints.newest(folder, notes)
        if found is None:
            if self._job.resume:
                notes.append(f"{folder} holds no checkpoint; the run begins at its start")
            return None
        if not self._job.resume:
            raise OptionError(f"{folder} holds checkpoints of a run; pass --resume to go on with it, or another folder")
        if found.facts.get("job") != self._digest:
            raise OptionError(
                f"{folder} holds checkpoints of another run (another model, plan, masks, recipe, number of "
                "processes, or version); pass the same options, or another folder"
            )
        if found.facts.get("total") != self._total:
            raise OptionError(
                f"{folder} holds checkpoints of a run of {found.facts.get('total')} steps, and with this data it would "
                f"be {self._total}; go on with the data it began with, or take another folder"
            )
        if found.facts["data"] != self._job.feeding.fingerprint:
            notes.append("the data is not what it was when the run began: the result will not be the same")
        return found


def _as_told(found: checkpoints.Checkpoint | None) -> tuple[Mapping[str, Array], Any]:
    if found is None:
        return {}, None
    return found.arrays, {"path": found.path, "step": found.step, "facts": dict(found.facts)}


def _digest(job: Job) -> str:
    """What has to be the same for a run to go on: all that the job's own digest holds, the masks, and the version."""
    digest = hashlib.sha256(f"{__version__}\n{job.digest}".encode())
    for tag, row in job.planned.items():
        digest.update(f"\n{tag} {row.drop}".encode())
        if row.keep is not None:
            digest.update(np.packbits(row.keep != 0).tobytes())
    return digest.hexdigest()
