"""Rules of operators: what each unites, closes or freezes; a family in each module."""

from __future__ import annotations

from collections.abc import Mapping

from onnxsparse.channel_classes.rules import (
    attention,
    contractions,
    control,
    elementwise,
    indexing,
    layout,
    normalization,
    quantized,
    recurrent,
    spatial,
)
from onnxsparse.channel_classes.walk import Rule

FAMILIES = (
    elementwise, layout, contractions, normalization, spatial, indexing, quantized, recurrent, control, attention,
)  # fmt: skip


def table() -> Mapping[tuple[str, str], Rule]:
    """Every operator that has a rule, by domain and name."""
    return {key: rule for family in FAMILIES for key, rule in family.RULES.items()}


__all__ = ["table"]
