"""Which parameters of a module ASP prunes: kinds of layers, names, and the sizes that sparse tensor cores take.

1. A layer counts by its class or a class that it is derived from; `custom_layer_dict` names the parameters of others.
2. Outputs are a multiple of 8 and inputs, those of a group, one of 16, in every type of float. Inputs are what a layer
   sums over: of a transposed convolution the first axis of its weight, of what is not known the second.
3. What is frozen, computed from other parameters, or no float stays dense. Every layer that does has its reason.
4. A parameter that stands in several layers is one, with a mask beside each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from onnxsparse.dialects.asp.mask_buffers import MaskBuffers, long_mask_name, mask_name
from onnxsparse.engines.torch.attach import demand_maskable
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.mask_to_param import bare
from onnxsparse.engines.torch.state_dicts import sharded
from onnxsparse.errors import OptionError, brief
from onnxsparse.math.param import View
from onnxsparse.patterns import Pattern
from onnxsparse.targets.ampere import PROFILES
from onnxsparse.train.module_trainee import views_of

ALIGNMENT = PROFILES["asp"]
WEIGHT = ("weight",)
KINDS: dict[str, tuple[str, ...]] = {
    "Linear": WEIGHT,
    **{f"Conv{axes}d": WEIGHT for axes in (1, 2, 3)},
    **{f"ConvTranspose{axes}d": WEIGHT for axes in (1, 2, 3)},
    "MultiheadAttention": ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"),
}
"""Layers of torch.nn, and the parameters of them that are pruned; the last projection of attention is a Linear."""
NamesByClass = Mapping[type, Sequence[str]]


class AspError(OptionError, AssertionError):
    """A call that ASP refuses. Upstream asserts, so whoever catches an AssertionError still does."""


@dataclass(frozen=True)
class Selection:
    """What a user says of layers: classes, with the parameters that are meant, and names."""

    parameters: NamesByClass
    classes: tuple[type, ...]
    allowed: frozenset[str] | None
    disallowed: frozenset[str]

    @classmethod
    def of(cls, whitelist: Any, custom: Any, allowed: Any, disallowed: Any) -> Selection:
        named = _custom(custom)
        known: dict[type, Sequence[str]] = {getattr(torch().nn, name): meant for name, meant in KINDS.items()}
        parameters = {**known, **named}
        classes = [_class_of(one, parameters) for one in _listed(whitelist, "whitelist")]
        names = None if allowed is None else _names(allowed, "allowed_layer_names")
        return cls(parameters, (*classes, *named), names, _names(disallowed or (), "disallowed_layer_names"))

    def layers(self, model: Any) -> Iterator[tuple[str, Any, str, str]]:
        """Name, layer and parameter of all that could be pruned, and why it is not meant."""
        for name, layer in model.named_modules():
            parameters = next((self.parameters[one] for one in type(layer).__mro__ if one in self.parameters), ())
            for parameter in parameters:
                yield name, layer, parameter, self._left_out(name, layer)

    def _left_out(self, name: str, layer: Any) -> str:
        if not isinstance(layer, self.classes):
            return f"a {type(layer).__name__} is not in the whitelist"
        if name in self.disallowed:
            return f"{name} is in disallowed_layer_names"
        return f"{name} is not in allowed_layer_names" if self.allowed is not None and name not in self.allowed else ""

    def unknown(self, model: Any) -> list[str]:
        """Names that no layer has."""
        return sorted((self.disallowed | (self.allowed or frozenset())) - {name for name, _ in model.named_modules()})


def _custom(given: Any) -> dict[type, Sequence[str]]:
    """Names of parameters by class, as `{CustomLinear: ["weight"]}`."""
    found: dict[type, Sequence[str]] = {}
    rows = given or {}
    if not isinstance(rows, Mapping):
        raise OptionError(f"custom_layer_dict has names of parameters by class, not {brief(given)}")
    for kind, names in rows.items():
        listed = [names] if isinstance(names, str) else names
        named = isinstance(listed, Iterable) and all(isinstance(one, str) for one in listed)
        if not isinstance(kind, type) or not named:
            raise OptionError(f"custom_layer_dict has names of parameters by class, not {brief({kind: names})}")
        found[kind] = tuple(listed)
    return found


def _class_of(given: Any, known: NamesByClass) -> type:
    kind = getattr(torch().nn, given, None) if isinstance(given, str) and given in KINDS else given
    if not isinstance(kind, type):
        raise AspError(f"whitelist has classes of layers, such as torch.nn.Linear, not {brief(given)}")
    if not any(one in known for one in kind.__mro__):
        raise AspError(
            f"whitelist: which parameters of {kind.__name__} are to be pruned is not known; say it by "
            f"custom_layer_dict={{{kind.__name__}: ['weight']}}"
        )
    return kind


def _listed(given: Any, name: str) -> list[Any]:
    if isinstance(given, (str, type)):
        return [given]
    if not isinstance(given, Iterable):
        raise OptionError(f"{name} is a list, not {brief(given)}")
    return list(given)


def _names(given: Any, name: str) -> frozenset[str]:
    return frozenset(bare(str(one)) for one in _listed(given, name))


@dataclass(frozen=True, eq=False)
class PrunedWeight:
    """A parameter with masks beside it: where it stands, and how it lies as (group, out, in, tap)."""

    path: str
    places: tuple[MaskBuffers, ...]
    matrix: View
    restore: View

    @property
    def buffers(self) -> list[MaskBuffers]:
        """Those beside it in layers that are there."""
        return [one for one in self.places if one.owner() is not None]

    @property
    def parameter(self) -> Any:
        return self.buffers[0].parameter

    @property
    def keep(self) -> Any:
        return self.buffers[0].keep

    @property
    def is_masked(self) -> bool:
        return not bool(self.keep.all())

    def dense(self) -> Any:
        """The numbers with those that were put away."""
        demand_numbers(self.path, self.parameter)
        self.demand_shape()
        parameter, stash = self.parameter.detach(), self.buffers[0].stash
        return parameter if stash is None else torch().where(self.keep, parameter, stash.to(parameter))

    def demand_shape(self) -> None:
        now, then = list(self.parameter.shape), list(self.keep.shape)
        if now != then:
            raise AspError(
                f"parameter '{self.path}' is {now}, and was {then} when ASP was initialized; give it its shape back, "
                "or call ASP.of(model).remove() and begin again"
            )

    def put(self, keep: Any) -> None:
        """Mask the dense numbers; what is under the mask is put away where there is a place for it."""
        dense = self.dense()
        for one in self.buffers:
            one.put(keep, dense)
        with torch().no_grad():
            self.parameter.copy_(torch().where(keep.to(dense.device), dense, 0))

    def remove(self) -> None:
        for one in self.buffers:
            one.remove()


class Home(NamedTuple):
    """Where a parameter stands: in a layer, under a name that may lead into it, with a mask called so beside it."""

    owner: Any
    name: str
    mask: str


def pruned_weights(
    model: Any, selection: Selection, pattern: Pattern | None, stash: bool
) -> tuple[list[PrunedWeight], dict[str, str]]:
    """The weights that get masks, and why the other layers that were meant stay dense."""
    found, left = _found(model, selection, pattern)
    weights = []
    for path, homes in found.items():
        matrix, restore = _views(homes[0].owner, homes[0].name)
        weights.append(PrunedWeight(path, tuple(MaskBuffers.beside(*home, stash) for home in homes), matrix, restore))
    return weights, left


def _found(model: Any, selection: Selection, pattern: Pattern | None) -> tuple[dict[str, list[Home]], dict[str, str]]:
    """Everything is looked at before anything is changed."""
    found: dict[str, list[Home]] = {}
    left: dict[str, str] = {}
    first: dict[Any, str] = {}
    taken: dict[tuple[Any, str], str] = {}
    for layer, owner, name, unwanted in selection.layers(model):
        path = f"{layer}.{name}" if layer else name
        parameter = dict(owner.named_parameters(remove_duplicate=False)).get(name)
        unfit = _computed(owner, name) if parameter is None else unwanted or _refusal(owner, name, path, pattern)
        if unfit:
            left[path] = unfit if unfit == ABSENT else unwanted or unfit
            continue
        mask = mask_name(name)
        mask = mask if taken.setdefault((owner, mask), name) == name else long_mask_name(name)
        found.setdefault(first.setdefault(parameter, path), []).append(Home(owner, name, mask))
    return found, {path: reason for path, reason in left.items() if reason != ABSENT}


ABSENT = "not there"


def _computed(owner: Any, name: str) -> str:
    """Of attention some parameters are there and some are not, as its sizes need."""
    if getattr(owner, name, None) is None:
        return ABSENT
    return "it is computed from other parameters, by a parametrization or by torch.nn.utils; remove that first"


def _refusal(owner: Any, name: str, path: str, pattern: Pattern | None) -> str:
    parameter = owner.get_parameter(name)
    if not parameter.is_floating_point():
        return f"its numbers are {str(parameter.dtype).partition('.')[2]}"
    if not parameter.requires_grad:
        return "it is frozen: requires_grad is False"
    demand_numbers(path, parameter)
    if parameter.dim() < 2 or not parameter.numel():
        return f"its shape {list(parameter.shape)} has no inputs and outputs"
    shape4 = _views(owner, name)[0](np.broadcast_to(np.zeros(1, bool), parameter.numel())).shape
    groups, out, inputs, _ = shape4
    for count, what, unit in ((inputs, "inputs", ALIGNMENT.inputs), (groups * out, "outputs", ALIGNMENT.out)):
        if count % unit:
            return f"{count} {what} are no multiple of {unit}"
    return "" if pattern is None or pattern.units(shape4) else f"it holds no whole group of {pattern.text}"


def demand_numbers(path: str, parameter: Any) -> None:
    if parameter.is_meta:
        raise OptionError(f"parameter '{path}' has no numbers yet, it is on the device meta; load them first")
    if sharded(parameter):
        raise OptionError(
            f"parameter '{path}' is spread over several machines already; compute the masks before fully_shard"
        )
    demand_maskable(path, parameter)


def _views(owner: Any, name: str) -> tuple[View, View]:
    """Of layers that are not known the second axis counts the inputs."""
    parameter = owner.get_parameter(name)
    four = (1, *parameter.shape[:2], -1)
    found = views_of(owner.get_submodule(name.rpartition(".")[0]), parameter)
    return found or (lambda flat: flat.reshape(four), lambda view: view.reshape(-1))
