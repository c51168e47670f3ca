"""Comparing two models in a subprocess: an odd graph, or an odd size, ends the runtime and not the command.

1. Shapes for random inputs are chosen here (`input_sizes`), and tried in order there (`compare_process`). What the
   runtime dies of is passed over where there is another choice.
2. The process is the worker that training graphs are made in: it ends with this one, and leaves nothing behind.
3. Models by their paths are read by the runtime itself; those in memory go through a file in a temporary folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

import onnxsparse
from onnxsparse.data.user_functions import running
from onnxsparse.engines.ort import worker
from onnxsparse.engines.working_dirs import temporary
from onnxsparse.errors import MissingExtraError, ModelError, OnnxSparseError, OptionError, nearest
from onnxsparse.graph.class_axis import axis_in
from onnxsparse.graph.model import Model, Source
from onnxsparse.math.values import Array
from onnxsparse.passes.compare_process import ERROR, JOB, RESULT, STAGE
from onnxsparse.passes.input_sizes import Choice, choices
from onnxsparse.passes.model_pass import Check
from onnxsparse.planning.model_inputs import SampleAxes, pairs_of, whole
from onnxsparse.report.rows import Report, Totals

RANDOM_SAMPLES, DEATHS = 8, 3
WORKER, MODULE = "onnxsparse.engines.ort.worker", "onnxsparse.passes.compare_process"
_WHOLE = frozenset({
    TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
})  # fmt: skip
_DEATHS = {-11: "SIGSEGV", -8: "SIGFPE", -6: "abort", -4: "SIGILL", -9: "killed, perhaps for want of memory"}


@dataclass(frozen=True)
class Compared:
    """What was compared: a line on the inputs, facts of them, the outputs' distances, and remarks."""

    title: str
    inputs: dict[str, object]
    outputs: list[dict[str, object]]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Compare(Check):
    """How far the outputs of another model are from those of the dense one, on data or on random inputs.

    `called`, `other_called`: what reports call the two.
    """

    called: str
    other: Source
    other_called: str
    axes: SampleAxes
    class_axes: Any = None
    data: Any = None
    samples: int | None = None
    seed: int = 0

    def refusal(self, model: Model) -> OnnxSparseError | None:
        if importlib.util.find_spec("onnxruntime") is None:
            return MissingExtraError("comparing outputs needs onnxruntime: pip install 'onnxsparse[runtime]'")
        return None

    def call(self, model: Model) -> Report:
        comparing = _Comparing(model, (model.path or model.proto, self.other), self.axes, self.class_axes)
        if self.data is None:
            found = comparing.on_random(self.samples or RANDOM_SAMPLES, self.seed)
        else:
            named = isinstance(self.data, (str, os.PathLike))
            found = comparing.on_data(self.data, str(self.data) if named else "the data", self.samples)
        details: dict[str, object] = {"inputs": found.inputs, "outputs": found.outputs}
        return Report(
            "compare", self.called, found.title, (), Totals(), output=self.other_called, notes=found.notes,
            details=details,
        )  # fmt: skip


