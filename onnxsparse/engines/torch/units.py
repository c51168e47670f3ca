"""The units of the signals, by the definition of `onnxsparse.losses`: from what the dense model gives for the
samples, and from what it gives with weights that are moved a little.

A signal that is not finite, or of another shape for other samples, cannot be matched: it is left out, with a note. One
that no weight moves says nothing, and is left out, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from onnxsparse.engines.ort.signals import Signal, squashed
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.student import outputs_of
from onnxsparse.errors import ModelError
from onnxsparse.losses import Scale, heard, said_of, scale_along, shaken
from onnxsparse.math.values import Array

Ask = Callable[[Any], Sequence[Any]]


class Units(NamedTuple):
    """The scale of each signal that is matched, by its place, and what is to be said."""

    scales: dict[int, Scale]
    notes: list[str]


def measured(signals: Sequence[Signal], pieces: Sequence[Any], ask: Ask, moved: Ask, together: int) -> Units:
    """`ask` and `moved` give the dense model's values for a piece, the latter with weights moved; `together` pieces say
    by how much that is."""
    answers = [[_array(one) for one in ask(piece)] for piece in pieces]
    others = [[_array(one) for one in moved(piece)] for piece in pieces[:together]]
    floats = [place for place, one in enumerate(answers[0]) if one.dtype.kind == "f" and signals[place].stated]
    moving = {place for place in floats if any(not _same(*pair) for pair in _both(answers, others, place))}
    found, behind, why = Units({}, []), squashed(signals), list[str]()
    for place in floats:
        signal, values = signals[place], [answer[place] for answer in answers]
        problem = _problem(values)
        if problem:
            why.append(f"{signal.called} is not matched to the dense model's: {problem}")
        elif place in moving or not moving:
            plain = scale_along(np.stack(values), values[0].ndim, signal.axis, signal.name in behind)
            steady, other = (np.stack(some) for some in zip(*_both(answers, others, place)))
            found.scales[place] = heard(plain, steady, other)
            found.notes.extend(said_of(signal.called, plain, found.scales[place]))
    if not found.scales:
        raise ModelError(
            f"nothing that the model gives can be trained on: {why[0] if why else 'it has no float output'}"
        )
    found.notes.extend(why)
    return found


def moved_answers(dense: Any, paths: Mapping[str, str], device: Any) -> Ask:
    """What the dense model gives with every parameter of these paths moved a little, by its tag."""
    named = dict(dense.named_parameters())
    moved = {
        path: torch().from_numpy(shaken(named[path].detach().cpu().numpy(), tag)).to(device)
        for tag, path in paths.items()
        if path in named
    }

    def ask(inputs: Any) -> Sequence[Any]:
        with torch().no_grad():
            return outputs_of(torch().func.functional_call(dense, moved, tuple(inputs)))

    return ask


def _array(value: Any) -> Array:
    found: Array = (value.float() if value.is_floating_point() else value).cpu().numpy()
    return found


def _both(
    answers: Sequence[Sequence[Array]], others: Sequence[Sequence[Array]], place: int
) -> list[tuple[Array, Array]]:
    return [(answer[place], other[place]) for answer, other in zip(answers, others)]


def _same(one: Array, other: Array) -> bool:
    return one.shape == other.shape and np.array_equal(one, other, equal_nan=True)


def _problem(values: Sequence[Array]) -> str:
    """Why a signal cannot be matched; '' if it can."""
    shapes = {one.shape for one in values}
    if len(shapes) > 1:
        return f"its shape depends on the samples ({' or '.join(str(list(one)) for one in sorted(shapes)[:2])})"
    every = np.stack(values)
    bad = int((~np.isfinite(every)).sum())
    count = "all of its numbers" if bad == every.size else f"{bad} of its {every.size} numbers"
    return f"{count} for the first samples are not finite; look at the data, or at the model" if bad else ""


__all__ = ["Units", "measured", "moved_answers"]
