"""A torch module in a user's own loop: its convolutions and matrices, masked or reparametrized in place.

1. The module stays the user's own object; parameters stay the same objects, so an optimizer that holds them goes on.
2. Masks are those of `attach`; other sparsers are parametrizations of their own (`parametrization`).
3. Numbers are computed on in numpy: the same masks come out as of the same numbers in an ONNX model.
"""

from __future__ import annotations

import copy
import importlib
import io
import math
import os
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import numpy as np

from onnxsparse import patterns, sparsers
from onnxsparse.engines.torch import parametrization
from onnxsparse.engines.torch.attach import PLAIN, UNMASKED, Attached, bare_module, finish, homes_of
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.mask_to_param import DICT
from onnxsparse.engines.torch.parametrization import all_masks
from onnxsparse.engines.torch.state_dicts import digest_of
from onnxsparse.errors import OptionError
from onnxsparse.files import Staged, make_folder, put
from onnxsparse.graph.weights import Convolution
from onnxsparse.math.values import Array
from onnxsparse.train.layers import Measured, Network, Promise, Site, dropped
from onnxsparse.train.torch_export import Part, export_onnx, promise_of

MASK, KEPT, TRAINED, NUMBERS = "mask", "kept", "trained", "numbers"


class TorchNetwork(Network):
    """A module that somebody trains."""

    is_torch: ClassVar[bool] = True

    def __init__(self, module: Any) -> None:
        self.module = bare_module(module)
        if any(True for _ in all_masks(self.module)):
            raise OptionError("masks are attached to this module already; take them off first")
        self._owners: dict[str, Any] = {}
        self._homes: dict[str, list[tuple[Any, str]]] = {}
        self.sites: list[Site] = []
        for path, owner in self.module.named_modules():
            site = site_of(path, owner)
            if site is None:
                continue
            tied = next((at for at, one in enumerate(self._owners.values()) if one.weight is owner.weight), None)
            if tied is None:
                self._owners[site.key] = owner
                self._homes[site.key] = homes_of(self.module, owner.weight) or [(owner, "weight")]
                self.sites.append(replace(site, within=within(self.module, path)))
            else:
                first = self.sites[tied]
                self.sites[tied] = replace(first, names=(*first.names, *site.names))
        nets = getattr(self.module, "nets", ())
        self.parts = {name: net.name for net in nets[1:] and nets for name in net.module.state_dict()}
        self._used: dict[str, str] = {}
        self._moments: dict[str, sparsers.Moment] = {}
        self._attached: Attached | None = None
        self._followed: list[Any] = []
        self.kept: dict[str, Array] = {}
        self._anchors: dict[str, Any] = {}
        self._strength = 0.0
        self.promise = Promise()
        self.notes = list(beside(self.module, [owner.weight for owner in self._owners.values()]))

    @property
    def module_names(self) -> Collection[str]:
        return {name for path, one in self.module.named_modules() for name in (path, type(one).__name__)}

    # -- layers

    def is_of(self, module: Any) -> bool:
        """Whether a module is this one, perhaps wrapped."""
        return isinstance(module, torch().nn.Module) and bare_module(module) is self.module

    @property
    def used(self) -> Mapping[str, str]:
        return self._used

    def _original(self, key: str) -> Any:
        owner = self._owners[key]
        return parametrization.original_of(owner, "weight") if key in self._used else owner.weight

    def weight(self, key: str) -> Array:
        return parametrization.array_of(self._original(key))

    def owners(self, key: str) -> list[Any]:
        """The modules whose weight a layer is; of tied ones the first is what it is called by."""
        return [owner for owner, _ in self._homes[key]]

    def put(self, key: str, numbers: Array) -> None:
        with torch().no_grad():
            self._original(key).copy_(torch().from_numpy(np.ascontiguousarray(numbers)))

    def trained(self, key: str) -> dict[str, Array]:
        return self._around(key, 0)

    def frozen(self, key: str) -> dict[str, Array]:
        return self._around(key, 1)

    def _around(self, key: str, kind: int) -> dict[str, Array]:
        if self._used.get(key, MASK) == MASK:
            return {}
        found = parametrization.sparser_on(self._owners[key], "weight").tensors(kind)
        return {role: parametrization.array_of(tensor) for role, tensor in found.items()}

    def sent(self, key: str, arrays: Mapping[str, Array]) -> None:
        """Make arrays beside a weight, by role, what the next step sees: on other devices they are copies."""
        one = parametrization.sparser_on(self._owners[key], "weight")
        with torch().no_grad():
            for role, array in arrays.items():
                getattr(one, role).copy_(torch().from_numpy(np.ascontiguousarray(array)))

    def use(self, texts: Mapping[str, str]) -> None:
        self._bare()
        self._used = dict(texts)
        masked = {key: np.ones(self._owners[key].weight.shape, bool) for key, text in texts.items() if text == MASK}
        if masked:
            self._attached = Attached(self.module, masked)
            for optimizer in self._followed:
                self._attached.follow(optimizer)
        for key, text in texts.items():
            if text != MASK:
                self._reparametrize(key, sparsers.parse(text))

    def _reparametrize(self, key: str, sparser: Any) -> None:
        weight = parametrization.array_of(self._owners[key].weight)
        trained = sparser.trained(weight)
        fed = sparser.feed(weight, trained, np.ones(weight.shape, np.float32), sparsers.Moment(key))
        parametrization.put_sparser_on(self._homes[key], sparser, trained, fed)
        parametrization.sparser_on(self._owners[key], "weight").drawn = self._moments.get(key)

    def draw_at(self, moments: Mapping[str, sparsers.Moment]) -> None:
        """When the subnet of layers that are kept by chance is drawn, by key; said before they are used."""
        self._moments = dict(moments)

    def _bare(self) -> None:
        """Nothing of ours on the module; numbers as they are."""
        if self._attached is not None:
            self._attached.remove()
            self._attached = None
        for _, owner, name in list(parametrization.all_sparsers(self.module)):
            parametrization.take_sparser_off(owner, name)
        self._used = {}

    def set_masks(self, masks: Mapping[str, Array]) -> None:
        if self._attached is not None:
            self._attached.update(masks)

    def masks(self) -> dict[str, Array]:
        if self._attached is None:
            return {}
        return {key: keep.cpu().numpy() for key, keep in self._attached.masks.items()}

    def anchor(self, anchors: Mapping[str, Array], strength: float) -> None:
        found = {key: torch().from_numpy(np.array(array)) for key, array in anchors.items()}
        self._anchors = {key: one.to(self._original(key)) for key, one in found.items()}
        self._strength = strength

    def pull(self) -> Any:
        squares = [(self._original(key) - one).square().sum() for key, one in self._anchors.items()]
        return self._strength / 2 * sum(squares)

    def follow(self, optimizer: Any) -> None:
        """Keep weights and moments at masked places at zero after each step."""
        self._followed.append(optimizer)
        if self._attached is not None:
            self._attached.follow(optimizer)

    def watch(self, stepped: Callable[[], bool]) -> None:
        """Steps are those of whatever optimizer of torch holds one of the weights."""
        _watch_optimizers()
        _WATCHED[self] = weakref.WeakMethod(stepped)

    def is_moved_by(self, optimizer: Any) -> bool:
        mine = {self._original(key) for key in self._owners}
        return any(one in mine for group in optimizer.param_groups for one in group["params"])

    def settle(self) -> None:
        """Zeros in the weights themselves, at masked places."""
        if self._attached is not None:
            self._attached.settle()

    # -- what a checkpoint holds beside the module's own state

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tensors by name and facts for JSON: masks, what sparsers train, and the numbers under the zeros."""
        tensors = {f"{KEPT}/{name}": torch().from_numpy(np.array(array)) for name, array in self.kept.items()}
        beneath = self._beneath()
        for key, text in self._used.items():
            if text != MASK:
                one = parametrization.sparser_on(self._owners[key], "weight")
                found = {f"{TRAINED}/{role}/{key}": tensor for role, tensor in one.tensors(0).items()}
                tensors.update({name: tensor.detach().clone() for name, tensor in found.items()})
        tensors.update({f"{MASK}/{key}": keep for key, keep in beneath[DICT].items()})
        tensors.update({f"{NUMBERS}/{key}": numbers for key, numbers in beneath[UNMASKED].items()})
        return tensors, {"used": dict(self._used), PLAIN: beneath[PLAIN]}

    def _beneath(self) -> dict[str, dict[str, Any]]:
        """Masks, the numbers that the module's state does not say, and digests of what it says instead."""
        found = {DICT: {}, UNMASKED: {}, PLAIN: {}} if self._attached is None else self._attached.state_dict()
        for key, text in self._used.items():
            if text != MASK:
                original = self._original(key).detach()
                found[UNMASKED][key] = original.clone()
                found[PLAIN][key] = digest_of(parametrization.sparser_on(self._owners[key], "weight").plain(original))
        return found

    def restore(self, tensors: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Go on from there, before or after the module's own state is loaded."""
        used, digests = facts["used"], facts.get(PLAIN, {})
        unknown = set(used) - set(self._owners)
        if unknown:
            raise OptionError(f"the state is of another network: this one has no layer {sorted(unknown)[0]!r:.60}")
        if self._used != dict(used):
            self.use(used)
        parts: dict[str, dict[str, Any]] = {}
        for name, tensor in tensors.items():
            kind, _, rest = name.partition("/")
            parts.setdefault(kind, {})[rest] = torch().as_tensor(tensor)
        masks, numbers = parts.get(MASK, {}), parts.get(NUMBERS, {})
        if self._attached is not None:
            self._attached.load_state_dict({DICT: masks, UNMASKED: numbers, PLAIN: digests})
        self.kept.clear()
        self.kept.update({name: tensor.cpu().numpy().copy() for name, tensor in parts.get(KEPT, {}).items()})
        for name, tensor in parts.get(TRAINED, {}).items():
            role, _, key = name.partition("/")
            self.sent(key, {role: tensor.cpu().numpy()})
        for key in used:
            if used[key] != MASK and key in numbers and key in digests:
                original, one = self._original(key), parametrization.sparser_on(self._owners[key], "weight")
                one.await_numbers(original, digests[key], numbers[key].to(original.device))

    # -- sizes

    def measure(self, shape: Sequence[int] | None, real: Any = None) -> dict[str, Measured]:
        inputs = _inputs(shape, real, next(self.module.parameters()))
        found: dict[str, list[Measured]] = {site.key: [] for site in self.sites}
        owners = {owner: key for key, owner in self._owners.items()}

        def look(owner: Any, given: Any, made: Any) -> None:
            found[owners[owner]].append(measured(owner, given[0], made))

        hooks = [owner.register_forward_hook(look) for owner in self._owners.values()]
        modes = [(one, one.training) for one in self.module.modules()]
        try:
            with torch().no_grad():
                self.module.eval()
                self.module(*inputs)
        except Exception as error:  # whatever a module raises for inputs that do not fit it
            line = " ".join(str(error).split())[:200]
            raise OptionError(f"the module does not run on inputs of default_input_shape {shape}: {line}") from error
        finally:
            for hook in hooks:
                hook.remove()
            for one, mode in modes:
                one.training = mode
        return {key: together(seen) for key, seen in found.items()}

    # -- results

    def plain_copy(self) -> Any:
        """A copy of the module without anything of ours, zeros in the weights."""
        effective = {site.key: self.effective(site.key) for site in self.sites}
        return _finished(copy.deepcopy(self.module), effective)

    def finish(self) -> Any:
        effective = {site.key: np.array(self.effective(site.key)) for site in self.sites}
        made = _finished(self.module, effective)
        self._attached, self._used = None, {}
        return made

    def save(self, path: str, facts: Mapping[str, Any], suffix: str = "") -> str:
        make_folder(os.path.dirname(os.path.abspath(path)))
        written = f"{path}{suffix or '.pth'}"
        masks = {key: torch().from_numpy(keep) for key, keep in self.masks().items()}
        beside = facts if suffix else {"mask_dict": masks, **facts}
        held = io.BytesIO()
        torch().save({"model": self.plain_copy().state_dict(), **beside}, held)
        with Staged() as staged:
            with staged.create(written) as file:
                put(file, held.getbuffer())
            staged.commit()
        return written

    def export(self, path: str, inputs: Any) -> str:
        """Write the module as ONNX, with the record of what was promised."""
        self.notes += export_onnx(self.plain_copy(), inputs, path, self.promise, self._drops())
        return path

    def export_parts(self, paths: Mapping[str, str], image: Any) -> None:
        """Write the parts of a network that has `nets` (`Net`), each with the record of its own layers, by name.

        All but the first get what the answers before them are made into, so they take any number of rows.
        """
        plain, drops = self.plain_copy(), self._drops()
        for at, net in enumerate(plain.eval().nets):
            own = promise_of(net.module.state_dict().keys(), self.promise)
            part = Part(net.inputs, net.outputs, any_rows=at > 0)
            with torch().no_grad():
                inputs = net.examples(image)
            self.notes += export_onnx(net.module, inputs, paths[net.name], own, drops, part)

    def _drops(self) -> dict[str, int]:
        """How many units of each promised layer are zero."""
        texts = {site: self.promise.patterns[site.key] for site in self.sites if site.key in self.promise.patterns}
        return {
            site.key: dropped(patterns.parse(text), site.matrix(self.effective(site.key).reshape(-1) == 0))
            for site, text in texts.items()
        }


_WATCHED: weakref.WeakKeyDictionary[TorchNetwork, Any] = weakref.WeakKeyDictionary()


@cache
def _watch_optimizers() -> Any:
    """One hook for all networks, which stays: torch runs through its hooks while one would take itself off."""
    return importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(_look_at_step)


def _look_at_step(optimizer: Any, *_: Any) -> None:
    for network, method in list(_WATCHED.items()):
        stepped = method()
        if stepped is None or (network.is_moved_by(optimizer) and stepped()):
            _WATCHED.pop(network, None)


def _finished(module: Any, effective: Mapping[str, Array]) -> Any:
    if any(True for _ in all_masks(module)):
        finish(module)
    for _, owner, name in list(parametrization.all_sparsers(module)):
        parametrization.take_sparser_off(owner, name)
    named = dict(module.named_parameters(remove_duplicate=False))
    with torch().no_grad():
        for key, array in effective.items():
            named[key].copy_(torch().from_numpy(np.ascontiguousarray(array)))
    return module


def _inputs(shape: Any, real: Any, like: Any) -> Sequence[Any]:
    if real is not None:
        found = real() if callable(real) else real
        return list(found) if isinstance(found, (list, tuple)) else [found]
    if shape is None:
        raise OptionError(
            "how large the inputs of the layers are depends on those of the module; give default_input_shape, such as "
            "[1, 3, 224, 224], or real inputs as default_input_custom"
        )
    return [torch().zeros(tuple(shape), dtype=like.dtype, device=like.device)]


# -- the layers of a module


def measured(owner: Any, given: Any, made: Any) -> Measured:
    weight = owner.weight
    taps = math.prod(weight.shape[2:])
    if _is(owner, "Linear"):
        return Measured(None, int(made.numel() * weight.shape[1]))
    side = float(max(given.shape[2:] if given.dim() == weight.dim() else given.shape[1:]))
    if _is(owner, "ConvTranspose"):
        return Measured(side, int(given.numel() * weight.shape[1] * taps))
    return Measured(side, int(made.numel() * weight.shape[1] * taps))


def together(seen: Sequence[Measured]) -> Measured:
    """A layer that runs several times; of one that never ran nobody knows a size."""
    if not seen:
        return Measured(None, 0)
    return Measured(seen[0].size, sum(one.macs for one in seen))


def _is(owner: Any, family: str) -> bool:
    nn = importlib.import_module("torch.nn")
    kinds = {"Linear": (nn.Linear,)}
    for start in ("Conv", "ConvTranspose"):
        kinds[start] = tuple(getattr(nn, f"{start}{axes}d") for axes in (1, 2, 3))
    return isinstance(owner, kinds[family])


def site_of(path: str, owner: Any) -> Site | None:
    name, key = path or type(owner).__name__, f"{path}.weight" if path else "weight"
    if not any(_is(owner, family) for family in ("Linear", "Conv", "ConvTranspose")):
        return None
    shape = tuple(owner.weight.shape)
    if not owner.weight.is_floating_point():
        return None
    if _is(owner, "Linear"):
        shape4 = (1, *shape, 1)
        return Site(key, name, (name, key), "Linear", shape, shape4, lambda a: a.reshape(shape4), _flat)
    groups, taps = owner.groups, math.prod(shape[2:])
    found = Convolution(tuple(shape[2:]), 0, 0, groups, tuple(owner.stride), tuple(owner.dilation))
    if _is(owner, "Conv"):
        split = (groups, shape[0] // groups, shape[1], taps)
        layer = Convolution(found.kernel, shape[1], shape[0] // groups, groups, found.strides, found.dilations)
        return Site(key, name, (name, key), "Conv", shape, split, lambda a: a.reshape(split), _flat, layer)
    stored = (groups, shape[0] // groups, shape[1], taps)
    layer = Convolution(found.kernel, shape[0] // groups, shape[1], groups, found.strides, found.dilations)
    turned = (groups, shape[1], shape[0] // groups, taps)
    return Site(
        key, name, (name, key), "ConvTranspose", shape, turned,
        lambda a: a.reshape(stored).transpose(0, 2, 1, 3), lambda m: _flat(m.transpose(0, 2, 1, 3)), layer,
    )  # fmt: skip


def within(module: Any, path: str) -> tuple[str, ...]:
    """The path and the class of a layer, and of every module that it is in."""
    parts = path.split(".") if path else []
    paths = [".".join(parts[: end + 1]) for end in range(len(parts))]
    return (*paths, *(type(module.get_submodule(one)).__name__ for one in ("", *paths)))


def _flat(array: Array) -> Array:
    return array.reshape(-1)


def beside(module: Any, taken: Sequence[Any]) -> Iterator[str]:
    """Matrices that are no layers by themselves: of attention, of recurrences. They stay dense."""
    nn = importlib.import_module("torch.nn")
    for path, owner in module.named_modules():
        if isinstance(owner, (nn.MultiheadAttention, nn.RNNBase)):
            for name, one in owner.named_parameters(recurse=False):
                if one.dim() == 2 and all(one is not other for other in taken):
                    yield f"left dense: {path + '.' if path else ''}{name}: a part of {type(owner).__name__}, no layer"
