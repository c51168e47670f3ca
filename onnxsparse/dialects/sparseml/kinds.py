"""Kinds of modifiers by what they are for, and what a model is by them at an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnxsparse.modifiers.scheduled import Scheduled
from onnxsparse.recipes.modifiers.constant import ConstantPruningModifier
from onnxsparse.recipes.modifiers.distillation import DistillationModifier
from onnxsparse.recipes.modifiers.epochs import EpochRangeModifier
from onnxsparse.recipes.modifiers.masked import Masked
from onnxsparse.recipes.modifiers.rates import (
    LearningRateFunctionModifier,
    LearningRateModifier,
    SetLearningRateModifier,
)
from onnxsparse.recipes.modifiers.structured import StructuredPruningModifier
from onnxsparse.recipes.modifiers.unsupported import (
    LayerPruningModifier,
    LayerThinningModifier,
    PerLayerDistillationModifier,
    Quantizing,
)

Kinds = tuple[type[Scheduled], ...]
EPOCH: Kinds = (EpochRangeModifier,)
LEARNING_RATE: Kinds = (SetLearningRateModifier, LearningRateModifier, LearningRateFunctionModifier)
PRUNING: Kinds = (Masked, ConstantPruningModifier, LayerPruningModifier)
QUANTIZATION: Kinds = (Quantizing,)
DISTILLATION: Kinds = (DistillationModifier, PerLayerDistillationModifier)
STRUCTURED: Kinds = (Quantizing, LayerPruningModifier, StructuredPruningModifier, LayerThinningModifier)


def those(kinds: Kinds, modifiers: Iterable[Scheduled]) -> list[Scheduled]:
    return [one for one in modifiers if isinstance(one, kinds)]


def is_quantizing(quantization: Sequence[Scheduled], epoch: float) -> bool:
    """Whether the first quantization has begun before the next epoch."""
    return any(one.start_epoch < epoch + 1 for one in quantization)


def phase(pruning: Sequence[Scheduled], quantization: Sequence[Scheduled], epoch: float) -> str | None:
    """None while masks move, or quantization begins."""
    if any(one.start_epoch <= epoch <= one.end_epoch for one in pruning):
        return None
    if any(one.start_epoch == epoch for one in quantization):
        return None
    pruned = [one for one in pruning if one.start_epoch < epoch]
    quantized = [one for one in quantization if one.start_epoch < epoch]
    if pruned and quantized:
        first = min(one.start_epoch for one in quantized)
        return "quantized_pruned" if first < min(one.start_epoch for one in pruned) else "pruned_quantized"
    return ("pruned" if pruned else "dense") if not quantized else "dense_quantized"
