"""Zeros that stay: masks of what is zero, looked at anew at every step, so that new zeros stay as well."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxsparse.epochs.act import Act, Goal
from onnxsparse.epochs.host import Host
from onnxsparse.epochs.params import Param, find
from onnxsparse.patterns.unstructured import Unstructured
from onnxsparse.schedules import NEVER, Span


class Constant(Act):
    """Holds the zeros that parameters have."""

    def __init__(self, where: str, span: Span, params: str | Sequence[str]) -> None:
        super().__init__(where, Span(span.start, span.end, NEVER))
        self._wanted = params
        self._seen: dict[str, tuple[int, int]] = {}

    def bind(self, params: Sequence[Param]) -> None:
        self._params = find(params, self._wanted, f"{self.where}: params")

    def masked(self) -> list[Param]:
        return self._params

    def goals(self) -> dict[str, Goal]:
        """The zeros of the beginning; what others make zero before it begins is theirs to name."""
        found = {}
        for param in self._params:
            assert param.numbers is not None
            keep = param.numbers().reshape(-1) != 0
            found[param.tag] = Goal(Unstructured(), int(keep.size - np.count_nonzero(keep)), keep)
        return found

    def update(self, host: Host, epoch: float) -> None:
        for param in self._params:
            if self._look(host, param) != self._seen.get(param.tag):
                keep, mask = host.numbers(param) != 0, host.mask(param)
                if mask is None or not np.array_equal(keep, mask):
                    host.put_for(self, param, keep)
                self._seen[param.tag] = self._look(host, param)

    def _look(self, host: Host, param: Param) -> tuple[int, int]:
        """As long as neither changes, zeros and mask are what they were."""
        return host.count(param), host.renewals[param.tag]
