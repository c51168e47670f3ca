"""How weights follow their gradients. `parse` turns a word into an optimizer, `available` lists them."""

from __future__ import annotations

from typing import cast

from onnxsparse import plugins
from onnxsparse.optimizers.clip import clip_factor, finite, norm
from onnxsparse.optimizers.optimizer import Optimizer
from onnxsparse.optimizers.store import Moments

__all__ = ["Moments", "Optimizer", "available", "clip_factor", "finite", "norm", "parse"]

BUILT_IN = (
    "The AdamW inside onnxruntime-training (--engine ort): it decays biases too, and cannot forget pruned places."
)


def parse(text: str) -> Optimizer:
    """Return the optimizer that a text such as `adamw` or `sgd:momentum=0.8` stands for."""
    return cast(Optimizer, plugins.parse("optimizers", text))


def available() -> list[plugins.Entry]:
    """Describe every optimizer, and the one that an engine brings."""
    return [*plugins.available("optimizers"), plugins.Entry("ort-adamw", BUILT_IN, ())]
