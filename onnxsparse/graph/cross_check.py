"""Cross-check of weight uses: what `flow` says of them, against where `evaluator` sees the weight arrive.

1. An arrival at a weight input belongs to the uses that name the same node and input.
2. A weight that comes to one of them in a way that cannot be told, or that no use stands for, stays dense.
3. A row that is looked up is no matrix product: an Embedding that no use stands for is one more reader, no use.
4. What only flows through the model (the other factor is a constant) is no weight there.
5. A weight whose zero does not arrive as the node's zero, as far as small arrays tell, stays dense too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from onnxsparse.graph.attributes import IdentityKey
from onnxsparse.graph.constants import Constant, NoNumbersError, Stored, image
from onnxsparse.graph.evaluator import Arrival, Evaluator
from onnxsparse.graph.storage import StoredTensor
from onnxsparse.graph.weights import Use, Weight

SMALL = 1 << 13
"""Elements of an array that is computed when weights are listed."""

Meeting = tuple[Arrival, "list[Use]"]


def meetings(weight: Weight, arrivals: Iterable[Arrival]) -> Iterator[Meeting]:
    """Every weight input that the tensor arrives at, with the uses that stand for it."""
    standing: dict[tuple[IdentityKey, int], list[Use]] = {}
    for use in weight.uses:
        standing.setdefault((IdentityKey(use.source), use.slot), []).append(use)
    for arrival in arrivals:
        if arrival.slot is None:
            continue
        uses = standing.get((IdentityKey(arrival.source), arrival.index), [])
        if not uses and (arrival.slot.family == "Embedding" or _flows(arrival)):
            continue
        yield arrival, uses


def _flows(arrival: Arrival) -> bool:
    return arrival.counterpart and bool(arrival.unknown)


def unseen(weight: Weight, arrivals: Iterable[Arrival]) -> str:
    """Why the second opinion cannot follow a weight to all its uses; empty where it can."""
    reached = set[Use]()
    for arrival, uses in meetings(weight, arrivals):
        if arrival.unknown:
            return f"what {arrival.where} gets of it cannot be told: {arrival.unknown}"
        if not uses:
            return f"it also reaches {arrival.where}, in a way that is not followed"
        lost = next(filter(None, (_lost_zero(arrival, use, weight.tensor) for use in uses)), "")
        if lost:
            return f"{arrival.where}: {lost}"
        reached.update(uses)
    missing = next((use for use in weight.uses if use not in reached), None)
    return f"{missing.op} '{missing.node}' does not get it when its constants are evaluated" if missing else ""


def _lost_zero(arrival: Arrival, use: Use, tensor: StoredTensor) -> str:
    """What becomes of the number that a use takes for zero, where that is not the node's zero."""
    zeros = arrival.zero_matrices()
    if isinstance(zeros, str):
        return zeros
    number = np.zeros(1, tensor.dtype) if use.quantization is None else use.quantization.zero_point
    plain = isinstance(arrival.value, Constant) and isinstance(arrival.value.source, Stored)
    if number.size != 1 or (plain and not zeros) or not isinstance(arrival.value, Constant):
        return ""
    matrix = arrival.matrix(arrival.value)
    try:
        arrives = None if matrix is None else image(matrix, tensor, number.reshape(1, 1, 1, 1), SMALL)
    except NoNumbersError as error:
        return str(error)
    wanted = [zero.window.without_repeats().of(zero.source.flat()) for zero in zeros]
    wrong = [] if arrives is None else [arrives != zero for zero in wanted or [np.zeros((), arrives.dtype)]]
    if arrives is None or not any(one.any() for one in wrong):
        return ""
    found = np.broadcast_to(arrives, wrong[0].shape)[wrong[0]] if wrong[0].any() else arrives.reshape(-1)
    return f"its zero arrives there as {found.reshape(-1)[0]:g}, not as zero"


def refuse_unseen(weights: Iterable[Weight], evaluator: Evaluator) -> None:
    """Weights whose path only one of the two knows stay dense."""
    found: dict[StoredTensor, list[Arrival]] = evaluator.by_tensor()
    for weight in weights:
        reason = "" if weight.refusal or not weight.uses else unseen(weight, found.get(weight.tensor, []))
        if reason:
            weight.refusal, weight.refused_by = reason, weight.refused_by or weight.uses[0].node
