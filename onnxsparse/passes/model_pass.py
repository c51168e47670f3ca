"""The pass interface: one change of an opened model, or one check of it; all have the same shape.

1. A `Pass` changes a model: `call(model)` sets the edits of stored tensors, or inserts and removes nodes, and tells
   what became of each weight that it looked at (`Changed`).
2. A `Check` only looks: `call(model)` returns a `Report`.
3. What stands against one in a model is `refusal(model)`, the error that it ends with before anything is done.
4. Passes are called like functions, `Prune(plan)(model)`; each call is a line in the debug log of `onnxsparse`.
What they do not do: open a model, record in its metadata what was done, prove it or write it; that is the commands'.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from onnxsparse.errors import OnnxSparseError
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Weight
from onnxsparse.report.rows import Report

LOG = logging.getLogger("onnxsparse")


@dataclass(frozen=True)
class Changed:
    """What became of each weight: '' where the pass did its work, else the reason why it was left as it was."""

    outcome: Mapping[Weight, str] = field(default_factory=dict)

    @property
    def weights(self) -> tuple[Weight, ...]:
        return tuple(weight for weight, reason in self.outcome.items() if not reason)

    @property
    def left(self) -> dict[Weight, str]:
        return {weight: reason for weight, reason in self.outcome.items() if reason}

    def __or__(self, other: Changed) -> Changed:
        """What two passes in a row did."""
        return Changed({**self.outcome, **other.outcome})


class _OverModel:
    """What changes and looks have in common."""

    def refusal(self, model: Model) -> OnnxSparseError | None:
        """Why it cannot be done with this model; None where it can."""
        return None

    def _demand_possible(self, model: Model) -> None:
        error = self.refusal(model)
        if error is not None:
            raise error


class Pass(_OverModel, ABC):
    """One change of a model. It may be called once: what it has changed is another model."""

    @abstractmethod
    def call(self, model: Model) -> Changed:
        """Change the model."""

    def __call__(self, model: Model) -> Changed:
        self._demand_possible(model)
        changed = self.call(model)
        LOG.debug("%s: %d weights, %d left", type(self).__name__, len(changed.weights), len(changed.left))
        return changed


class Check(_OverModel, ABC):
    """One look at a model, which stays as it is."""

    @abstractmethod
    def call(self, model: Model) -> Report:
        """Look at the model."""

    def __call__(self, model: Model) -> Report:
        self._demand_possible(model)
        report = self.call(model)
        LOG.debug("%s: %d weights, %s", type(self).__name__, len(report.rows), "ok" if report.ok else "not ok")
        return report
