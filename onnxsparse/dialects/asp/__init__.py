"""The interface of ASP, NVIDIA apex's Automatic SParsity: N:M masks in a training loop of torch, by the same calls.

    ASP.init_model_for_pruning(model, "m4n2_1d", allow_recompute_mask=False)
    ASP.init_optimizer_for_pruning(optimizer)
    ASP.compute_sparse_masks()

or `ASP.prune_trained_model(model, optimizer)`, which is all three. `ASP.of(model)` has the calls for one model of
several.
"""

from __future__ import annotations

from onnxsparse.dialects.asp.asp import ASP

__all__ = ["ASP"]
