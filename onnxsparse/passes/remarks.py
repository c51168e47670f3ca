"""What is said of a report's rows in words: what a size that is not known costs, whether zeros pay, what they move.

1. Multiply-accumulates are left out where a size is not known. Which `--dim` would give them is tried out, not guessed.
2. Whether zeros pay is the target's word on every use; here it becomes one sentence.
3. A weight may be read by more than layers. That is allowed, and said: what comes out there moves with the zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Weight
from onnxsparse.passes import macs
from onnxsparse.passes.rule import Rule
from onnxsparse.report.rows import Row

MOST_DIMS, MOST_OTHERS = 6, 3
ANY_SIZE = 512
"""A size to try: below it kernels of audio models do not fit."""


def unknown_sizes(model: Model, rows: Sequence[Row], weights: Sequence[Weight]) -> list[str]:
    """Why there are no multiply-accumulates, and what would give them."""
    pairs = [(row, weight) for row, weight in zip(rows, weights) if row.macs is None and _works(weight)]
    if not pairs:
        return []
    recurrent = any(use.family == "Recurrent" for _, weight in pairs for use in weight.uses)
    dims = macs.open_dims_of(model, samples=recurrent)
    found = _with_sizes(model, dims, [weight for _, weight in pairs])
    lost = [row for row, weight in pairs if weight not in found]
    reason = (
        f"sizes behind {len(lost)} of {len(rows)} weights cannot be inferred (the first: '{lost[0].name}')"
        if lost
        else ""
    )
    if found:
        given = ",".join(f"{name}=SIZE" for name in dims[:MOST_DIMS])
        more = f" and {len(dims) - MOST_DIMS} more" if len(dims) > MOST_DIMS else ""
        gives = (
            "would give them" if not lost else f"would give those of {len(found)} weights, in the JSON alone: {reason}"
        )
        what = "the size of a dimension is" if len(dims) == 1 else "sizes of dimensions are"
        reason = f"{what} not known; --dim {given}{more} {gives}"
    return [f"multiply-accumulates are left out: {reason}"]


def _works(weight: Weight) -> bool:
    """Whether anything multiplies with it: a table is looked up."""
    return any(use.family != "Embedding" for use in weight.uses)


def _with_sizes(model: Model, dims: Sequence[str], weights: list[Weight]) -> dict[Weight, int]:
    """What could be counted if these dimensions had a size."""
    if not dims:
        return {}
    before = dict(model.sizes)
    model.sizes.update(dict.fromkeys(dims, ANY_SIZE))
    found = macs.counted(model, weights, deep=True)
    model.sizes.clear()
    model.sizes.update(before)
    return found


def pays_off(rows: Sequence[Row], done: str, rule: Rule) -> str:
    """Whether the zeros are likely to make the model faster, in one sentence, where the device has a word on that."""
    sparse = [row for row in rows if row.status == done]
    if rule.target is None or rule.knows_levels or not sparse:
        return ""
    paying = [row for row in sparse if all(use.pays is not False for use in row.uses)]
    if not paying:
        return f"the zeros are unlikely to make the model faster on {rule.target.text}: no weight is likely to pay"
    if len(paying) == len(sparse):
        return f"the zeros are likely to pay on {rule.target.text}, in all pruned weights"
    share = 100 * sum(row.size for row in paying) / sum(row.size for row in sparse)
    held = f"which {'has' if len(paying) == 1 else 'have'} {share:.1f} % of the pruned numbers"
    return f"the zeros are likely to pay on {rule.target.text} in {len(paying)} of {len(sparse)} weights, {held}"


def others_of(weight: Weight) -> tuple[str, ...]:
    """What reads these numbers without being a layer; a shape is the same whatever they are."""
    found = [other for one in (weight, *weight.twins) for other in one.others]
    return tuple(dict.fromkeys(other for other in found if not other.startswith(("Shape '", "Size '"))))


def moves(others: Sequence[str]) -> str:
    """What zeros do where a weight is read otherwise, too."""
    more = f" and {len(others) - MOST_OTHERS} more" if len(others) > MOST_OTHERS else ""
    where = ", ".join(others[:MOST_OTHERS]) + more
    return f"its numbers also go to {where}: what comes out there moves with the zeros" if others else ""
