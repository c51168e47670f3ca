"""Which stored tensors are parameters: those whose numbers reach a weight slot.

1. A weight slot is an input that an operator multiplies with, adds, looks up in, or scales its result with.
2. So is a stored vector that is added to, or multiplied with, what depends on the model's inputs. A single number is
   none of these.
3. Between a stored tensor and its slot may lie whatever moves numbers or computes with stored ones only. A 0/1 mask on
   the way, and a single number that scales, are no parameters.
4. Only floats are; everything else is a buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import numpy as np

from onnxsparse.graph.storage import FLOAT_KINDS, StoredTensor

Sources = Optional[frozenset[StoredTensor]]  # what a value is made of; None where it depends on the model's inputs

_MICROSOFT = "com.microsoft"
_LAYER_NORM = (1, 2)
_RECURRENT = (1, 2, 3)
SLOTS: dict[tuple[str, str], tuple[int, ...]] = {
    ("", "Conv"): (1, 2),
    ("", "ConvTranspose"): (1, 2),
    ("", "DeformConv"): (1, 3),
    ("", "Gemm"): (0, 1, 2),
    ("", "MatMul"): (0, 1),
    ("", "Einsum"): (0, 1, 2, 3),
    ("", "Gather"): (0,),
    ("", "LSTM"): (*_RECURRENT, 7),
    ("", "GRU"): _RECURRENT,
    ("", "RNN"): _RECURRENT,
    ("", "PRelu"): (1,),
    ("", "BatchNormalization"): _LAYER_NORM,
    ("", "InstanceNormalization"): _LAYER_NORM,
    ("", "GroupNormalization"): _LAYER_NORM,
    ("", "LayerNormalization"): _LAYER_NORM,
    ("", "RMSNormalization"): (1,),
    ("", "SimplifiedLayerNormalization"): (1,),
    ("", "SkipLayerNormalization"): (2, 3, 4),
    ("", "SkipSimplifiedLayerNormalization"): (2, 3),
    (_MICROSOFT, "Attention"): (1, 2),
    (_MICROSOFT, "MultiHeadAttention"): (3,),
    (_MICROSOFT, "BiasAdd"): (1,),
    (_MICROSOFT, "BiasDropout"): (1,),
    (_MICROSOFT, "BiasGelu"): (1,),
    (_MICROSOFT, "BiasSplitGelu"): (1,),
    (_MICROSOFT, "EmbedLayerNormalization"): (2, 3, 4, 5, 6),
    (_MICROSOFT, "FastGelu"): (1,),
    (_MICROSOFT, "FusedConv"): (1, 2),
    (_MICROSOFT, "FusedGemm"): (0, 1, 2),
    (_MICROSOFT, "FusedMatMul"): (0, 1),
    (_MICROSOFT, "FusedMatMulActivation"): (0, 1),
    (_MICROSOFT, "GemmFastGelu"): (1, 2),
    (_MICROSOFT, "GroupNorm"): _LAYER_NORM,
    (_MICROSOFT, "LayerNormalization"): _LAYER_NORM,
    (_MICROSOFT, "SimplifiedLayerNormalization"): (1,),
    (_MICROSOFT, "SkipGroupNorm"): (1, 2, 4),
    (_MICROSOFT, "SkipLayerNormalization"): (2, 3, 4),
    (_MICROSOFT, "SkipSimplifiedLayerNormalization"): (2, 3),
    (_MICROSOFT, "TransposeMatMul"): (0, 1),
}
TABLES = ("Gather",)  # look-ups, in what has rows
BESIDE = ("Add", "Mul")  # a stored vector beside what depends on the inputs
# operators through which numbers are followed, and the inputs that carry them; None for all. A norm, a variance or a
# size that is computed from stored numbers is none of what they are for
PATHS: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("Add", "Concat", "Div", "Einsum", "Gather", "Gemm", "MatMul", "Mul", "Sub", "Sum"), None),
    **dict.fromkeys(("Cast", "CastLike", "Dropout", "Exp", "Expand", "Flatten", "Identity", "Neg", "Pad"), (0,)),
    **dict.fromkeys(("Relu", "Reshape", "Sigmoid", "Slice", "Split", "Squeeze", "Tanh", "Tile"), (0,)),
    **dict.fromkeys(("Transpose", "Unsqueeze"), (0,)),
    "Where": (1, 2),
}
SCALING = ("Add", "Div", "Mul", "Sub", "Where")  # a single number or a mask beside a weight is none
FILLING = ("Expand", "Tile", "Pad")  # one number, many times over, is none that was learned


def own(tensor: StoredTensor) -> Sources:
    return frozenset({tensor}) if tensor.kind in FLOAT_KINDS else frozenset()


def reached(domain: str, operator: str, sources: Sequence[Sources]) -> set[StoredTensor]:
    """The stored tensors that a node makes parameters, from what each of its inputs is made of."""
    found: set[StoredTensor] = set()
    for slot in SLOTS.get((domain, operator), ()):
        if slot < len(sources) and sources[slot]:
            found |= sources[slot] or set()
    if operator in TABLES:
        found = {tensor for tensor in found if len(tensor.shape) > 1}
    if domain == "" and operator in BESIDE and None in sources:
        for one in sources:
            found |= {tensor for tensor in one or () if _vector(tensor)}
    return found


def _vector(tensor: StoredTensor) -> bool:
    return tensor.size > 1 and sum(size != 1 for size in tensor.shape) == 1


def onward(domain: str, operator: str, sources: Sequence[Sources]) -> Sources:
    """What the result of a node is made of."""
    if domain != "" or operator not in PATHS:
        return frozenset() if sources and None not in sources else None
    carried = PATHS[operator]
    given = [sources[index] for index in carried if index < len(sources)] if carried else list(sources)
    if None in given:
        return None
    parts = [one for one in given if one]
    if operator in SCALING and len(parts) > 1:
        parts = _without_scales(parts)
    if operator in FILLING:
        parts = [frozenset(tensor for tensor in part if tensor.size > 1) for part in parts]
    return frozenset().union(*parts)


def _without_scales(parts: list[frozenset[StoredTensor]]) -> list[frozenset[StoredTensor]]:
    kept = [part for part in parts if not all(tensor.size == 1 or _mask(tensor) for tensor in part)]
    return kept or parts


def _mask(tensor: StoredTensor) -> bool:
    """Zeros and ones, both of them."""
    first = tensor.read(0, min(tensor.size, 4096))
    if not np.isin(first, (0, 1)).all():
        return False
    numbers = tensor.read()
    return bool(np.isin(numbers, (0, 1)).all() and numbers.min() < numbers.max())
