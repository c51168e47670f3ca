"""Masks and sparsers as parametrizations of a module's parameters, put on and taken off again without a trace.

1. What the module computes with is `where(keep, weight, +0.0)`, so masked places get no gradient.
2. The mask is a plain attribute: wrappers for several devices send buffers around. State dicts do not hold it: they
   are those of the plain module (see `state_dicts`).
3. The Parameter object stays the same throughout, so an optimizer that holds it goes on with it, and so does a wrapper
   for several processes that waits for its gradient.
4. What rounds a weight stands behind its mask, in the same list (see `quantized_module`).
5. Taking off is our own: torch's takes the property from the class, which deep copies of the module share.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import numpy as np

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.state_dicts import (
    LISTS,
    StateDictParametrization,
    keep_plain,
    leave_plain,
    parametrized,
    sharded,
    share_of,
)
from onnxsparse.errors import OptionError
from onnxsparse.math.values import Array
from onnxsparse.sparsers.probabilistic import LARGEST_EXPONENT, TINY, Probabilistic
from onnxsparse.sparsers.sparser import Moment, Sparser

_FLAT = "_flat_weights"  # where recurrent layers look for their weights
PATTERNS = "_onnxsparse_patterns"
"""Where a module that a recipe pruned has the patterns of its zeros, by the name of a parameter."""


@cache
def mask_class() -> Any:
    """The class of the parametrization; made when torch is there."""

    class MaskParametrization(StateDictParametrization, torch().nn.Module):  # type: ignore[misc]
        """What is kept of a parameter, and where the parameter stood among those of its module."""

        def __init__(self, keep: Any, order: tuple[str, ...]) -> None:
            super().__init__()
            self.keep, self.order, self.taken_off = keep, order, False
            self.watched, self.dense = False, None
            """Whether the gradient at every place is kept, masked ones too; and their sum since the last step."""

        def forward(self, weight: Any) -> Any:
            seen = torch().where(share_of(self.keep, weight) if sharded(weight) else self.keep, weight, 0.0)
            if self.watched and seen.requires_grad:
                seen.register_hook(self._heard)
            return seen

        def _heard(self, gradient: Any) -> None:
            self.dense = gradient.detach() if self.dense is None else self.dense + gradient.detach()

        def plain(self, weight: Any) -> Any:
            return self.forward(weight)

        def _apply(self, fn: Any, recurse: bool = True) -> Any:
            """Go to another device; whatever else happens to parameters leaves a mask as it is."""
            super()._apply(fn, recurse)
            device = fn(torch().empty(0, device=self.keep.device)).device
            if device.type != "meta":
                self.keep = self.keep.to(device)
            return self

    return MaskParametrization


def put_mask_on(owner: Any, name: str, keep: Any) -> None:
    """Mask a parameter of a module; its numbers at masked places become zero."""
    masks = masks_on(owner)
    made = mask_class()(keep, order_of(owner))
    if name in (getattr(owner, LISTS, None) or ()):
        getattr(owner, LISTS)[name].insert(0, made)
    else:
        append(owner, name, made)
    if hasattr(owner, _FLAT) and not masks:
        owner._onnxsparse_hook = owner.register_forward_hook(_take_back, always_call=True)


def order_of(owner: Any) -> tuple[str, ...]:
    """The parameters of a module in the order that they had when nothing stood in for any."""
    return next((one.order for _, one in parametrized(owner)), tuple(owner._parameters))


def append(owner: Any, name: str, made: Any) -> None:
    """Have something stand in for a parameter, behind what does so already."""
    parametrize = importlib.import_module("torch.nn.utils.parametrize")
    with _left_alone(parametrize):
        parametrize.register_parametrization(owner, name, made, unsafe=True)
    keep_plain(owner)
    if isinstance(owner, torch().fx.GraphModule):
        type(owner).__deepcopy__ = _copied


def remove(owner: Any, name: str, one: Any) -> None:
    """Have something stand in for a parameter no more; the rest stays."""
    parts = getattr(owner, LISTS)[name]
    if len(parts) > 1:
        del parts[list(parts).index(one)]
    else:
        plain_again(owner, name, one.order)


@contextmanager
def _left_alone(parametrize: Any) -> Iterator[None]:
    """Registering sets a parameter to itself, and so cuts off a wrapper that waits for its gradient already."""
    setting = getattr(parametrize, "_maybe_set", None)
    if setting is None:
        yield
        return
    parametrize._maybe_set = lambda dest, src: None if src is dest else setting(dest, src)
    try:
        yield
    finally:
        parametrize._maybe_set = setting


def take_mask_off(owner: Any, name: str) -> None:
    """The parameter as it was before, with zeros at masked places."""
    mask = mask_of(owner, name)
    zero(original_of(owner, name), mask.keep)
    mask.taken_off = True
    remove(owner, name, mask)


def plain_again(owner: Any, name: str, order: tuple[str, ...]) -> None:
    """Take a parametrization away; the parameter has its place among those of the module again."""
    original = original_of(owner, name)
    del getattr(owner, LISTS)[name]
    kind = type(owner)
    if len(getattr(owner, LISTS)) == 0:
        delattr(owner, LISTS)
        owner.__class__ = kind.__bases__[0]
    else:
        kept = {key: one for key, one in vars(kind).items() if key not in (name, "__dict__", "__weakref__")}
        owner.__class__ = type(kind.__name__, kind.__bases__, kept)
    owner.register_parameter(name, original)
    _in_order(owner._parameters, order)
    leave_plain(owner)
    if hasattr(owner, _FLAT) and not masks_on(owner):
        owner.__dict__.pop("_onnxsparse_hook").remove()
        _take_back(owner, None, None)


def _in_order(parameters: dict[str, Any], order: tuple[str, ...]) -> None:
    names = [name for name in order if name in parameters]
    for name in [*names, *(name for name in list(parameters) if name not in names)]:
        parameters[name] = parameters.pop(name)


def masks_on(owner: Any) -> list[tuple[str, Any]]:
    """The masked parameters of one module, and the masks."""
    lists = getattr(owner, LISTS, None)
    if lists is None or not isinstance(lists, torch().nn.ModuleDict):
        return []
    return [(name, one[0]) for name, one in lists.items() if isinstance(one[0], mask_class())]


def all_masks(module: Any) -> Iterator[tuple[str, Any, str]]:
    """Path, owner and name of every masked parameter in a module."""
    for prefix, owner in list(module.named_modules()):
        for name, _ in masks_on(owner):
            yield (f"{prefix}.{name}" if prefix else name), owner, name


def mask_of(owner: Any, name: str) -> Any:
    return dict(masks_on(owner))[name]


def original_of(owner: Any, name: str) -> Any:
    return getattr(owner, LISTS)[name].original


def zero(tensor: Any, keep: Any) -> None:
    """+0.0 where the mask keeps nothing; of a tensor that lies on several machines, in the part that is here."""
    with torch().no_grad():
        if sharded(tensor):
            spread = importlib.import_module("torch.distributed.tensor").distribute_tensor
            keep = spread(keep, tensor.device_mesh, tensor.placements).to_local()
            tensor = tensor.to_local()
        tensor.masked_fill_(~keep.to(tensor.device), 0)


def clear_moments(optimizer: Any, parameter: Any, keep: Any) -> None:
    """Zeros in what an optimizer remembers of masked places: its states that have the shape of the parameter."""
    for state in optimizer.state.get(parameter, {}).values():
        if torch().is_tensor(state) and state.shape == parameter.shape:
            zero(state, keep)


def _copied(module: Any, memo: dict[int, Any]) -> Any:
    """torch.fx copies a module by its graph, which knows nothing of parametrizations."""
    replica = object.__new__(type(module))
    memo[id(module)] = replica
    replica.__dict__ = copy.deepcopy(module.__dict__, memo)
    return replica


def _take_back(layer: Any, _: Any, __: Any) -> None:
    """Recurrent layers keep a list of what they computed with; such tensors cannot be copied."""
    masked = {name for name, _ in masks_on(layer)}
    names = layer._flat_weights_names
    layer.__dict__[_FLAT] = [original_of(layer, name) if name in masked else getattr(layer, name) for name in names]


# -- A sparser on one parameter of a module, for a user's own loop: a parametrization, as masks are.
#
# What the sparser trains are parameters of the module, so an optimizer that is made afterwards moves them along. What
# it is fed with are buffers. State dicts hold neither: they are those of the plain module (see `state_dicts`).


@cache
def sparser_class() -> Any:
    """The class of the parametrization; made when torch is there."""

    class SparserParametrization(StateDictParametrization, torch().nn.Module):  # type: ignore[misc]
        """What stands in for a weight."""

        drawn: Moment | None = None
        """When the subnet is drawn of what is kept by chance; states say which one that would be now."""

        def __init__(self, sparser: Sparser, trained: Mapping[str, Any], fed: Mapping[str, Any], order: Any) -> None:
            super().__init__()
            self.sparser, self.order, self.roles = sparser, order, (tuple(trained), tuple(fed))
            for role, tensor in trained.items():
                self.register_parameter(role, torch().nn.Parameter(tensor))
            for role, tensor in fed.items():
                self.register_buffer(role, tensor, persistent=False)

        def tensors(self, kind: int) -> dict[str, Any]:
            """What is trained (0), or fed (1), by role."""
            return {role: getattr(self, role) for role in self.roles[kind]}

        def forward(self, weight: Any) -> Any:
            return effective(self.sparser, weight, self.tensors(0), self.tensors(1))

        def plain(self, weight: Any) -> Any:
            numbers, trained = array_of(weight), {role: array_of(one) for role, one in self.tensors(0).items()}
            if self.drawn is None:
                keep = self.sparser.keep(numbers, trained, np.broadcast_to(np.float32(1), numbers.shape))
            else:
                keep = cast(Probabilistic, self.sparser).draw(trained["score"], self.drawn)
            return _tensor(self.sparser.bake(numbers, trained, keep), weight.device).to(weight.dtype)

    return SparserParametrization


def put_sparser_on(
    homes: Sequence[tuple[Any, str]], sparser: Sparser, trained: Mapping[str, Array], fed: Mapping[str, Array]
) -> None:
    """Have a sparser stand in for a parameter, in all modules that hold it."""
    device, order = homes[0][0]._parameters[homes[0][1]].device, tuple(homes[0][0]._parameters)
    arrays = [{role: _tensor(array, device) for role, array in part.items()} for part in (trained, fed)]
    made, parametrize = sparser_class()(sparser, *arrays, order), importlib.import_module("torch.nn.utils.parametrize")
    for owner, name in homes:
        parametrize.register_parametrization(owner, name, made, unsafe=True)
        keep_plain(owner)


def _tensor(array: Array, device: Any) -> Any:
    return torch().from_numpy(np.array(array)).to(device)


def array_of(tensor: Any) -> Array:
    """A tensor's numbers; on the CPU its own memory."""
    plain = tensor.detach()
    plain = plain if plain.dtype in (torch().float32, torch().float64) else plain.float()
    found: Array = plain.cpu().numpy()
    return found


