"""Scales and biases that are pruned along with the weights, because a word or a pattern for many means them, too.

SparseML does so, and so it is done here. A normalization whose scale is zero gives nothing: the model can fall to
chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnxsparse.epochs.act import Act
from onnxsparse.epochs.host import Host
from onnxsparse.epochs.params import ALL_PRUNABLE, Param

SHOWN = 8


def warning_of(act: Act) -> str:
    """What to say of an act that prunes some that nobody named; nothing where it does not."""
    found = act.along()
    if not found:
        return ""
    first = f"such as {found[0].name}" if len(found) > 1 else found[0].name
    what = "scales and biases" if len(found) > 1 else "scale or bias"
    return (
        f"it prunes {len(found)} {what} too ({first}), which can make the model useless; `params: {ALL_PRUNABLE}` "
        "means the weights of layers alone"
    )


def warnings_of(acts: Iterable[Act]) -> list[str]:
    return [f"{act.where}: {text}" for act in acts if (text := warning_of(act))]


def zeros_of(host: Host, params: Sequence[Param]) -> str:
    """How many zeros they have by now."""
    told = [f"{param.name} {param.size - host.count(param)} of {param.size}" for param in params[:SHOWN]]
    more = [f"{len(params) - SHOWN} more"] if len(params) > SHOWN else []
    return f"zeros in scales and biases: {', '.join([*told, *more])}"
