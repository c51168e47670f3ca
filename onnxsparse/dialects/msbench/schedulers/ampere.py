"""AmpereScheduler: N:M for sparse tensor cores, with masks that are chosen once and kept while the optimizer steps.

1. A layer is pruned where its outputs are a multiple of 8 and its inputs one of 16, inside a group, as ASP has it; by a
   callable wherever its inputs hold a whole group of 4. Transposed convolutions have to be named in the whitelist.
2. Masks are chosen when the optimizer is handed over. With `allow_recompute_mask` they may be chosen again
   (`compute_sparse_masks`), and the numbers under them brought back (`restore_pruned_weights`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxsparse import patterns
from onnxsparse.dialects.msbench.configuration import Configuration
from onnxsparse.dialects.msbench.left_dense import unknown
from onnxsparse.dialects.msbench.reordering import reordered
from onnxsparse.dialects.msbench.schedulers.scheduler import BaseScheduler
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.patterns.nm import NOfM
from onnxsparse.targets.ampere import PROFILES
from onnxsparse.train.layers import Promise, Site

if TYPE_CHECKING:
    from onnxsparse.dialects.msbench.masking import When

ASP = PROFILES["asp"]
PROFILE = "ampere:asp"
NOT_HANDED = (
    "training goes on, and init_optimizer was not called: it chooses the masks, and nothing becomes zero without it; "
    "call init_optimizer(optimizer) before the first step"
)
STAYING = (
    "allow_permutation: masks in the graph of a model are for its channels as they stand; `onnxsparse permute` it first"
)
STASH, TRANSPOSED = "stash/", "ConvTranspose"
OPERATORS = {
    "Linear": ("Gemm", "MatMul"),
    **{f"Conv{axes}d": ("Conv",) for axes in (1, 2, 3)},
    **{f"ConvTranspose{axes}d": ("ConvTranspose",) for axes in (1, 2, 3)},
}
"""What classes of torch are in ONNX."""


class AmpereScheduler(BaseScheduler):
    """Masks of 2:4, or any N:M, that stay."""

    has_levels = True
    order_of_checkpoint, _order = "", ""
    """The record of the permutation: of a checkpoint that the run goes on from, and of the network as it is."""

    def _configure(self, config: Configuration) -> None:
        super()._configure(config)
        calculator = self.kwargs["mask_calculator"]
        self._calculator = calculator if callable(calculator) else None
        self.pattern = patterns.parse("2:4" if self._calculator else _pattern_of(calculator))
        self._masked = self._handed = False

    def _begin(self) -> None:
        sites = self._network.sites
        kinds = self._kinds(sites)
        refused = {site.key: self._refused(site, kinds) for site in sites if site.key not in self._dense}
        self._unfit = {key: reason for key, reason in refused.items() if reason}
        self._dense_by_choice, self._dense = dict(self._dense), {**self._dense, **self._unfit}
        self._left_unfit(self._unfit)
        for site in sites:
            self._say(3, f"{site.name}: {self._dense.get(site.key) or self.pattern.text}")
        if self.kwargs["allow_permutation"]:
            self._permute()
        self._network.use({site.key: "mask" for site in self.prunable})

    def _permute(self) -> None:
        """Put the channels in an order in which more is kept; what was prepared may be another network then."""
        if self._silent:
            self._note(STAYING)
            return
        assert isinstance(self.pattern, NOfM)
        before = self._network
        found = reordered(before, self.prunable, self.pattern, self.order_of_checkpoint)
        self._network, self._order = found.network, found.record
        self._handle = found.network if self._handle is before else self._handle
        if found.reason:
            self._note(f"allow_permutation: the channels stay in their order: {found.reason}")

    def _kinds(self, sites: Sequence[Site]) -> set[str] | None:
        """Names of layer kinds; for ONNX classes of torch are its operators. What names no layer is noted."""
        kinds = _named(self.kwargs["whitelist"])
        if kinds is None:
            return None
        meant = {one: {one} if self._network.is_torch else {one, *OPERATORS.get(one, ())} for one in kinds}
        known = {one for site in sites for one in (site.kind, *site.within)}
        for line in unknown("whitelist", sorted(one for one in kinds if not meant[one] & known), known):
            self._note(line)
        return set[str]().union(*meant.values())

    def _refused(self, site: Site, kinds: set[str] | None) -> str:
        if kinds is not None and not kinds & {site.kind, *site.within}:
            return "not in the whitelist"
        if kinds is None and self._calculator is None and site.kind == TRANSPOSED:
            return f"no kernel for it has {self.pattern.text}"
        _, out, inputs, _ = site.shape4
        if self._calculator is None and (out % ASP.out or inputs % ASP.inputs):
            return f"{inputs} inputs and {out} outputs are no multiples of {ASP.inputs} and {ASP.out}"
        return site.refuses(self.pattern) or ("" if self.pattern.units(site.shape4) else "it holds no whole group")

    def _missing(self) -> str:
        return NOT_HANDED if self.prunable and not (self._masked or self._handed) else ""

    def _optimized(self) -> None:
        self._handed = True
        if not self._masked:
            self.compute_sparse_masks()

    def compute_sparse_masks(self) -> None:
        """Choose the masks by the numbers as they are now; again only where the configuration allows it."""
        network = self._demand("compute_sparse_masks")
        recomputes = bool(self.kwargs["allow_recompute_mask"])
        if self._masked and not recomputes:
            raise OptionError("the masks are there already; to choose them again set allow_recompute_mask to True")
        if self._masked:
            self.restore_pruned_weights()
        if recomputes:
            whole = {f"{STASH}{site.key}": np.array(network.weight(site.key)) for site in self.prunable}
            network.kept.update(whole)
        network.set_masks({site.key: self._kept(site) for site in self.prunable})
        self._masked = True
        self._say(1, f"{len(self.prunable)} of {len(network.sites)} layers are {self.pattern.text}")

    def _kept(self, site: Site) -> Array:
        weight: Array = self._network.weight(site.key)
        if self._calculator is None:
            return site.keep(self.pattern, weight, self.pattern.drop_count(site.shape4, 0.0))
        try:
            mask: Array = np.asarray(self._calculator(np.array(weight)))
        except Exception as error:  # whatever a function of the user's raises
            line = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise OptionError(f"mask_calculator failed for {site.name}: {line}") from error
        if mask.shape != site.shape or mask.dtype.kind not in "biuf":
            raise OptionError(f"the mask that was calculated for {site.name} is no mask of shape {list(site.shape)}")
        kept: Array = mask != 0
        return kept

    def restore_pruned_weights(self) -> None:
        """Dense again: what is masked gets the numbers that it had when the masks were chosen."""
        network = self._demand("restore_pruned_weights")
        if not self.kwargs["allow_recompute_mask"]:
            raise OptionError("pruned weights were not kept; to bring them back set allow_recompute_mask to True")
        masks = network.masks()
        whole = {site.key: np.ones(site.shape, bool) for site in self.prunable}
        network.set_masks(whole)
        for site in self.prunable:
            weight, kept = network.weight(site.key), network.kept.get(f"{STASH}{site.key}")
            weight[...] = weight if kept is None else np.where(masks[site.key], weight, kept)
        self._masked = False

    def is_sparsity_enabled(self) -> bool:
        return self._masked

    def set_moment(self, moment: When, shapes: Mapping[str, list[int]] | None) -> None:
        """A target may be said, where it is the one that its masks are for."""
        if moment.target is not None and moment.target.partition(":")[0] != "ampere":
            raise OptionError(f"AmpereScheduler prunes for --target ampere, not {moment.target!r:.40}")
        super().set_moment(replace(moment, target=None), shapes)

    def go_to(self, when: When) -> None:
        self.iteration = self._iteration_of(when)
        if not self._masked:
            self.compute_sparse_masks()

    def fits(self, facts: Mapping[str, Any]) -> bool:
        return isinstance(facts.get("masked"), bool)

    def facts(self) -> dict[str, Any]:
        return {"masked": self._masked, **({"order": self._order} if self._order else {})}

    def resume(self, facts: Mapping[str, Any]) -> None:
        if not self._network.is_torch and str(facts.get("order", "")) != self._order:
            raise OptionError(
                "the state is of another order of channels: prepare the model that the run began with, and with the "
                "same allow_permutation"
            )
        self._masked = self._handed = bool(facts["masked"])

    def _prune(self, iteration: int) -> None:
        """Masks stay as they are."""
        if not (self._masked or self._handed):
            raise OptionError("init_optimizer is missing before prune_model: it is what chooses the masks")

    def _keep_promise(self) -> None:
        text = "unstructured" if self._calculator else self.pattern.text
        rows = {site.key: text for site in self.prunable if self._masked}
        fits = text.split(":")[:2] == ["2", "4"] and all(site.kind != TRANSPOSED for site in self.prunable)
        target = PROFILE if fits else None
        self._network.promise = Promise(rows, target, None, self._dense_by_choice)


WAYS = {"1d": "", "2d_best": ":transposable", "2d_greedy": ":transposable-greedy"}


def _pattern_of(name: Any) -> str:
    """`m4n2_1d` keeps 2 of every 4; `m4n2_2d_best` and `m4n2_2d_greedy` do so in rows and columns."""
    match = re.fullmatch(rf"m(\d+)n(\d+)_({'|'.join(WAYS)})", name) if isinstance(name, str) else None
    if match is None:
        raise OptionError(
            "mask_calculator is m4n2_1d, m4n2_2d_best or m4n2_2d_greedy, any mMnN_ of these, or a callable, not "
            f"{name!r:.40}"
        )
    return f"{int(match[2])}:{int(match[1])}{WAYS[match[3]]}"


def _named(whitelist: Any) -> set[str] | None:
    """Names of layer kinds; classes count by their names."""
    if whitelist is None:
        return None
    listed = [whitelist] if isinstance(whitelist, (str, type)) else whitelist
    if not isinstance(listed, (list, tuple, set, frozenset)) or not all(isinstance(one, (str, type)) for one in listed):
        raise OptionError(f"whitelist is a list of operators or classes, not {whitelist!r:.60}")
    return {one if isinstance(one, str) else one.__name__ for one in listed}
