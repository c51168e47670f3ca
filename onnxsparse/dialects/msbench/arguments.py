"""Arguments of the published MSBench calls: a model, an optimizer, a learning rate scheduler, of ONNX or of torch.

1. A model is an ONNX file by its path or as a ModelProto, or a torch module.
2. A learning rate scheduler is begun again from the state in which it was handed over. One that has gone on already, in
   a loop that was resumed, gets its first epoch and its first rates back.
3. A ReduceLROnPlateau forgets what it has seen, and has the rate that the configuration names, or its first one.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from onnxsparse.errors import OptionError, brief, nearest
from onnxsparse.optimizers import available
from onnxsparse.passes.sources import WAYS, proto_of, taken
from onnxsparse.train.layers import Network
from onnxsparse.train.stepped_model import LoopOptions, SteppedModel


def opened(model: Any, options: Mapping[str, Any]) -> tuple[Network, Any]:
    """A network, and what the caller goes on with."""
    if isinstance(model, Network):
        return model, model
    held = taken(model) if isinstance(model, (str, os.PathLike)) else proto_of(model)
    if held is not None:
        network = SteppedModel.of(held, _options(options))
        return network, network
    if hasattr(model, "named_modules") and hasattr(model, "parameters"):
        if options:
            raise OptionError(f"{', '.join(options)} is for ONNX models; a torch module is trained by your own loop")
        from onnxsparse.train.torch_network import TorchNetwork

        return TorchNetwork(model), model
    raise OptionError(f"a model is {WAYS}, or a torch module, not {brief(model)}")


def _options(given: Mapping[str, Any]) -> LoopOptions:
    known = [one.name for one in fields(LoopOptions)]
    for name in given:
        if name not in known:
            raise OptionError(f"prepare_sparse_model has no option {name!r:.40}{nearest(name, known)}")
    optimizer = given.get("optimizer")
    return LoopOptions(**{**given, **({"optimizer": in_our_case(optimizer)} if isinstance(optimizer, str) else {})})


class Restarts:
    """A scheduler of torch, and its state when it was handed over."""

    def __init__(self, scheduler: Any, init_lr: float | Sequence[float] | None = None) -> None:
        if not hasattr(scheduler, "state_dict") or not hasattr(getattr(scheduler, "optimizer", None), "param_groups"):
            raise OptionError(f"a learning rate scheduler of torch is expected, not {brief(scheduler)}")
        plateau = any(one.__name__ == "ReduceLROnPlateau" for one in type(scheduler).__mro__)
        self.scheduler, groups = scheduler, scheduler.optimizer.param_groups
        self._state, self._rates = copy.deepcopy(scheduler.state_dict()), [group["lr"] for group in groups]
        if not plateau and _has_gone_on(scheduler):
            self._state, self._rates = _first_epoch(scheduler)
        if plateau and init_lr is not None:
            self._rates = list(init_lr) if isinstance(init_lr, Sequence) else [init_lr] * len(groups)
        if len(self._rates) != len(groups):
            raise OptionError(f"init_lr has {len(self._rates)} numbers, and the optimizer {len(groups)} groups")

    def restart(self) -> None:
        """The first epoch again; a plateau's memory is lost, and its rate is the first one."""
        self.scheduler.load_state_dict(copy.deepcopy(self._state))
        for group, rate in zip(self.scheduler.optimizer.param_groups, self._rates):
            group["lr"] = rate


def _parts(scheduler: Any) -> tuple[list[Any], bool]:
    """The schedulers that one of torch has, and whether they go one after the other."""
    return list(getattr(scheduler, "_schedulers", ())), hasattr(scheduler, "_milestones")


def _has_gone_on(scheduler: Any) -> bool:
    parts, _ = _parts(scheduler)
    first = scheduler if hasattr(scheduler, "last_epoch") or not parts else parts[0]  # a chain does not count itself
    return any(one.__name__.endswith("LRScheduler") for one in type(first).__mro__) and first.last_epoch > 0


def _first_epoch(scheduler: Any) -> tuple[dict[str, Any], list[float]]:
    """State and rates of a scheduler at its first epoch; it stays where it is."""
    now, groups = copy.deepcopy(scheduler.state_dict()), scheduler.optimizer.param_groups
    before = [{name: one for name, one in group.items() if name != "params"} for group in groups]
    for group in groups:
        group["lr"] = group.get("initial_lr", group["lr"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would rather have a step said by another call
        _go_back(scheduler, groups)
    found = copy.deepcopy(scheduler.state_dict()), [group["lr"] for group in groups]
    scheduler.load_state_dict(now)
    for group, one in zip(groups, before):
        group.update(one)
    return found


def _go_back(scheduler: Any, groups: Any) -> None:
    """The first epoch again: of schedulers that go one after the other the first's, of those in a chain all of them."""
    parts, in_turn = _parts(scheduler)
    if not parts:
        with _at_its_beginning(scheduler):
            scheduler.step(0)
        scheduler._step_count = 1
        return
    if in_turn:
        _go_back(parts[0], groups)
    for part in () if in_turn else parts:
        part.last_epoch = 0
        with _at_its_beginning(part):
            for group, rate in zip(groups, part.get_lr()):
                group["lr"] = rate
    scheduler.last_epoch, scheduler._last_lr = 0, [group["lr"] for group in groups]


@contextmanager
def _at_its_beginning(scheduler: Any) -> Iterator[None]:
    """Newer torch does not go by the epoch alone to tell the first rates from the next ones."""
    scheduler._is_initial = True
    try:
        yield
    finally:
        scheduler._is_initial = False


def text_of(optimizer: Any) -> tuple[str, float | None, float | None]:
    """An optimizer's name in our own words, its rate and its weight decay, where those are said."""
    if isinstance(optimizer, str):
        return in_our_case(optimizer), None, None
    groups = getattr(optimizer, "param_groups", None)
    kind = type(optimizer).__name__
    if not groups or kind not in _KINDS:
        raise OptionError(f"an optimizer is a name such as sgd, or SGD, Adam or AdamW of torch, not {brief(optimizer)}")
    group = groups[0]
    return _KINDS[kind](group), float(group["lr"]), float(group.get("weight_decay", 0.0))


def in_our_case(text: str) -> str:
    """The names of torch's classes are those of our optimizers, but for the case of their letters."""
    name, mark, options = text.partition(":")
    known = {entry.syntax.partition(":")[0] for entry in available()}
    return text if name in known or name.lower() not in known else f"{name.lower()}{mark}{options}"


def _sgd(group: Any) -> str:
    return f"{'nesterov' if group.get('nesterov') else 'sgd'}:momentum={group.get('momentum', 0.0)}"


def _adaptive(name: str) -> Any:
    return lambda group: f"{name}:beta1={group['betas'][0]},beta2={group['betas'][1]},eps={group['eps']}"


_KINDS = {"SGD": _sgd, "Adam": _adaptive("adam"), "AdamW": _adaptive("adamw")}
