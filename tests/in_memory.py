"""Folders of tests in memory, where the system has a place for that: to write there costs a fraction of the work.

1. Only for runs in several processes, which are those of all tests. A test that is run by itself leaves its files where
   pytest has them, to be looked at.
2. Who names a place (`--basetemp`, TMPDIR, PYTEST_DEBUG_TEMPROOT) has it.
3. The folder is removed when the tests are over; the one that a killed run left, by the next run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

with contextlib.suppress(ImportError):  # not on Windows, which has no such place either
    import fcntl

PLACE, PREFIX = Path("/dev/shm"), "osp-"
ROOM = 1 << 30
"""What has to be free. The files of all tests together take half of it."""
YOUNG = 60.0
NAMED = ("TMPDIR", "TEMP", "TMP", "PYTEST_DEBUG_TEMPROOT")

_HELD = pytest.StashKey[tuple[Path, Any]]()


def begin(config: pytest.Config, place: Path = PLACE) -> None:
    """The processes of the tests are started later, and have the same surroundings."""
    if not config.getoption("numprocesses", None) or config.getoption("basetemp"):
        return
    if any(os.environ.get(name) for name in NAMED) or not _has_room(place):
        return
    remove_left(place)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    config.stash[_HELD] = folder, _lock(folder)
    _set_place(str(folder))
    config.option.basetemp = str(folder / "t")  # short names: some messages show the start of one only


def end(config: pytest.Config) -> None:
    if _HELD in config.stash:
        folder, lock = config.stash[_HELD]
        _set_place(None)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_left(place: Path) -> None:
    """Folders of ours that no process holds, but for one that is about to."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # held, or of another user, or gone
            if time.time() - folder.stat().st_mtime > YOUNG:
                os.close(_lock(folder))
                shutil.rmtree(folder)


def _has_room(place: Path) -> bool:
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK) and shutil.disk_usage(place).free >= ROOM


def _lock(folder: Path) -> int:
    """A lock on the folder itself: it ends with the process."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held


def _set_place(folder: str | None) -> None:
    if folder is None:
        os.environ.pop("TMPDIR", None)
    else:
        os.environ["TMPDIR"] = folder
    tempfile.tempdir = folder
