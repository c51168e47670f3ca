"""Sparsify's Create: a recipe made by a few words, and put around a training loop in torch.

    from onnxsparse import create

    manager, optimizer = create.initialize(model, optimizer, steps_per_epoch)

`create_recipe` makes the same recipe for an ONNX model.
"""

from __future__ import annotations

from onnxsparse.dialects.create import schemas
from onnxsparse.dialects.create.loop import initialize
from onnxsparse.dialects.create.schemas import RecipeVariables

__all__ = ["RecipeVariables", "initialize", "schemas"]
