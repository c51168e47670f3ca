"""Pruning of whole filters or input channels, of some parameters together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxsparse.epochs.gradual import Gradual
from onnxsparse.epochs.host import Host
from onnxsparse.epochs.masks import demand_alike, drop_of, keep_together
from onnxsparse.epochs.params import Param, find


class Structured(Gradual):
    """Of a group of parameters the same outputs, or inputs, go: by the sum of their norms."""

    def __init__(self, *arguments: Any, groups: Sequence[Sequence[str]] = (), **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._named_groups = groups

    def bind(self, params: Sequence[Param]) -> None:
        super().bind(params)
        found = [find(self._params, names, f"{self.where}: param_groups") for names in self._named_groups]
        grouped = {param.tag for group in found for param in group}
        self._sets = [*found, *([param] for param in self._params if param.tag not in grouped)]
        self._pattern_by_tag = {param.tag: pattern for param, pattern in zip(self._params, self._patterns)}
        for group in found:
            demand_alike(self._pattern_by_tag[group[0].tag], group, f"{self.where}: param_groups")

    def update(self, host: Host, epoch: float) -> None:
        progress = self.span.progress(epoch)
        for group in self._sets:
            pattern = self._pattern_by_tag[group[0].tag]
            smallest = min(group, key=lambda param: pattern.units(param.shape4))
            drop = drop_of(pattern, smallest, self._level(smallest, progress))
            keeps = keep_together(pattern, group, [host.numbers(param) for param in group], drop)
            for param, keep in zip(group, keeps):
                host.put_for(self, param, keep)
