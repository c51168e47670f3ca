"""Leaving the most sensitive layers in float until no more of a metric is lost than is allowed.

1. Each layer is quantized alone, and how far the outputs move says how sensitive it is: a distance tells layers apart
   that a metric of a few hundred samples does not.
2. The most sensitive ones are left in float, as few of them as are needed, found by halving. That takes one run over
   the samples for each layer and one for each halving.
3. A layer is a node that computes with rounded values or weights, by its first output. What only moves numbers goes
   along with what is around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from onnx import ModelProto

from onnxsparse import progress
from onnxsparse.errors import ProofError
from onnxsparse.passes.quantization.figures import Figures, MaxLoss
from onnxsparse.planning.quantization import Quantization

Write = Callable[[Quantization], ModelProto]
STAGE = "sensitivity of layers"


@dataclass(frozen=True)
class Chosen:
    """What is left of a quantization, and what it loses; `left` are the layers that stay in float, with the distance by
    which each moves the outputs alone, the most sensitive first."""

    quantization: Quantization
    lost: float
    left: tuple[tuple[str, float], ...] = ()
    tried: int = 0


def readers_of(quantization: Quantization) -> list[str]:
    """The nodes that read anything that is rounded, by their first outputs."""
    readers = [one for part in (quantization.values, quantization.weights) for entry in part for one in entry.readers]
    return list(dict.fromkeys(node for node, _ in readers))


def within(
    limit: MaxLoss, quantization: Quantization, moves: Collection[str], write: Write, figures: Figures, samples: Figures
) -> Chosen:
    """As much of a quantization as loses no more than the limit.

    `figures` say what is lost, and `samples` how far the outputs move; `moves` are nodes that compute nothing.
    """
    lost = figures.lost(limit, figures(write(quantization)))
    if lost <= limit.most:
        return Chosen(quantization, lost)
    ranked = ranking(quantization, moves, write, samples)
    names = [name for name, _ in ranked]
    found: dict[int, float] = {}

    def loses(count: int) -> float:
        if count not in found:
            found[count] = figures.lost(limit, figures(write(quantization.without(names[:count]))))
        return found[count]

    low, high = 0, len(names) - 1  # at `low` too much is lost; with all layers in float nothing would be quantized
    if high < 1 or loses(high) > limit.most:
        least = loses(high) if high > 0 else lost
        raise ProofError(
            f"--max-loss {limit.text} cannot be met: {limit.told(least)} of {figures.metrics[0].text} is lost with "
            f"'{names[-1]}' alone, the least sensitive of {len(names)} layers; nothing was written"
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if loses(middle) <= limit.most else (middle, high)
    return Chosen(quantization.without(names[:high]), loses(high), tuple(ranked[:high]), len(names) + len(found) + 1)


def ranking(
    quantization: Quantization, moves: Collection[str], write: Write, samples: Figures
) -> list[tuple[str, float]]:
    """The layers, and how far the outputs move where each is quantized alone, the most sensitive first."""
    readers, found = readers_of(quantization), []
    names = [name for name in readers if name not in moves]
    done = progress.Counter(STAGE, len(names))
    for name in names:
        distance = samples(write(quantization.without([other for other in readers if other != name])))["distance"]
        found.append((name, math.inf if math.isnan(distance) else distance))
        done.add(1)
    return sorted(found, key=lambda one: -one[1])


__all__ = ["Chosen", "ranking", "readers_of", "within"]
