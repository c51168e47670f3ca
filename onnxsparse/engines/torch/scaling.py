"""What float16 needs: losses are scaled up, so that small gradients do not vanish, and gradients down again.

A gradient that overflows makes the scale smaller, and its update is left out. Where the scale has become tiny it is not
float16 that the gradients do not fit into: they are no numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onnxsparse.engines.engine import DivergedError
from onnxsparse.engines.torch.library import torch

SMALLEST = 1e-4


class Scaling:
    """torch's scaler over some parameters; without `wanted` nothing is scaled."""

    def __init__(self, device: Any, wanted: bool, parameters: Iterable[Any]) -> None:
        self.wanted = wanted
        self._scaler = torch().amp.GradScaler(device.type, enabled=wanted)
        self._parameters = list(parameters)
        self._holder = torch().optim.SGD(self._parameters, lr=0.0)  # what the scaler takes gradients from

    def grown(self, loss: Any) -> Any:
        return self._scaler.scale(loss) if self.wanted else loss

    @property
    def factor(self) -> float:
        """What gradients are multiplied with until `shrink`."""
        return float(self._scaler.get_scale()) if self.wanted else 1.0

    def shrink(self) -> bool:
        """Take the scale off the gradients; False where one of them overflowed."""
        if not self.wanted or all(parameter.grad is None for parameter in self._parameters):
            return True
        self._scaler.unscale_(self._holder)
        before = self._scaler.get_scale()
        self._scaler.update()
        if self._scaler.get_scale() >= before:
            return True
        if self._scaler.get_scale() < SMALLEST:
            raise DivergedError("the gradients are no numbers any more; use a lower --lr, or --precision bfloat16")
        return False

    def state(self) -> dict[str, Any]:
        return dict(self._scaler.state_dict())

    def restore(self, state: Mapping[str, Any]) -> None:
        if self.wanted and state:
            self._scaler.load_state_dict(dict(state))
