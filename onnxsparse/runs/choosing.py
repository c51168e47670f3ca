"""Which engine trains a model, and why: onnxruntime-training where its checks pass, otherwise torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnxsparse.engines.engine import Engine
from onnxsparse.engines.ort import library as ort_library
from onnxsparse.engines.other_teacher import OtherTeacher
from onnxsparse.engines.processes import Processes
from onnxsparse.engines.spec import Spec
from onnxsparse.engines.torch import library as torch_library
from onnxsparse.engines.turning import turn
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.graph.model import Model
from onnxsparse.modifiers.training import BUILT_IN, OWN, Training
from onnxsparse.passes.matrices import StoredParam
from onnxsparse.passes.sample_axes import SAMPLES_FIRST, SampleAxes
from onnxsparse.passes.trainable import tagged
from onnxsparse.runs.carrying import FEWEST, Carried, Plain, first_steps, sequences_of
from onnxsparse.runs.feeding import Feeding

ENGINES = ("auto", "ort", "torch")
SAMPLES = 64


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
            torch_library.torch()
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
    """The engines of one run: of the same kind throughout, chosen with the first one."""

    def __init__(
        self,
        model: Model,
        tags: Mapping[str, StoredParam],
        feeding: Feeding,
        training: Training,
        means: Means,
        axes: SampleAxes = SAMPLES_FIRST,
    ) -> None:
        self._model, self._tags, self._feeding, self._axes = model, tags, feeding, axes
        self._training, self._means = training, means
        self._sequences, self._plain = sequences_of(model, axes), Plain(model, axes) if axes.states else None
        self.notes: list[str] = []
        self.chosen = "" if means.engine == "auto" else means.engine

    def make(self, spec: Spec, room: str, check: bool) -> Engine:
        """The engine that was asked for; by default the first that takes the model."""
        if not self.chosen:
            engine = self._choose(spec, room, check)
        else:
            engine = self._torch(spec) if self.chosen == "torch" else self._ort(spec, room, check)
        if self._sequences is not None and self._plain is not None:
            engine = Carried(engine, self._sequences, self._plain)
        if spec.objective.teacher and self._axes.inputs:
            name = next(iter(self._axes.inputs))
            raise OptionError(f"another model cannot be the teacher where the samples of '{name}' are not first")
        if spec.objective.teacher:
            engine.learn_from(OtherTeacher(spec.objective.teacher, spec.objective.output))
        return engine

    def _choose(self, spec: Spec, room: str, check: bool) -> Engine:
        why = self._means.torch_alone(self._training)
        if not why and not ort_library.available() and torch_library.available():
            why = "onnxruntime-training is not installed"
        if not why:
            try:
                engine = self._ort(spec, room, check)
                return self._noted("ort", "trained in onnxruntime-training, whose checks the model passes", engine)
            except ModelError as error:
                if not torch_library.available():
                    raise
                why = str(error)
        return self._noted("torch", f"trained in torch: {why}", self._torch(spec))

    def _noted(self, chosen: str, note: str, engine: Engine) -> Engine:
        self.chosen = chosen
        self.notes.append(note)
        return engine

    def _ort(self, spec: Spec, room: str, check: bool) -> Engine:
        from onnxsparse.engines.ort.engine import OrtEngine

        training, made = self._training, self.built(spec, room, check)
        return OrtEngine(folder_of(spec, room), made, training.optimizer, training.seed)

    def built(self, spec: Spec, room: str, check: bool) -> dict[str, Any]:
        """The training graph of onnxruntime-training, made and proven."""
        from onnxsparse.engines.ort.building import build

        copy = turn(tagged(self._model, self._tags), spec.turned.get("inputs", {}), spec.turned.get("outputs", {}))
        return build(folder_of(spec, room), spec, copy, self._samples(), self._model.sha256(), check)

    def _torch(self, spec: Spec) -> Engine:
        from onnxsparse.engines.torch.engine import TorchEngine
        from onnxsparse.engines.torch.setting import Setting

        means, tensors = self._means, {tag: one.tensor for tag, one in self._tags.items()}
        setting = Setting(
            means.device or "cpu",
            self._training.precision,
            means.optimizer or self._training.optimizer,
            means.lr_scheduler,
            means.processes,
        )
        return TorchEngine(self._model, tensors, spec, self._samples(), setting)

    def _samples(self) -> dict[str, Any]:
        count = max(SAMPLES, self._training.batch, self._declared_batch())
        if self._sequences is None or self._plain is None:
            return self._feeding.first(count)
        return first_steps(self._sequences, self._feeding.first(FEWEST), count, self._plain)

    def _declared_batch(self) -> int:
        """How many samples the file says that it takes; 0 where it leaves that open."""
        others = {tensor.name for tensor in self._model.proto.graph.initializer} | self._feeding.shared
        inputs = [value for value in self._model.proto.graph.input if value.name not in others]
        shapes = [(value.type.tensor_type.shape.dim, self._axes.inputs.get(value.name, 0)) for value in inputs]
        return max((dims[axis].dim_value for dims, axis in shapes if dims), default=0)


def folder_of(spec: Spec, room: str) -> str:
    return os.path.join(room, f"graph-{spec.digest()}")


def met(engine: str, device: str | None) -> tuple[Processes, str | None]:
    """The other processes of this run, and the device of this one."""
    from onnxsparse.engines.processes import launched

    alone = launched() == 1 and (engine == "ort" or not torch_library.available() or not _joined())
    if alone:
        return Processes(), device
    if engine == "ort":
        raise OptionError("several processes train together in torch only; take --engine torch")
    from onnxsparse.engines.torch.processes import meet, own_device

    device = own_device(device or "cpu")
    return meet(device), device


def _joined() -> bool:
    """Whether the user's script has joined other processes already; torch is not imported to find out."""
    import sys

    if "torch" not in sys.modules:
        return False
    from onnxsparse.engines.torch.processes import joined

    return joined() > 1