def take_sparser_off(owner: Any, name: str) -> None:
    """The parameter as it is under the sparser."""
    plain_again(owner, name, sparser_on(owner, name).order)


def sparser_on(owner: Any, name: str) -> Any:
    return owner.parametrizations[name][0]


def all_sparsers(module: Any) -> Iterator[tuple[str, Any, str]]:
    """Path, owner and name of every parameter with a sparser."""
    for prefix, owner in list(module.named_modules()):
        for name, one in list((getattr(owner, "parametrizations", None) or {}).items()):
            if isinstance(one[0], sparser_class()):
                yield (f"{prefix}.{name}" if prefix else name), owner, name


# -- Sparsers in torch: what the network sees in place of a weight. The numpy form is the definition.


Tensors = Mapping[str, Any]


def effective(sparser: Sparser, weight: Any, trained: Tensors, frozen: Tensors) -> Any:
    """The tensor that is multiplied with, and through which the gradient comes."""
    form = _FORMS.get(sparser.name)
    if form is None:
        known = ", ".join(_FORMS)
        raise OptionError(f"the torch engine cannot train with the sparser {sparser.name!r} (known: {known})")
    return form(weight, trained, frozen)


def _mask(weight: Any, trained: Tensors, frozen: Tensors) -> Any:
    mask = frozen["mask"]
    return weight * mask if mask.is_floating_point() else weight * mask.to(weight.dtype)