class _Comparing:
    """One comparison; `dense` is opened, and has the sizes that the user gave."""

    def __init__(self, dense: Model, sources: tuple[Source, Source], axes: SampleAxes, class_axes: Any) -> None:
        self._dense, self._sources, self._axes = dense, sources, axes
        self._class_axes = _class_axes(dense.proto, class_axes)

    def on_random(self, samples: int, seed: int) -> Compared:
        found = choices(self._dense, self._axes)
        with temporary() as folder:
            job = {**self._job(folder), "samples": samples, "seed": seed, "data": None}
            result, choice = self._first_choice(folder, job, found)
        chosen = dict(choice.chosen)
        words = f"{samples} random samples, seed {seed}"
        if self._axes.states:
            words = f"{samples} random steps of one sequence, seed {seed}"
        said = f" ({', '.join(f'{name}={size}' for name, size in chosen.items())} chosen here; --dim sets it)"
        facts = {"random": True, "samples": samples, "seed": seed, "chosen": chosen}
        told = self._told(result, words, said if chosen else "", facts)
        return replace(told, notes=(*told.notes, *self._whole_numbers()))

    def _whole_numbers(self) -> list[str]:
        """What random whole numbers are: a length, a rate or a word of 0 or 1 may leave most of a model unused."""
        stored = {tensor.name for tensor in self._dense.proto.graph.initializer}
        inputs = [one for one in self._dense.proto.graph.input if one.name not in stored]
        names = [one.name for one in inputs if one.type.tensor_type.elem_type in _WHOLE]
        if not names:
            return []
        remark = "where these are lengths, rates or words, little of the model may be at work: pass --data"
        return [f"whole numbers are drawn from 0 and 1: {', '.join(names)}; {remark}"]

    def on_data(self, data: Any, called: str, samples: int | None) -> Compared:
        with temporary() as folder:
            named = isinstance(data, (str, os.PathLike))
            path, names = (os.path.abspath(os.fspath(data)), None) if named else self._stored(folder, data)
            job = {**self._job(folder), "samples": samples, "data": path, "data_names": names, "data_called": called}
            result = self._worked(folder, job)
        words = f"{result['samples']} samples of {called}"
        if self._axes.states:
            words = f"{result['samples']} sequences of {result['steps']} steps of {called}"
        return self._told(result, words, "", {"random": False, "samples": result["samples"]})

    def _stored(self, folder: str, data: Any) -> tuple[str, list[str]]:
        """Arrays of the caller's, where the process finds them; no object is ever stored."""
        stored = {tensor.name for tensor in self._dense.proto.graph.initializer}
        inputs = [value.name for value in self._dense.proto.graph.input if value.name not in stored]
        arrays = data if isinstance(data, Mapping) else dict.fromkeys(inputs[:1], data)
        missing = [name for name in inputs if name not in arrays and name not in self._axes.states]
        if missing:
            known = nearest(missing[0], map(str, arrays)) or f" (it has {', '.join(map(str, arrays))})"
            raise OptionError(f"the data has no array '{missing[0]}'{known}")
        names = [name for name in inputs if name in arrays]
        path = os.path.join(folder, "data.npz")
        plain: dict[str, Any] = {f"a{place}": _plain(arrays[name], name) for place, name in enumerate(names)}
        np.savez(path, **plain)
        return path, names

    def _told(self, result: Mapping[str, Any], words: str, said: str, facts: dict[str, object]) -> Compared:
        shapes = ", ".join(f"{name} {size}" for name, size in result["shapes"].items())
        axes = {"batch_axes": dict(self._axes.inputs), "states": dict(self._axes.states)}
        inputs = {**facts, "steps": result["steps"], **axes, "shapes": result["shapes"]}
        return Compared(f"{words}: {shapes}{said}", inputs, result["outputs"], tuple(result["notes"]))

    def _job(self, folder: str) -> dict[str, Any]:
        paths = [_path(folder, source, name) for source, name in zip(self._sources, ("dense", "sparse"))]
        named = [isinstance(source, ModelProto) for source in self._sources]
        called = [f"the {kind} model" if own else path for kind, own, path in zip(("dense", "sparse"), named, paths)]
        return {
            "dense": paths[0],
            "sparse": paths[1],
            "called": called,
            "class_axes": self._class_axes,
            "axes": dict(self._axes.inputs),
            "states": dict(self._axes.states),
        }

    def _first_choice(self, folder: str, job: dict[str, Any], found: Sequence[Choice]) -> tuple[dict[str, Any], Choice]:
        """The comparison on the first shapes that the runtime takes, and does not die of."""
        left = list(found)
        for _ in range(DEATHS):
            job["shapes"] = [choice.shapes for choice in left]
            try:
                result = self._worked(folder, job)
            except DiedError as death:
                passed = death.place + 1
                if passed >= len(left) or not left[0].chosen:
                    raise self._with_advice(death, left) from None
                left = left[passed:]
            except ModelError as error:
                raise self._with_advice(error, left) from error
            else:
                return result, left[result["place"]]
        raise self._with_advice(ModelError(f"onnxruntime dies of {job['called'][0]} with {DEATHS} choices"), left)

    def _with_advice(self, error: ModelError, left: Sequence[Choice]) -> ModelError:
        names = list(left[0].chosen)
        if "does not load" in str(error):
            return ModelError(str(error))
        if not names:
            return ModelError(
                f"{error}; try other sizes with --dim, or pass --data" if self._dense.sizes else str(error)
            )
        return ModelError(
            f"{error}; no size that was tried here does: pass {' '.join(f'--dim {name}=SIZE' for name in names)}, or "
            "--data"
        )

    def _worked(self, folder: str, job: Mapping[str, Any]) -> dict[str, Any]:
        return worked(folder, MODULE, job, dict(zip((job["dense"], job["sparse"]), job["called"])))


