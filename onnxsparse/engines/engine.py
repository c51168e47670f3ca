"""The engine interface: how a run trains, measures and saves a model, whatever library does the work.

Arrays are known by tags: the tag of a stored tensor, or `tag/role` for what a sparser trains or holds beside it.
`weights` and `frozen` are live: what is written into them is what the next step sees.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from onnxsparse.engines.layer_terms import LayersOfFile, LayerTerm
from onnxsparse.engines.other_teacher import OtherTeacher
from onnxsparse.errors import OnnxSparseError, OptionError
from onnxsparse.losses import Scale, unit_in_words
from onnxsparse.math.values import Array

NO_GRADIENT = "the engine has no gradient of"
"""How the reason begins why a weight that another engine could train does not."""


class DivergedError(OnnxSparseError):
    """The loss or a gradient is no number any more: the steps were too large."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Some samples: their arrays by name, and their numbers in the data where they have any."""

    arrays: Mapping[str, Array]
    rows: Array | None = None


@dataclass(frozen=True)
class Pace:
    """How far one update goes: the rate, weight decay (matrices only), and the longest gradient (0 = any).

    Tags may have a rate and a decay of their own. What is held stays where it is: neither its numbers nor what the
    optimizer remembers of it change, and its gradient counts nowhere.
    """

    rate: float
    decay: float = 0.0
    clip: float = 0.0
    rates: Mapping[str, float] = field(default_factory=dict)
    decays: Mapping[str, float] = field(default_factory=dict)
    held: frozenset[str] = frozenset()

    @property
    def uniform(self) -> bool:
        """Whether all weights go alike."""
        return not (self.rates or self.decays or self.held)

    def rate_of(self, tag: str) -> float:
        return self.rates.get(tag, self.rate)

    def decay_of(self, tag: str, dimensions: int) -> float:
        """What is said of a tag holds for vectors, too."""
        return self.decays.get(tag, self.decay if dimensions > 1 else 0.0)

    def moving(self, gradients: Mapping[str, Array]) -> Mapping[str, Array]:
        """The gradients of what is not held."""
        if not self.held:
            return gradients
        return {tag: gradient for tag, gradient in gradients.items() if tag not in self.held}


class Answering(Protocol):
    """What metrics are measured of: a network, and the dense model beside it."""

    def evaluate(self, batch: Batch) -> tuple[float, dict[str, Array]]: ...

    def dense(self, batch: Batch) -> dict[str, Array]: ...


class LiveArrays(Protocol):
    """What has live arrays by tag: an engine, and the trainee whose engine it is."""

    @property
    def weights(self) -> Mapping[str, Array]: ...

    @property
    def frozen(self) -> Mapping[str, Array]: ...


