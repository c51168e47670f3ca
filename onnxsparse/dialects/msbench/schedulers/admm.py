"""ADMM pruning: weights are drawn towards sparse ones before they are masked.

1. For the first third of the epochs, at the beginning of each: Z is W + U with its masked numbers zero, U is what is
   left of W + U. At the very first U is 0.
2. `prune_model` returns rho / 2 * sum |W - Z + U|^2 as `loss` in that time. A loop of torch adds it; an ONNX model adds
   its gradient, rho (W - Z + U), to that of its own loss by itself.
3. Then each layer's sparsity is what it is by the weights at that time, and masks are on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxsparse.dialects.msbench.configuration import Configuration, count
from onnxsparse.dialects.msbench.generators import chosen
from onnxsparse.dialects.msbench.schedulers.scheduler import BaseScheduler, Goal
from onnxsparse.errors import OptionError
from onnxsparse.train.layers import Site

if TYPE_CHECKING:
    from onnxsparse.dialects.msbench.masking import When

DUAL, ANCHOR = "dual", "anchor"
SHARE = 3
"""One part of the epochs of so many."""


class ADMMScheduler(BaseScheduler):
    """First towards sparse weights, then sparse."""

    def _configure(self, config: Configuration) -> None:
        super()._configure(config)
        if not self.generator.masks or not self.pattern.takes_sparsity:
            raise OptionError("ADMMScheduler needs a generator of masks of any sparsity, such as NormalMaskGenerator")
        if config.target_sparsity is None:
            raise OptionError("ADMMScheduler needs sparsity: {target_sparsity: 0.5, uniform: True} beside its parts")
        self.rho = self.kwargs["rho"]
        if isinstance(self.rho, bool) or not isinstance(self.rho, (int, float)) or not self.rho > 0:
            raise OptionError(f"rho is a number above 0, not {self.rho!r:.40}")
        self._per_epoch = self._until = self._total = 0
        given = [self.kwargs[name] for name in ("iters_per_epoch", "max_iters")]
        if any(one is not None for one in given):
            self._last(*given)

    def before_run(self, model: Any, iters_per_epoch: int, max_iters: int) -> None:
        """How long an epoch and the whole training are, where the configuration does not say it."""
        self._demand("before_run")
        self._last(iters_per_epoch, max_iters)

    def _last(self, per_epoch: Any, total: Any) -> None:
        self._per_epoch = count(per_epoch, "iters_per_epoch", 1)
        self._total = count(total, "max_iters", 1)
        self._until = self._total // self._per_epoch // SHARE * self._per_epoch
        if not self._until:
            raise OptionError(
                f"the first third of {total} iterations, {per_epoch} an epoch, is none; train {SHARE} epochs or more"
            )

    def _prune(self, iteration: int) -> dict[str, Any]:
        if not self._until:
            raise OptionError(
                "ADMMScheduler has to know the epochs: before_run(model, iters_per_epoch, max_iters), or in its kwargs"
            )
        if iteration >= self._until:
            self._release()
            super()._prune(iteration)
            return {"loss": 0.0}
        if iteration % self._per_epoch == 0 or not self._network.kept:
            self._split()
        return {"loss": self._network.pull()}

    def _goal(self) -> Goal | None:
        if self._begun:
            return None
        asked = self.config.target_sparsity
        how = f"masks begin at iteration {self._until}, after the first third"
        return Goal(f"target_sparsity {asked:g}", asked or 0.0, self.prunable, how)

    def _end(self) -> tuple[str, int] | None:
        return ("max_iters", self._total) if self._total else None

    def go_to(self, when: When) -> None:
        """Where nobody says how long a training is, its masks are those after the first third."""
        if not self._until and when.iteration is None:
            self._last(1, SHARE)
        self.iteration = self._iteration_of(when)
        if self._until and self.iteration < self._until:
            self._remark(f"ADMMScheduler masks nothing before iteration {self._until}: weights are drawn first")
            return
        self._prune(self.iteration)

    def _iteration_of(self, moment: When) -> int:
        return self._until if moment.iteration is None else moment.iteration

    def _rates_changed(self, sites: Sequence[Site]) -> None:
        """Before the weights are masked rates say how much is to go."""
        if self._begun:
            super()._rates_changed(sites)
        else:
            self._frozen = {}

    def _split(self) -> None:
        """Z and U anew; what the weights are drawn towards is Z - U."""
        network, zero = self._network, np.float32(0)
        whole = {
            site.key: network.weight(site.key) + network.kept.get(f"{DUAL}/{site.key}", zero) for site in self.prunable
        }
        drops = self._drops_by(whole)
        for site in self.prunable:
            numbers = whole[site.key]
            keep = chosen(site, self.pattern, self.generator, numbers, drops[site.key])
            dual = np.where(keep, zero, numbers)
            network.kept[f"{DUAL}/{site.key}"] = dual
            network.kept[f"{ANCHOR}/{site.key}"] = np.where(keep, numbers, zero) - dual
        self._draw()

    def _draw(self) -> None:
        network = self._network
        found = {site.key: network.kept.get(f"{ANCHOR}/{site.key}") for site in self.prunable}
        network.anchor({key: one for key, one in found.items() if one is not None}, self.rho)

    def _release(self) -> None:
        self._network.kept.clear()
        self._network.anchor({}, 0.0)

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "epoch": [self._per_epoch, self._until, self._total]}

    def resume(self, facts: Mapping[str, Any]) -> None:
        super().resume(facts)
        self._per_epoch, self._until, *total = (int(one) for one in facts["epoch"])
        self._total = total[0] if total else self._total  # those of 0.1.0 do not hold it
        self._draw()
