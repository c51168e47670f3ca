"""Batch normalizations that an exporter folded into the layer before them, checked with their own numbers.

A folded layer has the weight `s w` and the bias `(b - mean) s + beta`, with `s = gamma / sqrt(var + eps)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.sightings import Sighting, Sightings, real
from onnxsparse.graph.storage import Array

_CLOSE = {"float64": 1e-4, "float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}
SCALES, SHIFTS = ("weight", "running_var"), ("bias", "running_mean")


@dataclass(frozen=True)
class Norm:
    """A batch normalization of the module, as what it multiplies with and what it adds."""

    path: str
    scale: Array
    mean: Array
    beta: Array

    def gives(self, scale: Array, bias: Sighting, before: Any) -> bool:
        """Whether a layer with the bias `before` has that scale and that stored bias, once this is folded in."""
        if bias.tensor.size != self.scale.size or scale.size != self.scale.size:
            return False
        close, stored = _CLOSE[bias.tensor.kind], real(bias.tensor.read(), bias.tensor.kind)
        old = 0.0 if before is None else before.detach().double().cpu().numpy()
        shift = (old - self.mean) * self.scale + self.beta
        return _near(scale, self.scale, close) and _near(stored, shift, close)


def norms(owners: Iterable[tuple[str, Any]]) -> list[Norm]:
    kind = torch().nn.modules.batchnorm._BatchNorm
    return [_norm(path, one) for path, one in owners if isinstance(one, kind) and one.running_var is not None]


def _norm(path: str, module: Any) -> Norm:
    var, mean = (one.detach().double().cpu().numpy() for one in (module.running_var, module.running_mean))
    gamma, beta = (
        np.full(var.shape, plain) if one is None else one.detach().double().cpu().numpy()
        for one, plain in ((module.weight, 1.0), (module.bias, 0.0))
    )
    return Norm(path, gamma / np.sqrt(var + module.eps), mean, beta)


def bias_of(weight: Sighting, sightings: Sightings) -> tuple[NodeProto | None, Sighting | None]:
    """The node that a stored weight is multiplied in, and its stored bias: an input, or what is added next."""
    for use in weight.reads:
        node = use.node
        if use.slot != 1:
            continue
        bias = sightings.stored(node, 2)
        if bias is None and node.op_type == "MatMul":
            bias = next((one for one in sightings.beside(node) if one is not weight), None)
        return node, bias
    return None, None


def _near(one: Array, other: Array, close: float) -> bool:
    reach = max(float(np.abs(other).max(initial=0)), 1e-6)
    return bool(np.abs(one - other).max(initial=0) <= close * reach)
