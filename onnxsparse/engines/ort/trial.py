"""The worker that makes and proves a training graph, in a process of its own: the engine may crash on odd graphs.

    python -m onnxsparse.engines.ort.trial FOLDER

reads `job.json`, `model.onnx` and `samples.npz` in the folder and leaves `training_model.onnx`, `eval_model.onnx`,
`checkpoint`, `teacher.onnx` and, last, `manifest.json`; or `error.json` with one line. `stage` says where it is, so
that whoever started it can tell what it died of.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from onnxsparse.engines.ort import gradients, library, rewrites
from onnxsparse.engines.ort.assemble import Assembled, assemble
from onnxsparse.engines.ort.cuts import cut, teacher
from onnxsparse.engines.ort.prepare import Prepared, prepare
from onnxsparse.engines.ort.prove import Proof, prove
from onnxsparse.engines.ort.runner import Runner
from onnxsparse.engines.ort.session import Session
from onnxsparse.engines.spec import Spec
from onnxsparse.errors import ModelError, OnnxSparseError
from onnxsparse.losses import scale_of
from onnxsparse.values import Array

MEASURED = 64
"""Samples from which the spread of every signal is taken."""
ROUNDS = 8


class Trial:
    """One job, step by step."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        with open(self._at("job.json"), encoding="utf-8") as file:
            self.job = json.load(file)
        self.spec = Spec.from_json(json.dumps(self.job["spec"]))

    def run(self) -> None:
        self._stage("preparing the graph")
        model = onnx.load(self._at("model.onnx"))
        samples = self._samples()
        prepared = prepare(model, set(self.spec.trained), samples, self.spec.batch)
        dense, prepared = self._differentiable(prepared)
        onnx.save(dense, self._at("teacher.onnx"))
        feeds = Feeds(prepared, samples, dense)
        made = assemble(prepared, self.spec, feeds.scales())
        self._stage("building the gradients")
        self._generate(made)
        self._stage("taking the first step")
        proof = prove(Session(self.folder, made.names()), feeds.batch(made), self.job["check"])
        self._manifest(prepared, made, proof)

    def _differentiable(self, prepared: Prepared) -> tuple[ModelProto, Prepared]:
        """Rewrite what the engine cannot differentiate, and cut the graph where that is not possible."""
        plain = Prepared(**{**vars(prepared), "model": _copy(prepared.model)})
        for _ in range(ROUNDS):
            self._stage("rewriting operators")
            prepared.notes += rewrites.apply(prepared.model, _trained(prepared))
            blocked = gradients.blocked(prepared.model, _trained(prepared))
            if not blocked:
                return teacher(plain, prepared), prepared
            prepared = cut(prepared, [node.name for node, _ in blocked])
            prepared.notes += [f"{reason}: matched to the dense model before and after it" for _, reason in blocked]
        raise ModelError(f"no gradient gets past operator {blocked[0][0].op_type} of this model; try --engine torch")

    def _samples(self) -> dict[str, Array]:
        with np.load(self._at("samples.npz"), allow_pickle=False) as arrays:
            return {name: arrays[f"a{place}"] for place, name in enumerate(self.job["names"])}

    def _generate(self, made: Assembled) -> None:
        training = library.training()
        onnx.IR_VERSION = library.LAST_IR  # type: ignore[assignment]
        made.model.ir_version = min(max(made.model.ir_version, 8), library.LAST_IR)
        training.artifacts.generate_artifacts(
            made.model,
            requires_grad=list(made.trained.values()),
            frozen_params=list(made.frozen.values()),
            artifact_directory=self.folder,
            additional_output_names=list(made.outputs),
        )

    def _manifest(self, prepared: Prepared, made: Assembled, proof: Proof) -> None:
        self._write(
            "manifest.json",
            {
                **made.names(),
                "batch": prepared.batch,
                "inputs": [(name, np.dtype(kind).name, list(shape)) for name, kind, shape in prepared.inputs],
                "fed": prepared.fed,
                "signals": [vars(signal) for signal in prepared.signals],
                "notes": prepared.notes,
                "unreached": prepared.unreached,
                "proof": vars(proof),
            },
        )

    def _stage(self, text: str) -> None:
        with open(self._at("stage"), "w", encoding="utf-8") as file:
            file.write(text)

    def _write(self, name: str, content: object) -> None:
        with open(self._at(name + ".part"), "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(self._at(name + ".part"), self._at(name))

    def fail(self, error: Exception) -> None:
        self._write("error.json", {"error": str(error), "ours": isinstance(error, OnnxSparseError)})

    def _at(self, name: str) -> str:
        return os.path.join(self.folder, name)


class Feeds:
    """What the dense model says to the samples of a trial."""

    def __init__(self, prepared: Prepared, samples: Mapping[str, Array], dense: ModelProto) -> None:
        self._prepared, self._samples, self._runner = prepared, samples, Runner(dense)
        self._count = max((len(samples[name]) for name, _, shape in self._own() if shape), default=1)

    def _own(self) -> list[Any]:
        return [entry for entry in self._prepared.inputs if entry[0] not in self._prepared.fed]

    def at(self, start: int) -> dict[str, Array]:
        """The inputs of the batch that starts at a sample; it turns round where there are too few."""
        rows = np.arange(start, start + self._prepared.batch)
        feed = {}
        for name, kind, shape in self._own():
            array = self._samples[name]
            whole = not shape or (array.shape == tuple(shape) and len(array) != self._count)
            taken = array if whole else np.take(array, rows, axis=0, mode="wrap")
            feed[name] = np.ascontiguousarray(taken.reshape(shape), np.dtype(kind))
        return feed

    def scales(self) -> dict[str, float]:
        """How much every signal varies, from some samples."""
        starts = range(0, min(self._count, MEASURED), self._prepared.batch)
        found: dict[str, list[Array]] = {}
        for start in starts:
            for name, value in self._runner(self.at(start)).items():
                found.setdefault(name, []).append(value)
        names = [signal.name for signal in self._prepared.signals]
        return {name: scale_of(np.stack(found[name])) for name in names}

    def batch(self, made: Assembled) -> dict[str, Array]:
        """One whole feed of the training graph."""
        feed = self.at(0)
        dense = self._runner(feed)
        feed.update({name: dense[name] for name in self._prepared.fed})
        feed.update({name: dense[signal] for signal, name in made.teacher.items()})
        if made.labels:
            feed[made.labels] = _labels(made, self._samples)
        return feed


def _labels(made: Assembled, samples: Mapping[str, Array]) -> Array:
    value = next(value for value in made.model.graph.input if value.name == made.labels)
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    return np.ascontiguousarray(np.take(samples["labels"], np.arange(shape[0]), axis=0, mode="wrap"), dtype)


def _trained(prepared: Prepared) -> set[str]:
    return set(prepared.weights)


def _copy(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def main(folder: str) -> int:
    trial = Trial(folder)
    try:
        trial.run()
    except Exception as error:  # the engine raises whatever it likes; the caller makes one line of it
        trial.fail(error)
        if os.environ.get("ONNXSPARSE_DEBUG"):
            raise
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
