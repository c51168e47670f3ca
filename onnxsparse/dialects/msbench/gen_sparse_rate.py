"""MSBench's `gen_sparse_rate`: rates of all layers by several rules, and how they are set on a prepared model.

    sparsities = get_unst_sparsities_norm(model, 0.5, func="L2Normalized")
    update_sparsity_per_layer_from_sparsities(model, sparsities)

A model is a torch module or an ONNX model in training, prepared or not; what is set is set on a prepared one. Rates go
by the names of the layers, and are those of MSBench's formulas:

1. By size (`norm`): the numbers of all layers, each divided by the norm of its layer, are put in order; the one at
   int(rate * count) is the threshold, and a layer's rate is the share of its numbers that are not above it.
2. `norm_v2`: the same over the layers that are not left out, the place counted from all numbers. A layer above
   `max_sparsity` gets that and is done with; the place moves on by the numbers it would have lost more, until no other
   layer is above.
3. Erdős–Rényi: the density of a layer goes with (sum of the shape / product of the shape) ** power, and without the
   kernel with (inputs + outputs) / (inputs * outputs). What would be denser than dense is dense, and the rest shares
   what is left. (MSBench takes the two last axes for inputs and outputs, which are the kernel's in torch.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxsparse.allocations.allocation import kept_by_density
from onnxsparse.dialects.msbench.arguments import opened
from onnxsparse.dialects.msbench.configuration import number, words
from onnxsparse.dialects.msbench.layer_rates import rate_of, rates_by_key, scheduler_that_prepared
from onnxsparse.errors import ModelError, OptionError, PlanError, nearest
from onnxsparse.math.values import Array
from onnxsparse.train.layers import Network, Site

__all__ = [
    "get_sparsities_erdos_renyi",
    "get_st_sparsities_special",
    "get_st_sparsities_uniform",
    "get_unst_sparsities_norm",
    "get_unst_sparsities_norm_v2",
    "get_unst_sparsities_uniform",
    "update_sparsity_per_layer_from_sparsities",
]

NORMS = {"Magnitude": None, "L1Normalized": 1, "L2Normalized": 2}
MATRICES = ("Linear", "Gemm", "MatMul")


def update_sparsity_per_layer_from_sparsities(model: Any, sparsities: Mapping[str, Any]) -> None:
    """Set the rates of a prepared model's layers; a layer that has none keeps what it had."""
    scheduler = scheduler_that_prepared(model)
    if scheduler is None:
        raise OptionError("rates are set on what prepare_sparse_model returned: call that first")
    if not isinstance(sparsities, Mapping):
        raise OptionError(f"sparsities are a mapping of layers to shares, not {sparsities!r:.60}")
    scheduler.set_rates(rates_by_key(scheduler.network.sites, sparsities, "sparsities"))


def get_unst_sparsities_uniform(model: Any, default_sparsity: float) -> dict[str, float]:
    """The same rate for every layer."""
    rate = rate_of(default_sparsity, "default_sparsity")
    return {site.name: rate for site in _network(model).sites}


def get_st_sparsities_uniform(model: Any, default_sparsity: float) -> dict[str, float]:
    """The same rate for every convolution; matrices stay dense."""
    rate = rate_of(default_sparsity, "default_sparsity")
    return {site.name: 0.0 if site.kind in MATRICES else rate for site in _network(model).sites}


def get_st_sparsities_special(model: Any, org_model: Any) -> dict[str, float]:
    """How many of the outputs of each layer are gone in a smaller model, as a share of those of the original one."""
    before = {site.name: _outputs(site) for site in _network(org_model).sites}
    found = {}
    for site in _network(model).sites:
        if site.name not in before:
            raise PlanError(f"the original model has no layer '{site.name}'{nearest(site.name, before)}")
        found[site.name] = 1 - _outputs(site) / before[site.name]
    return found


def _outputs(site: Site) -> int:
    return int(site.shape4[0] * site.shape4[1])


def get_unst_sparsities_norm(model: Any, default_sparsity: float, func: str = "L2Normalized") -> dict[str, float]:
    """By one threshold for the numbers of all layers, relative to the norm of each."""
    return get_unst_sparsities_norm_v2(model, default_sparsity, 1.0, (), func)


