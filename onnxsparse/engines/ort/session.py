"""Training session over a built gradient graph, and the dense teacher that gives the distillation targets."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from onnxsparse.engines.ort import library
from onnxsparse.engines.ort.library import LOAD, LOOK, batch_of, told
from onnxsparse.engines.ort.numerics import draw_random, random_inputs
from onnxsparse.math.values import Array


class Session:
    """Loads the artifacts of a folder. `weights`, `frozen` and `gradients` are views of the engine's own memory."""

    def __init__(self, folder: str, names: Mapping[str, Any]) -> None:
        self._folder = folder
        self._trained: dict[str, str] = dict(names["trained"])
        self._frozen: dict[str, str] = dict(names["frozen"])
        self._follows: dict[str, tuple[str, float]] = {key: tuple(one) for key, one in names.get("follows", {}).items()}
        self._ranges: dict[str, tuple[str, str]] = {key: tuple(one) for key, one in names.get("ranges", {}).items()}
        self.ranges: dict[str, tuple[float, float]] = {}
        """The least and the greatest number of what is observed in the batch of the last step, by key."""
        self._still = set(names.get("still", ())) | set(self._follows)
        self._switch_name = str(names.get("switch", ""))
        self.of_the_batch = False
        """Whether measurements take the statistics of their batch, as training steps do."""
        self.open(os.path.join(folder, "checkpoint"))

    def open(self, checkpoint: str) -> None:
        """Begin with the numbers of a checkpoint of the engine's own."""
        training, folder = library.training(), self._folder
        with told("load its graph", LOAD), library.quiet():
            self._state = training.api.CheckpointState.load_checkpoint(checkpoint)
            self._module = training.api.Module(
                os.path.join(folder, "training_model.onnx"),
                self._state,
                os.path.join(folder, "eval_model.onnx"),
                session_options=library.options(),
            )
        self.weights = {key: self._parameter(name).data for key, name in self._trained.items()}
        self.frozen = {key: self._parameter(name).data for key, name in self._frozen.items()}
        self._switch = self._parameter(self._switch_name).data if self._switch_name else None
        self._gradients: dict[str, Array] | None = None
        self._module.train()
        self._inputs: list[str] = list(self._module.input_names())
        self._outputs: list[str] = list(self._module.output_names())

    def save(self, path: str) -> None:
        """Write a checkpoint of the engine's own, with what its optimizer remembers."""
        library.training().api.CheckpointState.save_checkpoint(self._state, path, include_optimizer_state=True)

    def optimizer(self, path: str) -> Any:
        """The engine's own optimizer over these weights."""
        with told("load its optimizer", LOAD), library.quiet():
            return library.training().api.Optimizer(path, self._module)

    def hush(self) -> None:
        """No gradient for what has to stay still."""
        for key in self._still:
            gradient = self._parameter(self._trained[key]).grad
            if gradient is not None:
                gradient[...] = 0

    def _parameter(self, name: str) -> Any:
        return self._state.parameters[name]

    @property
    def gradients(self) -> dict[str, Array]:
        """By the keys of `weights`; there are none before the first step, and none of those that have to stay still."""
        if self._gradients is None:
            moving = {key: name for key, name in self._trained.items() if key not in self._still}
            found = {key: self._parameter(name).grad for key, name in moving.items()}
            self._gradients = {key: grad for key, grad in found.items() if grad is not None}
        return self._gradients

    def forget_gradients(self) -> None:
        """The next step begins a new sum of gradients."""
        self._module.lazy_reset_grad()

    def step(self, feed: Mapping[str, Array]) -> float:
        """The loss of a batch; its gradient is added to `gradients`."""
        self._module.train()
        self._turn(True)
        found = self._run(feed)
        outputs = dict(zip(self._outputs, found))
        self._follow(outputs)
        self.ranges = {key: (float(outputs[low]), float(outputs[high])) for key, (low, high) in self._ranges.items()}
        return float(found[0])

    def evaluate(self, feed: Mapping[str, Array]) -> tuple[float, dict[str, Array]]:
        """The loss of a batch and the outputs, without gradients."""
        self._module.eval()
        self._turn(self.of_the_batch)
        found = self._run(feed)
        own = {output for output, _ in self._follows.values()} | {one for pair in self._ranges.values() for one in pair}
        return float(found[0]), {name: value for name, value in zip(self._outputs[1:], found[1:]) if name not in own}

    @property
    def statistics(self) -> set[str]:
        """The keys of `weights` that are running statistics."""
        return set(self._follows)

    def _turn(self, of_the_batch: bool) -> None:
        if self._switch is not None:
            self._switch[...] = float(of_the_batch)

    def _follow(self, outputs: Mapping[str, Array]) -> None:
        """The running statistics take a step towards those of the batch."""
        for key, (output, momentum) in self._follows.items():
            running = self.weights[key]
            running *= np.float32(momentum)
            running += np.float32(1 - momentum) * outputs[output].reshape(running.shape)

    def _run(self, feed: Mapping[str, Array]) -> Any:
        found = self._module(*(feed[name] for name in self._inputs))
        return found if isinstance(found, tuple) else (found,)


# -- The dense teacher: the distillation targets of every sample.
#
# 1. Where samples come back in every epoch and the answers are small, all of them are asked for once, ahead, in a fixed
#    order: what a sample is matched to never depends on the batches it came in.
# 2. Otherwise it answers batch by batch.

MOST_KEPT = 1 << 27
"""Bytes of answers that are kept."""


class Teacher:
    """Runs `teacher.onnx` of a job's folder."""

    def __init__(self, folder: str, seed: int = 0) -> None:
        runtime = importlib.import_module("onnxruntime")
        with told("load the dense model", LOAD), library.quiet():
            self._session = runtime.InferenceSession(
                os.path.join(folder, "teacher.onnx"), library.options(), providers=["CPUExecutionProvider"]
            )
        inputs = {value.name: value.shape for value in self._session.get_inputs()}
        self._random, self._seed = random_inputs(inputs), seed
        self.inputs = [name for name in inputs if name not in self._random]
        self._shapes = {value.name: tuple(value.shape) for value in self._session.get_outputs()}
        self._kept: dict[str, Array] = {}

    def values(self, feed: Mapping[str, Array], names: Sequence[str], rows: Array | None = None) -> dict[str, Array]:
        """The dense model's values of these names."""
        if not names:
            return {}
        if rows is not None and self._kept and all(name in self._kept for name in names):
            return {name: self._kept[name][rows] for name in names}
        with told(f"run the dense model on {batch_of(rows)}", LOOK):
            own = {name: feed[name] for name in self.inputs}
            found: list[Any] = self._session.run(list(names), {**own, **draw_random(self._random, own, self._seed)})
        return dict(zip(names, found))

    def keep(
        self, count: int, batch: int, names: Sequence[str], feeds: Iterable[tuple[Array, Mapping[str, Array]]]
    ) -> None:
        """Ask about every sample of `feeds`, unless the answers are too many, hang on chance, or are not one for each
        sample."""
        if self._random:
            return
        shapes = {name: self._shapes[name] for name in names}
        if not all(shape and shape[0] == batch for shape in shapes.values()):
            return
        if sum(4 * count * int(np.prod(shape[1:])) for shape in shapes.values()) > MOST_KEPT:
            return
        kept: dict[str, Array] = {}
        for rows, feed in feeds:
            for name, value in self.values(feed, names, rows).items():
                if name not in kept:
                    kept[name] = np.empty((count, *shapes[name][1:]), value.dtype)
                kept[name][rows] = value
        self._kept = kept
