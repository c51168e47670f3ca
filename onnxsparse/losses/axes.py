"""Where a tensor's classes, or the columns of a regression, lie: the one rule that losses and metrics go by.

1. What the user says counts first, then what the graph says (see `onnxsparse.graph.class_axis`).
2. Otherwise it is the last axis up to rank 3 (rows of scores; a row for each token), and axis 1 beyond it (images).
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxsparse.errors import OptionError


def class_axis(rank: int, said: int | None = None) -> int:
    """The axis, counted from 0; 0 where there is no other."""
    if said is not None and -rank <= said < rank:
        return said % rank
    return 1 if rank > 3 else max(rank - 1, 0)


def chosen_axis(what: str, name: str, shape: Sequence[int], wanted: int | None, said: int | None) -> int:
    """The axis of an output, by the user's word or else the graph's; `what` asks for it."""
    if wanted is not None and not -len(shape) <= wanted < len(shape):
        raise OptionError(f"{what} along axis {wanted}: '{name}' has the shape {list(shape)}, and no such axis")
    return class_axis(len(shape), said if wanted is None else wanted)
