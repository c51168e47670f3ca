"""Permuting the channels of a module before its masks are chosen, so that these keep more."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from onnxsparse.channel_classes.permutation import Permutation
from onnxsparse.engines.processes import is_first_joined
from onnxsparse.engines.torch.permute.moves import demand_movable, move
from onnxsparse.engines.torch.permute.proof import Inputs
from onnxsparse.errors import OnnxSparseError, OutputError
from onnxsparse.files import check_target, make_folder
from onnxsparse.passes.permute_module import decided, found_for, pattern_of

FILE = "model_offline_permutation_graph.json"
"""What apex calls the file of a permutation. What is in it is what `osp.torch.permute(module, apply=...)` takes."""


def permute_module(
    model: Any,
    weights: Sequence[str],
    pattern: str,
    seed: int,
    inputs: Inputs | None,
    *,
    optimizers: Sequence[Any] = (),
    record_to: str | None = None,
) -> tuple[Permutation, str]:
    """Permute channels in place, for the weights of these names, and what optimizers remember of them.

    Returns what moved, and why nothing did; the module is as it was then. The permutation is recorded in the folder
    `record_to`. Of several processes the first decides, by its weights.
    """
    found, reason = permuted(model, weights, pattern, seed, inputs, optimizers, record_to)
    if record_to is not None and is_first_joined():
        found.save(os.path.join(record_to, FILE), overwrite=True)
    return found, reason


def permuted(
    model: Any,
    weights: Sequence[str],
    pattern: str,
    seed: int,
    inputs: Inputs | None,
    optimizers: Sequence[Any] = (),
    record_to: str | None = None,
) -> tuple[Permutation, str]:
    """What moved, and why nothing could be found or proven where that is so."""

    def search() -> tuple[Permutation, str]:
        if record_to is not None:  # before anything moves: where a module was permuted is known by the record alone
            make_folder(record_to)
            check_target(os.path.join(record_to, FILE), overwrite=True)
        return found_for(model, inputs, pattern_of(pattern), names=set(weights), seed=seed)

    try:
        demand_movable(model)
        found, reason = decided(search)
    except OutputError:
        raise
    except OnnxSparseError as error:  # such as a search without scipy
        return Permutation({}), str(error)
    move(model, found.tensors.values(), optimizers)
    return found, reason
