"""The engine that trains an ONNX model in a loop: the one that was asked for, else the first that takes the model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack

from onnxsparse.engines.engine import Engine
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.rooms import temporary
from onnxsparse.engines.spec import Objective as Goal
from onnxsparse.engines.spec import Spec
from onnxsparse.engines.torch import library as torch_library
from onnxsparse.errors import ModelError
from onnxsparse.graph.model import Model
from onnxsparse.loops.options import LoopOptions
from onnxsparse.math.values import Array
from onnxsparse.modifiers.objective import Objective
from onnxsparse.passes.trainable import Trainable, tagged

LABELS = "labels"


class Making:
    """Makes engines for one model; every graph is made with the same samples."""

    def __init__(self, model: Model, tags: Mapping[str, Trainable]) -> None:
        self._model, self._tags, self._room = model, tags, ExitStack()
        self.notes: list[str] = []
        self.fixed = 0
        """How many samples the graph of the engine takes at once; any number where it is 0."""

    def __call__(self, options: LoopOptions, sparsers: Mapping[str, str], samples: Mapping[str, Array]) -> Engine:
        labels = samples.get(LABELS)
        size = max((len(array) for array in samples.values() if array.ndim), default=1)
        trained = {tag: one.name for tag, one in self._tags.items()}
        spec = Spec(size, trained, dict(sparsers), _goal(options.objective(labels), labels), options.train_bn)
        return self._chosen(options, spec, samples)

    def _chosen(self, options: LoopOptions, spec: Spec, samples: Mapping[str, Array]) -> Engine:
        wanted = options.engine
        if wanted == "torch" or (wanted == "auto" and not ort_library.available() and torch_library.available()):
            return self._torch(options, spec, samples)
        try:
            return self._ort(options, spec, samples)
        except ModelError as error:
            if wanted == "auto" and torch_library.available():
                self.notes.append(f"trained in torch: {error}")
                return self._torch(options, spec, samples)
            raise

    def _ort(self, options: LoopOptions, spec: Spec, samples: Mapping[str, Array]) -> Engine:
        from onnxsparse.engines.ort.building import build
        from onnxsparse.engines.ort.engine import OrtEngine

        self._room.close()
        folder = os.path.join(self._room.enter_context(temporary()), "graph")
        made = build(folder, spec, tagged(self._model, self._tags), samples, self._model.sha256())
        engine = OrtEngine(folder, made, options.optimizer)
        self.fixed = engine.batch
        return engine

    def _torch(self, options: LoopOptions, spec: Spec, samples: Mapping[str, Array]) -> Engine:
        from onnxsparse.engines.torch.engine import TorchEngine
        from onnxsparse.engines.torch.setting import Setting

        tensors = {tag: one.tensor for tag, one in self._tags.items()}
        self.fixed = 0
        return TorchEngine(self._model, tensors, spec, samples, Setting(optimizer=options.optimizer))


def _goal(objective: Objective, labels: Array | None) -> Goal:
    task = objective.task
    return Goal(
        task,
        objective.output,
        tuple(labels.shape[1:]) if task and labels is not None else (),
        "int64" if task == "cross-entropy" else "float32",
        objective.kind_of_distillation,
        objective.share,
        objective.temperature,
    )
