"""A mask on one parameter: a parametrization, put on and taken off again without a trace.

1. What the module computes with is `where(keep, weight, +0.0)`, so masked places get no gradient.
2. The mask is a plain attribute: wrappers for several devices send buffers around. State dicts do not hold it: they
   are those of the plain module (see `state_names`).
3. The Parameter object stays the same throughout, so an optimizer that holds it goes on with it, and so does a wrapper
   for several processes that waits for its gradient.
4. Taking off is our own: torch's takes the property from the class, which deep copies of the module share.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.state_names import LISTS, Standing, keep_plain, leave_plain, sharded, share_of

_FLAT = "_flat_weights"  # where recurrent layers look for their weights


@cache
def mask_class() -> Any:
    """The class of the parametrization; made when torch is there."""

    class Held(Standing, torch().nn.Module):  # type: ignore[misc]
        """What is kept of a parameter, and where the parameter stood among those of its module."""

        def __init__(self, keep: Any, order: tuple[str, ...]) -> None:
            super().__init__()
            self.keep, self.order, self.taken_off = keep, order, False

        def forward(self, weight: Any) -> Any:
            return torch().where(share_of(self.keep, weight) if sharded(weight) else self.keep, weight, 0.0)

        def plain(self, weight: Any) -> Any:
            return self.forward(weight)

        def _apply(self, fn: Any, recurse: bool = True) -> Any:
            """Go to another device; whatever else happens to parameters leaves a mask as it is."""
            super()._apply(fn, recurse)
            device = fn(torch().empty(0, device=self.keep.device)).device
            if device.type != "meta":
                self.keep = self.keep.to(device)
            return self

    return Held


def put_on(owner: Any, name: str, keep: Any) -> None:
    """Mask a parameter of a module; its numbers at masked places become zero."""
    masks = [one for _, one in held(owner)]
    order = masks[0].order if masks else tuple(owner._parameters)
    parametrize = importlib.import_module("torch.nn.utils.parametrize")
    with _left_alone(parametrize):
        parametrize.register_parametrization(owner, name, mask_class()(keep, order), unsafe=True)
    keep_plain(owner)
    if isinstance(owner, torch().fx.GraphModule):
        type(owner).__deepcopy__ = _copied
    if hasattr(owner, _FLAT) and not masks:
        owner._onnxsparse_hook = owner.register_forward_hook(_take_back, always_call=True)


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


def take_off(owner: Any, name: str) -> None:
    """The parameter as it was before, with zeros at masked places."""
    mask = mask_of(owner, name)
    zero(original_of(owner, name), mask.keep)
    mask.taken_off = True
    plain_again(owner, name, mask.order)


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
    if hasattr(owner, _FLAT) and not held(owner):
        owner.__dict__.pop("_onnxsparse_hook").remove()
        _take_back(owner, None, None)


def _in_order(parameters: dict[str, Any], order: tuple[str, ...]) -> None:
    names = [name for name in order if name in parameters]
    for name in [*names, *(name for name in list(parameters) if name not in names)]:
        parameters[name] = parameters.pop(name)


def held(owner: Any) -> list[tuple[str, Any]]:
    """The masked parameters of one module, and the masks."""
    lists = getattr(owner, LISTS, None)
    if lists is None or not isinstance(lists, torch().nn.ModuleDict):
        return []
    return [(name, one[0]) for name, one in lists.items() if isinstance(one[0], mask_class())]


def all_held(module: Any) -> Iterator[tuple[str, Any, str]]:
    """Path, owner and name of every masked parameter in a module."""
    for prefix, owner in list(module.named_modules()):
        for name, _ in held(owner):
            yield (f"{prefix}.{name}" if prefix else name), owner, name


def mask_of(owner: Any, name: str) -> Any:
    return dict(held(owner))[name]


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


def _copied(module: Any, memo: dict[int, Any]) -> Any:
    """torch.fx copies a module by its graph, which knows nothing of parametrizations."""
    replica = object.__new__(type(module))
    memo[id(module)] = replica
    replica.__dict__ = copy.deepcopy(module.__dict__, memo)
    return replica


def _take_back(layer: Any, _: Any, __: Any) -> None:
    """Recurrent layers keep a list of what they computed with; such tensors cannot be copied."""
    masked = {name for name, _ in held(layer)}
    names = layer._flat_weights_names
    layer.__dict__[_FLAT] = [original_of(layer, name) if name in masked else getattr(layer, name) for name in names]
