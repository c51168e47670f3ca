"""How an ONNX model in a user's own loop is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onnxsparse import rates
from onnxsparse.errors import OptionError, brief, nearest
from onnxsparse.modifiers.objective import DISTILLATIONS, TASKS, Objective
from onnxsparse.modifiers.training import BUILT_IN, Training

ENGINES = ("auto", "ort", "torch")
LOSSES = (*TASKS, *DISTILLATIONS)
SHORT = {"ce": "cross-entropy", "xent": "cross-entropy", "nll": "cross-entropy", "l2": "mse", "mae": "l1"}


@dataclass(frozen=True)
class LoopOptions:
    """What is made small, by which optimizer, in which engine.

    Without a `loss` it is cross-entropy where a batch has whole numbers as labels, mse where it has others, and
    distillation from the dense model without labels. Beside labels nothing is distilled, unless `hardness` says so.
    """

    loss: str | None = None
    hardness: float | None = None
    temperature: float = 2.0
    output: str = ""
    optimizer: str = "relative"
    lr: float | None = None
    weight_decay: float = 0.0
    clip: float = 0.0
    lr_schedule: str = "constant"
    warm_up: float = 0.0
    train_bn: bool = False
    engine: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise OptionError(f"engine is one of {', '.join(ENGINES)}, not {self.engine!r:.40}")
        word = "distill" if self.loss is None else str(self.loss).partition(":")[0]
        if word not in LOSSES:
            meant = SHORT.get(word.lower())
            known = f" (known: {', '.join(LOSSES)})"
            hint = f" (did you mean {meant}?)" if meant else nearest(word.lower(), LOSSES)
            raise OptionError(f"loss does not know {brief(self.loss)}{hint or known}")
        if self.optimizer == BUILT_IN:
            raise OptionError(f"{BUILT_IN} is the optimizer of whole runs; take another one, such as adamw")
        Training(
            optimizer=self.optimizer,
            rate=self.lr,
            weight_decay=self.weight_decay,
            clip=self.clip,
            warm_up=self.warm_up,
            seed=self.seed,
        )
        rates.parse(self.lr_schedule)
        Objective(loss=self.loss or "distill", hardness=self.hardness if self.loss in TASKS else None)

    def objective(self, labels: Any) -> Objective:
        """What is made small, where that depends on the labels of the first batch."""
        loss = self.loss
        if loss is None:
            loss = "distill" if labels is None else "mse" if labels.dtype.kind == "f" else "cross-entropy"
        if loss in TASKS and labels is None:
            raise OptionError(f"loss {loss} needs labels: step(batch) takes (inputs, labels), or a mapping with labels")
        hardness = (0.0 if self.hardness is None else self.hardness) if loss in TASKS else None
        return Objective(loss=loss, hardness=hardness, temperature=self.temperature, output=self.output)

    def rate(self, pruned: float) -> float:
        return Training(optimizer=self.optimizer, rate=self.lr).base_rate(pruned)
