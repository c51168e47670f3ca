"""Rates of single layers, as MSBench's scripts set them: by a scheduler, by a table, or on a layer's mask generator.

1. A layer whose rate is set loses that share at once: the loops of such scripts may make no other call.
2. Until the first step of training the numbers from before are kept, so that a lower rate brings them back: scripts set
   one rate for all layers, and then others for some.
3. On a prepared torch module every layer has `weight_fake_sparse.mask_generator.sparsity`, which sets its rate. A copy
   of the module has it, too, but sets nothing.
4. MSBench's checkpoints have buffers under that name, which are left out where a state is loaded. A state without masks
   beside it has the layers chosen anew, by its numbers.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from onnxsparse.errors import OptionError, PlanError, nearest
from onnxsparse.math.values import Array
from onnxsparse.patterns import Pattern
from onnxsparse.planning.names import NamedWeights
from onnxsparse.train.layers import Network, Site

NAME = "weight_fake_sparse"


def rate_of(value: Any, layer: str) -> float:
    """A share from 0 to 1: a number of Python or NumPy, or a tensor that holds one."""
    try:
        found = -1.0 if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        found = -1.0
    if not 0 <= found <= 1:
        meant = f"; {found:g} per cent is {found / 100:g}" if 1 < found <= 100 else ""
        raise OptionError(f"the sparsity of {layer} is a share from 0 to 1, not {value!r:.60}{meant}")
    return found


def rates_by_key(sites: Sequence[Site], rates: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """What is said by the names of layers, by their keys."""
    known, found = NamedWeights(site.answers for site in sites), dict[str, Any]()
    for name, rate in rates.items():
        plain = str(name).removeprefix("module.")  # as wrappers for several devices call layers
        places = known.meant(str(name), where) or known.meant(plain, where)
        if not places:
            layers = [site.name for site in sites]
            raise PlanError(f"{where}: the network has no layer '{name}'{nearest(str(name), layers)}")
        found.update({sites[place].key: rate for place in places})
    return found


class LayerRates:
    """The rates that were set, by the key of the layer, and its numbers from before they were."""

    def __init__(self) -> None:
        self.shares: dict[str, float] = {}
        self._before: dict[str, tuple[Array, int]] = {}

    def drops(self, sites: Iterable[Site], pattern: Pattern) -> dict[str, int]:
        """How many units go of the layers that have a rate."""
        return {
            one.key: pattern.drop_count(one.shape4, self.shares[one.key]) for one in sites if one.key in self.shares
        }

    def whole(self, network: Network, site: Site) -> Array:
        """The numbers of a layer without its mask, where nothing has changed them since it was masked."""
        before = self._before.get(site.key)
        if before is not None and before[1] == _digest(network.effective(site.key)):
            return before[0]
        return np.array(network.effective(site.key))

    def remember(self, network: Network, numbers: Mapping[str, Array]) -> None:
        """The numbers of layers before they were masked just now."""
        self._before.update({key: (one, _digest(network.effective(key))) for key, one in numbers.items()})

    def forget(self) -> None:
        """Training has begun: what is masked is gone."""
        self._before.clear()


def _digest(numbers: Array) -> int:
    return zlib.crc32(np.ascontiguousarray(numbers).tobytes())


# -- what a prepared torch module has of MSBench's


class MaskGenerator:
    """`weight_fake_sparse.mask_generator` of a layer: its rate."""

    def __init__(self, scheduler: Any, key: str) -> None:
        self._scheduler, self._key = scheduler, key

    @property
    def sparsity(self) -> float | None:
        """The layer's rate now; None where nothing says one."""
        found: float | None = None if self._scheduler is None else self._scheduler.share_of(self._key)
        return found

    @sparsity.setter
    def sparsity(self, rate: Any) -> None:
        if self._scheduler is None:
            raise OptionError(
                f"{NAME} of a copy sets nothing: set rates on the module that prepare_sparse_model returned"
            )
        self._scheduler.set_rates({self._key: rate})


class WeightFakeSparse:
    """`weight_fake_sparse` of a layer."""

    def __init__(self, scheduler: Any, key: str) -> None:
        self.scheduler, self._key = scheduler, key
        self.mask_generator = MaskGenerator(scheduler, key)

    def __deepcopy__(self, memo: Any) -> WeightFakeSparse:
        return WeightFakeSparse(None, self._key)

    def __reduce__(self) -> Any:
        return WeightFakeSparse, (None, self._key)


class Views:
    """`weight_fake_sparse` on all layers of a prepared torch module, and what is done when a state is loaded."""

    def __init__(self, scheduler: Any, network: Any) -> None:
        owners = [(site.key, owner) for site in network.sites for owner in network.owners(site.key)]
        self._owners = [owner for _, owner in owners]
        prepared = weakref.ref(scheduler)

        def loaded(module: Any, _: Any) -> None:
            found = prepared()
            if found is not None and found.network.module is module:  # a copy of the module has the hook, too
                found.numbers_loaded()

        self._hooks = [network.module.register_load_state_dict_post_hook(loaded)]
        for key, owner in owners:
            setattr(owner, NAME, WeightFakeSparse(scheduler, key))
            self._hooks.append(owner.register_load_state_dict_pre_hook(_without_buffers))

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        for owner in self._owners:
            owner.__dict__.pop(NAME, None)


def _without_buffers(_: Any, state: Any, prefix: str, *__: Any) -> None:
    for key in [key for key in state if key.startswith(f"{prefix}{NAME}.")]:
        del state[key]


def scheduler_that_prepared(model: Any) -> Any:
    """The scheduler of a model that `prepare_sparse_model` returned; None of any other."""
    if isinstance(model, Network):
        return model.scheduler
    modules = model.modules() if hasattr(model, "modules") else ()
    views = (one.__dict__.get(NAME) for one in modules)
    return next((view.scheduler for view in views if isinstance(view, WeightFakeSparse)), None)
