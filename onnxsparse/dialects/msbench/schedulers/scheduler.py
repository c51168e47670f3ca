"""Base class of schedulers: prepare a network, list its prunable layers, count its zeros, and export it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxsparse import optimizers, rates
from onnxsparse.dialects.msbench.arguments import Restarts, opened, text_of
from onnxsparse.dialects.msbench.configuration import Configuration, Source, count, iteration_of, read
from onnxsparse.dialects.msbench.generators import (
    Generator,
    chosen,
    corrected_weight,
    drops_of,
    generator_of,
    pattern_of,
    threshold_of,
)
from onnxsparse.dialects.msbench.layer_rates import LayerRates, Views, rate_of
from onnxsparse.dialects.msbench.left_dense import Excluded, unfit
from onnxsparse.engines.processes import is_first_joined
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.math.values import Array
from onnxsparse.passes.delivery import Check
from onnxsparse.patterns import Pattern
from onnxsparse.patterns.nm import NM
from onnxsparse.train.layers import Network, Promise, Site

if TYPE_CHECKING:
    from onnxsparse.dialects.msbench.masking import When

NO_LAYER = "the network has no layer that can be made sparse"
NOT_BEGUN = (
    "what is exported has no zeros: call prune_model(model, iteration) before every iteration (for AmpereScheduler "
    "init_optimizer), which is what makes it sparse"
)
NOT_CALLED = (
    "training goes on, and prune_model was not called: nothing becomes zero without it; call prune_model(model, "
    "iteration) before every iteration, from 0"
)
UNPRUNED = 2
"""Steps that a loop may take before its first call: some call after their step."""
ROUNDING = 1e-9
BACKWARDS = "prune_model is given an earlier iteration than before: iterations count on through the whole training"


@dataclass(frozen=True)
class Goal:
    """What was asked for that did not come yet: the share of zeros in which layers, and what brings it."""

    asked: str
    share: float
    sites: Sequence[Site]
    how: str
    """What brings it, and when."""


class BaseScheduler:
    """Masks or thresholds as the configuration has them, without a schedule of its own."""

    level_pattern = "unstructured"
    has_levels = False
    """Whether the scheduler says by itself how much goes."""

    def __init__(self, config: Configuration) -> None:
        self._configure(config)
        self._network: Any = None
        self._handle: Any = None
        self._exported: Any = None
        self._restarts: Restarts | None = None
        self._views: Views | None = None
        self._mask_before_export: tuple[dict[str, str], dict[str, Array]] = {}, {}
        self._dense: dict[str, str] = {}
        self._reached, self._steps = -1, 0
        self._silent, self.iteration = False, 0
        self.rates, self._given_masks = LayerRates(), False
        self.notes: list[str] = []

    def _configure(self, config: Configuration) -> None:
        self.config, self.kwargs = config, dict(config.scheduler.kwargs)
        self.generator: Generator = generator_of(config)
        self.pattern = pattern_of(self.generator, self.level_pattern)
        self._begun, self._frozen = False, dict[str, int]()
        self.verbosity = count(self.kwargs["verbosity"], "verbosity")

    # -- the published calls

    def prepare_sparse_model(self, model: Any, sparsity_config: Source | None = None, **options: Any) -> Any:
        """Make a network ready to be pruned while it trains.

        A torch module comes back as itself. An ONNX model, by its path or as a ModelProto, comes back as something that
        trains by `step(batch)`; the options are those of `LoopOptions`: loss, hardness, optimizer, lr, lr_schedule,
        weight_decay, clip, train_bn, engine, seed.
        """
        if sparsity_config is not None:
            self._reconfigure(read(sparsity_config))
        self._network, self._handle = opened(model, options)
        self._demand_numbers()
        self._reached, self._steps, self.rates, self._given_masks = -1, 0, LayerRates(), False
        self._dense = self._left_out(self._network.sites)
        if self.config.fuse_bn:
            self._note("fuse_bn is ignored: batch normalizations train as they are; fuse them in what is exported")
        self._begin()
        self._demand_layers()
        self.notes += [note for note in self._network.notes if note not in self.notes]
        self._network.watch(self._stepped)
        self._network.scheduler = self
        self._views = Views(self, self._network) if self._network.is_torch else None
        return self._handle

    def set_lr_scheduler(self, lr_scheduler: Any) -> None:
        """Have a learning rate scheduler begin again with every stage: one of torch, or for ONNX the name of a rate."""
        network = self._demand("set_lr_scheduler")
        if not isinstance(lr_scheduler, str):
            self._restarts = Restarts(lr_scheduler, self.kwargs.get("init_lr"))
            if network.is_torch:
                network.follow(lr_scheduler.optimizer)
            else:
                network.scheduled = lr_scheduler
            return
        if network.is_torch:
            raise OptionError("a torch module is trained by your own loop: pass the scheduler of torch that it steps")
        rates.parse(lr_scheduler)
        network.options = replace(network.options, lr_schedule=lr_scheduler)

    def init_optimizer(self, optimizer: Any = None) -> None:
        """Keep masked places at zero after each step of an optimizer; for ONNX, train by an optimizer of that kind."""
        network = self._demand("init_optimizer")
        if network.is_torch:
            if optimizer is None:
                raise OptionError("init_optimizer takes the optimizer of torch that your loop steps")
            network.follow(optimizer)
        elif optimizer is not None:
            text, rate, decay = text_of(optimizer)
            optimizers.parse(text)
            found = replace(network.options, optimizer=text)
            network.options = found if rate is None else replace(found, lr=rate, weight_decay=decay or 0.0)
        self._optimized()

    def prune_model(self, model: Any, iteration: int) -> Any:
        """What has to be done before an iteration, counted from 0."""
        self._demand("prune_model", model)
        self.iteration = iteration_of(iteration)
        self._look_at_iteration(self.iteration)
        return self._prune(self.iteration)

    def _look_at_iteration(self, iteration: int) -> None:
        """Say once that nothing will come of it, and that iterations go back, or on after the end."""
        if self._reached < 0 and self._without_level():
            self._remark(self._without_level())
        if iteration < self._reached:
            self._remark(BACKWARDS)
        self._reached, end = iteration, self._end()
        if end is not None and iteration >= end[1]:
            self._remark(f"prune_model goes on after {end[0]} {end[1]}: nothing more is pruned from there")

    def _stepped(self) -> bool:
        """After a step of training: say what is missing where nothing becomes zero; whether all is said."""
        self._steps += 1
        self.rates.forget()
        if self._reached < 0 and self._steps >= UNPRUNED and self._missing():
            self._remark(self._missing())
        return self._reached >= 0 or self._steps >= UNPRUNED

    def _missing(self) -> str:
        """What has to be called, or said, before anything becomes zero."""
        if not self.prunable or self.generator.thresholds:
            return ""
        closed = any(not keep.all() for keep in self._network.masks().values())
        return self._without_level() or ("" if closed else NOT_CALLED)

    def _without_level(self) -> str:
        """Why nothing ever becomes zero, where neither the configuration nor the scheduler says how much."""
        kind, generator = self.config.scheduler.type, self.generator
        if self.has_levels or generator.thresholds or self.rates.shares:
            return ""
        if not generator.masks:
            return f"nothing becomes zero: a {kind} draws no subnet; ProbMaskGenerator needs ProbMaskPruneScheduler"
        if not self.pattern.takes_sparsity or self.config.target_sparsity is not None:
            return ""
        return (
            f"nothing becomes zero: a {kind} has no levels of its own, and the configuration says none; put "
            "sparsity: {target_sparsity: 0.5, uniform: True} beside its parts"
        )

    def compute_sparse_rate(self, model: Any = None) -> float:
        """The share of zeros in all layers, as they would be stored now."""
        network: Network = self._demand("compute_sparse_rate", model)
        if not network.sites:
            self._remark(NO_LAYER)
        return self._zeros_in(network.sites)

    def _zeros_in(self, sites: Sequence[Site]) -> float:
        """The share of zeros in some layers."""
        size = sum(site.size for site in sites)
        return 1 - sum(self._kept_of(site) for site in sites) / size if size else 0.0

    def _kept_of(self, site: Site) -> float:
        """How many numbers of a layer are not zero."""
        return int(np.count_nonzero(self._network.effective(site.key)))

    def export_sparse_model(self, model: Any = None) -> Any:
        """The plain network with zeros in its weights: the torch module itself, or a ModelProto."""
        network = self._demand("export_sparse_model", model)
        self._decide()
        self._mask_before_export = (dict(network.used), network.masks())
        if self._views is not None:
            self._views.remove()
        self._exported = network.finish()
        if network.is_torch and self.rates.shares:
            network.watch(self._go_on)
        return self._exported

    def export_sparse_onnx(
        self, model: Any = None, dummy_input: Any = None, onnx_name: Any = "sparse", name: Any = None
    ) -> str:
        """Write the sparse network as ONNX, with the record of what its zeros are for; the path of the file.

        The name is MSBench's `onnx_name`, to which `.onnx` is added; `name` means the same.
        """
        network = self._demand("export_sparse_onnx", model)
        path = os.fspath(onnx_name if name is None else name)
        path = path if path.endswith(".onnx") else f"{path}.onnx"
        if not network.is_torch:
            return self.export_checked(path)
        if dummy_input is None:
            raise OptionError("a torch module is exported by running it: pass a dummy_input")
        if not self._ready():
            return path
        written = str(network.export(path, dummy_input))
        for note in network.notes:
            self._remark(note)
        return written

    def export_parts(self, model: Any, image: Any, paths: Mapping[str, str]) -> None:
        """Write the parts of a built network (`BuiltNetwork.nets`), by name; each records the zeros of its layers."""
        network = self._demand("export_parts", model)
        if not self._ready():
            return
        network.export_parts(paths, image)
        for note in network.notes:
            self._remark(note)

    def export_checked(self, path: str, check: Check | None = None) -> str:
        """The same of an ONNX model; what is written is handed to a check before it has its name."""
        return str(self._network.export(path, check)) if self._ready() else path

    def _ready(self) -> bool:
        """What comes out is decided; and whether this process writes it."""
        self._decide()
        return self._writes()

    def _decide(self) -> None:
        """Settle what comes out; say where nobody has asked for zeros, and where less came than was asked for."""
        network, sites = self._network, self.prunable
        goal = self._goal() if sites else None
        self._keep_promise()
        idle = bool(sites) and not self._iterations() and not self.generator.thresholds
        if idle and all(network.effective(site.key).all() for site in sites):
            self._remark(NOT_BEGUN)
        elif goal is not None and self._zeros_in(goal.sites) < goal.share - ROUNDING:
            end = self._end()
            of, why = ("", "") if end is None else (f" of {end[1]}", f" ({end[0]})")
            self._remark(
                f"{goal.asked} is not reached: {100 * self._zeros_in(network.sites):.1f} % of the weights are zero "
                f"after {self._iterations()}{of} iterations{why}, and {goal.how}"
            )

    def _iterations(self) -> int:
        """How many there were, with those before a state was loaded."""
        begun = self._reached >= 0 or (self._given_masks and self.iteration > 0)
        return self.iteration + 1 if begun else 0

    def _goal(self) -> Goal | None:
        """What the training has yet to bring, where it ends now; None where it is there."""
        network = self._network
        behind = [site for site in self.prunable if site.key in network.used] if self.generator.thresholds else []
        if not behind or any((network.weight(one.key)[network.effective(one.key) == 0] != 0).any() for one in behind):
            return None
        how = "no number is below its threshold: begin with higher ones, by sInit_value or target_sparsity"
        return Goal("sparsity by thresholds that train", 1.0, behind, how)

    # -- rates of layers, and the layers that stay dense

    def update_sparsity_per_layer(self, model: Any, sparsity_rate: Any) -> None:
        """One rate for all layers."""
        network = self._demand("update_sparsity_per_layer", model)
        self.set_rates({site.key: sparsity_rate for site in network.sites})

    def get_sparsities_erdos_renyi(
        self,
        model: Any,
        default_sparsity: float,
        custom_sparsity_map: Any = (),
        include_kernel: bool = True,
        erk_power_scale: float = 0.5,
    ) -> dict[str, float]:
        """Rates by Erdős–Rényi, by layer; they are set, too."""
        from onnxsparse.dialects.msbench import gen_sparse_rate

        self._demand("get_sparsities_erdos_renyi", model)
        found = gen_sparse_rate.get_sparsities_erdos_renyi(
            self._network, default_sparsity, custom_sparsity_map, include_kernel, erk_power_scale
        )
        gen_sparse_rate.update_sparsity_per_layer_from_sparsities(self._network, found)
        return found

    def process_no_prune_layers(self, no_prune_keyword: Any = "", no_prune_layer: Any = "") -> None:
        """Other layers than the configuration says stay dense: parts of names, and whole names."""
        if self._network is not None and (self._reached >= 0 or self._steps or self.rates.shares):
            raise OptionError("process_no_prune_layers comes before rates are set and anything is pruned")
        scheduler = self.config.scheduler
        kwargs = {**scheduler.kwargs, "no_prune_keyword": no_prune_keyword, "no_prune_layer": no_prune_layer}
        self.config = replace(self.config, scheduler=replace(scheduler, kwargs=kwargs))
        self.kwargs.update(no_prune_keyword=no_prune_keyword, no_prune_layer=no_prune_layer)
        Excluded.of(self.config)
        if self._network is not None:
            self._dense = self._left_out(self._network.sites)
            self._begin()
            self._demand_layers()

    def set_rates(self, rates: Mapping[str, Any]) -> None:
        """Have layers, by key, lose these shares at once; what the schedule says later takes their place."""
        names = {site.key: site.name for site in self._network.sites}
        self.rates.shares.update({key: rate_of(rate, names[key]) for key, rate in rates.items()})
        if self._without_rates():
            self._remark(self._without_rates())
            return
        first = not self._begun and self.config.target_sparsity is not None
        self._frozen = {**(self._frozen or self._counts()), **self.rates.drops(self.prunable, self.pattern)}
        self._rates_changed([site for site in self.prunable if first or site.key in rates])

    def share_of(self, key: str) -> float | None:
        """How much of a layer goes by what was set, or by the schedule as it is now; None where nothing says it."""
        if key in self.rates.shares or key in self._dense or not self.pattern.takes_sparsity:
            return self.rates.shares.get(key)
        if key not in self._frozen:
            return self.config.target_sparsity if self.config.uniform else None
        site = next(one for one in self._network.sites if one.key == key)
        return self._frozen[key] / max(self.pattern.units(site.shape4), 1)

    def _rates_changed(self, sites: Sequence[Site]) -> None:
        self._mask_anew({site: self.rates.whole(self._network, site) for site in sites})

    def _mask_anew(self, numbers: Mapping[Site, Array]) -> None:
        """Masks by numbers that layers get back first."""
        network, self._begun = self._network, True
        network.set_masks({site.key: np.ones(site.shape, bool) for site in numbers})
        for site, whole in numbers.items():
            network.put(site.key, whole)
        self._mask(self._frozen, self.pattern, list(numbers))
        if not self._steps:
            self.rates.remember(network, {site.key: whole for site, whole in numbers.items()})

    def _without_rates(self) -> str:
        """Why rates of layers have no effect."""
        kind = self.config.scheduler.type
        if not self.generator.masks:
            return f"rates of layers have no effect: what goes is learned by {self.generator.sparser.partition(':')[0]}"
        if not self.pattern.takes_sparsity:
            return f"rates of layers have no effect on {kind}: {self.pattern.text} fixes how much goes"
        return ""

    def numbers_loaded(self) -> None:
        """A module's state was loaded, without masks: those of its layers are chosen by the numbers in it."""
        network = self._network
        if self.has_levels or self._given_masks or not self.rates.shares or self._without_rates():
            return
        masks, sites = network.masks(), [site for site in self.prunable if site.key in self.rates.shares]
        found = {site: np.array(network.weight(site.key)) for site in sites if site.key in masks}
        other = {site: one for site, one in found.items() if one[~masks[site.key]].any()}
        self.rates.forget()
        self._mask_anew(other)

    def _go_on(self) -> bool:
        """Training goes on after an export: what was masked is masked again."""
        used, masks = self._mask_before_export
        self._network.use(used)
        self._network.set_masks(masks)
        self._views = Views(self, self._network)
        self._note("training goes on after export_sparse_model: the masks of its layers are on again")
        return True

    # -- masks in a graph, without a training

    def insert_masks(self, model: Any = None, *, output: Any = None, **options: Any) -> Any:
        """The masks of this schedule as nodes in an ONNX model's graph: a `Result`, as of `onnxsparse.insert_masks`.

        Of a path or a ModelProto the masks are those at `iteration=` or `level=`, or at the end of the schedule; of
        what `prepare_sparse_model` returned those that it has now.
        """
        from onnxsparse.dialects.msbench.masking import insert

        return insert(self, model, output, options)

    @property
    def network(self) -> Any:
        """What was prepared; None before that."""
        return self._network

    def set_moment(self, moment: When, shapes: Mapping[str, list[int]] | None) -> None:
        """Take over the level and the target of a moment, and write no files but the model."""
        self._silent = True
        if moment.target is not None:
            raise OptionError(f"a {self.config.scheduler.type} prunes for no target: leave --target out")
        if moment.level is not None:
            self._take_level(moment.level)

    def _take_level(self, level: float) -> None:
        if self.generator.masks and not self.pattern.takes_sparsity:
            raise OptionError(f"{self.pattern.text} fixes how much goes: leave --level out")
        self._configure(replace(self.config, target_sparsity=level / 100))

    def _with_arguments(self, **kwargs: Any) -> None:
        """The same configuration with other arguments of the scheduler."""
        scheduler = self.config.scheduler
        self._configure(replace(self.config, scheduler=replace(scheduler, kwargs={**scheduler.kwargs, **kwargs})))

    def go_to(self, when: When) -> None:
        """Do what is to be done before the iteration of a moment."""
        if when.expected:
            raise OptionError("expected is of masks that are drawn, those of ProbMaskPruneScheduler: leave it out")
        if self._without_level():
            raise OptionError(self._without_level() + ("; or say --level" if self.generator.masks else ""))
        self.iteration = self._iteration_of(when)
        self._prune(self.iteration)

    def _iteration_of(self, moment: When) -> int:
        """The iteration of a moment; the last one at which masks change where none is said."""
        return 0 if moment.iteration is None else moment.iteration

    def promise_masks(self) -> None:
        """What the record of a file with masks in it says."""
        self._keep_promise()

    def level_of_moment(self) -> float | None:
        """The level of the masks as they are, in per cent."""
        target = self.config.target_sparsity
        return None if target is None or not self.pattern.takes_sparsity else round(100 * target, 6)

    def take_masks(self, masks: Mapping[str, Array]) -> None:
        """Go on with the masks that a file had; layers that stay dense, or have no masks here, lose them."""
        used = self._network.used
        self._network.set_masks({key: keep for key, keep in masks.items() if used.get(key) == "mask"})

    def drawn_by(self) -> dict[str, Any]:
        """What numbers were drawn by, for the record."""
        return {}

    def fits(self, facts: Mapping[str, Any]) -> bool:
        """Whether recorded facts are of the layers of this network."""
        drops = facts.get("drops")
        return isinstance(drops, Mapping) and set(drops) <= {site.key for site in self.prunable}

    # -- in a run of ours

    def graph_changes(self) -> Iterable[int]:
        """Iterations before which other sparsers take over."""
        return ()

    def sparsers_at(self, iteration: int) -> dict[str, str]:
        """What stands in for the weights at an iteration, by layer."""
        return dict(self._network.used)

    # -- what a checkpoint holds

    def facts(self) -> dict[str, Any]:
        """Where the scheduler is, for JSON."""
        rates = {"rates": self.rates.shares} if self.rates.shares else {}
        return {"begun": self._begun, "drops": self._frozen, **rates}

    def resume(self, facts: Mapping[str, Any]) -> None:
        """Go on from there; the network is restored already."""
        self._begun = bool(facts["begun"])
        self._frozen = {key: int(count) for key, count in facts["drops"].items()}
        self.rates = LayerRates()
        self.rates.shares.update({key: float(rate) for key, rate in facts.get("rates", {}).items()})

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint of the user's own loop has to hold beside a module; of an ONNX model all of it."""
        held = saved(self._demand("state_dict"), self.config.scheduler.type, self.facts())
        return {**held, "iteration": self.iteration}

    def load_state_dict(self, state: Any) -> None:
        """Go on from there: after `prepare_sparse_model`, and before a module's own state is loaded."""
        self._reached, self._given_masks = -1, True
        self.resume(put_back(self._demand("load_state_dict"), self.config.scheduler.type, state))
        self.iteration = int(state.get("iteration", self.iteration))

    # -- what a scheduler of its own changes

    def _begin(self) -> None:
        """The network is there."""
        ragged = {key: why for key, why in self._ragged().items() if key not in self._dense}
        self._left_unfit(ragged)
        self._dense = {**ragged, **self._dense}
        self._network.use({site.key: self.generator.sparser for site in self.prunable})
        if self.generator.thresholds and self.config.target_sparsity is not None:
            for key, drop in self._counts().items():
                start = threshold_of(self._network.weight(key), drop)
                self._network.sent(key, {"threshold": np.full(1, start, np.float32)})

    def _ragged(self) -> dict[str, str]:
        """Layers that the pattern does not fit, and why."""
        pattern = self.pattern
        if not self.generator.masks or not isinstance(pattern, NM):
            return {}
        ragged = f"its inputs are no multiple of {pattern.m}"
        found = {
            site.key: ragged if site.shape4[2] % pattern.m else site.refuses(pattern) for site in self._network.sites
        }
        return {key: reason for key, reason in found.items() if reason}

    def _optimized(self) -> None:
        """The optimizer is there."""

    def _prune(self, iteration: int) -> Any:
        masks, needs = self.generator.masks, self.pattern.takes_sparsity
        asked = self.config.target_sparsity is not None or bool(self.rates.shares)
        if not masks or (needs and not asked) or (self.generator.static and self._begun):
            return None
        first, self._begun = not self._frozen, True
        self._frozen = self._frozen or self._counts()
        self._mask(self._frozen, self.pattern, None if first else self._changed())
        return None

    def _changed(self) -> list[Site]:
        """Layers in which a number that is kept has become zero: in all others the same ones go again."""
        masks, live = self._network.masks(), self._network.live
        kept = {key: np.count_nonzero(mask) for key, mask in masks.items()}
        return [site for site in self.prunable if np.count_nonzero(live[site.key]) != kept[site.key]]

    def _counts(self) -> dict[str, int]:
        """How many units each layer drops, by its numbers as they are now."""
        return self._drops_by(self._network.live)

    def _drops_by(self, numbers: Mapping[str, Array]) -> dict[str, int]:
        """The same by other numbers; layers that have a rate of their own drop that."""
        target, sites = self.config.target_sparsity, self.prunable
        if target is None and self.pattern.takes_sparsity:
            found = {site.key: 0 for site in sites}
        else:
            found = drops_of(sites, numbers, self.generator, target, self.config.uniform)
        return {**found, **self.rates.drops(sites, self.pattern)}

    def _level(self) -> float | None:
        """The network sparsity that the record in an exported file promises."""
        return None

    def _target(self) -> str | None:
        return None

    def _end(self) -> tuple[str, int] | None:
        """The argument that says how many iterations there are, and how many."""
        return None

    # -- what they share

    @property
    def prunable(self) -> list[Site]:
        return [site for site in self._network.sites if site.key not in self._dense]

    def _mask(self, drops: Mapping[str, int], pattern: Pattern, sites: Sequence[Site] | None = None) -> None:
        """Leave out the smallest of every layer, or of some, by its numbers as they are now."""
        network, generator = self._network, self.generator
        live = network.live if sites is None else {site.key: network.effective(site.key) for site in sites}
        sites = self.prunable if sites is None else sites
        masks = {site.key: chosen(site, pattern, generator, live[site.key], drops[site.key]) for site in sites}
        before = {key: np.array(live[key]) for key in masks} if generator.corrects else {}
        network.set_masks(masks)
        for site in sites if generator.corrects else ():
            network.weight(site.key)[...] = corrected_weight(site, before[site.key], masks[site.key])

    def _writes(self) -> bool:
        """Whether this process writes files: of several that go through one loop the first alone does."""
        first = is_first_joined()
        if self._silent:
            return False
        if not first:
            self._remark("this is not the first process of the run, so it writes nothing: the first one does")
        return first

    def _demand(self, call: str, model: Any = None) -> Any:
        """The network; a model that is handed over has to be that one."""
        if self._network is None:
            raise OptionError(f"{call} comes after prepare_sparse_model: call that first")
        own = any(model is one for one in (None, self._handle, self._network, self._exported))
        if not own and not (self._network.is_torch and self._network.is_of(model)):
            raise OptionError(f"{call} is given another model than the one that prepare_sparse_model returned")
        return self._network

    def _demand_numbers(self) -> None:
        network = self._network
        broken = next((one for one in network.sites if not np.isfinite(network.weight(one.key)).all()), None)
        if broken is not None:
            raise ModelError(f"the weight of {broken.name} holds numbers that are not finite: such a model is broken")

    def _reconfigure(self, config: Configuration) -> None:
        if config.scheduler.type != self.config.scheduler.type:
            raise OptionError(
                f"this is a {self.config.scheduler.type}, and the configuration that prepare_sparse_model was given is "
                f"of a {config.scheduler.type}; build the scheduler from it"
            )
        self._configure(config)

    def _left_out(self, sites: Sequence[Site]) -> dict[str, str]:
        """Layers that stay dense because the configuration says so, and why."""
        excluded = Excluded.of(self.config)
        for line in excluded.unknown(sites, self._network.module_names):
            self._remark(line)
        return excluded.reasons(sites)

    def _left_unfit(self, reasons: Mapping[str, str]) -> None:
        """Layers that stay dense because they do not fit are in the notes."""
        for line in unfit(self._network.sites, reasons):
            self._note(line)

    def _demand_layers(self) -> None:
        sites = self._network.sites
        if not sites:
            self._remark(NO_LAYER)
        elif not self.prunable:
            reasons = ", ".join(dict.fromkeys(self._dense.values()))
            self._remark(f"all {len(sites)} layers stay dense, so nothing becomes sparse: {reasons}")

    def _keep_promise(self) -> None:
        """What the record in an exported file says."""
        rows = {site.key: self.pattern.text for site in self.prunable}
        self._network.promise = Promise(rows, self._target(), self._level(), self._dense)

    def _say(self, verbosity: int, line: str) -> None:
        if self.verbosity >= verbosity:
            sys.stderr.write(f"{line}\n")

    def _remark(self, note: str) -> None:
        """A note that is said at any verbosity."""
        if note not in self.notes:
            self.notes.append(note)
            if not self._silent:
                self._say(0, f"note: {note}")

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
            self._say(1, note)


