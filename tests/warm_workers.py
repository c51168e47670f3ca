"""Workers that need not start: children of a process that has loaded the libraries, one for each process of tests.

A worker is a Python of its own (see `onnxsparse/engines/ort/worker.py`), and most of the little jobs of tests are done
in less time than it takes to load the libraries. A child of a process that has loaded them does the same job, in its
folder, with its surroundings and its log, and dies alone. How workers start, and how they end with their parent, is for
the tests of `COLD`, which have real ones; so has every command that a test starts as a process.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path

import pytest

COLD = ("engines/ort/", "test_compare")
"""Tests of workers themselves."""
AVAILABLE = "forkserver" in multiprocessing.get_all_start_methods()
ROOT = Path(__file__).resolve().parent.parent


def run(command: Sequence[str], folder: str, path: str) -> int:
    """What `worker.run` does with such a command, in a child of the process that has loaded the libraries."""
    from onnxsparse.engines.ort import worker

    _, option, module, *words = command
    assert (option, module) == ("-m", worker.__name__)
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
    surroundings.update(dict.fromkeys(("TMPDIR", "TEMP", "TMP"), os.path.abspath(folder)))
    _start_server()
    child = multiprocessing.get_context("forkserver").Process(target=_work, args=(words, folder, path, surroundings))
    child.start()
    try:
        child.join()
    except BaseException:
        child.kill()
        child.join()
        raise
    status = child.exitcode
    child.close()
    assert status is not None
    return status


def _start_server() -> None:
    """The process that has loaded the libraries; it ends with this one."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.warm_libraries"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("PYTHONHASHSEED", "0")
        forkserver.ensure_running()


def _work(words: Sequence[str], folder: str, path: str, surroundings: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(surroundings)
    os.chdir(folder)
    tempfile.tempdir = None
    sys.path[:0] = [folder, *path.split(os.pathsep)]
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    called = words[0] if "." in words[0] else f"onnxsparse.engines.ort.{words[0]}"
    raise SystemExit(importlib.import_module(called).main(*words[1:]))

