"""Having a training graph built: the worker runs apart, so that a crash of the engine is an error and not the end.

A folder that holds a graph of the same job is used again: a resumed run trains the very same graph.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import ModelProto

import onnxsparse
from onnxsparse.engines.ort import library
from onnxsparse.engines.spec import Spec
from onnxsparse.errors import ModelError, OnnxSparseError, OutputError
from onnxsparse.values import Array

MANIFEST, ERROR = "manifest.json", "error.json"
WAY_OUT = "try --engine torch, or leave out the part of the model it comes from"
_DEATHS = {-11: "SIGSEGV", -8: "SIGFPE", -6: "abort", -4: "SIGILL", -9: "killed, perhaps for want of memory"}


def build(
    folder: str, spec: Spec, model: ModelProto, samples: Mapping[str, Array], origin: str, check: bool = False
) -> dict[str, Any]:
    """Make and prove the graph of a job in `folder`, unless it is there; returns what is known of it."""
    library.training()
    digest = spec.digest(origin, onnxsparse.__version__)
    known = manifest(folder)
    if known is not None and known.get("digest") == digest and not check:
        return known
    _write_job(folder, spec, model, samples, check)
    status = _work(folder)
    made = manifest(folder)
    if status or made is None:
        raise _failure(folder, status)
    _mark(folder, {**made, "digest": digest})
    for name in ("model.onnx", "samples.npz"):
        os.unlink(os.path.join(folder, name))
    return {**made, "digest": digest}


def manifest(folder: str) -> dict[str, Any] | None:
    """What is known of the graph in a folder, where one was finished."""
    try:
        with open(os.path.join(folder, MANIFEST), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write_job(folder: str, spec: Spec, model: ModelProto, samples: Mapping[str, Array], check: bool) -> None:
    job = {"spec": json.loads(spec.to_json()), "names": list(samples), "check": check}
    try:
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        with open(os.path.join(folder, "model.onnx"), "wb") as file:
            file.write(model.SerializeToString())
        arrays: dict[str, Any] = {f"a{place}": array for place, array in enumerate(samples.values())}
        np.savez(os.path.join(folder, "samples.npz"), **arrays)
        with open(os.path.join(folder, "job.json"), "w", encoding="utf-8") as file:
            json.dump(job, file)
    except OSError as error:
        raise OutputError(f"cannot write the training graph to {folder}: {error.strerror}") from error
    except ValueError as error:  # protobuf's word for more than 2 GB
        raise ModelError("the model is over 2 GB, more than the training engine takes; use --engine torch") from error


def _work(folder: str) -> int:
    """Run the worker; its noise goes to a file beside."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(onnxsparse.__file__)))
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "onnxsparse.engines.ort.trial", os.path.abspath(folder)]
    with open(os.path.join(folder, "log"), "wb") as log:
        worker = subprocess.Popen(  # noqa: S603 - our own module, by the interpreter that runs this
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            return worker.wait()
        except BaseException:
            worker.kill()
            worker.wait()
            raise


def _failure(folder: str, status: int) -> OnnxSparseError:
    try:
        with open(os.path.join(folder, ERROR), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return ModelError(f"the training engine died while {_stage(folder)} ({_death(status)}); {WAY_OUT}")
    line = " ".join(str(found["error"]).split())
    if found["ours"]:
        return ModelError(line)
    return ModelError(f"the training engine refuses this model while {_stage(folder)}: {line[:300]}; {WAY_OUT}")


def _stage(folder: str) -> str:
    try:
        with open(os.path.join(folder, "stage"), encoding="utf-8") as file:
            return file.read() or "starting"
    except OSError:
        return "starting"


def _death(status: int) -> str:
    return _DEATHS.get(status, f"exit code {status}")


def _mark(folder: str, content: Mapping[str, Any]) -> None:
    with open(os.path.join(folder, MANIFEST + ".part"), "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(os.path.join(folder, MANIFEST + ".part"), os.path.join(folder, MANIFEST))
