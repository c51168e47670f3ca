"""What training makes small, as definitions in numpy. `parse` turns a word into a loss, `available` lists them."""

from __future__ import annotations

from typing import cast

from onnxsparse import plugins
from onnxsparse.losses.distill import (
    Columns,
    Scale,
    all_shares,
    heard,
    in_units,
    said_of,
    scale_along,
    scale_of,
    shaken,
    size_of,
    unit_in_words,
)
from onnxsparse.losses.loss import Loss

__all__ = [
    "Columns", "Loss", "Scale", "all_shares", "available", "heard", "in_units", "mixed", "parse", "said_of",
    "scale_along", "scale_of", "shaken", "size_of", "unit_in_words",
]  # fmt: skip


def parse(text: str) -> Loss:
    """Return the loss that a text such as `cross-entropy` or `kl:temperature=4` stands for."""
    return cast(Loss, plugins.parse("losses", text))


def available() -> list[plugins.Entry]:
    """Describe every loss."""
    return plugins.available("losses")


def mixed(task: float, distillation: float, hardness: float) -> float:
    """Both terms together: `hardness` is the share of the distillation."""
    return (1.0 - hardness) * task + hardness * distillation
