"""What a training graph is made for: the part of a recipe that fixes it. A change of it ends a segment of a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from onnxsparse.losses import Scale, unit_in_words


@dataclass(frozen=True)
class LossSpec:
    """What is minimised: `hardness` of distillation, the rest a task loss against labels."""

    task: str = ""  # cross-entropy, mse, bce or l1; none without labels
    output: str = ""  # the graph output that the labels belong to; the first float output by default
    label_shape: tuple[int, ...] = ()  # of one sample
    label_dtype: str = "int64"
    distillation: str = "distill"  # or kl
    hardness: float = 1.0
    temperature: float = 2.0
    axis: int | None = None  # of the classes, for kl, where the user says it
    teacher: str = ""  # an ONNX file to learn from by kl; the dense model where none is named


TASKS = {
    "cross-entropy": "cross-entropy of the labels, in nats",
    "bce": "binary cross-entropy of the labels, in nats",
    "mse": "mean squared difference to the labels",
    "l1": "mean absolute difference to the labels",
}


def unit_of(objective: LossSpec, scales: Iterable[Scale]) -> str:
    """What a loss is and its unit, in words; `scales` are those of the outputs that are matched."""
    terms = []
    if objective.hardness < 1:
        terms.append((1 - objective.hardness, TASKS[objective.task]))
    if objective.hardness > 0:
        kl = f"Kullback-Leibler divergence from the {'teacher' if objective.teacher else 'dense model'}, in nats"
        kl += f" times the square of {objective.temperature:g}" if objective.temperature != 1 else ""
        terms.append((objective.hardness, kl if objective.distillation == "kl" else unit_in_words(scales)))
    return terms[0][1] if len(terms) == 1 else " + ".join(f"{share:g} x {what}" for share, what in terms)


@dataclass(frozen=True)
class Spec:
    """A training graph: what trains, what is masked and how, and what is minimised."""

    batch: int
    trained: Mapping[str, str] = field(default_factory=dict)  # tag of the stored tensor -> its name in reports
    sparsers: Mapping[str, str] = field(default_factory=dict)  # tag -> the sparser's text
    objective: LossSpec = field(default_factory=LossSpec)
    train_bn: bool = False
    decay: float | None = None  # only where the engine's own optimizer is wanted: its weight decay
    turned: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # see `turning`: of inputs and of outputs

    def to_json(self) -> str:
        found = asdict(self)
        if not self.turned:  # graphs of runs from before there was such a thing are found again
            del found["turned"]
        return json.dumps(found, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Spec:
        found = json.loads(text)
        objective = found.pop("objective")
        objective["label_shape"] = tuple(objective["label_shape"])
        return cls(**found, objective=LossSpec(**objective))

    def digest(self, *more: str) -> str:
        """A short name of this graph, and of whatever else it is made from."""
        return hashlib.sha256("\n".join((self.to_json(), *more)).encode()).hexdigest()[:16]

    def with_sparsers(self, sparsers: Mapping[str, str]) -> Spec:
        return replace(self, sparsers=dict(sparsers))
