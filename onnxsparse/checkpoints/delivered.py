"""What a run has delivered: digests of its results, noted in its folder just before the files get their names.

Only what is noted may be replaced by the run that goes on, and only while the folder holds a checkpoint of that run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable

from onnxsparse.checkpoints.folder import latest_facts
from onnxsparse.errors import OutputError

NAME, JOB, FILES = "delivered.json", "job", "files"
BLOCK = 1 << 20


def note_delivery(folder: str, files: Iterable[str]) -> None:
    """Note the digests of files, as those of the run whose checkpoints are in the folder; nothing where there are none.

    Those that were noted before stay: until the new files have their names, the old ones are there.
    """
    facts = latest_facts(folder)
    if facts is None:
        return
    known = {*_noted(folder), *map(_digest_of, files)}
    place = os.path.join(folder, NAME)
    try:
        with open(place + ".part", "w", encoding="utf-8") as file:
            json.dump({JOB: facts.get(JOB), FILES: sorted(known)}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(place + ".part", place)
    except OSError as error:
        raise OutputError(f"cannot write to the folder {folder}: {error.strerror or error}") from error


def was_delivered(folder: str, paths: Iterable[str]) -> bool:
    """Whether every one of these files that exists is one that the run in the folder delivered."""
    noted = _noted(folder)
    try:
        return all(_digest_of(path) in noted for path in paths if os.path.lexists(path))
    except OSError:
        return False


def _noted(folder: str) -> set[str]:
    facts = latest_facts(folder)
    try:
        with open(os.path.join(folder, NAME), encoding="utf-8") as file:
            found = json.load(file)
        same = facts is not None and found[JOB] == facts.get(JOB)
        return {str(one) for one in found[FILES]} if same else set()
    except (OSError, ValueError, TypeError, KeyError):
        return set()


def _digest_of(path: str) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(BLOCK), b""):
            found.update(block)
    return found.hexdigest()
