"""A torch module and its optimizer as what modifiers act on.

1. Masks are put on the module's own parameters (see `engines.torch.holding`), which stay the objects that the optimizer
   holds. State dicts keep their names.
2. The optimizer is the user's: its groups have the rates and decays, and its moments are cleared where a mask changes.
3. Without an optimizer, as where a recipe is applied at once, rates and decays mean nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np

from onnxsparse.dialects.sparseml.module_params import Homes, numbers_of, params_of
from onnxsparse.engines.torch.attach import demand_free
from onnxsparse.engines.torch.holding import mask_of, put_on, take_off, zero
from onnxsparse.engines.torch.library import torch
from onnxsparse.epochs.act import Act
from onnxsparse.epochs.host import Groups, Host
from onnxsparse.epochs.params import Param
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array

LOG = logging.getLogger("onnxsparse")


class ModuleHost(Host):
    """The parameters of a module in a user's loop."""

    def __init__(self, module: Any, loggers: Any = None) -> None:
        super().__init__()
        self.module = demand_free(module)
        found = params_of(self.module)
        bare = next((param.name for param, tensor, _ in found if tensor.is_meta), None)
        if bare is not None:
            raise OptionError(f"the parameter {bare} has no numbers yet, it is on the device meta; load them first")
        self.params = [param for param, _, _ in found]
        self._tensors = {param.tag: tensor for param, tensor, _ in found}
        self._homes: dict[str, Homes] = {param.tag: homes for param, _, homes in found}
        self._masked: dict[str, None] = {}
        self.loggers = loggers
        self.optimizer: Any = None
        self.per_epoch = 1
        self.rates_set: list[float] | None = None

    def meet(self, optimizer: Any, per_epoch: float) -> None:
        """The optimizer, and how many of its steps make an epoch; gradients that add up make it no whole number."""
        self.optimizer, self.per_epoch = optimizer, cast(int, per_epoch)

    # -- masks

    def attach(self, params: Iterable[Param]) -> None:
        """Open masks, so that the module keeps its form from now on."""
        for param in params:
            if param.tag not in self._masked:
                tensor, homes = self._tensors[param.tag], self._homes[param.tag]
                keep = torch().ones(tensor.shape, dtype=torch().bool, device=tensor.device)
                for owner, name in homes:
                    put_on(owner, name, keep)
                self._masked[param.tag] = None

    def detach(self) -> None:
        """The plain module again, with zeros where masks were."""
        for tag in self._masked:
            for owner, name in self._homes[tag]:
                take_off(owner, name)
        self._masked = {}

    def settle(self) -> None:
        """Zeros at all masked places, whatever the optimizer did to them."""
        for tag in self._masked:
            zero(self._tensors[tag], self._keep(tag))

    def numbers(self, param: Param) -> Array:
        if param.tag in self._masked:
            zero(self._tensors[param.tag], self._keep(param.tag))
        return cast(Array, numbers_of(self._tensors[param.tag]))

    def count(self, param: Param) -> int:
        return int(torch().count_nonzero(self._tensors[param.tag]))

    def mask(self, param: Param) -> Array | None:
        if param.tag not in self._masked:
            return None
        return cast(Array, self._keep(param.tag).cpu().numpy().reshape(-1))

    def put(self, param: Param, keep: Array) -> None:
        self.renewals[param.tag] += 1
        self.attach([param])
        tensor = self._tensors[param.tag]
        made = torch().from_numpy(np.ascontiguousarray(keep.reshape(param.shape))).to(tensor.device)
        changed = not bool(torch().equal(made, self._keep(param.tag)))
        for owner, name in self._homes[param.tag]:
            mask_of(owner, name).keep = made
        zero(tensor, made)
        if tensor.grad is not None:  # it came before the mask
            zero(tensor.grad, made)
        if changed:
            self._clear(tensor, made)

    def release(self, param: Param) -> None:
        self.renewals[param.tag] += 1
        if param.tag in self._masked:
            self.settle()
            open_ = torch().ones_like(self._keep(param.tag))
            for owner, name in self._homes[param.tag]:
                mask_of(owner, name).keep = open_

    def mask_tensor(self, act: Act, param: Param) -> Any:
        """A copy of the mask that an act has on a parameter, as a tensor of bools."""
        mine, whole = self.own_mask(act, param), self._keep(param.tag)
        return whole.clone() if mine is None else torch().from_numpy(mine.reshape(param.shape).copy()).to(whole.device)

    def _keep(self, tag: str) -> Any:
        owner, name = self._homes[tag][0]
        return mask_of(owner, name).keep

    # -- numbers and moments

    def fill(self, param: Param, value: float | Sequence[float]) -> None:
        tensor = self._tensors[param.tag]
        made = torch().as_tensor(value, dtype=tensor.dtype, device=tensor.device).reshape(-1)
        with torch().no_grad():
            tensor.copy_(made.expand(tensor.numel()).reshape(tensor.shape))

    def forget(self, param: Param) -> None:
        tensor = self._tensors[param.tag]
        self._clear(tensor, torch().zeros(tensor.shape, dtype=torch().bool, device=tensor.device))

    def _clear(self, tensor: Any, keep: Any) -> None:
        """Moments are those states of an optimizer that have the shape of the parameter."""
        states = getattr(self.optimizer, "state", {}).get(tensor, {})
        for state in states.values():
            if torch().is_tensor(state) and state.shape == tensor.shape:
                zero(state, keep)

    def held(self, param: Param) -> bool:
        return not self._tensors[param.tag].requires_grad

    def hold(self, param: Param, still: bool) -> None:
        self._tensors[param.tag].requires_grad_(not still)
        if still:
            self._tensors[param.tag].grad = None

    # -- the optimizer

    def rates(self, groups: Groups) -> list[float]:
        return [float(group["lr"]) for group in self._groups(groups)]

    def set_rates(self, rates: Sequence[float], groups: Groups) -> None:
        chosen = self._groups(groups)
        for place, group in enumerate(chosen):
            rate = rates[place if len(rates) > 1 else 0]
            if torch().is_tensor(group["lr"]):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self.rates_set = self.rates(None)

    def set_decay(self, decay: float, groups: Groups) -> None:
        for group in self._groups(groups):
            group["weight_decay"] = decay

    def _groups(self, groups: Groups) -> list[Any]:
        known = [] if self.optimizer is None else self.optimizer.param_groups
        return list(known) if groups is None else [known[place] for place in groups if known]

    # -- what is told

    def tell(self, epoch: float) -> None:
        for name, value in self._figures().items():
            LOG.info("epoch %g: %s %.4f", epoch, name, value)
            for one in self.loggers if isinstance(self.loggers, (list, tuple)) else [self.loggers]:
                if callable(getattr(one, "log_scalar", None)):
                    one.log_scalar(tag=name, value=value, step=epoch)
                elif callable(one):
                    one(name, value, epoch)

    def _figures(self) -> dict[str, float]:
        found = {}
        for param in self.params:
            if param.prunable:
                zeros = int((self._tensors[param.tag] == 0).sum())
                found[f"sparsity/{param.name}"] = zeros / max(1, param.size)
        return found