def get_unst_sparsities_norm_v2(
    model: Any,
    default_sparsity: float,
    max_sparsity: float,
    no_prune_layer_list: Sequence[str],
    func: str = "L2Normalized",
) -> dict[str, float]:
    """The same with a highest rate of a layer, and layers that stay dense."""
    rate, most = rate_of(default_sparsity, "default_sparsity"), rate_of(max_sparsity, "max_sparsity")
    network = _network(model)
    named = dict.fromkeys(words(no_prune_layer_list, "no_prune_layer_list"), 0.0)
    dense = rates_by_key(network.sites, named, "no_prune_layer_list")
    sizes = {site.name: _relative(_numbers(network, site), func) for site in network.sites}
    free = {site.name: sizes[site.name] for site in network.sites if site.key not in dense}
    start = rate * sum(one.size for one in sizes.values())
    return {**dict.fromkeys(sizes, 0.0), **(_by_threshold(free, start, most) if free else {})}


def _numbers(network: Network, site: Site) -> Array:
    """A layer's numbers; those that a mask hides count, too, as long as nothing has trained."""
    scheduler = network.scheduler
    found: Array = network.weight(site.key) if scheduler is None else scheduler.rates.whole(network, site)
    return found


def _relative(weight: Array, func: str) -> Array:
    if func not in NORMS:
        raise OptionError(f"func is one of {', '.join(NORMS)}, not {func!r:.40}{nearest(str(func), NORMS)}")
    if not np.isfinite(weight).all():
        raise ModelError("a weight holds numbers that are not finite: such a model is broken")
    numbers, power = np.abs(weight, dtype=np.float32).reshape(-1), NORMS[func]
    norm = np.float32(1) if power is None else np.float32(np.linalg.norm(numbers.astype(np.float64), power))
    return numbers / norm if norm else numbers


def _by_threshold(sizes: Mapping[str, Array], start: float, most: float) -> dict[str, float]:
    """The shares that lie at or below a threshold, none above `most`."""
    ordered, found, place = np.sort(np.concatenate(list(sizes.values()))), dict[str, float](), start
    left = dict(sizes)
    while True:
        threshold = ordered[min(int(place), ordered.size - 1)]
        found.update({name: float(1 - np.count_nonzero(one > threshold) / one.size) for name, one in left.items()})
        above = [name for name in left if found[name] > most]
        for name in above:
            place += (found[name] - most) * left.pop(name).size
            found[name] = most
        if not above:
            return found


def get_sparsities_erdos_renyi(
    model: Any,
    default_sparsity: float,
    custom_sparsity_map: Any = (),
    include_kernel: bool = True,
    erk_power_scale: float = 0.5,
) -> dict[str, float]:
    """By Erdős–Rényi: the larger a layer, the sparser; some layers may have rates of their own beside it."""
    rate, power = rate_of(default_sparsity, "default_sparsity"), number(erk_power_scale, "erk_power_scale")
    sites = _network(model).sites
    shapes, custom = {site.name: site.shape for site in sites}, _custom(custom_sparsity_map, sites)
    names = [name for name in shapes if name not in custom]
    sizes = [math.prod(shapes[name]) for name in names]
    keep = sum(size - math.floor(rate * size) for size in sizes)
    raw = [_density(shapes[name], include_kernel, power) for name in names]
    kept = kept_by_density(sizes, raw, keep)
    found = {name: max(0.0, 1 - count / size) for name, count, size in zip(names, kept, sizes)}
    return {name: custom[name] if name in custom else found[name] for name in shapes}


def _density(shape: Sequence[int], include_kernel: bool, power: float) -> float:
    taken = shape if include_kernel else shape[:2]
    raw = sum(taken) / math.prod(taken)
    return float(raw**power) if include_kernel else raw


def _custom(given: Any, sites: Sequence[Site]) -> dict[str, float]:
    if not given:
        return {}
    if not isinstance(given, Mapping):
        raise OptionError(f"custom_sparsity_map is a mapping of layers to shares, not {given!r:.60}")
    by_key = rates_by_key(sites, given, "custom_sparsity_map")
    return {site.name: rate_of(by_key[site.key], site.name) for site in sites if site.key in by_key}


def _network(model: Any) -> Network:
    """The layers of a model, prepared or not."""
    scheduler = scheduler_that_prepared(model)
    found: Network = opened(model, {})[0] if scheduler is None else scheduler.network
    return found
