"""`set_identical_seed`, where scripts for several GPUs look for it.

Neither masks nor the order of channels depend on it: nothing here draws from these generators, and of several processes
the first decides. The call seeds what its users expect to be seeded, for the sake of the rest of their script.
"""

from __future__ import annotations

import random

import numpy as np

from onnxsparse.engines.torch.library import torch


def set_identical_seed(identical_seed: int = 1) -> None:
    """Seed the generators of Python, numpy and torch, and have cuDNN take the same kernels every time."""
    random.seed(identical_seed)
    np.random.seed(identical_seed)
    torch().manual_seed(identical_seed)
    torch().backends.cudnn.deterministic = True
    torch().backends.cudnn.benchmark = False


class Permutation:
    """The class that upstream has the call on."""

    set_identical_seed = staticmethod(set_identical_seed)
