"""Gradual pruning by magnitude, each weight by itself or all of them together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxsparse.epochs.act import Act
from onnxsparse.modifiers.gradual import Gradual
from onnxsparse.modifiers.scheduled import WrongOptionError

MAGNITUDE = "magnitude"
OTHERS = {
    "movement": "; movement has its own, !MovementPruningModifier",
    "MFAC": "; M-FAC has its own, !MFACPruningModifier",
    "OBS": "; OBS has its own, !OBSPruningModifier",
}


@dataclass(frozen=True)
class GMPruningModifier(Gradual):
    """Prune by magnitude, more and more.

    - !GMPruningModifier
      start_epoch: 0.0
      end_epoch: 40.0
      update_frequency: 1.0
      init_sparsity: 0.05
      final_sparsity: 0.85
      params: __ALL_PRUNABLE__
    """

    name: ClassVar[str] = "GMPruningModifier"

    global_sparsity: bool = False
    phased: bool = False
    score_type: str = MAGNITUDE

    def check(self) -> None:
        super().check()
        if self.phased:
            raise WrongOptionError("phased", "phases are what !ACDCPruningModifier has")
        if self.score_type != MAGNITUDE:
            raise WrongOptionError("score_type", f"it is {MAGNITUDE} here{OTHERS.get(self.score_type, '')}")

    def act(self) -> Act:
        return self.by_magnitude(together=self.global_sparsity)
