"""The torch engine: the same interface as that of onnxruntime-training, over a converted module.

1. `weights` and `frozen` are arrays on the host. On the CPU they are the tensors' own memory; on another device what
   was handed out is sent there before the next step.
2. A batch is taken in pieces of the size that fits, whose gradients add up; the update uses their mean.
3. Of several processes each has its part of the batch. Gradients are averaged, so all weights move alike; what was
   written into the arrays is, from `agree` on, what the first process wrote.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from onnxsparse.engines.engine import Batch, DivergedError, Engine, Pace, Spec, unit_of
from onnxsparse.engines.layer_terms import LayersOfFile
from onnxsparse.engines.other_teacher import OtherTeacher
from onnxsparse.engines.processes import Processes
from onnxsparse.engines.torch.device_optimizers import DeviceOptimizer, form_of, scale_on_device
from onnxsparse.engines.torch.devices import Pieces, Scaling, declared, device_of, in_words, joined, narrowed
from onnxsparse.engines.torch.distributed import Together
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.objective import Goal, counted
from onnxsparse.engines.torch.optimizer_state import (
    PLAIN,
    LiveArrays,
    NumpyOptimizer,
    OptimizerStep,
    Setting,
    TorchOptimizer,
)
from onnxsparse.engines.torch.student import (
    Change,
    frozen_copy,
    loss_module_class,
    measured,
    networks,
    outputs_of,
    perturbed_targets,
    quantizers,
    student_class,
    tensors_of,
    train_only,
)
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.losses import Scale
from onnxsparse.math.values import Array
from onnxsparse.optimizers import clip_factor, finite

_NEVER = "no gradient came here: none of the samples takes its branch, or nothing that can be matched depends on it"


class TorchEngine(Engine):
    """A model in torch, with the dense model beside it."""

    def __init__(
        self,
        model: Model,
        tags: Mapping[str, StoredTensor],
        spec: Spec,
        samples: Mapping[str, Array],
        setting: Setting = PLAIN,
        change: Change | None = None,
    ) -> None:
        """`change` is done to the copy of the model that is trained."""
        self._terms = spec.objective.terms
        layers = [name for one in self._terms for name in (one.student, *(() if one.teacher else (one.taught,)))]
        change = change if spec.quantization else None
        made = networks(model, tags, spec.train_bn, spec.turned, change, spec.bypasses, layers)
        self._setting, self._device, self._signals = setting, device_of(setting.device), made.signals
        self._processes, self._train_bn, self.notes = setting.processes, spec.train_bn, list[str]()
        module = made.module.to(self._device)
        whole = made
        if spec.skipped:
            whole = networks(model, tags, spec.train_bn, spec.turned, change, layers=layers)
        self._dense = frozen_copy(whole.module.to(self._device))
        self.student = student_class()(module, made.paths, spec, self._device)
        self._observed = {one.said.key: one for one in reversed(quantizers(module)) if one.said.observed}
        self._unused = {tag: "no node uses it as a weight" for tag in tags if tag not in made.paths}
        self._reached: set[str] = set()  # of what has had a gradient
        tensors = tensors_of(self.student)
        self._parameters = {tag: one for tag, one in tensors.items() if isinstance(one, torch().nn.Parameter)}
        train_only(module, self._parameters.values())
        self._live = LiveArrays(tensors), LiveArrays(self.student.frozen)
        self.weights, self.frozen = self._live
        self._scaling = Scaling(self._device, setting.precision == "float16", self._parameters.values())
        self._stepping, self._taken, self._loss = self._stepper(), 0, 0.0
        self._averaged = False
        self._other: OtherTeacher | None = None
        self._files: Mapping[str, LayersOfFile] = {}
        self._input_names = list(module.onnx_names["inputs"])
        self._pieces = Pieces(list(module.onnx_names["inputs"]), self._device, spec.batch)
        self._pieces.fit(samples, self.dense, declared(model, samples, spec.turned.get("inputs", {})))
        scales = self._scales(samples, spec, made.paths)
        self.unit = unit_of(spec.objective, scales.values())
        self._goal = Goal(spec.objective, made.signals, scales)
        self._loss_module = loss_module_class()(
            self.student, self._goal, self._answers, self._of_layers, self._narrowed
        )
        if setting.precision != "float32":
            self._try_out(samples)
        self._statistics = [one for tag, one in tensors.items() if tag not in self._parameters]

    @property
    def unreached(self) -> Mapping[str, str]:  # type: ignore[override]
        """What no gradient has come to; before the first update that is not known of anything that a node uses."""
        never = [tag for tag in self._parameters if tag not in self._reached] if self._reached else []
        return {**self._unused, **{tag: _NEVER for tag in never if tag not in self._unused}}

    # -- the verbs

    def ask_ahead(self, count: int, batches: Iterable[Batch]) -> None:
        """The dense model answers batch by batch."""

    def agree(self) -> None:
        if isinstance(self._processes, Together):
            self._send()
            everything = [(one, key) for one in self._live for key in one]
            changed = torch().tensor([key in one.handed for one, key in everything], dtype=torch().uint8)
            self._processes.made_same([changed])
            chosen = [pair for pair, said in zip(everything, changed.tolist()) if said]
            self._processes.made_same(one.tensors[key] for one, key in chosen)
        for live in self._live:
            live.handed.clear()

    def step(self, batch: Batch) -> float:
        self._send()
        self._loss_module.train(self._train_bn)
        pieces = list(self._pieces.of(batch))
        shares = self._shares([labels for _, labels in pieces], self._processes)
        found, ends = [], list[Any]()
        for (inputs, labels), share in zip(pieces, shares):
            with in_words("train on a batch"), self._observing():
                loss = self._loss_module(inputs, labels, share)
                self._scaling.grown(loss).backward()
            found.append(float(loss.detach()))
            ends += [torch().stack([one.ends for one in self._observed.values()])] if self._observed else []
            self._taken += 1
        self._averaged = False
        self.ranges = self._ranges(ends)
        self._loss = self._processes.mean(float(np.mean(found)))
        return self._loss

    @contextmanager
    def _observing(self) -> Iterator[None]:
        """What is rounded notes its range within: not in measurements, nor when a graph is tried out."""
        for one in self._observed.values():
            one.observing = True
        try:
            yield
        finally:
            for one in self._observed.values():
                one.observing = False

    def _ranges(self, pieces: Sequence[Any]) -> dict[str, tuple[float, float]]:
        """Of all pieces; of several processes the means."""
        if not pieces:
            return {}
        every = torch().stack(list(pieces))
        ends = torch().stack([every[..., 0].amin(0), every[..., 1].amax(0)], -1)
        if isinstance(self._processes, Together):
            self._processes.average([ends])
        return {key: (low, high) for key, (low, high) in zip(self._observed, ends.tolist())}

    def gradients(self) -> Mapping[str, Array]:
        self._average()
        found = self._arrays()
        factor = self._scaling.factor
        if factor == 1.0:
            return found
        return {tag: np.nan_to_num(array / np.float32(factor)) for tag, array in found.items()}

    @property
    def pieces(self) -> int:
        return self._taken

    @property
    def overflowed(self) -> bool:
        if not self._scaling.wanted:
            return False
        self._average()
        found = (parameter.grad for parameter in self._parameters.values())
        return not all(one is None or bool(one.isfinite().all()) for one in found)

    def add_gradients(self, more: Mapping[str, Array]) -> None:
        self._average()
        factor = max(1, self._taken) * self._scaling.factor
        for tag, array in more.items():
            gradient = self._parameters[tag].grad if tag in self._parameters else None
            if gradient is not None:
                gradient += torch().from_numpy(np.ascontiguousarray(array)).to(gradient) * factor

    def scale_gradients(self, factors: Mapping[str, Array]) -> None:
        self._average()
        for tag, array in factors.items():
            gradient = self._parameters[tag].grad if tag in self._parameters else None
            if gradient is not None:
                gradient *= torch().from_numpy(np.ascontiguousarray(array)).to(gradient)

    def update(self, pace: Pace) -> bool:
        self._average()
        if not self._scaling.shrink():
            self.discard_gradients()
            return False
        scale = self._scale(pace)
        if not np.isfinite(scale):
            raise DivergedError("the gradients are no numbers any more; use a lower --lr")
        self._send()
        self._reached.update(tag for tag, one in self._parameters.items() if one.grad is not None)
        self._stepping.step(pace, scale, self._loss)
        self.discard_gradients()
        return True

    def discard_gradients(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None
        self._taken = 0

    def evaluate(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        self._send()
        self._loss_module.eval()
        pieces = list(self._pieces.of(batch))
        shares = self._shares([labels for _, labels in pieces], Processes())
        found, outputs = [], list[dict[str, Array]]()
        with torch().no_grad():
            for (inputs, labels), share in zip(pieces, shares):
                with in_words("measure on a batch"):
                    values, loss = self._loss_module.both(inputs, labels, share)
                found.append(float(loss))
                outputs.append(self._named(values))
        return float(np.mean(found)), joined(outputs)

    def dense(self, batch: Batch) -> dict[str, Array]:
        with torch().no_grad():
            return joined([self._named(outputs_of(self._dense(*inputs))) for inputs, _ in self._pieces.of(batch)])

    def learn_from(self, teacher: OtherTeacher) -> None:
        self._other = teacher

    def learn_layers_from(self, teachers: Mapping[str, LayersOfFile]) -> None:
        self._files = teachers

    def clear_moments(self, tag: str, where: Array | None = None) -> None:
        self._stepping.clear(tag, where)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        weights, frozen = self._live
        arrays = {f"weight/{tag}": weights.own(tag) for tag in weights}
        arrays.update({f"frozen/{key}": frozen.own(key) for key in frozen})
        remembered, facts = self._stepping.state()
        return {**arrays, **remembered}, {**facts, "scaling": self._scaling.state()}

    def restore(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        for kind, own in (("weight", self.weights), ("frozen", self.frozen)):
            for key in own:
                if f"{kind}/{key}" in arrays:
                    own[key][...] = arrays[f"{kind}/{key}"]
        self._stepping.restore(arrays, facts)
        self._scaling.restore(facts.get("scaling", {}))
        self.discard_gradients()

    # -- inside

    def _stepper(self) -> OptimizerStep:
        setting = self._setting
        if not isinstance(setting.optimizer, str):
            return TorchOptimizer(setting.optimizer, setting.lr_scheduler, self._parameters)
        form = None if self._on_host else form_of(setting.optimizer)
        if form is not None:
            return DeviceOptimizer(form, self._parameters)
        return NumpyOptimizer(setting.optimizer, self._parameters, self._live[0])

    @property
    def _on_host(self) -> bool:
        return bool(self._device.type == "cpu")

    def _scale(self, pace: Pace) -> float:
        """What the gradients are multiplied with: the mean over all pieces, and no longer than is wanted."""
        scale = 1.0 / max(1, self._taken)
        if not self._on_host:
            moving = [one.grad for tag, one in self._parameters.items() if tag not in pace.held]
            return scale_on_device([one for one in moving if one is not None], scale, pace.clip)
        gradients = pace.moving(self._arrays())
        if pace.clip:
            scale *= clip_factor(gradients.values(), pace.clip / scale)
        return scale if finite(gradients.values()) else math.nan

    def _send(self) -> None:
        for live in self._live:
            live.send()

    def _arrays(self) -> dict[str, Array]:
        return {tag: one.grad.detach().cpu().numpy() for tag, one in self._parameters.items() if one.grad is not None}

    def _narrowed(self) -> Any:
        return narrowed(self._device, self._setting.precision)

    def _try_out(self, samples: Mapping[str, Array]) -> None:
        """Not every operator has a form for half precision on every device; that is better known now."""
        precision = self._setting.precision
        inputs, _ = next(self._pieces.of(Batch(samples)))
        self.student.eval()
        with in_words(f"train this model in {precision} on {self._device} (--precision float32 does without)"):
            with self._narrowed():
                values = self.student(*inputs)
            sum(one.float().mean() for one in values if one.is_floating_point()).backward()
        self.discard_gradients()

    def _average(self) -> None:
        """Gradients, and the statistics of batch normalizations, are those of all processes."""
        if isinstance(self._processes, Together) and not self._averaged:
            self._processes.average_gradients(list(self._parameters.values()))
            self._processes.average(self._statistics)
        self._averaged = True

    def _shares(self, labels: list[Any], processes: Processes) -> list[float]:
        """What each piece counts, so that the mean over all pieces is the mean over all labels that count."""
        if not self._goal.counts:
            return [1.0] * len(labels)
        counts = [counted(one) for one in labels]
        mean = processes.total(sum(counts)) / (len(counts) * processes.count)
        return [count / mean if mean else 0.0 for count in counts]

    def _answers(self, inputs: Any) -> Any:
        found = self._plain_answers(inputs)
        return found if self._other is None else self._taught(list(found), inputs, self._other)

    def _taught(self, dense: list[Any], inputs: Any, teacher: OtherTeacher) -> list[Any]:
        """With the answers of another model in place of those that are learned from."""
        places = {self._signals[place].original: place for place in self._goal.taught}
        answers = teacher(self._feed(inputs), {name: tuple(dense[place].shape) for name, place in places.items()})
        for name, place in places.items():
            answer = torch().from_numpy(answers[name])
            dense[place] = answer.to(dense[place].device, dense[place].dtype)
        return dense

    def _feed(self, inputs: Any) -> dict[str, Array]:
        plain = (one.float() if one.is_floating_point() else one for one in inputs)
        return {name: one.detach().cpu().numpy() for name, one in zip(self._input_names, plain)}

    def _of_layers(self, inputs: Any) -> list[Any]:
        """What the teacher's layers give, for each pair."""
        if not self._terms:
            return []
        places = {signal.name: place for place, signal in enumerate(self._signals)}
        asks = any(not one.teacher for one in self._terms)
        dense = self._plain_answers(inputs) if asks else []
        files = {path: file(self._feed(inputs)) for path, file in self._files.items()}
        return [
            torch().from_numpy(files[one.teacher][one.taught]).to(self._device)
            if one.teacher
            else dense[places[one.taught]]
            for one in self._terms
        ]

    def _named(self, values: Any) -> dict[str, Array]:
        pairs = zip(self._signals, values)
        floats = [(signal, one) for signal, one in pairs if signal.kind == "output" and one.is_floating_point()]
        return {signal.original: one.detach().float().cpu().numpy() for signal, one in floats}

    def _scales(self, samples: Mapping[str, Array], spec: Spec, paths: Mapping[str, str]) -> dict[int, Scale]:
        """The scale of each float target, by its place."""
        pieces = [inputs for inputs, _ in self._pieces.of(Batch(samples))]
        count = max((len(array) for array in samples.values() if array.ndim), default=1)
        pieces = pieces[: max(1, count // self._pieces.size)]  # whole ones
        together = -(-spec.batch // self._pieces.size)
        moved = perturbed_targets(self._dense, paths, self._device)
        found = measured(self._signals, pieces, self._plain_answers, moved, together, spec.objective.scores)
        self.notes += found.notes
        return found.scales

    def _plain_answers(self, inputs: Any) -> Sequence[Any]:
        with torch().no_grad():
            return outputs_of(self._dense(*inputs))
