"""What a modifier does by its clock. An act is bound to the parameters that it means before anything runs.

before(host, epoch)    before a step: where the clock says so, `begin`, `update` and `end` are called
after(host)            the weights have moved
finish(host)           the run is over: what should have happened by its end happens now
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from onnxsparse.epochs.host import Groups, Host
from onnxsparse.epochs.params import Param
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.patterns.pattern import Pattern
from onnxsparse.schedules import Clock, Span


@dataclass(frozen=True, eq=False)
class Goal:
    """What a parameter comes to: so many units of a pattern go, or those outside a mask."""

    pattern: Pattern
    drop: int
    keep: Array | None = None
    shared: bool = False
    """Whether the count depends on other parameters, and so on the training."""
    stays: bool = True
    """Whether the mask is still there at the end."""


class Act:
    """A modifier at work; one that does nothing but last is this."""

    number: int = -1
    """Among the acts of its host."""

    def __init__(self, where: str, span: Span) -> None:
        self.where, self.clock = where, Clock(span)

    @property
    def span(self) -> Span:
        return self.clock.span

    # -- what is known before anything runs

    def bind(self, params: Sequence[Param]) -> None:
        """Find the parameters; refuse what cannot be."""

    def left(self) -> dict[str, str]:
        """By tag, what it was meant to mask among others and cannot, and why."""
        return {}

    def along(self) -> list[Param]:
        """Scales and biases that it prunes because a word or a pattern means them among others."""
        return []

    def groups(self) -> Groups:
        """The optimizer's groups that it speaks of."""
        return None

    def masked(self) -> Iterable[Param]:
        """The parameters that have to have a mask."""
        return ()

    def goals(self) -> dict[str, Goal]:
        """By tag, what is to be of the masked parameters in the end."""
        return {}

    # -- the steps

    def before(self, host: Host, epoch: float) -> None:
        tick = self.clock.tick(epoch)
        if tick is None:
            return
        if tick.begins:
            self.begin(host, epoch)
        self.update(host, epoch)
        if tick.ends:
            self.end(host)

    def after(self, host: Host) -> None:
        """The weights have moved."""

    def finish(self, host: Host) -> None:
        """The run is over; one that has an end comes to it."""
        if not self.clock.ended and self.span.end >= 0:
            self.before(host, max(self.span.end, self.clock.last))

    def begin(self, host: Host, epoch: float) -> None:
        """Its first step comes."""

    def update(self, host: Host, epoch: float) -> None:
        """A step comes at which it acts, the first and the last ones included."""

    def end(self, host: Host) -> None:
        """Its last step has come."""

    # -- what a resumed run has to know

    def state(self) -> dict[str, Any]:
        return {"clock": self.clock.state()}

    def restore(self, state: dict[str, Any], host: Host) -> None:
        self.clock.restore(state["clock"])


def demand_one_group(act: Act) -> None:
    """A run has a single group of parameters."""
    groups = act.groups()
    if groups is not None and list(groups) != [0]:
        raise OptionError(
            f"{act.where}: param_groups {list(groups)} are not there: all parameters of a run are one group, number 0"
        )
