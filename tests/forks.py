"""Scripts in processes that fork from one in which torch is loaded: to load it takes longer than what they do.

For tests of what processes do together. How a launcher starts, ends and restarts them is tested with a launcher.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

LOADED = ["torch", "torch.distributed", "onnxsparse.cli", "onnxsparse.engines.torch.engine", "onnxsparse.training_api"]
PATIENCE = 1800.0


def forked(
    *words: str, environment: Mapping[str, str], count: int = 1, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """`python WORDS`, in processes with the variables and the store of a launcher; one that fails ends only itself."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as place:
        streams = [os.path.join(place, name) for name in ("stdout", "stderr")]
        started = []
        for rank in range(count):
            given = {**environment, **(_place(rank, count, store.port) if count > 1 else {})}
            process = context.Process(target=_run, args=(words, given, str(folder or os.getcwd()), streams))
            process.start()
            started.append(process)
        try:
            for process in started:
                process.join(PATIENCE)
        finally:
            for process in started:
                process.kill()
                process.join()
        said = [Path(path).read_text(encoding="utf-8") for path in streams]
    code = next((process.exitcode for process in started if process.exitcode), 0)
    return subprocess.CompletedProcess(words, code, *said)


def _place(rank: int, count: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def _run(words: Sequence[str], environment: Mapping[str, str], folder: str, streams: Sequence[str]) -> None:
    """What the interpreter does with WORDS."""
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    is_module = words[0] == "-m"
    own = folder if is_module else os.path.dirname(os.path.abspath(words[0]))
    sys.path[:0] = [own, *environment.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = list(words[1:] if is_module else words)
    try:
        if is_module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()
