"""Learning rates and weight decay, set once or at every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnxsparse.epochs.act import Act
from onnxsparse.epochs.host import Groups, Host
from onnxsparse.rates import Way, drops, first_step, in_steps, on_the_way
from onnxsparse.schedules import NEVER, Span


class SetRate(Act):
    """One rate, from its start on."""

    def __init__(self, where: str, span: Span, rate: float, groups: Groups) -> None:
        super().__init__(where, span)
        self._rate, self._groups = rate, groups

    def groups(self) -> Groups:
        return self._groups

    def begin(self, host: Host, epoch: float) -> None:
        host.set_rates([self._rate], self._groups)


class SetDecay(Act):
    """One weight decay, from its start on."""

    def __init__(self, where: str, span: Span, decay: float, groups: Groups) -> None:
        super().__init__(where, span)
        self._decay, self._groups = decay, groups

    def groups(self) -> Groups:
        return self._groups

    def begin(self, host: Host, epoch: float) -> None:
        host.set_decay(self._decay, self._groups)


class Dropping(Act):
    """Rates that fall from a first one, by a class of its own; without a first one from what they are at the start."""

    def __init__(self, where: str, span: Span, kind: str, options: Mapping[str, Any], first: float | None) -> None:
        super().__init__(where, Span(span.start, span.end, NEVER))
        self._drops, self._given = drops(kind, dict(options), span.start), first
        self._drops.check(span.start, span.end)
        self._first: list[float] = []

    def begin(self, host: Host, epoch: float) -> None:
        self._first = host.rates(None) if self._given is None else [self._given]

    def update(self, host: Host, epoch: float) -> None:
        """What stands before the end stays behind it."""
        step, first = in_steps(epoch, host.per_epoch), first_step(self.span.start, host.per_epoch)
        if self.span.end >= 0:
            step = min(step, first_step(self.span.end, host.per_epoch) - 1)
        passed = max(0, step - first)
        host.set_rates([self._drops.rate(first, passed, host.per_epoch) for first in self._first], None)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "first": self._first}

    def restore(self, state: dict[str, Any], host: Host) -> None:
        super().restore(state, host)
        self._first = [float(one) for one in state["first"]]


class Moving(Act):
    """A rate on its way from a first to a last one."""

    def __init__(self, where: str, span: Span, function: str, way: Way, groups: Groups) -> None:
        super().__init__(where, Span(span.start, span.end, NEVER))
        self._function, self._way, self._groups = function, way, groups

    def groups(self) -> Groups:
        return self._groups

    def update(self, host: Host, epoch: float) -> None:
        host.set_rates([on_the_way(self._function, self._way, epoch, host.per_epoch)], self._groups)