class Engine(ABC):
    """One training graph in one runtime, and its state; what is trained goes from one to the next (`acts.trainee`)."""

    notes: list[str]
    unit: str = ""
    """What the loss of `evaluate` is, in words."""
    partial: bool = False
    """Whether what `evaluate` gives is computed from something that the weights move, but that the dense model gave."""
    unreached: Mapping[str, str]  # tag -> why no gradient comes to it
    weights: Mapping[str, Array]
    frozen: Mapping[str, Array]
    ranges: Mapping[str, tuple[float, float]] = {}
    """By key of fake quantization, the least and the greatest number of what is observed in the batch of the last
    step."""

    @abstractmethod
    def ask_ahead(self, count: int, batches: Iterable[Batch]) -> None:
        """Ask the dense model about all `count` samples now, if its answers are small enough to be kept."""

    @abstractmethod
    def step(self, batch: Batch) -> float:
        """The loss of a batch; its gradient is added to those since the last update."""

    @abstractmethod
    def gradients(self) -> Mapping[str, Array]:
        """The gradients since the last update, by the tags of `weights`: the sum of `pieces`."""

    @property
    def pieces(self) -> int:
        """Of how many pieces of batches the gradients since the last update are the sum."""
        return 1

    @property
    def overflowed(self) -> bool:
        """Whether half precision could not hold the gradients since the last update, which `update` leaves out."""
        return False

    def add_gradients(self, more: Mapping[str, Array]) -> None:
        """Add to the mean of the gradients since the last update, by tags of `weights`: those of a term of one's own.

        What no gradient comes to gets none of these either.
        """
        raise OptionError("this engine makes nothing small but its own loss")

    def scale_gradients(self, factors: Mapping[str, Array]) -> None:
        """Multiply the gradients since the last update place by place, by tags of `weights`."""
        raise OptionError("this engine hands its gradients to nobody")

    @abstractmethod
    def update(self, pace: Pace) -> bool:
        """Move the weights by the mean of the gradients since the last update, and forget them.

        False where that was left out, because half precision could not hold the gradients: the step is to be repeated.
        """

    def agree(self) -> None:  # noqa: B027 - there is nothing to do where one process trains alone
        """What was written into `weights` and `frozen` is the same in all processes from here on."""

    @abstractmethod
    def discard_gradients(self) -> None:
        """Forget the gradients since the last update."""

    @abstractmethod
    def evaluate(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        """The loss of a batch and the model's float outputs by name."""

    @abstractmethod
    def dense(self, batch: Batch) -> dict[str, Array]:
        """The dense model's float outputs by name."""

    def learn_from(self, teacher: OtherTeacher) -> None:
        """Have another model answer in place of the dense one, for the distillation by kl."""
        raise OptionError("this engine learns from the dense model alone")

    def learn_layers_from(self, teachers: Mapping[str, LayersOfFile]) -> None:
        """Have layers of other models, by their files, answer in place of those of the dense one."""
        raise OptionError("this engine learns from the dense model alone")

    @abstractmethod
    def clear_moments(self, tag: str, where: Array | None = None) -> None:
        """Forget what the optimizer remembers of a tensor, or of some of its places."""

    @abstractmethod
    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Everything that the next step depends on: arrays, and facts for JSON."""

    @abstractmethod
    def restore(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        """Take over a state, bit for bit; what another graph had and this one has not is left out."""


# -- What a training graph is made for: the part of a recipe that fixes it. A change of it ends a segment of a run.


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
    distilled: tuple[str, ...] = ()  # the outputs that kl is the mean over; that of the labels where none is named
    smoothing: float = 0.0  # of labels, for cross-entropy
    terms: tuple[LayerTerm, ...] = ()  # layers that learn from layers
    scores: bool = False  # of class scores their divergence counts, too, beside the distance of `distill`


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
        smoothed = f", smoothed by {objective.smoothing:g}," if objective.smoothing else ","
        terms.append((1 - objective.hardness, TASKS[objective.task].replace(",", smoothed, 1)))
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
    turned: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # see `sample_axes`: of inputs and of outputs
    quantization: str = ""  # what is rounded (`planning.quantization`), as JSON
    learned_scales: bool = False
    skipped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By the result of a layer that is skipped: what stands for it, and the tags of what only that layer reads."""

    @property
    def bypasses(self) -> dict[str, str]:
        return {result: source for result, (source, *_) in self.skipped.items()}

    @property
    def idle(self) -> frozenset[str]:
        """The tags of what this graph does not read, because its layers are skipped."""
        return frozenset(tag for _, *tags in self.skipped.values() for tag in tags)

    def to_json(self) -> str:
        found = asdict(self)
        for name in ("turned", "quantization", "learned_scales", "skipped"):
            if not found[name]:  # graphs of runs from before there was such a thing are found again
                del found[name]
        for name in ("smoothing", "terms", "distilled", "scores"):
            if not found["objective"][name]:
                del found["objective"][name]
        return json.dumps(found, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Spec:
        found = json.loads(text)
        objective = found.pop("objective")
        objective["label_shape"] = tuple(objective["label_shape"])
        objective["distilled"] = tuple(objective.get("distilled", ()))
        objective["terms"] = tuple(LayerTerm.of(one) for one in objective.get("terms", ()))
        return cls(**found, objective=LossSpec(**objective))

    def digest(self, *more: str) -> str:
        """A short name of this graph, and of whatever else it is made from."""
        return hashlib.sha256("\n".join((self.to_json(), *more)).encode()).hexdigest()[:16]

    def with_sparsers(self, sparsers: Mapping[str, str]) -> Spec:
        return replace(self, sparsers=dict(sparsers))
