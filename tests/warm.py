"""Pythons that need not start: children of a process that has loaded the libraries, one for each process of tests.

Most of what tests do in a process of its own takes less time than to load numpy, onnx and onnxruntime. A child of a
process that has loaded them does the same, in its folder and with its surroundings, and dies alone.

1. `python` is `subprocess.run` for a Python: nothing that a test has changed reaches the child but what it is given.
2. `worker_run` stands in for `worker.run`. How workers start, and how they end with their parent, is for the tests of
   `COLD`, which have real ones. So has every command that a test starts with `subprocess`.
3. Where there is no such process (Windows), Pythons start as ever.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import secrets
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path

import pytest

COLD = ("engines/ort/test_building",)
"""Tests of workers themselves."""
AVAILABLE = "forkserver" in multiprocessing.get_all_start_methods()
ROOT = Path(__file__).resolve().parent.parent


def python(
    words: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] | None = None, work: int = 600
) -> subprocess.CompletedProcess[str]:
    """What `python -c CODE ...`, `python -m MODULE ...` or `python SCRIPT ...` comes to, each also behind `-W FILTER`;
    it is killed where it takes more than so many seconds of CPU time."""
    env = os.environ if env is None else env
    if not AVAILABLE:
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=cwd, env={**env}, capture_output=True, text=True, timeout=600)
    with tempfile.TemporaryDirectory() as folder:
        out, error = (os.path.join(folder, name) for name in ("out", "error"))
        status = _child(words, str(cwd or os.getcwd()), env, out, error, work)
        said = (Path(name).read_text(encoding="utf-8") for name in (out, error))
        return subprocess.CompletedProcess([sys.executable, *words], status, *said)


def worker_run(command: Sequence[str], folder: str, path: str) -> int:
    """What `worker.run` does: a command in a folder, with its noise in the file `log` there."""
    log = os.path.join(folder, "log")
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), os.path.abspath(folder))
    return _child(command[1:], folder, {**os.environ, "PYTHONPATH": path, **places}, log, log)


def _child(words: Sequence[str], folder: str, env: Mapping[str, str], out: str, error: str, work: int = 600) -> int:
    _start_server()
    given = (words, folder, {**env}, out, error, work)
    child = multiprocessing.get_context("forkserver").Process(target=_work, args=given)
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
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tests.warm", "tests.warm_libraries"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("PYTHONHASHSEED", "0")
        forkserver.ensure_running()


def _work(words: Sequence[str], folder: str, env: Mapping[str, str], out: str, error: str, work: int) -> None:
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + work, resource.RLIM_INFINITY))
    for number, name in ((1, out), (2, error)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    tempfile.tempdir = None
    _draw_other_numbers()
    sys.path[:0] = [folder, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    while words[0] == "-W":
        warnings._processoptions([words[1]])  # type: ignore[attr-defined]  # as Python does when it starts
        words = words[2:]
    if words[0] == "-m":
        sys.argv = [*words[1:]]
        warnings.filterwarnings("ignore", ".* found in sys.modules", RuntimeWarning)  # of course it is
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [*words]
        sys.path[0] = os.path.dirname(words[0])
        runpy.run_path(words[0], run_name="__main__")


def _draw_other_numbers() -> None:
    """As each Python that starts does, and not those of the process that this is a child of."""
    for name, draw in (("numpy.random", "seed"), ("onnxruntime", "set_seed")):
        if name in sys.modules:
            getattr(sys.modules[name], draw)(secrets.randbits(31))
