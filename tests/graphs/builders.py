"""Every case, by name."""

from __future__ import annotations

import importlib

from .case import REGISTRY, Built, Case, Expected, Use

FAMILIES = (
    "linear",
    "conv",
    "chains",
    "storage",
    "external",
    "scopes",
    "functions",
    "combined",
    "quantized",
    "recurrent",
    "microsoft",
    "kept_dense",
    "masked",
    "foreign",
)
for _family in FAMILIES:
    importlib.import_module(f".{_family}", __package__)

CASES: dict[str, Case] = REGISTRY


def cases(*families: str) -> list[Case]:
    return [one for one in CASES.values() if not families or one.family in families]


__all__ = ["CASES", "Built", "Case", "Expected", "Use", "cases"]
