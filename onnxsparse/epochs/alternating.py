"""Pruned and dense by turns, and pruned in the end (AC/DC).

1. Phases last `update_frequency` epochs; the first, third, ... are dense, but for the last one before the end.
2. In a dense phase nothing is masked, and what was pruned grows again from zero. What the optimizer remembers is
   forgotten when such a phase begins, if that is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnxsparse.epochs.gradual import Gradual
from onnxsparse.epochs.host import Host
from onnxsparse.epochs.masks import MaskType
from onnxsparse.schedules import Span


class Alternating(Gradual):
    def __init__(
        self,
        where: str,
        span: Span,
        params: str | Sequence[str] | None,
        level: float,
        mask_type: MaskType = "unstructured",
        together: bool = True,
        leave_enabled: bool = True,
        reset_momentum: bool = True,
    ) -> None:
        super().__init__(where, span, params, level, level, "linear", mask_type, together, leave_enabled)
        self._reset = reset_momentum

    def is_dense(self, epoch: float) -> bool:
        if epoch >= self.span.end - self.span.frequency:
            return False
        return math.floor((epoch - self.span.start) / self.span.frequency) % 2 == 0

    def update(self, host: Host, epoch: float) -> None:
        if not self.is_dense(epoch):
            super().update(host, epoch)
            return
        for param in self._params:
            host.release_for(self, param)
            if self._reset:
                host.forget(param)
