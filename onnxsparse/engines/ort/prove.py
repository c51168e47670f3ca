"""Proof before trust: a built training graph has to compute what the model does, and its gradients have to be right.

1. With the dense weights and open masks the loss is that of the dense model against itself: about zero.
2. At weights moved by some noise, the loss is lower a little way down each gradient and higher up it, by as much as the
   gradient says: central differences along the gradient's own direction, with several step sizes, because kinks and
   rounding make single ones look wrong.
3. Tensors are taken together in a few groups unless every one was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from onnxsparse.engines.ort.session import Session
from onnxsparse.values import Array

GROUPS = 12
NOISE = 0.1
STEPS = (3e-2, 1e-2, 3e-3, 1e-3)
AGREES, FAINT = 0.1, 1e-6


@dataclass
class Proof:
    """What was found: the loss of the dense model against itself, and the tensors whose gradients do not agree."""

    at_rest: float = 0.0
    moved: float = 0.0
    wrong: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)  # no gradient came, or only zeros
    checked: int = 0


def prove(session: Session, feed: Mapping[str, Array], each: bool) -> Proof:
    """Prove a session with one batch. The weights are as they were afterwards."""
    kept = {key: array.copy() for key, array in session.weights.items()}
    proof = Proof(at_rest=session.evaluate(feed)[0])
    _shake(session.weights)
    session.forget_gradients()
    proof.moved = session.step(feed)
    gradients = {key: grad.copy() for key, grad in session.gradients.items()}
    proof.silent = [key for key in session.weights if not _moves(gradients.get(key))]
    alive = [key for key in session.weights if key not in proof.silent]
    shaken = {key: array.copy() for key, array in session.weights.items()}
    for group in _groups(alive, each):
        if not _agree(session, feed, gradients, shaken, group):
            proof.wrong += [key for key in group if not _agree(session, feed, gradients, shaken, [key])]
    proof.checked = len(alive)
    for key, array in session.weights.items():
        array[...] = kept[key]
    return proof


def _shake(weights: Mapping[str, Array]) -> None:
    """The same noise on every machine, relative to each tensor's scale."""
    for number, array in enumerate(weights.values()):
        noise = np.random.Generator(np.random.Philox(key=number)).standard_normal(array.shape, np.float32)
        array += NOISE * _size(array) * noise


def _size(array: Array) -> float:
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))) if array.size else 0.0


def _moves(gradient: Array | None) -> bool:
    return gradient is not None and bool(np.isfinite(gradient).all()) and bool(gradient.any())


def _groups(keys: Sequence[str], each: bool) -> list[list[str]]:
    count = len(keys) if each else min(GROUPS, len(keys))
    return [list(keys[start::count]) for start in range(count)]


def _agree(
    session: Session,
    feed: Mapping[str, Array],
    gradients: Mapping[str, Array],
    start: Mapping[str, Array],
    keys: Sequence[str],
) -> bool:
    """Whether some step size shows the slope that the gradients of these tensors promise."""
    lengths = {key: float(np.linalg.norm(gradients[key].astype(np.float64))) for key in keys}
    sizes = {key: max(_size(start[key]), 1e-3) * np.sqrt(start[key].size) for key in keys}
    ways = {key: gradients[key] * np.float32(sizes[key] / lengths[key]) for key in keys}
    promised = sum(lengths[key] * sizes[key] for key in keys)
    found = []
    for step in STEPS:
        slope = (_loss_at(session, feed, start, ways, step) - _loss_at(session, feed, start, ways, -step)) / (2 * step)
        found.append(slope)
        if abs(slope - promised) <= AGREES * promised:
            break
    for key in keys:
        session.weights[key][...] = start[key]
    noise = FAINT * max(1.0, abs(session.evaluate(feed)[0])) / STEPS[-1]
    return bool(abs(found[-1] - promised) <= AGREES * promised or promised <= noise)


def _loss_at(
    session: Session, feed: Mapping[str, Array], start: Mapping[str, Array], ways: Mapping[str, Array], step: float
) -> float:
    for key, way in ways.items():
        session.weights[key][...] = start[key] + np.float32(step) * way
    return session.evaluate(feed)[0]
