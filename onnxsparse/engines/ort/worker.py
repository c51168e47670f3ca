"""Worker subprocesses, which never outlive the process that they work for.

    python -m onnxsparse.engines.ort.worker MODULE WORD...

calls `main` of a module of this folder, or of one that is named in full, with the words.

1. The worker's standard input is a pipe that nobody writes to: it ends when the parent does, however that dies.
2. Linux kills the worker with its parent, even while the engine lets no other thread run.
3. What the worker leaves in temporary folders lies in the folder of its job.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence

PARENT = "ONNXSPARSE_PARENT"
NO_SPACE = 28
"""The exit status of a worker that found a disk full."""
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9


def run(command: Sequence[str], folder: str, path: str) -> int:
    """The exit status of a command in a folder; its noise goes to the file `log` there. `path` is for Python."""
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    environment.update(dict.fromkeys(("TMPDIR", "TEMP", "TMP"), os.path.abspath(folder)), **{PARENT: str(os.getpid())})
    with open(os.path.join(folder, "log"), "wb") as log:
        worker = subprocess.Popen(  # noqa: S603 - our own module, by the interpreter that runs this
            command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log
        )
        try:
            return worker.wait()
        except BaseException:
            worker.kill()
            worker.wait()
            raise
        finally:
            assert worker.stdin is not None
            worker.stdin.close()


def follow_parent() -> None:
    """End with the process that started this one; nothing happens where none says that it did."""
    parent = os.environ.get(PARENT)
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
        if os.getppid() != int(parent):
            os._exit(1)
    threading.Thread(target=_await_the_end, daemon=True).start()


def _await_the_end() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    follow_parent()  # before the libraries are imported, which takes its time
    called = sys.argv[1] if "." in sys.argv[1] else f"onnxsparse.engines.ort.{sys.argv[1]}"
    raise SystemExit(importlib.import_module(called).main(*sys.argv[2:]))
