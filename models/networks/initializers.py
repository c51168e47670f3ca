"""Initial weights of a part's convolutions and fully connected layers, as its `initializer:` names them."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from models.sections import Section

METHODS = ("msra", "xavier", "normal")


class Initializer:
    """Weights by one method, biases zero.

    msra: normal, variance 2 / inputs, which keeps the size of activations behind a ReLU; xavier: uniform, variance
    2 / (inputs + outputs); normal: of `std`.
    """

    def __init__(self, section: Section) -> None:
        self.method = section.word("method", METHODS)
        self.std = section.number("std", 0.01, 0.0) if self.method == "normal" else 0.0
        section.end()

    def __call__(self, part: Any) -> None:
        for layer in part.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                self._fill(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def _fill(self, weight: Any) -> None:
        if self.method == "msra":
            nn.init.kaiming_normal_(weight, nonlinearity="relu")
        elif self.method == "xavier":
            nn.init.xavier_uniform_(weight)
        else:
            nn.init.normal_(weight, std=self.std)


def prior_bias(layer: Any, share: float) -> None:
    """The bias at which a sigmoid of nothing else says `share`: focal loss starts where background is the rule."""
    nn.init.constant_(layer.bias, -math.log((1 - share) / share))
