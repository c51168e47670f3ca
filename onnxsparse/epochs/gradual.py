"""Pruning by magnitude that rises from a first to a last level, each parameter alone or all together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

import numpy as np

from onnxsparse import schedules
from onnxsparse.epochs.act import Act, Goal
from onnxsparse.epochs.host import Host
from onnxsparse.epochs.masks import MaskType, drop_of, drops_together, keep_of, no_unit, pattern_of
from onnxsparse.epochs.params import Param, find, named
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.patterns.nm import NMRamp
from onnxsparse.patterns.pattern import Pattern
from onnxsparse.schedules import Span

Levels = Union[float, Mapping[float, Sequence[str]]]
FROM_PARAM = "__FROM_PARAM__"


class Gradual(Act):
    """New masks at every update, chosen from what is not zero yet."""

    def __init__(
        self,
        where: str,
        span: Span,
        params: str | Sequence[str] | None,
        first: float | str,
        last: Levels,
        rise: str = "cubic",
        mask_type: MaskType = "unstructured",
        together: bool = False,
        leave_enabled: bool = True,
    ) -> None:
        super().__init__(where, span)
        self._wanted, self._first, self._last, self._mask_type = params, first, last, mask_type
        self._schedule = schedules.parse(rise.replace("_", "-"))
        self._together, self._stays = together, leave_enabled
        self._params: list[Param] = []
        self._along: list[Param] = []
        self._left: dict[str, str] = {}
        self._own_first: dict[str, float] = {}

    def bind(self, params: Sequence[Param]) -> None:
        self._levels = self._levels_of(params)
        self._params = self._fitting([param for param in params if param.tag in self._levels])
        self._along = self._unnamed(params, [param for param in self._params if param.is_small])
        self._patterns = [pattern_of(self._mask_type, param, self.where) for param in self._params]
        if self._together and len(set(self._levels.values())) > 1:
            raise OptionError(f"{self.where}: weights that are pruned together have one final_sparsity")
        if self._together and any(isinstance(one, NMRamp) for one in self._patterns):
            raise OptionError(f"{self.where}: N:M is the same in every weight; leave global_sparsity out")

    def _fitting(self, params: Sequence[Param]) -> list[Param]:
        """Those that hold a unit of the mask; whoever has none stays dense, unless it was named."""
        reasons = {param.tag: reason for param in params if (reason := no_unit(self._mask_type, param))}
        own = self._named(params) if reasons else set()
        for param in params:
            if param.tag in reasons and (param.tag in own or len(reasons) == len(params)):
                raise OptionError(
                    f"{self.where}: {param.name} cannot have mask_type {self._mask_type}: {reasons[param.tag]}"
                )
        self._left = reasons
        return [param for param in params if param.tag not in reasons]

    def _named(self, params: Sequence[Param]) -> set[str]:
        """The tags of those among some that are meant by their own names."""
        by_level = list(self._last.values()) if isinstance(self._last, Mapping) else [self._wanted]
        return {tag for names in by_level for tag in named(params, names, self.where)}

    def _unnamed(self, params: Sequence[Param], some: list[Param]) -> list[Param]:
        own = self._named(params) if some else set()
        return [param for param in some if param.tag not in own]

    def along(self) -> list[Param]:
        return self._along

    def left(self) -> dict[str, str]:
        return self._left

    def _levels_of(self, params: Sequence[Param]) -> dict[str, float]:
        """The last level of each parameter; the first that names it counts."""
        if not isinstance(self._last, Mapping):
            return {param.tag: self._last for param in find(params, self._wanted, f"{self.where}: params")}
        found: dict[str, float] = {}
        for level, names in self._last.items():
            for param in find(params, names, f"{self.where}: final_sparsity"):
                found.setdefault(param.tag, level)
        return found

    def masked(self) -> list[Param]:
        return self._params

    def goals(self) -> dict[str, Goal]:
        drops = self._drops(1.0, [_own(param) for param in self._params] if self._together else None)
        return {
            param.tag: Goal(_whole(pattern), drop, None, self._together, self._stays)
            for param, pattern, drop in zip(self._params, self._patterns, drops)
        }

    def begin(self, host: Host, epoch: float) -> None:
        if self._first == FROM_PARAM:
            self._own_first = {param.tag: _zeros(host, param) for param in self._params}

    def update(self, host: Host, epoch: float) -> None:
        progress = self.span.progress(epoch)
        numbers = [host.numbers(param) for param in self._params] if self._together else None
        for place, drop in enumerate(self._drops(progress, numbers)):
            self._renew(host, self._params[place], self._patterns[place], drop)

    def _renew(self, host: Host, param: Param, pattern: Pattern, drop: int) -> None:
        host.put_for(self, param, keep_of(pattern, param, host.numbers(param), drop))

    def end(self, host: Host) -> None:
        if not self._stays:
            for param in self._params:
                host.release_for(self, param)

    def _drops(self, progress: float, numbers: Sequence[Array] | None) -> list[int]:
        levels = [self._level(param, progress) for param in self._params]
        if numbers is not None and levels:
            return drops_together(self._patterns, self._params, numbers, levels[0])
        return [self._drop(*each) for each in zip(self._patterns, self._params, levels)]

    def _drop(self, pattern: Pattern, param: Param, level: float) -> int:
        """N:M says itself what its last level is, of which a recipe says it about."""
        if isinstance(pattern, NMRamp) and level == self._levels[param.tag]:
            return pattern.units(param.shape4)
        return drop_of(pattern, param, level)

    def _level(self, param: Param, progress: float) -> float:
        first = self._own_first.get(param.tag, 0.0) if isinstance(self._first, str) else self._first
        return self._schedule.level(first, self._levels[param.tag], progress)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "first": self._own_first}

    def restore(self, state: dict[str, Any], host: Host) -> None:
        super().restore(state, host)
        self._own_first = {str(tag): float(level) for tag, level in state["first"].items()}


def _whole(pattern: Pattern) -> Pattern:
    return pattern.whole if isinstance(pattern, NMRamp) else pattern


def _own(param: Param) -> Array:
    assert param.numbers is not None
    return param.numbers().reshape(-1)


def _zeros(host: Host, param: Param) -> float:
    """The share of a parameter that is zero."""
    return 1.0 - np.count_nonzero(host.numbers(param)) / max(1, param.size)
