"""Sparsity allocation: how much each weight is pruned. `parse` turns a word into one, `available` lists them."""

from __future__ import annotations

from typing import cast

from onnxsparse import plugins
from onnxsparse.allocations.allocation import Allocation, Candidate

__all__ = ["Allocation", "Candidate", "available", "parse"]


def parse(text: str) -> Allocation:
    """Return the allocation that a word such as `uniform` stands for."""
    return cast(Allocation, plugins.parse("allocations", text))


def available() -> list[plugins.Entry]:
    """Describe every allocation."""
    return plugins.available("allocations")