def _soft_threshold(weight: Any, trained: Tensors, frozen: Tensors) -> Any:
    threshold = torch().sigmoid(trained["threshold"])
    return torch().relu(weight - threshold) - torch().relu(-weight - threshold)


def _hard_threshold(weight: Any, trained: Tensors, frozen: Tensors) -> Any:
    above = weight.abs() - torch().sigmoid(trained["threshold"])
    share = above.clamp(-1, 1) * 0.5
    mask = (share + 0.5 > 0.5).to(weight.dtype)
    return weight * (mask + (share - share.detach()))


def _straight_through(weight: Any, trained: Tensors, frozen: Tensors) -> Any:
    return weight * (frozen["mask"] + (trained["score"] - frozen["anchor"]))


def _probabilistic(weight: Any, trained: Tensors, frozen: Tensors) -> Any:
    score = trained["score"].clamp(0, 1)
    keep, drop = torch().log(score + TINY), torch().log(1 - score + TINY)
    exponent = ((drop - keep - frozen["noise"]) * frozen["temperature"]).clamp(max=LARGEST_EXPONENT)
    return weight / (1 + torch().exp(exponent))


_FORMS: dict[str, Callable[[Any, Tensors, Tensors], Any]] = {
    "mask": _mask,
    "soft-threshold": _soft_threshold,
    "hard-threshold": _hard_threshold,
    "straight-through": _straight_through,
    "probabilistic": _probabilistic,
}
