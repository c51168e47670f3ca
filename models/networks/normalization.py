"""Batch normalization, trained or frozen, as `normalize:` of a part names it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from models.sections import Section

TYPES = ("solo_bn", "freeze_bn", "msbench_freeze_bn")


class FrozenBatchNorm2d(nn.Module):  # type: ignore[misc, unused-ignore]
    """What nn.BatchNorm2d computes in eval mode, from numbers that no training moves.

    `leaf_module` of a configuration names this class: nothing inside of it is traced or pruned.
    """

    def __init__(self, planes: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(planes))
        self.register_buffer("bias", torch.zeros(planes))
        self.register_buffer("running_mean", torch.zeros(planes))
        self.register_buffer("running_var", torch.ones(planes))

    def forward(self, x: Any) -> Any:
        return nn.functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"


class Normalize:
    """Makes the normalization layers of a part; `kwargs` are eps and, of one that is trained, momentum."""

    def __init__(self, section: Section) -> None:
        self.type, kwargs = section.word("type", TYPES), section.part("kwargs")
        self.frozen = self.type != "solo_bn"
        self.options = {"eps": kwargs.number("eps", 1e-5, 0.0)}
        if not self.frozen:
            self.options["momentum"] = kwargs.number("momentum", 0.1, 0.0)
        kwargs.end()
        section.end()

    def __call__(self, planes: int) -> Any:
        return (FrozenBatchNorm2d if self.frozen else nn.BatchNorm2d)(planes, **self.options)
