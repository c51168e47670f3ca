"""Who moves the parameters: our own optimizers in numpy, or one of torch's, made by a function of the user's.

1. Ours moves the same numbers as in the other engine, on the host.
2. Theirs has rates and decays of its own. What a run says is a share of them: the warm-up, the schedule where the user
   has none, and less after an attempt that did harm. A scheduler of theirs goes one step after every update.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from onnxsparse.engines.engine import Pace
from onnxsparse.engines.torch.lending import Lending
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.remembering import put_together, taken_apart
from onnxsparse.errors import OptionError, brief
from onnxsparse.math.values import Array
from onnxsparse.optimizers import Moments
from onnxsparse.optimizers import parse as parse_optimizer

MakeOptimizer = Callable[[Any], Any]
MakeScheduler = Callable[[Any], Any]
OPTIMIZER, SCHEDULER = "optimizer", "lr_scheduler"


class Stepping(ABC):
    """One optimizer over parameters by tag."""

    @abstractmethod
    def step(self, pace: Pace, scale: float, loss: float) -> None:
        """Move the parameters by their gradients times `scale`."""

    @abstractmethod
    def clear(self, tag: str, where: Array | None) -> None:
        """Forget a parameter, or some places of it."""

    @abstractmethod
    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """What it remembers."""

    @abstractmethod
    def restore(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        """Remember that again, as far as there are the same parameters."""


class Ours(Stepping):
    """An optimizer in numpy."""

    def __init__(self, text: str, parameters: Mapping[str, Any], lent: Lending) -> None:
        self._moments, self._parameters, self._lent = Moments(parse_optimizer(text)), parameters, lent

    def step(self, pace: Pace, scale: float, loss: float) -> None:
        for tag, parameter in self._parameters.items():
            if parameter.grad is None or tag in pace.held:
                continue
            gradient = np.ascontiguousarray(parameter.grad.detach().cpu().numpy())
            rate, decay = pace.rate_of(tag), pace.decay_of(tag, parameter.dim())
            self._moments.step(tag, self._lent.own(tag), gradient, rate, decay, scale)

    def clear(self, tag: str, where: Array | None) -> None:
        self._moments.clear(tag, where)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return self._moments.arrays(), {"counts": dict(self._moments.counts)}

    def restore(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        counts = {key: count for key, count in facts["counts"].items() if key in self._parameters}
        moments = self._moments.optimizer.moments
        self._moments.load({f"{one}/{tag}": arrays[f"{one}/{tag}"] for one in moments for tag in counts}, counts)


class Theirs(Stepping):
    """One of torch's optimizers, and perhaps a scheduler of its rates."""

    def __init__(self, make: MakeOptimizer, schedule: MakeScheduler | None, parameters: Mapping[str, Any]) -> None:
        self._parameters = parameters
        self.optimizer = _made_optimizer(make, list(parameters.values()))
        self._scheduler = None if schedule is None else _made_scheduler(schedule, self.optimizer)

    def step(self, pace: Pace, scale: float, loss: float) -> None:
        if pace.rates or pace.decays:
            raise OptionError("an optimizer of your own has rates and decays of its own; say there which differ")
        for tag, parameter in self._parameters.items():
            if tag in pace.held:
                parameter.grad = None
            elif parameter.grad is not None and scale != 1.0:
                parameter.grad.mul_(scale)
        with self._at(pace.rate):
            try:
                self.optimizer.step()
            except TypeError as error:
                kind = type(self.optimizer).__name__
                raise OptionError(f"{kind} cannot be used here, as it asks for a closure: {error}") from error
        self._go_on(loss)

    @contextmanager
    def _at(self, share: float) -> Iterator[None]:
        """A share of its rates, for one step."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        if share != 1.0:
            for group in self.optimizer.param_groups:
                group["lr"] = group["lr"] * share
        try:
            yield
        finally:
            for group, rate in zip(self.optimizer.param_groups, rates):
                group["lr"] = rate

    def _go_on(self, loss: float) -> None:
        if isinstance(self._scheduler, torch().optim.lr_scheduler.ReduceLROnPlateau):
            self._scheduler.step(loss)
        elif self._scheduler is not None:
            self._scheduler.step()

    def clear(self, tag: str, where: Array | None) -> None:
        parameter = self._parameters.get(tag)
        if parameter is None:
            return
        if where is None:
            self.optimizer.state.pop(parameter, None)
            return
        places = torch().from_numpy(np.ascontiguousarray(where)).to(parameter.device)
        for moment in self.optimizer.state.get(parameter, {}).values():
            if torch().is_tensor(moment) and moment.shape == parameter.shape:
                moment.masked_fill_(places, 0)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays: dict[str, Array] = {}
        groups = [{key: one for key, one in group.items() if key != "params"} for group in self.optimizer.param_groups]
        states = {
            tag: taken_apart(dict(self.optimizer.state[one]), f"{OPTIMIZER}/{tag}", arrays)
            for tag, one in self._parameters.items()
            if one in self.optimizer.state
        }
        facts = {
            "kind": type(self.optimizer).__name__,
            "groups": taken_apart(groups, f"{OPTIMIZER}/groups", arrays),
            "states": states,
        }
        if self._scheduler is not None:
            facts["schedule"] = taken_apart(self._scheduler.state_dict(), f"{SCHEDULER}/state", arrays)
        return arrays, facts

    def restore(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        groups = put_together(facts["groups"], arrays, "cpu")
        self._demand_same(str(facts["kind"]), groups)
        for tag, tree in facts["states"].items():
            if tag in self._parameters:
                parameter = self._parameters[tag]
                self.optimizer.state[parameter] = put_together(tree, arrays, parameter.device)
        if len(groups) == len(self.optimizer.param_groups):
            for group, options in zip(self.optimizer.param_groups, groups):
                group.update(options)
        if self._scheduler is not None and "schedule" in facts:
            self._scheduler.load_state_dict(put_together(facts["schedule"], arrays, "cpu"))

    def _demand_same(self, kind: str, groups: list[dict[str, Any]]) -> None:
        """What one optimizer remembers means nothing to another."""
        own = type(self.optimizer).__name__
        if own != kind:
            raise OptionError(f"the run began with the optimizer {kind} and cannot go on with {own}; take {kind} again")
        for group, options in zip(self.optimizer.param_groups, groups):
            other = sorted(set(group) - {"params", *options})
            if other:
                raise OptionError(f"the run began with another {kind}, which has no {', '.join(other)}")


def _made_optimizer(make: MakeOptimizer, parameters: list[Any]) -> Any:
    optimizer = make(parameters)
    if not isinstance(optimizer, torch().optim.Optimizer):
        raise OptionError(
            f"optimizer= is a function from parameters to an optimizer of torch; it gave {brief(optimizer)}"
        )
    known = {id(one) for one in parameters}
    if not all(id(one) in known for group in optimizer.param_groups for one in group["params"]):
        raise OptionError("the optimizer holds other parameters than those it was given")
    return optimizer


def _made_scheduler(make: MakeScheduler, optimizer: Any) -> Any:
    scheduler = make(optimizer)
    if not all(hasattr(scheduler, name) for name in ("step", "state_dict", "load_state_dict")):
        raise OptionError(
            f"lr_scheduler= is a function from an optimizer to a scheduler of torch; it gave {brief(scheduler)}"
        )
    return scheduler
