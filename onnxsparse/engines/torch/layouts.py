"""How a parameter lies in the tensor that an exporter stored it in.

same         element for element; axes of size 1 may come or go
transposed   a matrix with its two axes swapped
swapped      more axes, the first two swapped
lstm, gru    the gates in the order of ONNX (iofc, zrh) instead of torch's (ifco, rzn)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxsparse.graph.storage import Array

SAME, TRANSPOSED, SWAPPED = "same", "transposed", "swapped"
PLAIN = (SAME, TRANSPOSED, SWAPPED)
GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}

Shape = tuple[int, ...]


def squeezed(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)


def fits(layout: str, shape: Shape) -> bool:
    """Whether a parameter of that shape can lie so, and differently than under `same`."""
    if layout in GATES:
        return bool(shape) and shape[0] % len(GATES[layout]) == 0
    if layout == SAME:
        return True
    return len(shape) > 1 and min(shape[:2]) > 1 and (len(shape) == 2) == (layout == TRANSPOSED)


def arranged(array: Any, layout: str) -> Any:
    """A parameter (of torch or numpy) in the order of its stored tensor."""
    if layout in (TRANSPOSED, SWAPPED):
        return array.swapaxes(0, 1)
    if layout in GATES:
        order = list(GATES[layout])
        return array.reshape(len(order), -1)[order]
    return array


def places(shape: Shape, layout: str, start: int) -> Array:
    """For every element of a parameter, where it is in its flat stored tensor."""
    order = arranged(np.arange(int(np.prod(shape))).reshape(shape), layout).reshape(-1)
    found = np.empty(order.size, np.int64)
    found[order] = np.arange(start, start + order.size)
    return found.reshape(shape)
