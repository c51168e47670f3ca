"""The engine that trains in torch: the same verbs as the one in onnxruntime-training.

1. `weights` and `frozen` are arrays on the host. On the CPU they are the tensors' own memory; on another device what
   was handed out is sent there before the next step.
2. The optimizer is ours, in numpy, on the same numbers as in the other engine; or any of torch's, made by a function
   that is given the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from onnxsparse.engines.engine import Batch, DivergedError, Engine, Pace
from onnxsparse.engines.spec import Spec
from onnxsparse.engines.torch import losses
from onnxsparse.engines.torch.lending import Lending
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.student import frozen_copy, networks, outputs_of, student_class
from onnxsparse.errors import ModelError
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.losses import scale_of
from onnxsparse.optimizers import Moments, clip_factor, finite
from onnxsparse.optimizers import parse as parse_optimizer
from onnxsparse.values import Array

LABELS = "labels"
ALIKE = 1e-3
MakeOptimizer = Callable[[Iterable[Any]], Any]


class TorchEngine(Engine):
    """A model in torch, with the dense model beside it."""

    def __init__(
        self,
        model: Model,
        tags: Mapping[str, StoredTensor],
        spec: Spec,
        samples: Mapping[str, Array],
        optimizer: str = "relative",
        device: str = "cpu",
    ) -> None:
        made = networks(model, tags, spec.train_bn)
        self._spec, self._device, self._signals = spec, torch().device(device), made.signals
        module = made.module.to(self._device)
        self._dense = frozen_copy(module)
        self.student = student_class()(module, made.paths, spec, self._device)
        self._train_bn, self.notes = spec.train_bn, list[str]()
        self.unreached = {tag: "no node uses it as a weight" for tag in tags if tag not in made.paths}
        self._inputs = list(module.onnx_names["inputs"])
        named = dict(module.named_parameters())
        self._parameters = {tag: named[path] for tag, path in made.paths.items()}
        for tag in spec.sparsers:
            if tag in made.paths:
                extra = self.student.trained_of(tag)
                self._parameters.update({f"{tag}/{role}": one for role, one in extra.items()})
        wanted = {id(one) for one in self._parameters.values()}
        for parameter in module.parameters():
            parameter.requires_grad_(id(parameter) in wanted)
        self._lent = Lending(self._parameters), Lending(self.student.frozen)
        self.weights, self.frozen = self._lent
        self._moments, self._steps = Moments(parse_optimizer(optimizer)), 0
        self._piece = self._whole(samples)
        self._scales = self._measured(samples)

    # -- the verbs

    def ask_ahead(self, count: int, batches: Iterable[Batch]) -> None:
        """The dense model answers batch by batch."""

    def step(self, batch: Batch) -> float:
        self._send()
        self.student.train(self._train_bn)
        found = []
        for inputs, labels in self._pieces(batch):
            loss = self._loss(self.student(*inputs), inputs, labels)
            loss.backward()
            found.append(float(loss.detach()))
            self._steps += 1
        return float(np.mean(found))

    def gradients(self) -> Mapping[str, Array]:
        return {tag: one.grad.detach().cpu().numpy() for tag, one in self._parameters.items() if one.grad is not None}

    def update(self, pace: Pace) -> bool:
        gradients, scale = pace.moving(self.gradients()), 1.0 / max(1, self._steps)
        if pace.clip:
            scale *= clip_factor(gradients.values(), pace.clip / scale)
        if not (np.isfinite(scale) and finite(gradients.values())):
            raise DivergedError("the gradients are no numbers any more; use a lower --lr")
        for tag, gradient in gradients.items():
            weight = self.weights[tag]
            rate, decay = pace.rate_of(tag), pace.decay_of(tag, weight.ndim)
            self._moments.step(tag, weight, np.ascontiguousarray(gradient), rate, decay, scale)
        self.discard_gradients()
        return True

    def discard_gradients(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None
        self._steps = 0

    def evaluate(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        self._send()
        self.student.eval()
        found, outputs = [], list[dict[str, Array]]()
        with torch().no_grad():
            for inputs, labels in self._pieces(batch):
                values = self.student(*inputs)
                found.append(float(self._loss(values, inputs, labels)))
                outputs.append(self._named(values))
        return float(np.mean(found)), _joined(outputs)

    def dense(self, batch: Batch) -> dict[str, Array]:
        with torch().no_grad():
            return _joined([self._named(outputs_of(self._dense(*inputs))) for inputs, _ in self._pieces(batch)])

    def clear_moments(self, tag: str, where: Array | None = None) -> None:
        self._moments.clear(tag, where)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays = {f"weight/{tag}": self.weights[tag] for tag in self._parameters}
        arrays.update({f"frozen/{key}": self.frozen[key] for key in self.frozen})
        return {**arrays, **self._moments.arrays()}, {"counts": dict(self._moments.counts)}

    def restore(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        for kind, own in (("weight", self.weights), ("frozen", self.frozen)):
            for key in own:
                if f"{kind}/{key}" in arrays:
                    own[key][...] = arrays[f"{kind}/{key}"]
        counts = {key: count for key, count in facts["counts"].items() if key in self._parameters}
        moments = self._moments.optimizer.moments
        self._moments.load({f"{one}/{tag}": arrays[f"{one}/{tag}"] for one in moments for tag in counts}, counts)
        self.discard_gradients()

    # -- inside

    def _send(self) -> None:
        for lent in self._lent:
            lent.send()

    def _loss(self, values: Any, inputs: Any, labels: Any) -> Any:
        goal, terms = self._spec.objective, []
        if goal.hardness > 0:
            with torch().no_grad():
                dense = outputs_of(self._dense(*inputs))
            terms.append(self._distillation(values, dense) * goal.hardness)
        if goal.hardness < 1:
            raw = goal.task in ("cross-entropy", "bce")
            place = self._place("tap" if raw else "output")
            terms.append(losses.task(goal.task, values[place], labels) * (1 - goal.hardness))
        return sum(terms[1:], terms[0])

    def _distillation(self, values: Any, dense: Any) -> Any:
        goal = self._spec.objective
        if goal.distillation == "kl":
            place = self._place("tap")
            return losses.kl(values[place], dense[place], goal.temperature, 1 if values[place].dim() > 1 else 0)
        places = list(self._scales)
        return losses.distill([values[i] for i in places], [dense[i] for i in places], list(self._scales.values()))

    def _place(self, kind: str) -> int:
        """Where the output that labels belong to is among the signals, or its first tap."""
        wanted = self._spec.objective.output
        outputs = [signal.name for signal in self._signals if signal.kind == "output"]
        if wanted and wanted not in outputs:
            raise ModelError(f"the model has no output '{wanted}' to train on")
        name = wanted or outputs[0]
        for place, signal in enumerate(self._signals):
            if kind == "tap" and signal.kind == "tap" and signal.original == name:
                return place
        return outputs.index(name)

    def _named(self, values: Any) -> dict[str, Array]:
        pairs = zip(self._signals, values)
        floats = [(signal, one) for signal, one in pairs if signal.kind == "output" and one.is_floating_point()]
        return {signal.original: one.detach().cpu().numpy() for signal, one in floats}

    def _pieces(self, batch: Batch) -> Iterator[tuple[list[Any], Any]]:
        count = max((len(array) for array in batch.arrays.values() if array.ndim), default=1)
        size = count if self._piece == 0 else self._piece
        for start in range(0, count, size):
            rows = slice(start, start + size)
            inputs = [self._tensor(_part(batch.arrays[name], rows, count)) for name in self._inputs]
            labels = batch.arrays.get(LABELS)
            yield inputs, None if labels is None else self._tensor(labels[rows])

    def _tensor(self, array: Array) -> Any:
        plain = np.ascontiguousarray(array)
        made = torch().from_numpy(plain if plain.flags.writeable else plain.copy())
        return (made.float() if made.is_floating_point() else made).to(self._device)

    def _whole(self, samples: Mapping[str, Array]) -> int:
        """0 where samples can be taken together, 1 where the model was made for one at a time."""
        self._piece = 1
        some = Batch({name: array[:2] if array.ndim else array for name, array in samples.items()})
        single = self.dense(some)
        self._piece = 0
        try:
            together = self.dense(some)
        except Exception:  # whatever torch makes of a batch that the graph was not made for
            return 1
        return 0 if all(_alike(together.get(name), value) for name, value in single.items()) else 1

    def _measured(self, samples: Mapping[str, Array]) -> dict[int, float]:
        """The scale of each float signal, by its place."""
        with torch().no_grad():
            answers = [outputs_of(self._dense(*inputs)) for inputs, _ in self._pieces(Batch(samples))]
        found: dict[int, float] = {}
        for place, one in enumerate(answers[0]):
            if one.is_floating_point():
                values = np.concatenate([answer[place].cpu().numpy().reshape(-1) for answer in answers])
                if np.isfinite(values).all():
                    found[place] = scale_of(values)
        if not found:
            raise ModelError("nothing that the model gives can be trained on: it has no float output")
        return found


def _part(array: Array, rows: slice, count: int) -> Array:
    return array[rows] if array.ndim and len(array) == count else array


def _alike(one: Array | None, other: Array) -> bool:
    if one is None or one.shape != other.shape:
        return False
    return bool(np.abs(one - other).max(initial=0.0) <= ALIKE * max(float(np.abs(other).max(initial=0.0)), 1e-6))


def _joined(pieces: list[dict[str, Array]]) -> dict[str, Array]:
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
