"""`attach`: masks as parametrizations of a module's parameters, for a user's training loop; `finish` removes them.

1. Every parameter with a mask is parametrized (see `parametrization`): masked places are zero in every forward pass,
   and get no gradient.
2. After each step of an optimizer that is followed, weights and moments at masked places are zero, too. A step that a
   GradScaler skips changes nothing and calls nothing.
3. A parameter with several names in the module is masked under each.
4. What is grown back begins at zero, without moments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.mask_to_param import DICT, array_of, bare, demand_fit
from onnxsparse.engines.torch.parametrization import (
    all_masks,
    clear_moments,
    mask_of,
    original_of,
    put_mask_on,
    take_mask_off,
    zero,
)
from onnxsparse.engines.torch.quantized_module import stage_of, take_off
from onnxsparse.engines.torch.state_dicts import digest_of, sharded
from onnxsparse.errors import OptionError, PlanError, brief, nearest
from onnxsparse.math.values import Array

_PROMISED = "_onnxsparse_attached"
UNMASKED, PLAIN = "unmasked", "plain"


class Attached:
    """The masks on a module: what they are, how to change them, and how to take them off."""

    def __init__(self, module: Any, masks: Mapping[str, Array]) -> None:
        self.module = bare_module(module)
        self._places = _places_of(self.module, masks)
        self._optimizers: list[tuple[Any, Any]] = []
        for name, homes in self._places.items():
            parameter = homes[0][0]._parameters[homes[0][1]]
            keep = torch().from_numpy(np.ascontiguousarray(masks[name])).to(parameter.device)
            zero(parameter, keep)
            for owner, attribute in homes:
                put_mask_on(owner, attribute, keep)
        self.module.__dict__[_PROMISED] = _masks_by_path(self.module)

    @property
    def masks(self) -> dict[str, Any]:
        """A tensor of bools for every masked parameter, True = keep."""
        return {name: mask_of(*homes[0]).keep.clone() for name, homes in self._live().items()}

    def density(self) -> float:
        """The share of the masked parameters' elements that is kept."""
        masks = list(self.masks.values())
        return float(sum(int(keep.sum()) for keep in masks) / max(1, sum(keep.numel() for keep in masks)))

    def follow(self, optimizer: Any) -> Attached:
        """Keep weights and moments at masked places at zero after each step of an optimizer, from now on."""
        register = getattr(optimizer, "register_step_post_hook", None)
        if register is None:
            raise OptionError(f"an optimizer of torch is expected, not {brief(optimizer)}")
        held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        if not any(original_of(*homes[0]) in held for homes in self._live().values()):
            raise OptionError("the optimizer holds none of the masked parameters; make it of the module's parameters")
        self._optimizers.append((optimizer, register(lambda *_: self.settle())))
        self.settle()
        return self

    def settle(self) -> None:
        """Zeros at all masked places, of weights and of moments: what happens after each step."""
        for homes in self._live().values():
            parameter, keep = original_of(*homes[0]), mask_of(*homes[0]).keep
            zero(parameter, keep)
            self._clear(parameter, keep)

    def update(self, masks: Mapping[str, Any]) -> None:
        """New masks, by parameter, for all or some of those that have one; moments are cleared where one changes."""
        live = self._live()
        found = {}
        for name, mask in masks.items():
            if name not in live:
                raise PlanError(f"no mask is attached to a parameter '{name}'{nearest(str(name), live)}")
            found[name] = array_of(mask, name)
            demand_fit(name, found[name], {name: original_of(*live[name][0])}, name)
        for name, keep in found.items():
            self._change(live[name], keep)

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """What a checkpoint has to hold beside the module's state, which is that of the plain module.

        The masks, and the numbers of those weights that are not zero under theirs (an optimizer that is not followed
        may have moved them), with a digest of what the module's state says of them.
        """
        found: dict[str, dict[str, Any]] = {DICT: self.masks, UNMASKED: {}, PLAIN: {}}
        for name, homes in self._live().items():
            original, mask = original_of(*homes[0]).detach(), mask_of(*homes[0])
            if not sharded(original) and original[~mask.keep].any():
                found[UNMASKED][name] = original.clone()
                found[PLAIN][name] = digest_of(mask.plain(original))
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the masks of a state; before or after the states of the module and its optimizer are loaded."""
        live, parts = self._live(), state if isinstance(state, Mapping) else {}
        masks, numbers, digests = (parts.get(name, {}) for name in (DICT, UNMASKED, PLAIN))
        if DICT not in parts or not all(isinstance(one, Mapping) for one in (masks, numbers, digests)):
            raise OptionError(f"load_state_dict takes what state_dict returned, not {brief(state)}")
        other = sorted(set(map(str, masks)) ^ set(live))
        if other:
            raise PlanError(f"the masks are those of another module: '{other[0]}' is in one of them only")
        found = {name: array_of(mask, name) for name, mask in masks.items()}
        for name, keep in found.items():
            demand_fit(name, keep, {name: original_of(*live[name][0])}, name)
        for name, keep in found.items():
            self._restore(live[name], keep)
            for owner, attribute in live[name] if name in numbers and name in digests else ():
                original = original_of(owner, attribute)
                mask_of(owner, attribute).await_numbers(original, digests[name], numbers[name].to(original.device))

    def _restore(self, homes: list[tuple[Any, str]], keep: Array) -> None:
        """As it was when the state was saved: numbers and moments that are kept may be there already."""
        parameter, before = original_of(*homes[0]), mask_of(*homes[0]).keep
        after = torch().from_numpy(np.ascontiguousarray(keep)).to(before.device)
        zero(parameter, after)
        self._clear(parameter, after)
        for owner, attribute in homes:
            mask_of(owner, attribute).keep = after

    def remove(self) -> None:
        """Take the masks off. The zeros stay, and nothing holds them any more."""
        _demand_here(all_masks(self.module))
        for _, hook in self._optimizers:
            hook.remove()
        self._optimizers.clear()
        for homes in self._live().values():
            for owner, attribute in homes:
                take_mask_off(owner, attribute)
        self._places.clear()
        self.module.__dict__.pop(_PROMISED, None)

    def _live(self) -> dict[str, list[tuple[Any, str]]]:
        """Those that nobody took off, by `finish` or otherwise."""
        there = {(owner, name) for _, owner, name in all_masks(self.module)}
        return {name: homes for name, homes in self._places.items() if homes[0] in there}

    def _change(self, homes: list[tuple[Any, str]], keep: Array) -> None:
        parameter, before = original_of(*homes[0]), mask_of(*homes[0]).keep
        after = torch().from_numpy(np.ascontiguousarray(keep)).to(before.device)
        zero(parameter, before & after)
        self._clear(parameter, before & after)
        for owner, attribute in homes:
            mask_of(owner, attribute).keep = after

    def _clear(self, parameter: Any, keep: Any) -> None:
        for optimizer, _ in self._optimizers:
            clear_moments(optimizer, parameter, keep)


def _places_of(module: Any, masks: Mapping[str, Array]) -> dict[str, list[tuple[Any, str]]]:
    """Everywhere that each parameter stands; checked as a whole before anything is touched."""
    named = dict(module.named_parameters(remove_duplicate=False))
    places: dict[str, list[tuple[Any, str]]] = {}
    taken: dict[Any, str] = {}  # by parameter
    for name, keep in masks.items():
        demand_fit(name, keep, named, name)
        _demand_plain(module, name)
        demand_maskable(name, named[name])
        parameter = named[name]
        first = taken.setdefault(parameter, name)
        if first == name:
            places[name] = homes_of(module, parameter)
        elif not np.array_equal(masks[first], keep):
            raise PlanError(f"'{first}' and '{name}' are one parameter and cannot have two masks")
    return places


def homes_of(module: Any, parameter: Any) -> list[tuple[Any, str]]:
    """Everywhere that one parameter stands in a module: of tied layers more than once."""
    return [(owner, name) for owner in module.modules() for name, one in owner._parameters.items() if one is parameter]


def _demand_plain(module: Any, path: str) -> None:
    folder, _, name = path.rpartition(".")
    if sharded(module.get_parameter(path)):
        raise OptionError(f"parameter '{path}' is spread over several machines already; attach before fully_shard")
    if ".parametrizations." in f".{folder}." or not torch().is_tensor(module.get_parameter(path)):
        raise OptionError(f"parameter '{path}' has a parametrization already; remove it first")
    if name.endswith("_orig") and f"{name[: -len('_orig')]}_mask" in dict(module.get_submodule(folder).named_buffers()):
        raise OptionError(f"parameter '{path}' is held by torch.nn.utils.prune; call prune.remove first")


def demand_maskable(path: str, parameter: Any) -> None:
    """Whatever cannot be set to zero in place is said before anything is touched."""
    why = {
        "is a single number, which cannot be masked": parameter.dim() == 0,
        "is stored sparse; attach masks to a dense one": parameter.layout != torch().strided,
        "was made in inference mode; make or load the module outside of it": parameter.is_inference(),
    }
    found = next((reason for reason, holds in why.items() if holds), None)
    if found is not None:
        raise OptionError(f"parameter '{path}' {found}")


def bare_module(module: Any) -> Any:
    """The module itself, without what spreads, averages or compiles it."""
    if not isinstance(module, torch().nn.Module):
        raise OptionError(f"a torch module is expected, not a {type(module).__name__}")
    if isinstance(module, torch().jit.ScriptModule):
        raise OptionError("a scripted or traced module takes no masks; attach to the module that it was made from")
    around = (torch().nn.parallel.DistributedDataParallel, torch().nn.DataParallel)
    averaged = torch().optim.swa_utils.AveragedModel
    while isinstance(module, (*around, averaged)) or hasattr(module, "_orig_mod"):
        module = module._orig_mod if hasattr(module, "_orig_mod") else module.module
    return module


def demand_free(module: Any) -> Any:
    """The bare module, on which nothing may be attached yet."""
    inner = bare_module(module)
    for path, parameter in inner.named_parameters():
        if torch().nn.parameter.is_lazy(parameter):
            raise OptionError(f"parameter '{path}' has no shape yet; run the module once before masks are attached")
    if any(True for _ in all_masks(inner)):
        raise OptionError(
            "masks are attached to this module already; change them with .update, take them off, or finalize the "
            "manager that put them on"
        )
    if stage_of(inner) is not None:
        raise OptionError(
            "the module is rounded by a recipe already; export it with osp.torch.export_quantized, and "
            "osp.torch.finish makes it plain again"
        )
    return inner


def attach(module: Any, masks: Mapping[str, Array], optimizer: Any = None) -> Attached:
    """Put masks, by parameter, on a module; `optimizer` is one or several that shall be followed."""
    if not masks:
        raise PlanError("nothing was attached: there are no masks in what was given, and the module would stay dense")
    optimizers: Iterable[Any] = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
    found = Attached(module, {bare(name): keep for name, keep in masks.items()})
    try:
        for one in optimizers:
            if one is not None:
                found.follow(one)
    except OptionError:
        found.remove()
        raise
    return found


def finish(module: Any) -> Any:
    """Make the masks part of the numbers and take them off; return the plain module."""
    inner = bare_module(module)
    places = list(all_masks(inner))
    promised = inner.__dict__.get(_PROMISED, {})
    rounded = take_off(inner)
    if not places and not promised and not rounded:
        raise OptionError("no masks are attached to this module; attach them before training, finish after it")
    _demand_here(places)
    _demand_all(promised, inner)
    for _, owner, name in places:
        take_mask_off(owner, name)
    inner.__dict__.pop(_PROMISED, None)
    return inner


def _masks_by_path(module: Any) -> dict[str, Any]:
    return {path: mask_of(owner, name) for path, owner, name in all_masks(module)}


def _demand_all(promised: Mapping[str, Any], module: Any) -> None:
    """What was replaced after attach has no zeros to make part of it. Wrappers may have moved a mask elsewhere."""
    there = set(_masks_by_path(module).values())
    gone = [path for path, mask in promised.items() if mask not in there and not mask.taken_off]
    if gone:
        raise OptionError(
            f"the masks of {', '.join(gone)} are gone: the layers were replaced, or their parametrizations removed, "
            "after attach; .remove() the other masks and attach again"
        )


def _demand_here(places: Iterable[tuple[str, Any, str]]) -> None:
    """FSDP holds on to the place that a parameter had when it was spread."""
    spread = next((path for path, owner, name in places if sharded(original_of(owner, name))), None)
    if spread is not None:
        raise OptionError(
            f"parameter '{spread}' is spread over several machines; gather the state with get_model_state_dict, load "
            "it into a plain module with the same masks, and finish that one"
        )
