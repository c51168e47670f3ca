"""Parameters that are set, led from a value to another, or held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

from onnxsparse.epochs.act import Act
from onnxsparse.epochs.host import Host
from onnxsparse.epochs.params import Param, find
from onnxsparse.errors import OptionError
from onnxsparse.schedules import Span

Value = Union[float, Sequence[float]]


class Named(Act):
    """An act on some parameters."""

    def __init__(self, where: str, span: Span, params: str | Sequence[str], strict: bool = True) -> None:
        super().__init__(where, span)
        self._wanted, self._strict = params, strict
        self._params: list[Param] = []

    def bind(self, params: Sequence[Param]) -> None:
        entries = [self._wanted] if isinstance(self._wanted, str) else list(self._wanted)
        if self._strict:
            self._params = find(params, entries, f"{self.where}: params")
            return
        known: set[str] = set()
        for entry in entries:
            try:
                known.update(param.tag for param in find(params, [entry], self.where))
            except OptionError:  # whoever is not strict does not mind what is not there
                continue
        self._params = [param for param in params if param.tag in known]


class Setting(Named):
    """One value, at its start."""

    def __init__(self, where: str, span: Span, params: str | Sequence[str], value: Value, strict: bool = True) -> None:
        super().__init__(where, span, params, strict)
        self._value = value

    def bind(self, params: Sequence[Param]) -> None:
        super().bind(params)
        demand_size(self._params, self._value, self.where)

    def begin(self, host: Host, epoch: float) -> None:
        for param in self._params:
            host.fill(param, self._value)


class Leading(Named):
    """From a first to a last value, in a straight line."""

    def __init__(
        self, where: str, span: Span, params: str | Sequence[str], first: Value, last: Value, strict: bool = True
    ) -> None:
        super().__init__(where, span, params, strict)
        self._first, self._last = first, last

    def bind(self, params: Sequence[Param]) -> None:
        super().bind(params)
        demand_size(self._params, self._first, self.where)

    def update(self, host: Host, epoch: float) -> None:
        share = self.span.progress(epoch)
        value = _between(self._first, self._last, share)
        for param in self._params:
            host.fill(param, value)


class Holding(Named):
    """Lets parameters train or stand still, and at its end do again what they did before."""

    def __init__(
        self, where: str, span: Span, params: str | Sequence[str], trainable: bool, strict: bool = True
    ) -> None:
        super().__init__(where, span, params, strict)
        self._trainable = trainable
        self._before: dict[str, bool] = {}

    def begin(self, host: Host, epoch: float) -> None:
        self._before = {param.tag: host.held(param) for param in self._params}
        self._hold(host)

    def end(self, host: Host) -> None:
        for param in self._params:
            host.hold(param, self._before[param.tag])

    def _hold(self, host: Host) -> None:
        for param in self._params:
            host.hold(param, not self._trainable)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "before": self._before}

    def restore(self, state: dict[str, Any], host: Host) -> None:
        super().restore(state, host)
        self._before = {str(tag): bool(held) for tag, held in state["before"].items()}


class Telling(Act):
    """Says how sparse the model is."""

    def update(self, host: Host, epoch: float) -> None:
        host.tell(epoch)


def demand_size(params: Sequence[Param], value: Value, where: str) -> None:
    for param in params:
        if not isinstance(value, (int, float)) and len(value) not in (1, param.size):
            raise OptionError(f"{where}: {param.name} has {param.size} numbers, not {len(value)}")


def _between(first: Value, last: Value, share: float) -> Value:
    if isinstance(first, (int, float)) and isinstance(last, (int, float)):
        return last if share == 1.0 else first + share * (last - first)
    assert not isinstance(first, (int, float))
    assert not isinstance(last, (int, float))
    return [_number(one, other, share) for one, other in zip(first, last)]


def _number(first: float, last: float, share: float) -> float:
    return last if share == 1.0 else first + share * (last - first)
