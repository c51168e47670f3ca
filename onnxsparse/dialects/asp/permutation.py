"""Permuting the channels of a module before its masks are chosen, so that these keep more."""

# ruff: noqa: ARG001 - what permutes modules will ask for all of these arguments

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def permute_module(
    model: Any,
    weights: Sequence[str],
    pattern: str,
    seed: int,
    example_inputs: Any,
    *,
    optimizers: Sequence[Any] = (),
    record_to: str | None = None,
) -> str | None:
    """Permute channels in place, for the weights of these names, and what optimizers remember of them.

    Returns why that was not done, if it was not; the module is as it was then. The permutation is recorded in the
    folder `record_to`.
    """
    return "permuting those of a torch module is not there yet; allow_permutation=False says so beforehand"