# -- What a scheduler puts into a checkpoint of the user's own loop, and what it gets back from there.
#
# 1. Facts, which are plain numbers and texts, and arrays by name: tensors beside a torch module, else of NumPy.
# 2. A module's numbers are in its own state, which is that of the plain module. What a sparser trains beside them, the
#    numbers under the zeros, masks and duals are here. An ONNX model in training is here as a whole.


def saved(network: Any, kind: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a scheduler of a kind, and of its network as far as nobody else has it."""
    live, about = network.state()
    plain = json.loads(json.dumps({"type": kind, "facts": facts, "network": about}))  # no type of ours
    return {**plain, "arrays": live if network.is_torch else {name: np.array(array) for name, array in live.items()}}


def put_back(network: Any, kind: str, state: Any) -> Mapping[str, Any]:
    """Make a network what it was; what is left are the scheduler's own facts."""
    if not isinstance(state, Mapping) or not {"type", "facts", "network", "arrays"} <= set(state):
        raise OptionError(f"load_state_dict takes what state_dict returned, not {state!r:.60}")
    if state["type"] != kind:
        raise OptionError(f"the state is of a {state['type']!s:.60}, and this is a {kind}")
    arrays = state["arrays"]
    if not network.is_torch:
        arrays = {name: np.asarray(one.cpu() if hasattr(one, "cpu") else one) for name, one in arrays.items()}
    network.restore(arrays, state["network"])
    found: Mapping[str, Any] = state["facts"]
    return found
