"""Jobs of worker subprocesses: what a worker is given in a folder, what it says there, and why it ended.

job.json, model.onnx, samples.npz     what is to be done, and with what
stage                                 what the worker is doing, for whoever has to say what it died of
error.json                            why it could not, in one line
log                                   the engine's own noise
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import ModelProto

import onnxsparse
from onnxsparse.engines.ort import worker
from onnxsparse.engines.ort.library import short
from onnxsparse.engines.ort.worker import NO_SPACE
from onnxsparse.errors import ModelError, OnnxSparseError, OptionError
from onnxsparse.math.values import Array

ERROR, MODEL = "error.json", "model.onnx"
WAY_OUT = "try --engine torch, or leave out the part of the model it comes from"
LEAST_SPACE = 1 << 16
"""Bytes below which a disk is full."""
_DEATHS = {-11: "SIGSEGV", -8: "SIGFPE", -6: "abort", -4: "SIGILL", -9: "killed, perhaps for want of memory"}

# -- the side of who has work done


def write_job(folder: str, job: Mapping[str, Any], model: ModelProto, samples: Mapping[str, Array]) -> None:
    """What a worker is to do, with the model and the samples to do it with, in a new folder."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        with open(os.path.join(folder, MODEL), "wb") as file:
            file.write(model.SerializeToString())
        arrays: dict[str, Any] = {f"a{place}": array for place, array in enumerate(samples.values())}
        np.savez(os.path.join(folder, "samples.npz"), **arrays)
        with open(os.path.join(folder, "job.json"), "w", encoding="utf-8") as file:
            json.dump({**job, "names": list(samples)}, file)
    except ValueError as error:  # protobuf's word for more than 2 GB
        raise ModelError("the model is over 2 GB, more than the training engine takes; use --engine torch") from error


def run_worker(folder: str, module: str, *words: str) -> int:
    """Run a module of this folder as a worker; its noise goes to a file beside."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(onnxsparse.__file__)))
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    return worker.run([sys.executable, "-m", "onnxsparse.engines.ort.worker", module, *words], folder, path)


def failure(folder: str, status: int, culprit: str = "") -> Exception:
    """Why a worker ended without a result; `culprit` is the operator that it died of, where that is known."""
    # the engine itself does not say why it could not write
    if status == NO_SPACE or shutil.disk_usage(folder).free < LEAST_SPACE:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    try:
        with open(os.path.join(folder, ERROR), encoding="utf-8") as file:
            told = json.load(file)
    except (OSError, ValueError):
        what = f" of {culprit}" if culprit else ""
        death = _DEATHS.get(status, f"exit code {status}")
        return ModelError(f"the training engine died{what} while {_stage(folder)} ({death}); {WAY_OUT}")
    if told["ours"]:
        kind = OptionError if told["ours"] == "option" else ModelError
        return kind(" ".join(str(told["error"]).split()))
    line = short(told["error"])
    return ModelError(f"the training engine refuses this model while {_stage(folder)}: {line}; {WAY_OUT}")


def _stage(folder: str) -> str:
    try:
        with open(os.path.join(folder, "stage"), encoding="utf-8") as file:
            return file.read() or "starting"
    except OSError:
        return "starting"


# -- the side of the worker


class Job(ABC):
    """What is to be done, in the process that does it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        with open(self.at("job.json"), encoding="utf-8") as file:
            self.job = json.load(file)

    @abstractmethod
    def run(self) -> None:
        """Do it."""

    def samples(self) -> dict[str, Array]:
        with np.load(self.at("samples.npz"), allow_pickle=False) as arrays:
            return {name: arrays[f"a{place}"] for place, name in enumerate(self.job["names"])}

    def stage(self, text: str) -> None:
        """What is done now."""
        with open(self.at("stage"), "w", encoding="utf-8") as file:
            file.write(text)

    def write(self, name: str, content: object) -> None:
        """A file of JSON, whole or not at all."""
        with open(self.at(name + ".part"), "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(self.at(name + ".part"), self.at(name))

    def at(self, name: str) -> str:
        return os.path.join(self.folder, name)


def carry_out(job: Job) -> int:
    """The exit status of a worker."""
    try:
        job.run()
    except Exception as error:  # the engine raises whatever it likes; the caller makes one line of it
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return NO_SPACE
        said = error.as_flags if isinstance(error, OnnxSparseError) else str(error)  # the caller spells it
        job.write(ERROR, {"error": said, "ours": _kind(error)})
        if os.environ.get("ONNXSPARSE_DEBUG"):
            raise
        return 1
    return 0


def _kind(error: Exception) -> str:
    """Whose error it is: that of the options, of the model, or, with no word, of the engine."""
    return "option" if isinstance(error, OptionError) else "model" if isinstance(error, OnnxSparseError) else ""
