"""`set_identical_seed`, where scripts for several GPUs look for it, and upstream's calls for a model without ASP.

Neither masks nor the order of channels depend on it: nothing here draws from these generators, and of several processes
the first decides. The call seeds what its users expect to be seeded, for the sake of the rest of their script.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from onnxsparse.channel_classes.permutation import Permutation as Recorded
from onnxsparse.dialects.asp.permutation import permuted
from onnxsparse.engines.processes import is_first_joined
from onnxsparse.engines.torch.attach import bare_module, demand_free
from onnxsparse.engines.torch.library import torch


def set_identical_seed(identical_seed: int = 1) -> None:
    """Seed the generators of Python, numpy and torch, and have cuDNN take the same kernels every time."""
    random.seed(identical_seed)
    np.random.seed(identical_seed)
    torch().manual_seed(identical_seed)
    torch().backends.cudnn.deterministic = True
    torch().backends.cudnn.benchmark = False


class Permutation:
    """The class that upstream has its calls on: for a script that permutes a model without ASP."""

    _weights: ClassVar[Sequence[str]] = ()
    _moved: ClassVar[tuple[list[str], list[str]]] = ([], [])

    set_identical_seed = staticmethod(set_identical_seed)

    @classmethod
    def set_permutation_params_from_asp(
        cls, model: Any, sparse_parameters: Sequence[Any], all_parameters: Any, verbosity: int = 0
    ) -> None:
        """Say which parameters count: (name of the layer, layer, name of the parameter, ...) for each."""
        del model, all_parameters, verbosity  # found in the model that is permuted
        cls._weights = [f"{row[0]}.{row[2]}" if row[0] else row[2] for row in sparse_parameters]
        cls._moved = ([], [])

    @classmethod
    def permute_model(
        cls, model: Any, dump_fx_graph: bool = False, save_dumped_fx_graph: str = "./model_permutation_graph.json"
    ) -> bool:
        """Permute a model in place; False where its channels stay as they are. What moved is recorded on demand."""
        found, reason = permuted(demand_free(model), cls._weights, "2:4", 0, None)
        if reason:
            warnings.warn(f"the channels stay in their order: {reason}", stacklevel=2)
        if dump_fx_graph and is_first_joined():
            found.save(save_dumped_fx_graph, overwrite=True)
        cls._moved = _by_axis(bare_module(model), found)
        return not reason

    @classmethod
    def get_permutation_stats(cls) -> tuple[list[str], list[str], list[str]]:
        """The parameters that moved along their inputs, along their outputs, and those that should have and did not."""
        inputs, outputs = cls._moved
        return inputs, outputs, [name for name in cls._weights if name not in inputs]


def _by_axis(model: Any, found: Recorded) -> tuple[list[str], list[str]]:
    inputs, outputs = [], []
    for name, one in found.tensors.items():
        owner = model.get_submodule(name.rpartition(".")[0])
        axes = {move.axes[-1] for move in one.moves}
        if getattr(owner, "transposed", False) and len(one.shape) > 1:
            axes = {1 - axis if axis < 2 else axis for axis in axes}
        inputs += [name] if 1 in axes else []
        outputs += [name] if 0 in axes else []
    return inputs, outputs
