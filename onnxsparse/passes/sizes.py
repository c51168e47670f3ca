"""Bytes of a sparse weight in the form a device or an archive would keep it: the kept numbers and where they are.

N:M           kept numbers, and for each its place in the group (2 bits for 2:4)
block         kept blocks, and one bit for each block
filter        kept filters, and one bit for each
anything else kept numbers, and one bit for each element
"""

from __future__ import annotations

from onnxsparse.patterns import Pattern
from onnxsparse.patterns.nm import NM


def sparse_bytes(pattern: Pattern | None, shape4: tuple[int, ...], size: int, zeros: int, width: int) -> int:
    """Bytes after compression; never more than the dense form, which a device may always keep."""
    dense = size * width
    if pattern is None:
        return dense
    return min(dense, (size - zeros) * width + (_index_bits(pattern, shape4, size) + 7) // 8)


def _index_bits(pattern: Pattern, shape4: tuple[int, ...], size: int) -> int:
    if isinstance(pattern, NM):
        return pattern.units(shape4) * pattern.n * (pattern.m - 1).bit_length()
    return pattern.units(shape4) if pattern.name in ("block", "filter", "channel") else size
