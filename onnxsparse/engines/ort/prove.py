"""Proof before trust: a built training graph has to compute what the model does, and its gradients have to be right.

1. With the dense weights and open masks the loss is that of the dense model against itself: about zero, where nothing
   but the dense model is matched.
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
from onnxsparse.losses import shaken, size_of
from onnxsparse.math.values import Array

Feed = Mapping[str, Array]

GROUPS = 12
NOISES = (0.1, 0.01, 0.001)
"""How far the weights are moved, against their own scale; less where the loss then is no number."""
CHANGES = (0.1, 0.03, 0.01, 3e-3, 1e-3)
"""How much of the loss a step is to change."""
FARTHEST = (3e-2, 1e-2, 3e-3, 1e-3, 3e-4)
"""The longest step each, against the size of what is moved: shorter ones cross fewer kinks."""
AGREES, FAINT = 0.1, 1e-6


@dataclass
class Proof:
    """What was found: the loss of the dense model against itself, and the tensors whose gradients do not agree."""

    at_rest: float = 0.0
    moved: float = 0.0
    wrong: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)  # no gradient came, or only zeros
    checked: int = 0

    @property
    def still(self) -> list[str]:
        """The tensors that must not move by their gradients."""
        return [*self.wrong, *self.silent]


def prove(session: Session, feeds: Sequence[Feed], groups: int = GROUPS) -> Proof:
    """Prove a session with some batches. The weights are as they were afterwards."""
    kept = {key: array.copy() for key, array in session.weights.items()}
    proof = Proof(at_rest=_loss(session, feeds))
    gradients: dict[str, Array] = {}
    trained = {key: array for key, array in session.weights.items() if key not in session.statistics}
    session.of_the_batch = True
    for noise in NOISES:
        for key, array in trained.items():
            array[...] = shaken(kept[key], key, noise)
        proof.moved, gradients = _gradients(session, feeds)
        if np.isfinite(proof.moved) and all(np.isfinite(one).all() for one in gradients.values()):
            break
    proof.silent = [key for key in trained if key not in gradients or not gradients[key].any()]
    proof.wrong = [key for key, one in gradients.items() if not np.isfinite(one).all()]
    alive = [key for key in trained if key not in proof.still]
    start = {key: array.copy() for key, array in session.weights.items()}
    for group in _groups(alive, groups):
        if not _agree(session, feeds, gradients, start, group):
            proof.wrong += [key for key in group if not _agree(session, feeds, gradients, start, [key])]
    proof.checked, session.of_the_batch = len(alive), False
    for key, array in session.weights.items():
        array[...] = kept[key]
    return proof


def _gradients(session: Session, feeds: Sequence[Feed]) -> tuple[float, dict[str, Array]]:
    session.forget_gradients()
    loss = sum(session.step(feed) for feed in feeds)
    found = {key: grad.copy() for key, grad in session.gradients.items()}
    session.forget_gradients()
    return loss, found


def _loss(session: Session, feeds: Sequence[Feed]) -> float:
    return sum(session.evaluate(feed)[0] for feed in feeds)


def _groups(keys: Sequence[str], count: int) -> list[list[str]]:
    count = min(count, len(keys))
    return [list(keys[start::count]) for start in range(count)]


def _agree(
    session: Session,
    feeds: Sequence[Feed],
    gradients: Mapping[str, Array],
    start: Mapping[str, Array],
    keys: Sequence[str],
) -> bool:
    """Whether some step size shows the slope that the gradients of these tensors promise."""
    lengths = {key: float(np.linalg.norm(gradients[key].astype(np.float64))) for key in keys}
    sizes = {key: max(size_of(start[key]), 1e-3) * np.sqrt(start[key].size) for key in keys}
    ways = {key: gradients[key] * np.float32(sizes[key] / lengths[key]) for key in keys}
    promised = sum(lengths[key] * sizes[key] for key in keys)
    loss = max(abs(_loss(session, feeds)), FAINT)
    steps = _steps(promised, loss)
    agrees = any(abs(_slope(session, feeds, start, ways, step) - promised) <= AGREES * promised for step in steps)
    for key in keys:
        session.weights[key][...] = start[key]
    return agrees or not steps


def _steps(promised: float, loss: float) -> list[float]:
    """Longest first; none where what the gradient promises would drown in rounding."""
    steps = (min(far, change * loss / max(promised, FAINT * loss)) for change, far in zip(CHANGES, FARTHEST))
    return [step for step in steps if promised * step > FAINT * loss]


def _slope(
    session: Session, feeds: Sequence[Feed], start: Mapping[str, Array], ways: Mapping[str, Array], step: float
) -> float:
    up, down = (_loss_at(session, feeds, start, ways, way) for way in (step, -step))
    return (up - down) / (2 * step)


def _loss_at(
    session: Session, feeds: Sequence[Feed], start: Mapping[str, Array], ways: Mapping[str, Array], step: float
) -> float:
    for key, way in ways.items():
        session.weights[key][...] = start[key] + np.float32(step) * way
    return _loss(session, feeds)
