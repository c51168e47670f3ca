"""What is zero stays zero: for models that are sparse already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.epochs.act import Act
from onnxsparse.epochs.constant import Constant
from onnxsparse.modifiers.scheduled import REQUIRED, Scheduled, demand_params


@dataclass(frozen=True)
class ConstantPruningModifier(Scheduled):
    """Keep the zeros that the weights have.

    - !ConstantPruningModifier
      params: __ALL__
    """

    name: ClassVar[str] = "ConstantPruningModifier"

    params: str | tuple[str, ...] = REQUIRED

    def check(self) -> None:
        demand_params("params", self.params)

    def act(self) -> Act:
        return Constant(self.called, self.span, self.params)