def worked(folder: str, module: str, job: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """What a module made of a job, in a process of its own; `names` say what the files of models are called."""
    for name in (RESULT, ERROR, STAGE):
        if os.path.exists(os.path.join(folder, name)):
            os.unlink(os.path.join(folder, name))
    with open(os.path.join(folder, JOB), "w", encoding="utf-8") as file:
        json.dump(job, file)
    home = os.path.dirname(os.path.dirname(os.path.abspath(onnxsparse.__file__)))
    others = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = os.pathsep.join([home, *map(os.path.abspath, others)])
    status = worker.run([sys.executable, "-m", WORKER, module, folder], folder, path)
    result = _read(folder, RESULT)
    if not status and result is not None:
        return result
    raise _failure(folder, status, names)


class DiedError(ModelError):
    """The process ended without a word; `place` is the choice of shapes that it was at."""

    place = 0


def _failure(folder: str, status: int, names: Mapping[str, str]) -> OnnxSparseError:
    """What went wrong in one line; `names` say what the files of models in memory are called."""
    told = _read(folder, ERROR)
    if told is not None:
        kind = {"option": OptionError, "extra": MissingExtraError}.get(told["kind"], ModelError)
        text = str(told["error"])
        for path, called in names.items():
            text = text.replace(path, called)
        return kind(text)
    stage = _read(folder, STAGE) or {"text": "starting", "place": 0}
    death = DiedError(f"onnxruntime died while {stage['text']} ({_DEATHS.get(status, f'exit code {status}')})")
    death.place = int(stage["place"])
    return death


def _read(folder: str, name: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
    except (OSError, ValueError):
        return None
    return found


def _path(folder: str, source: Source, name: str) -> str:
    if not isinstance(source, ModelProto):
        return os.path.abspath(os.fspath(source))
    path = os.path.join(folder, f"{name}.onnx")
    with open(path, "wb") as file:
        file.write(source.SerializeToString())
    return path


def _plain(value: Any, name: str) -> Array:
    with running(f"the array '{name}'"):
        array = np.asarray(value)
    if array.dtype.kind == "O" and all(isinstance(one, str) for one in array.reshape(-1)):
        array = array.astype(str)
    if array.dtype.kind not in "biufcSU":
        raise OptionError(f"array '{name}' of the data holds {array.dtype}, not plain numbers")
    return array


def _class_axes(proto: ModelProto, given: Any) -> dict[str, int]:
    """The axis of the classes of each output: where the graph says it, or the user."""
    names = [value.name for value in proto.graph.output]
    ranks = {value.name: _rank(value) for value in proto.graph.output}
    found = {name: axis for name in names if (axis := axis_in(proto, name)) is not None}
    plain = whole(given)
    if plain is not None:
        fitting = {name: plain for name, rank in ranks.items() if rank is None or -rank <= plain < rank}
        if not fitting:
            raise OptionError(f"--axis {plain}: no output has so many axes")
        return {**found, **fitting}
    for name, text in pairs_of(given, "--axis", "AXIS or OUTPUT=AXIS").items():
        axis, rank = whole(text), ranks.get(name)
        if name not in names:
            raise OptionError(
                f"--axis {name[:80]}: the dense model has no such output"
                f"{nearest(name, names) or ' (it has ' + ', '.join(names[:10]) + ')'}"
            )
        if axis is None or (rank is not None and not -rank <= axis < rank):
            raise OptionError(f"--axis {name[:80]}={text}: an axis of {rank or 'an output'} axes is a number from 0")
        found[name] = axis
    return found


def _rank(value: Any) -> int | None:
    kind = value.type.tensor_type
    return len(kind.shape.dim) if kind.HasField("shape") else None


__all__ = ["RANDOM_SAMPLES", "Compare", "DiedError", "worked"]
