"""Writing zeros where a mask says so, by arithmetic on the stored bits: several times faster than a masked copy."""

from __future__ import annotations

import numpy as np

from onnxsparse.values import Array, Values, blocks_of

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def erase(values: Values, keep: Array, out: Array) -> None:
    """Write the kept values, and zeros elsewhere, to `out`, which may be the stored array."""
    for index in blocks_of(values.stored):
        erase_block(values[index], keep[index], out[index])


def erase_block(values: Values, keep: Array, out: Array) -> None:
    """The same for a piece that fits the cache."""
    bits = values.stored.view(UNSIGNED[values.stored.itemsize])
    target = out.view(bits.dtype)
    kept = keep.astype(bits.dtype)
    if values.reading.is_float or values.reading.zero_point is None:
        np.multiply(bits, kept, out=target)
        return
    zero = values.zero.view(bits.dtype)  # unsigned arithmetic wraps, so adding it again gives the exact number back
    np.add(np.multiply(bits - zero, kept), zero, out=target)
