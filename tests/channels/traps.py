"""Small graphs that break a careless channel permutation, by name; each family in a file of its own."""

from __future__ import annotations

import dataclasses
import importlib
from functools import cache
from typing import Callable

from tests.channels.net import Trap

REGISTRY: dict[str, Callable[[], Trap]] = {}
FAMILIES = ("layout", "merging", "mixing", "attention", "recurrent", "quantized", "scopes", "storage")


def trap(function: Callable[[], Trap]) -> Callable[[], Trap]:
    """Registers a graph under the name of its function."""
    if function.__name__ in REGISTRY:
        raise ValueError(f"two traps are called {function.__name__}")
    REGISTRY[function.__name__] = function
    return function


def names() -> list[str]:
    for family in FAMILIES:
        importlib.import_module(f"tests.channels.traps_{family}")
    return list(REGISTRY)


@cache
def build(name: str) -> Trap:
    return dataclasses.replace(REGISTRY[name](), name=name)
