"""Trained masks: ProbMask (mask probabilities, from which one mask is sampled in the end) and STR (thresholds).

1. The share that may be kept falls from 1 - start_prune_rate, when the warm-up ends, to 1 - prune_rate, by the cube of
   what is left of the way to `finetune_iteration_stamps`.
2. Before every iteration all probabilities are lowered together until they add up to that, and the noise is drawn.
   It is sharper with every iteration: 1 / (0.97 (1 - t / total_iterations) + 0.03).
3. At `finetune_iteration_stamps` the subnet is drawn, once, and only weights train from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxsparse import sparsers
from onnxsparse.dialects.msbench.configuration import Configuration, count, share
from onnxsparse.dialects.msbench.schedulers.scheduler import BaseScheduler, Goal
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.sparsers.probabilistic import Probabilistic
from onnxsparse.sparsers.sparser import Moment
from onnxsparse.train.layers import Site

if TYPE_CHECKING:
    from onnxsparse.dialects.msbench.masking import When


class ProbMaskPruneScheduler(BaseScheduler):
    """Masks that are drawn, sharper and sparser with every iteration."""

    has_levels = True

    def _configure(self, config: Configuration) -> None:
        super()._configure(config)
        if not self.generator.sparser.startswith("probabilistic"):
            raise OptionError("ProbMaskPruneScheduler needs ProbMaskGenerator and ProbMaskFakeSparse")
        kwargs = self.kwargs
        needed = ("prune_rate", "total_iterations", "warmup_iteration_stamps", "finetune_iteration_stamps")
        missing = next((name for name in needed if kwargs[name] is None), None)
        if missing is not None:
            raise OptionError(f"ProbMaskPruneScheduler needs {missing}")
        self.target, self.start = (share(kwargs[name], name) for name in ("prune_rate", "start_prune_rate"))
        self.total = count(kwargs["total_iterations"], "total_iterations", 1)
        self.warm, self.fixed = (count(kwargs[name], name) for name in needed[2:])
        self.seed = count(kwargs["seed"], "seed")
        if not self.warm <= self.fixed <= self.total:
            raise OptionError(
                "warmup_iteration_stamps, finetune_iteration_stamps and total_iterations come in that order, not "
                f"{self.warm}, {self.fixed}, {self.total}"
            )
        self._drawn = self._expected = False

    def rate(self, iteration: int) -> float:
        """The share that is pruned before an iteration."""
        if iteration < self.warm:
            return 0.0
        if iteration >= self.fixed:
            return self.target
        left = 1 - (iteration - self.warm) / (self.fixed - self.warm)
        return self.target - (self.target - self.start) * left**3

    def _begin(self) -> None:
        if self._network.is_torch:
            self._network.draw_at(self._moments())
        self._network.use(self._soft())

    def _soft(self) -> dict[str, str]:
        return {site.key: f"{Probabilistic.name}:anneal=true" for site in self.prunable}

    def graph_changes(self) -> Iterable[int]:
        """The subnet is drawn at one iteration."""
        return (self.fixed,)

    def sparsers_at(self, iteration: int) -> dict[str, str]:
        return dict.fromkeys(self._soft(), "mask") if iteration >= self.fixed else self._soft()

    def _prune(self, iteration: int) -> None:
        if self._drawn:
            return
        self._project(iteration)
        if iteration >= self.fixed:
            self._draw()
        else:
            self._feed(iteration)

    def _project(self, iteration: int) -> None:
        network, sites = self._network, self.prunable
        size = sum(site.size for site in sites)
        trained = [network.trained(site.key) for site in sites]
        sparsers.parse(Probabilistic.name).settle_all(trained, size * (1 - self.rate(iteration)))
        for site, arrays in zip(sites, trained):
            network.sent(site.key, arrays)

    def _feed(self, iteration: int) -> None:
        network, sparser = self._network, Probabilistic(anneal=True)
        for site in self.prunable:
            moment = Moment(site.name, iteration, iteration / self.total, self.seed)
            weight = network.weight(site.key)
            network.sent(site.key, sparser.feed(weight, network.trained(site.key), weight, moment))

    def _draw(self) -> None:
        """Weights keep their numbers where they stay."""
        network, sparser = self._network, Probabilistic(anneal=True)
        masks = {key: sparser.draw(network.trained(key)["score"], moment) for key, moment in self._moments().items()}
        network.use(dict.fromkeys(masks, "mask"))
        network.set_masks(masks)
        self._drawn = True

    def _moments(self) -> dict[str, Moment]:
        """What the subnet is drawn by."""
        return {site.key: Moment(site.name, self.fixed, 1.0, self.seed) for site in self.prunable}

    # -- masks in a graph, without a training

    def _take_level(self, level: float) -> None:
        self._with_arguments(prune_rate=level / 100)

    def _iteration_of(self, moment: When) -> int:
        return self.fixed if moment.iteration is None else moment.iteration

    def go_to(self, when: When) -> None:
        """The noise of an iteration, the subnet; or what is most probable, without either."""
        self.iteration = self._iteration_of(when)
        self._expected = when.expected
        if not when.expected or self._drawn:
            self._prune(self.iteration)
            return
        self._project(self.iteration)
        network, masks = self._network, {}
        for site in self.prunable:
            masks[site.key] = most_probable(network.trained(site.key)["score"], network.weight(site.key))
        network.use(dict.fromkeys(masks, "mask"))
        network.set_masks(masks)
        self._drawn = True

    def drawn_by(self) -> dict[str, Any]:
        if self._expected:
            return {"expected": True}
        at = min(self.iteration, self.fixed)
        progress = 1.0 if self._drawn else at / self.total
        return {"seed": self.seed, "temperature": Probabilistic(anneal=True).sharpness(progress)}

    def promise_masks(self) -> None:
        """A subnet that is not drawn yet stays so."""
        super()._keep_promise()

    def level_of_moment(self) -> float:
        return round(100 * self.rate(self.iteration), 6)

    def take_masks(self, masks: Mapping[str, Array]) -> None:
        """Masks in a file are a subnet that was drawn."""
        keys = {site.key for site in self.prunable}
        self._network.use(dict.fromkeys(keys, "mask"))
        self._network.set_masks({key: keep for key, keep in masks.items() if key in keys})
        self._drawn = True

    def fits(self, facts: Mapping[str, Any]) -> bool:
        return isinstance(facts.get("drawn"), bool)

    def _goal(self) -> Goal | None:
        how = f"the subnet is drawn at iteration {self.fixed} (finetune_iteration_stamps): that of this export is early"
        return None if self._drawn else Goal(f"prune_rate {self.target:g}", self.target, self.prunable, how)

    def _end(self) -> tuple[str, int]:
        return "total_iterations", self.total

    def facts(self) -> dict[str, Any]:
        return {"drawn": self._drawn}

    def resume(self, facts: Mapping[str, Any]) -> None:
        self._drawn = bool(facts["drawn"])

    def _kept_of(self, site: Site) -> float:
        """Before the subnet is drawn: how many numbers are expected to stay."""
        if self._drawn or site.key in self._dense:
            return super()._kept_of(site)
        return float(np.sum(self._network.trained(site.key)["score"], dtype=np.float64))

    def _keep_promise(self) -> None:
        """What is exported is a subnet; a loop that ends before it was drawn gets it now."""
        if not self._drawn:
            self._draw()
        super()._keep_promise()


def most_probable(score: Array, weight: Array) -> Array:
    """As many numbers as are expected to stay, those of the highest probability; among equals the largest, then the
    later."""
    kept = int(np.floor(float(np.sum(score, dtype=np.float64)) + 0.5))
    order = np.lexsort((np.arange(score.size), np.abs(weight).reshape(-1), score.reshape(-1)))
    keep = np.zeros(score.size, bool)
    keep[order[score.size - min(kept, score.size) :]] = True
    return keep.reshape(score.shape)


# -- Thresholds that are trained; what is exported are the thresholded weights.


class STRScheduler(BaseScheduler):
    """As the plain one: nothing has to be done while the thresholds train."""
