"""Optimizer step in onnxruntime-training: our own optimizers in numpy, or the one built into the library.

Our own can be cleared, saved and carried into another graph. The engine's keeps its moments to itself: it cannot be
cleared where a mask changes, and is saved and restored as a whole, by a checkpoint of the engine's own.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxsparse.engines.engine import Pace
from onnxsparse.engines.ort.session import Session
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.optimizers import Moments
from onnxsparse.optimizers import parse as parse_optimizer

BUILT_IN = "ort-adamw"
_SAVED = "engine/checkpoint"


class OptimizerStep(ABC):
    """One optimizer over the weights of a session."""

    @abstractmethod
    def step(self, session: Session, gradients: Mapping[str, Array], pace: Pace, scale: float) -> None:
        """Move the weights by these gradients of the session times `scale`."""

    @abstractmethod
    def clear(self, tag: str, where: Array | None) -> None:
        """Forget a tensor, or some places of it."""

    @abstractmethod
    def state(self, session: Session) -> tuple[dict[str, Array], dict[str, Any]]:
        """What it remembers."""

    @abstractmethod
    def restore(self, session: Session, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        """Remember that again, as far as the session has the same tensors."""


def stepping_of(text: str, session: Session, folder: str) -> OptimizerStep:
    return BuiltIn(session, folder) if text == BUILT_IN else NumpyOptimizer(text)


class NumpyOptimizer(OptimizerStep):
    """An optimizer in numpy."""

    def __init__(self, text: str) -> None:
        self._moments = Moments(parse_optimizer(text))

    def step(self, session: Session, gradients: Mapping[str, Array], pace: Pace, scale: float) -> None:
        for key, gradient in gradients.items():
            weight = session.weights[key]
            rate, decay = pace.rate_of(key), pace.decay_of(key, weight.ndim)
            self._moments.step(key, weight, gradient, rate, decay, scale)

    def clear(self, tag: str, where: Array | None) -> None:
        self._moments.clear(tag, where)

    def state(self, session: Session) -> tuple[dict[str, Array], dict[str, Any]]:
        return self._moments.arrays(), {"counts": dict(self._moments.counts)}

    def restore(self, session: Session, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        counts = {key: count for key, count in facts["counts"].items() if key in session.weights}
        known = self._moments.optimizer.moments  # arrays of acts have keys `kind/tag`, too
        parts = ((key, key.partition("/")) for key in arrays)
        found = {key: arrays[key] for key, (kind, _, tag) in parts if kind in known and tag in counts}
        self._moments.load(found, counts)


class BuiltIn(OptimizerStep):
    """The engine's AdamW; its decay and its longest gradient were fixed when the graph was made."""

    def __init__(self, session: Session, folder: str) -> None:
        self._folder, self._graph = folder, os.path.basename(folder)
        self._optimizer = session.optimizer(os.path.join(folder, "optimizer_model.onnx"))

    def step(self, session: Session, gradients: Mapping[str, Array], pace: Pace, scale: float) -> None:
        if not pace.uniform:
            raise OptionError(
                f"{BUILT_IN} moves all weights alike: it has no rates or decays for some, and holds none still; "
                "take another optimizer, such as adamw"
            )
        if scale != 1.0:
            for gradient in gradients.values():
                gradient *= np.float32(scale)
        session.hush()
        self._optimizer.set_learning_rate(pace.rate)
        self._optimizer.step()

    def clear(self, tag: str, where: Array | None) -> None:
        """Out of reach: what it remembers of a pruned place moves a number that the mask hides."""

    def state(self, session: Session) -> tuple[dict[str, Array], dict[str, Any]]:
        path = os.path.join(self._folder, "saved")
        session.save(path)
        with open(path, "rb") as file:
            return {_SAVED: np.frombuffer(file.read(), np.uint8)}, {"counts": {}, "graph": self._graph}

    def restore(self, session: Session, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        if _SAVED not in arrays or facts.get("graph") != self._graph:  # another graph: its optimizer begins anew
            return
        path = os.path.join(self._folder, "restored")
        with open(path, "wb") as file:
            file.write(arrays[_SAVED].tobytes())
        session.open(path)
        self._optimizer = session.optimizer(os.path.join(self._folder, "optimizer_model.onnx"))
