"""Checkpointing of a run: when one is written, which one a run resumes from, and stopping at a signal after one.

1. A checkpoint is due at twenty places of a run, when a minute has passed, and at the end; but never so often that
   the writing takes more than a twentieth of the time. When it is written changes nothing in the run.
2. Of several processes the first one saves, and tells the others what it goes on from.
3. Where the user says how often, that is how often.
4. A folder with checkpoints of another model, plan, masks, recipe, number of processes or version is refused.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from onnxsparse import checkpoints
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.train.task import Task
from onnxsparse.version import __version__

PLACES, SECONDS, APART = 20, 60.0, 20.0
"""Places in a run, seconds between two, and how many times as long as the writing of the last one they lie apart."""


class Saves:
    """The checkpoints of the run of a task, in a folder; without one there are none."""

    def __init__(self, task: Task, total: int, folder: str | None, resume: bool, every: int | None = None) -> None:
        self._task, self._total, self._every, self._asked = task, total, max(1, total // PLACES), every
        self._folder, self._resume = folder, resume
        self._digest = _digest(task)
        self._at, self._took = time.monotonic(), 0.0

    def is_due(self, step: int) -> bool:
        """Whether to save before a step."""
        if self._folder is None:
            return False
        if self._asked is not None:
            return step % self._asked == 0 or step == self._total
        passed = time.monotonic() - self._at
        wanted = step % self._every == 0 or passed > SECONDS
        return step == self._total or (wanted and passed >= APART * self._took)

    def write(self, attempt: int, step: int, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        """Save a state; later attempts count as later."""
        assert self._folder is not None
        begun = time.monotonic()
        known = {"job": self._digest, "data": self._task.feeding.fingerprint, "attempt": attempt, "step": step}
        known["total"] = self._total
        checkpoints.save(self._folder, attempt * (self._total + 1) + step, arrays, {**facts, **known})
        checkpoints.clean(self._folder)
        self._at = time.monotonic()
        self._took = self._at - begun

    def find(self, notes: list[str]) -> checkpoints.Checkpoint | None:
        """The checkpoint to go on from, if there is one and that is wanted."""
        if self._task.processes.count == 1:
            return self._here(notes)
        arrays, facts = self._task.processes.handed(lambda: _as_told(self._here(notes)))
        if facts is None:
            return None
        return checkpoints.Checkpoint(facts["path"], facts["step"], arrays, facts["facts"])

    def _here(self, notes: list[str]) -> checkpoints.Checkpoint | None:
        folder = self._folder
        if folder is None:
            return None
        checkpoints.claim(folder)
        found = checkpoints.newest(folder, notes)
        if found is None:
            if self._resume:
                notes.append(f"{folder} holds no checkpoint; the run begins at its start")
            return None
        if not self._resume:
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
        if found.facts["data"] != self._task.feeding.fingerprint:
            notes.append("the data is not what it was when the run began: the result will not be the same")
        return found


def _as_told(found: checkpoints.Checkpoint | None) -> tuple[Mapping[str, Array], Any]:
    if found is None:
        return {}, None
    return found.arrays, {"path": found.path, "step": found.step, "facts": dict(found.facts)}


def _digest(task: Task) -> str:
    """What has to be the same for a run to go on: all that the task's own digest holds, the masks, and the version."""
    digest = hashlib.sha256(f"{__version__}\n{task.digest}".encode())
    for tag, row in task.planned.items():
        digest.update(f"\n{tag} {row.drop}".encode())
        if row.keep is not None:
            digest.update(np.packbits(row.keep != 0).tobytes())
    return digest.hexdigest()


# -- A signal that ends a run waits for the end of the step, so that its state can be saved first.
#
# 1. SIGINT, SIGTERM and SIGHUP wait while steps are made, for the end of one; at any other time they do what they
#    always do.
# 2. A second one does not wait.
# 3. Only where there is something to save into, in the main thread, and in a run of one process: of several, those that
#    wait for each other would wait for one that has ended.
# 4. What is ignored stays ignored, as a shell has it for what it starts in the background, and nohup for SIGHUP.


NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class Stopping:
    """What waits for the end of a step."""

    def __init__(self, wanted: bool) -> None:
        self._wanted, self._waiting, self._process = wanted, 0, 0
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether a signal waits."""
        return bool(self._waiting)

    @contextmanager
    def until_saved(self) -> Iterator[None]:
        """Signals that come in here wait for its end."""
        self._take_over()
        try:
            yield
        finally:
            self._give_back()
            if self._waiting:
                signal.raise_signal(self._waiting)

    def _take_over(self) -> None:
        self._waiting, self._process = 0, os.getpid()
        for name in NAMES if self._wanted else ():
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) not in (signal.SIG_IGN, None):
                try:
                    self._before[number] = signal.signal(number, self._wait)
                except ValueError:  # not in the main thread: whoever called us sees to signals
                    return

    def _wait(self, number: int, _: FrameType | None) -> None:
        if not self._waiting and self._process == os.getpid():  # a worker that began in a step has nothing to save
            self._waiting = number
            return
        self._give_back()
        signal.raise_signal(number)

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
