"""Choosing the engine that trains a model, and why: onnxruntime-training where its checks pass, otherwise torch.

1. The engine that was asked for, else the first that takes the model. All engines of one run are of the kind of the
   first one, and every graph is made with the same samples.
2. What only one engine can do (processes that train together, a device, half precision, an optimizer of the user's)
   decides before anything is made.
3. An engine's library is imported when that engine is made: a run in onnxruntime-training loads nothing of torch's.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from onnx import ModelProto

from onnxsparse.acts.layer_pairs import terms_that_stay
from onnxsparse.engines.engine import Engine, Spec
from onnxsparse.engines.layer_terms import LayersOfFile
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.other_teacher import OtherTeacher
from onnxsparse.engines.processes import Processes, launched
from onnxsparse.engines.sample_axes import turn
from onnxsparse.engines.working_dirs import temporary
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.graph.model import Model
from onnxsparse.math.values import Array
from onnxsparse.passes.quantization.fake_quantize import insert_fake_quantization
from onnxsparse.planning.model_inputs import SAMPLES_FIRST, SampleAxes
from onnxsparse.planning.quantization import Quantization
from onnxsparse.planning.stored_params import StoredParam
from onnxsparse.planning.trainable import tagged
from onnxsparse.recipes.modifiers.training import BUILT_IN, OWN, Training
from onnxsparse.train.sequences import Carried, Plain, Sequences

ENGINES = ("auto", "ort", "torch")


@dataclass(frozen=True)
class Means:
    """What to train with, as the user said it, and with whom."""

    engine: str = "auto"
    device: str | None = None
    optimizer: Callable[[Any], Any] | None = None
    lr_scheduler: Callable[[Any], Any] | None = None
    processes: Processes = field(default_factory=Processes)

    def demand_sense(self, training: Training) -> None:
        """Nothing is asked of an engine that it has not, nor left out that it needs."""
        if self.engine not in ENGINES:
            raise OptionError(f"engine is one of {', '.join(ENGINES)}, not {self.engine!r:.40}")
        if (training.optimizer == OWN) != (self.optimizer is not None):
            raise OptionError(
                f"the recipe says optimizer: {training.optimizer}; for a function of your own it says optimizer: {OWN}"
                if self.optimizer is not None
                else f"optimizer: {OWN} is a function of yours, which osp.finetune takes as optimizer="
            )
        if (training.rate_schedule == OWN) != (self.lr_scheduler is not None):
            raise OptionError(
                f"the recipe says rate_schedule: {training.rate_schedule}; for a function of your own it says {OWN}"
                if self.lr_scheduler is not None
                else f"rate_schedule: {OWN} is a function of yours, which osp.finetune takes as lr_scheduler="
            )
        why = self.torch_alone(training)
        if why and self.engine == "ort":
            raise OptionError(f"{why}; take --engine torch")
        if why or self.engine == "torch":
            _torch_library().torch()
        if training.optimizer == BUILT_IN and (why or self.engine == "torch"):
            raise OptionError(
                f"{BUILT_IN} is inside onnxruntime-training: it needs --engine ort{' (' + why + ')' if why else ''}; "
                "in torch take another optimizer, such as adamw"
            )

    def torch_alone(self, training: Training) -> str:
        """Why no other engine can do what is asked; nothing where one can."""
        if self.processes.count > 1:
            return f"{self.processes.count} processes train together in torch only"
        if self.optimizer is not None:
            return "an optimizer of your own moves weights in torch only"
        if self.device not in (None, "cpu"):
            return f"the device {self.device:.40} is used by torch only"
        if training.precision != "float32":
            return f"{training.precision} is used by torch only"
        return ""


ALONE = Means()


class Engines:
    """Makes the engines of one run; `samples` are those that graphs are made and proven with.

    Graphs of onnxruntime-training lie in the folder `room`, one for each spec, and are found again by a resumed run.
    Without one the graph of the latest engine has a temporary folder. `carried` are the states of sequences.
    """

    def __init__(
        self,
        model: Model,
        tags: Mapping[str, StoredParam],
        training: Training,
        means: Means,
        samples: Callable[[], Mapping[str, Array]],
        *,
        working_dir: str | None = None,
        check: bool = False,
        axes: SampleAxes = SAMPLES_FIRST,
        carried: tuple[Sequences, Plain] | None = None,
    ) -> None:
        self._model, self._tags, self._training, self._means = model, tags, training, means
        self._samples, self._check, self._axes, self._carried = samples, check, axes, carried
        self._working_dir = working_dir
        self._temporary = ExitStack()
        self.fixed = 0
        """How many samples the graph of the latest engine takes at once; any number where it is 0."""
        self.notes: list[str] = []
        self.chosen = "" if means.engine == "auto" else means.engine

    def make(self, spec: Spec) -> Engine:
        """The engine that was asked for; by default the first that takes the model."""
        if spec.objective.terms:
            terms = terms_that_stay(spec.objective.terms, self._model, spec.bypasses)
            spec = replace(spec, objective=replace(spec.objective, terms=terms))
        if not self.chosen:
            engine = self._choose(spec)
        else:
            engine = self._torch(spec) if self.chosen == "torch" else self._ort(spec)
        if self._carried is not None:
            engine = Carried(engine, *self._carried)
        if spec.objective.teacher and self._axes.inputs:
            name = next(iter(self._axes.inputs))
            raise OptionError(f"another model cannot be the teacher where the samples of '{name}' are not first")
        if spec.objective.teacher:
            engine.learn_from(OtherTeacher(spec.objective.teacher))
        files = {one.teacher for one in spec.objective.terms if one.teacher}
        if files:
            taught = {path: [one.taught for one in spec.objective.terms if one.teacher == path] for path in files}
            engine.learn_layers_from({path: LayersOfFile(path, names) for path, names in taught.items()})
        return engine

    def _choose(self, spec: Spec) -> Engine:
        why = self._means.torch_alone(self._training)
        if not why and not ort_library.available() and _torch_library().available():
            why = "onnxruntime-training is not installed"
        if not why:
            try:
                engine = self._ort(spec)
                return self._noted("ort", "trained in onnxruntime-training, whose checks the model passes", engine)
            except ModelError as error:
                if not _torch_library().available():
                    raise
                why = str(error)
        return self._noted("torch", f"trained in torch: {why}", self._torch(spec))

    def _noted(self, chosen: str, note: str, engine: Engine) -> Engine:
        self.chosen = chosen
        self.notes.append(note)
        return engine

    def _ort(self, spec: Spec) -> Engine:
        from onnxsparse.engines.ort.engine import OrtEngine

        folder, made = self.built(spec)
        self.fixed = int(made["batch"])
        return OrtEngine(folder, made, self._training.optimizer, self._training.seed)

    def built(self, spec: Spec) -> tuple[str, dict[str, Any]]:
        """The training graph of onnxruntime-training, made and proven: its folder, and what is known of it."""
        from onnxsparse.engines.ort.building import build

        working_dir = self._working_dir
        if working_dir is None:
            self._temporary.close()
            working_dir = self._temporary.enter_context(temporary())
        folder = os.path.join(working_dir, f"graph-{spec.digest()}")
        plain = tagged(self._model, self._tags)
        _rounded(spec, plain)
        copy = turn(plain, spec.turned.get("inputs", {}), spec.turned.get("outputs", {}))
        return folder, build(folder, spec, copy, self._samples(), self._model.sha256(), self._check)

    def _torch(self, spec: Spec) -> Engine:
        from onnxsparse.engines.torch.engine import TorchEngine
        from onnxsparse.engines.torch.optimizer_state import Setting

        means, tensors = self._means, {tag: one.tensor for tag, one in self._tags.items()}
        setting = Setting(
            means.device or "cpu",
            self._training.precision,
            means.optimizer or self._training.optimizer,
            means.lr_scheduler,
            means.processes,
        )
        self.fixed = 0
        return TorchEngine(self._model, tensors, spec, self._samples(), setting, partial(_rounded, spec))


def _rounded(spec: Spec, copy: ModelProto) -> None:
    """Put what a training graph rounds into the copy that it is made of."""
    if spec.quantization:
        insert_fake_quantization(copy, Quantization.from_json(spec.quantization), spec.learned_scales)


def met(engine: str, device: str | None) -> tuple[Processes, str | None]:
    """The other processes of this run, and the device of this one."""
    joined = False
    if "torch" in sys.modules and engine != "ort":  # the user's script may have joined other processes already
        joined = importlib.import_module("onnxsparse.engines.torch.distributed").joined() > 1
    if launched() == 1 and not joined:
        return Processes(), device
    if engine == "ort":
        raise OptionError("several processes train together in torch only; take --engine torch")
    from onnxsparse.engines.torch.distributed import meet, own_device

    device = own_device(device or "cpu")
    return meet(device), device


def _torch_library() -> Any:
    from onnxsparse.engines.torch import library

    return library


__all__ = ["ALONE", "ENGINES", "Engines", "Means", "met"]
