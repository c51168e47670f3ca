"""Optimizers on torch tensors, for parameters on a GPU; the numpy form is the definition.

The optimizer state has the same names and numbers, so a run that was saved on one device goes on on another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from onnxsparse.engines.engine import Pace
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.optimizer_state import OptimizerStep
from onnxsparse.math.values import Array
from onnxsparse.optimizers import Moments, Optimizer
from onnxsparse.optimizers import parse as parse_optimizer

Tensors = Mapping[str, Any]


class Turn(NamedTuple):
    """One step of one tensor: its number, from 1, and how far it goes."""

    number: int
    rate: float
    decay: float


class DeviceOptimizer(OptimizerStep):
    """An optimizer on tensors, wherever they are."""

    def __init__(self, optimizer: Optimizer, parameters: Mapping[str, Any]) -> None:
        self._optimizer, self._parameters, self._form = optimizer, parameters, FORMS[optimizer.name]
        self._kept: dict[str, dict[str, Any]] = {}
        self._counts: dict[str, int] = {}

    def step(self, pace: Pace, scale: float, loss: float) -> None:
        with torch().no_grad():
            for tag, parameter in self._parameters.items():
                if parameter.grad is not None and tag not in pace.held:
                    self._move(tag, parameter, pace, scale)

    def _move(self, tag: str, parameter: Any, pace: Pace, scale: float) -> None:
        if tag not in self._kept:
            self._kept[tag] = {name: torch().zeros_like(parameter) for name in self._optimizer.moments}
        self._counts[tag] = self._counts.get(tag, 0) + 1
        rate, decay = pace.rate_of(tag), pace.decay_of(tag, parameter.dim())
        gradient = parameter.grad * scale
        self._form(self._optimizer, parameter, gradient, self._kept[tag], Turn(self._counts[tag], rate, decay))

    def clear(self, tag: str, where: Array | None) -> None:
        if where is None:
            self._kept.pop(tag, None)
            self._counts.pop(tag, None)
            return
        for moment in self._kept.get(tag, {}).values():
            moment.masked_fill_(torch().from_numpy(where.copy()).to(moment.device), 0)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays = {f"{name}/{tag}": one.cpu().numpy() for tag, kept in self._kept.items() for name, one in kept.items()}
        return arrays, {"counts": dict(self._counts)}

    def restore(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        checked = Moments(self._optimizer)
        counts = {tag: count for tag, count in facts["counts"].items() if tag in self._parameters}
        checked.load(
            {f"{one}/{tag}": arrays[f"{one}/{tag}"] for one in self._optimizer.moments for tag in counts}, counts
        )
        self._counts, self._kept = dict(counts), {tag: {} for tag in counts}
        for key, array in checked.arrays().items():
            name, _, tag = key.partition("/")
            self._kept[tag][name] = torch().from_numpy(array).to(self._parameters[tag].device)


def form_of(text: str) -> Optimizer | None:
    """The optimizer of a text, where it has a form here."""
    optimizer = parse_optimizer(text)
    return optimizer if optimizer.name in FORMS else None


def _sgd(rule: Any, weight: Any, gradient: Any, moments: Tensors, turn: Turn) -> None:
    velocity = _velocity(rule, weight, gradient, moments, turn.decay)
    weight.sub_(velocity, alpha=turn.rate)


def _nesterov(rule: Any, weight: Any, gradient: Any, moments: Tensors, turn: Turn) -> None:
    velocity = _velocity(rule, weight, gradient, moments, turn.decay)
    weight.sub_(gradient.add_(velocity, alpha=rule.momentum), alpha=turn.rate)


def _velocity(rule: Any, weight: Any, gradient: Any, moments: Tensors, decay: float) -> Any:
    """Momentum; decay becomes part of the gradient."""
    if decay:
        gradient.add_(weight, alpha=decay)
    return moments["velocity"].mul_(rule.momentum).add_(gradient)


def _adam(rule: Any, weight: Any, gradient: Any, moments: Tensors, turn: Turn) -> None:
    if turn.decay:
        gradient.add_(weight, alpha=turn.decay)
    factor, root = _updated_moments(rule, gradient, moments, turn.number)
    weight.sub_(moments["mean"] / (moments["square"].sqrt() + root * rule.eps), alpha=turn.rate * factor)


def _adamw(rule: Any, weight: Any, gradient: Any, moments: Tensors, turn: Turn) -> None:
    factor, root = _updated_moments(rule, gradient, moments, turn.number)
    if turn.decay:
        weight.mul_(1 - turn.rate * turn.decay)
    weight.sub_(moments["mean"] / (moments["square"].sqrt() + root * rule.eps), alpha=turn.rate * factor)


def _relative(rule: Any, weight: Any, gradient: Any, moments: Tensors, turn: Turn) -> None:
    """The size of a tensor stays on the device: to ask for a number would make it wait."""
    factor, _ = _updated_moments(rule, gradient, moments, turn.number)
    used = (weight != 0).sum().clamp(min=1)
    size = (weight.square().sum() / used).sqrt().clamp(min=rule.floor)
    if turn.decay:
        weight.mul_(1 - turn.rate * turn.decay)
    peak = moments["square"].max().sqrt()
    moved = moments["mean"] / (moments["square"].sqrt() + rule.eps * peak)
    weight.sub_(torch().where(peak > 0, moved, 0.0) * (turn.rate * factor * size))


def _updated_moments(rule: Any, gradient: Any, moments: Tensors, count: int) -> tuple[float, float]:
    """Take a gradient into the means; the corrections for what they know."""
    moments["mean"].mul_(rule.beta1).add_(gradient, alpha=1 - rule.beta1)
    moments["square"].mul_(rule.beta2).addcmul_(gradient, gradient, value=1 - rule.beta2)
    root = math.sqrt(1 - rule.beta2**count)
    return root / (1 - rule.beta1**count), root


FORMS: dict[str, Callable[[Any, Any, Any, Tensors, Turn], None]] = {
    "sgd": _sgd,
    "nesterov": _nesterov,
    "adam": _adam,
    "adamw": _adamw,
    "relative": _relative,
}


def scale_on_device(gradients: list[Any], scale: float, clip: float) -> float:
    """What gradients are multiplied with, so that they are no longer than `clip`; not finite where one is not."""
    if not gradients:
        return scale
    length = float(torch().linalg.vector_norm(torch().stack([torch().linalg.vector_norm(one) for one in gradients])))
    if not math.isfinite(length):
        return math.nan
    return scale if not clip or length * scale <= clip else clip / length
