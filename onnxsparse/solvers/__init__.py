"""Solvers: which weights of a layer are kept, and what the kept ones become, by the moments of its inputs."""

from __future__ import annotations

from typing import cast

from onnxsparse import plugins
from onnxsparse.solvers.solver import Solver

__all__ = ["Solver", "available", "parse"]


def parse(text: str) -> Solver:
    """Return the solver that a text such as `least-squares` stands for."""
    return cast(Solver, plugins.parse("solvers", text))


def available() -> list[plugins.Entry]:
    """Describe every solver."""
    return plugins.available("solvers")
