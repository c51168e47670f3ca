"""Optimizer step and optimizer state in torch: our own optimizers in numpy, or one of torch's that the user makes.

1. Our own moves the same numbers as in the other engine, on the host.
2. One of the user's has rates and decays of its own. What a run says is a share of them: the warm-up, the schedule
   where the user has none, and less after an attempt that did harm. A scheduler of the user's goes one step after every
   update.
3. Its state is saved as arrays and JSON, so that nothing of a file is ever executed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxsparse.engines.engine import Pace
from onnxsparse.engines.processes import Processes
from onnxsparse.engines.torch.library import torch
from onnxsparse.errors import OptionError, brief
from onnxsparse.math.values import Array
from onnxsparse.optimizers import Moments
from onnxsparse.optimizers import parse as parse_optimizer

MakeOptimizer = Callable[[Any], Any]
MakeScheduler = Callable[[Any], Any]
OPTIMIZER, SCHEDULER = "optimizer", "lr_scheduler"


class OptimizerStep(ABC):
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


class NumpyOptimizer(OptimizerStep):
    """An optimizer in numpy."""

    def __init__(self, text: str, parameters: Mapping[str, Any], live: LiveArrays) -> None:
        self._moments, self._parameters, self._live = Moments(parse_optimizer(text)), parameters, live

    def step(self, pace: Pace, scale: float, loss: float) -> None:
        for tag, parameter in self._parameters.items():
            if parameter.grad is None or tag in pace.held:
                continue
            gradient = np.ascontiguousarray(parameter.grad.detach().cpu().numpy())
            rate, decay = pace.rate_of(tag), pace.decay_of(tag, parameter.dim())
            self._moments.step(tag, self._live.own(tag), gradient, rate, decay, scale)

    def clear(self, tag: str, where: Array | None) -> None:
        self._moments.clear(tag, where)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return self._moments.arrays(), {"counts": dict(self._moments.counts)}

    def restore(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        counts = {key: count for key, count in facts["counts"].items() if key in self._parameters}
        moments = self._moments.optimizer.moments
        self._moments.load({f"{one}/{tag}": arrays[f"{one}/{tag}"] for one in moments for tag in counts}, counts)


class TorchOptimizer(OptimizerStep):
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
    known = set(parameters)
    if not all(one in known for group in optimizer.param_groups for one in group["params"]):
        raise OptionError("the optimizer holds other parameters than those it was given")
    return optimizer


def _made_scheduler(make: MakeScheduler, optimizer: Any) -> Any:
    scheduler = make(optimizer)
    if not all(hasattr(scheduler, name) for name in ("step", "state_dict", "load_state_dict")):
        raise OptionError(
            f"lr_scheduler= is a function from an optimizer to a scheduler of torch; it gave {brief(scheduler)}"
        )
    return scheduler


# -- What an engine in torch is told besides the graph.


@dataclass(frozen=True)
class Setting:
    """Where and how exactly is trained, and by whose optimizer."""

    device: str = "cpu"
    precision: str = "float32"
    optimizer: str | MakeOptimizer = "relative"
    lr_scheduler: MakeScheduler | None = None
    processes: Processes = field(default_factory=Processes)


PLAIN = Setting()


# -- Tensors as arrays on the host, live as far as that is possible.
#
# On the CPU an array is the tensor's own memory. From another device it is a copy, which is sent back, if it was handed
# out, before the tensor is used again.


def on_host(tensor: Any) -> bool:
    """Whether numpy can use the memory of a tensor."""
    return bool(tensor.device.type == "cpu")


class LiveArrays(Mapping[str, Array]):
    """Arrays by the keys of tensors; `handed` are those that somebody may have written into."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.tensors = tensors
        self.handed: set[str] = set()
        self._live: dict[str, Array] = {}

    def __getitem__(self, key: str) -> Array:
        array = self.own(key)
        self.handed.add(key)
        return array

    def own(self, key: str) -> Array:
        """The array, for what does the same in all processes."""
        tensor = self.tensors[key].detach()
        if on_host(tensor):
            array: Array = tensor.numpy()
            return array
        if key not in self._live:
            self._live[key] = tensor.to("cpu", copy=True).numpy()
        return self._live[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def send(self) -> None:
        """What was handed out is what the tensors are."""
        with torch().no_grad():
            for key, array in self._live.items():
                self.tensors[key].copy_(torch().from_numpy(array))
        self._live.clear()


# -- States of torch's own objects as arrays and JSON, so that nothing of a file is ever executed.
#
# What is nested becomes a tree of small lists, each with the kind of what it was first; tensors become arrays by name.


Tree = Any
_LISTS = {"list": list, "tuple": tuple, "set": set, "deque": deque}
_MAPS = {"dict": dict, "counter": Counter, "ordered": OrderedDict}


def taken_apart(value: Any, name: str, arrays: dict[str, Array]) -> Tree:
    """A value as a tree for JSON; its tensors go into `arrays`, under names that begin with `name`."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["plain", value]
    if torch().is_tensor(value):
        return _tensor(value, name, arrays)
    for kind, form in _LISTS.items():
        if type(value) is form:
            return [kind, *(taken_apart(one, f"{name}.{place}", arrays) for place, one in enumerate(value))]
    for kind, form in _MAPS.items():
        if type(value) is form or (kind == "dict" and type(value) is defaultdict):
            pairs = enumerate(value.items())
            return [kind, *([_key(key, name), taken_apart(one, f"{name}.{n}", arrays)] for n, (key, one) in pairs)]
    raise OptionError(
        f"a checkpoint cannot hold the state of your {name.partition('/')[0]}: a {type(value).__name__} is in it, "
        "which is neither numbers nor words"
    )


def put_together(tree: Tree, arrays: Mapping[str, Array], device: Any) -> Any:
    """The value again; tensors that were not on the host go to `device`."""
    kind, *rest = tree
    if kind == "plain":
        return rest[0]
    if kind == "tensor":
        name, dtype, host = rest
        made = torch().from_numpy(arrays[name].copy()).view(getattr(torch(), dtype))
        return made if host else made.to(device)
    if kind in _LISTS:
        return _LISTS[kind](put_together(one, arrays, device) for one in rest)
    return _MAPS[kind]({key: put_together(one, arrays, device) for key, one in rest})


def _tensor(value: Any, name: str, arrays: dict[str, Array]) -> Tree:
    """What numpy has no type for goes as its bits."""
    host = value.detach().cpu().contiguous()
    dtype = str(host.dtype).partition(".")[2]
    bits = host.view(torch().int16) if dtype == "bfloat16" else host.view(torch().uint8) if "float8" in dtype else host
    arrays[name] = bits.numpy()
    return ["tensor", name, dtype, value.device.type == "cpu"]


def _key(key: Any, name: str) -> Any:
    """JSON would make words of numbers as keys of an object; in a list they stay what they are."""
    if key is None or isinstance(key, (bool, int, float, str)):
        return key
    return taken_apart(key, name, {})[1]
