"""Arguments of the published MSBench calls: a model, an optimizer, a learning rate scheduler, of ONNX or of torch.

1. A model is an ONNX file by its path or as a ModelProto, or a torch module.
2. A learning rate scheduler is begun again from the state in which it was handed over. One that has gone on already, in
   a loop that was resumed, gets its first epoch and its first rates back.
3. A ReduceLROnPlateau forgets what it has seen, and has the rate that the configuration names, or its first one.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
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

    def __init__(self, scheduler: Any, init_lr: float | None = None) -> None:
        if not hasattr(scheduler, "state_dict") or not hasattr(getattr(scheduler, "optimizer", None), "param_groups"):
            raise OptionError(f"a learning rate scheduler of torch is expected, not {brief(scheduler)}")
        plateau = any(one.__name__ == "ReduceLROnPlateau" for one in type(scheduler).__mro__)
        self.scheduler, self._init = scheduler, init_lr if plateau else None
        self._state = copy.deepcopy(scheduler.state_dict())
        groups, first = scheduler.optimizer.param_groups, getattr(scheduler, "base_lrs", None)
        self._rates = [group["lr"] for group in groups]
        if not plateau and first and self._state.get("last_epoch", 0) > 0:
            self._rates = list(first)
            self._state.update({"last_epoch": 0, "_step_count": 1, "_last_lr": list(first)})

    def restart(self) -> None:
        """The first epoch again; a plateau's memory is lost, and its rate is the first one."""
        self.scheduler.load_state_dict(copy.deepcopy(self._state))
        for group, rate in zip(self.scheduler.optimizer.param_groups, self._rates):
            group["lr"] = rate if self._init is None else self._init


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
