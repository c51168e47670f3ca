"""Fake quantization on a user's own torch module: weights behind their masks, inputs and outputs of layers in hooks.

1. A weight is rounded in a parametrization behind its mask: masked places stay exactly zero, the Parameter stays the
   same object, and state dicts are those of the plain module.
2. Scales of weights follow the numbers, those of activations a moving average of the ranges in training, until they
   stand still. Evaluation moves nothing. What has no range yet is not rounded.
3. Everything that is here hangs on the module itself, so that copies of it have their own.
4. With per-channel weights a batch normalization behind a layer needs nothing: its factor of each channel is a factor
   of that channel's scale, so the integers are the same with and without it (see `quantized_export`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from onnxsparse.engines.torch.fake_quantization import averaged, fake, from_range, is_exporting, of_weight, ranges
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.parametrization import append, order_of, remove
from onnxsparse.engines.torch.state_dicts import LISTS, StateDictParametrization, parametrized
from onnxsparse.errors import OptionError
from onnxsparse.math.quantization import SMALLEST_SCALE, Grid

State = dict[str, Any]
NARROWEST = 2
"""A scale that is learned covers no less than this part of the range that there is."""


@dataclass
class Stage:
    """What all that is rounded in one module goes by."""

    observing: bool = True
    calibrating: bool = False
    training: bool = False
    learned: bool = False
    patterns: dict[str, str] = field(default_factory=dict)
    """By the name of a parameter, the pattern that its zeros have in the end, for the record of what is exported."""

    def __call__(self, module: Any, _: Any) -> None:
        """The hook that comes before the module: whether it trains, whatever some layers in it do."""
        self.training = module.training


@dataclass(frozen=True)
class Layer:
    """A layer and what of it is rounded, each on which grid; None where it stays float."""

    path: str
    module: Any
    weights: tuple[tuple[str, int | None], ...]
    """Their names, with the axis whose indices have scales of their own."""
    inputs: tuple[str, ...]
    weight_grid: Grid | None
    input_grid: Grid | None
    output_grid: Grid | None


def kinds_of(layer: Any) -> tuple[str, ...]:
    """The classes of a layer, its own first; those that torch makes for parametrizations are none."""
    names = (kind.__name__ for kind in type(layer).__mro__ if kind is not torch().nn.Module and kind is not object)
    return tuple(name for name in names if not name.startswith("Parametrized"))


def own_parameters(layer: Any) -> dict[str, Any]:
    """The parameters of a layer by name, also those that something of ours stands in for."""
    ours = {name: getattr(layer, LISTS)[name].original for name, _ in parametrized(layer)}
    return {**{name: one for name, one in layer._parameters.items() if one is not None}, **ours}


# -- weights


def _base() -> Any:
    """A FakeQuantize of torch where there is one: loops look for those, and stop their observers."""
    try:
        return importlib.import_module("torch.ao.quantization").FakeQuantize
    except (ImportError, AttributeError):  # torch means to give the folder up for torchao
        return torch().nn.Module


@cache
def rounded_weight_class() -> Any:
    """The class of the parametrization; made when torch is there."""
    module = torch().nn.Module

    class FakeQuantizeWeight(StateDictParametrization, _base()):  # type: ignore[misc]
        """A weight on a grid."""

        # What torch's class saves is saved by the module that the weight belongs to.
        _save_to_state_dict, _load_from_state_dict = module._save_to_state_dict, module._load_from_state_dict
        extra_repr = module.extra_repr

        def __init__(self, weight: Any, grid: Grid, axis: int | None, order: tuple[str, ...], stage: Stage) -> None:
            module.__init__(self)
            self.grid, self.axis, self.order, self.stage = grid, axis, order, stage
            self.scale, self.zero_point = of_weight(weight, grid, axis)
            if stage.learned:
                self.scale = torch().nn.Parameter(self.scale)

        @property
        def follows(self) -> bool:
            """Whether the scale is by the numbers that the weight has."""
            return self.stage.observing and not self.stage.learned

        def measure(self, weight: Any) -> None:
            if self.follows:
                self.scale, self.zero_point = of_weight(weight, self.grid, self.axis)

        def forward(self, weight: Any) -> Any:
            if not is_exporting():
                self.measure(weight)
            scale, zero_point = (one.to(weight.device) for one in (self.scale, self.zero_point))
            return fake(weight, scale, zero_point, self.grid, self.axis)

        def plain(self, weight: Any) -> Any:
            return weight

        def enable_observer(self, enabled: bool = True) -> None:
            """All ranges of the module follow, or stay."""
            self.stage.observing = enabled

    return FakeQuantizeWeight


def rounded_weights(module: Any) -> Iterator[tuple[str, Any, str, Any]]:
    """Path and owner of every rounded weight, its name there, and what rounds it."""
    for prefix, owner in list(module.named_modules()):
        for name, parts in list((getattr(owner, LISTS, None) or {}).items()):
            for one in list(parts):
                if isinstance(one, rounded_weight_class()):
                    yield (f"{prefix}.{name}" if prefix else name), owner, name, one


# -- activations


class Rounding:
    """An activation on a grid, by the range that it had in training."""

    def __init__(self, grid: Grid, stage: Stage, device: Any) -> None:
        self.grid, self.stage, self.known = grid, stage, False
        self.low, self.high = (torch().tensor(one, device=device) for one in (float("inf"), -float("inf")))
        self.scale, self.zero_point = torch().tensor(1.0, device=device), torch().tensor(0, device=device).int()
        self.numbers: tuple[float, int] | None = None
        """Scale and zero point of a copy that is exported."""

    def __call__(self, x: Any, layer: Any) -> Any:
        if not torch().is_tensor(x) or not x.is_floating_point():
            return x
        if not is_exporting() and self._observes(layer, x) and x.numel():
            with torch().inference_mode(False), torch().no_grad():
                self._observe(x.detach())
        if not self.known or self.stage.calibrating:
            return x
        scale, zero_point = self.numbers or (self.scale.to(x.device), self.zero_point.to(x.device))
        return fake(x, scale, zero_point, self.grid)

    def _observes(self, layer: Any, x: Any) -> bool:
        stage = self.stage
        if getattr(layer, "_is_replica", False) and x.device != self.low.device:
            return False  # DataParallel's copies of one pass share what is here
        if stage.calibrating:
            return True
        learned = self.known and isinstance(self.scale, torch().nn.Parameter)
        return (layer.training or stage.training) and stage.observing and not learned

    def _observe(self, x: Any) -> None:
        """Calibration takes the whole range of all samples; a batch with what is no number says nothing."""
        known, found = (self.low.to(x.device), self.high.to(x.device)), ranges(x)
        if self.stage.calibrating:
            wider = torch().minimum(known[0], found[0]), torch().maximum(known[1], found[1])
        else:
            wider = averaged(known, found)
        whole = torch().isfinite(found[0]) & torch().isfinite(found[1])
        self.take(*(torch().where(whole, now, before) for now, before in zip(wider, known)))

    def take(self, low: Any, high: Any) -> None:
        """Round by this range from now on."""
        self.low, self.high, self.known = low, high, True
        usable = [torch().nan_to_num(one, 0, 0, 0) for one in (low, high)]
        scale, self.zero_point = from_range(usable[0], usable[1], self.grid)
        if isinstance(self.scale, torch().nn.Parameter):
            self.scale.copy_(scale)
        else:
            self.scale = scale


class InputRounding:
    """The hook before a layer."""

    def __init__(self, roundings: Mapping[str, Rounding]) -> None:
        self.roundings = dict(roundings)

    def __call__(self, layer: Any, args: Any, kwargs: Any) -> Any:
        done: dict[Any, Any] = {}
        placed = [self._rounded(layer, name, x, done) for name, x in zip(self.roundings, args)]
        named = {name: self._rounded(layer, name, x, done) for name, x in kwargs.items() if name in self.roundings}
        return (*placed, *args[len(placed) :]), {**kwargs, **named}

    def _rounded(self, layer: Any, name: str, x: Any, done: dict[Any, Any]) -> Any:
        """Attention has a faster way where its inputs are one tensor, so one they stay."""
        if not torch().is_tensor(x):
            return x
        if x not in done:
            done[x] = self.roundings[name](x, layer)
        return done[x]


class OutputRounding:
    """The hook behind a layer."""

    def __init__(self, roundings: Mapping[str, Rounding]) -> None:
        self.roundings = dict(roundings)

    def __call__(self, layer: Any, _: Any, output: Any) -> Any:
        return self.roundings["output"](output, layer)


def roundings_of(module: Any) -> Iterator[tuple[str, Rounding]]:
    """Every activation that is rounded, as layer:input."""
    for path, layer in module.named_modules():
        for hook in (*layer._forward_pre_hooks.values(), *layer._forward_hooks.values()):
            if isinstance(hook, (InputRounding, OutputRounding)):
                yield from ((f"{path}:{name}", one) for name, one in hook.roundings.items())


# -- on and off


def put_on(module: Any, layers: Iterable[Layer], learned: bool = False) -> None:
    """Round the weights and activations of layers, from the next pass on."""
    stage = stage_of(module)
    if stage is None:
        stage = Stage(learned=learned)
        module.register_forward_pre_hook(stage)
    for layer in layers:
        if layer.weight_grid is not None:
            for name, axis in layer.weights:
                numbers, order = own_parameters(layer.module)[name].detach(), order_of(layer.module)
                append(layer.module, name, rounded_weight_class()(numbers, layer.weight_grid, axis, order, stage))
        if layer.input_grid is not None and layer.inputs:
            hook = InputRounding(_roundings(layer, layer.input_grid, layer.inputs, stage))
            layer.module.register_forward_pre_hook(hook, with_kwargs=True)
        if layer.output_grid is not None:
            made = _roundings(layer, layer.output_grid, ("output",), stage)
            layer.module.register_forward_hook(OutputRounding(made))


def _roundings(layer: Layer, grid: Grid, names: Iterable[str], stage: Stage) -> dict[str, Rounding]:
    """A scale that is learned is a parameter of the module; it lies beside that of the weight."""
    device = next((one.device for one in layer.module.parameters()), torch().device("cpu"))
    made = {name: Rounding(grid, stage, device) for name in names}
    home = next((one for _, owner, _, one in rounded_weights(layer.module) if owner is layer.module), None)
    if stage.learned and home is not None:
        for name, one in made.items():
            one.scale = torch().nn.Parameter(one.scale)
            home.register_parameter(f"{name}_scale", one.scale)
    return made


def stage_of(module: Any) -> Stage | None:
    """What all that is rounded in a module goes by; None where nothing is."""
    return next((hook for hook in module._forward_pre_hooks.values() if isinstance(hook, Stage)), None)


def is_on(layer: Any) -> bool:
    """Whether something of a layer itself is rounded."""
    hooks = (*layer._forward_pre_hooks.values(), *layer._forward_hooks.values())
    weights = (owner for _, owner, _, _ in rounded_weights(layer))
    return any(isinstance(one, (InputRounding, OutputRounding)) for one in hooks) or any(
        owner is layer for owner in weights
    )


def take_off(module: Any) -> bool:
    """The module as it was; False where nothing was rounded."""
    if stage_of(module) is None:
        return False
    for _, owner, name, one in rounded_weights(module):
        remove(owner, name, one)
    for layer in module.modules():
        for hooks in (layer._forward_pre_hooks, layer._forward_hooks):
            for key in [key for key, hook in hooks.items() if isinstance(hook, (Stage, InputRounding, OutputRounding))]:
                del hooks[key]
                layer._forward_pre_hooks_with_kwargs.pop(key, None)
    return True


def learned_scales(module: Any) -> list[tuple[Any, list[Any]]]:
    """By weight, the parameters that are its scale and those of what it is multiplied with."""
    return [
        (getattr(owner, LISTS)[name].original, list(one.parameters()))
        for _, owner, name, one in rounded_weights(module)
    ]


# -- as training goes on


def settle(module: Any) -> None:
    """The weights have moved: scales that follow them do, and learned ones stay above zero."""
    with torch().no_grad():
        for _, owner, name, one in rounded_weights(module):
            if one.follows:
                one.measure(_behind_mask(owner, name, one))
            elif one.stage.learned:
                _bound(one.scale, of_weight(_behind_mask(owner, name, one), one.grid, one.axis)[0])
        for _, rounding in roundings_of(module):
            if rounding.known and isinstance(rounding.scale, torch().nn.Parameter):
                _bound(rounding.scale, from_range(rounding.low, rounding.high, rounding.grid)[0])


def _bound(scale: Any, whole: Any) -> None:
    """A step that is too long must not end below zero, nor where nearly every number is clipped and nothing learns."""
    scale.copy_(torch().maximum(scale, whole.to(scale.device) / NARROWEST).clamp(min=SMALLEST_SCALE))


def _behind_mask(owner: Any, name: str, rounded: Any) -> Any:
    parts = getattr(owner, LISTS)[name]
    return parts.original if parts[0] is rounded else parts[0](parts.original)


@contextmanager
def calibrating(module: Any) -> Iterator[None]:
    """The module runs in evaluation, in full precision but for its weights, and all its ranges are taken in."""
    stage, training = stage_of(module), [one for one in module.modules() if one.training]
    assert stage is not None
    stage.calibrating = True
    module.eval()
    try:
        with torch().no_grad():
            yield
    finally:
        stage.calibrating = False
        for one in training:
            one.training = True


def stop_observing(module: Any) -> None:
    """All scales stay as they are."""
    stage = stage_of(module)
    if stage is not None:
        settle(module)
        stage.observing = False
        for _, scales in learned_scales(module):
            for scale in scales:
                scale.requires_grad_(False)
                scale.grad = None


def averaged_over_processes(module: Any) -> None:
    """Ranges of all processes, which saw other samples; the average of moving averages is that of all of them.

    So are scales that are learned: they came after a wrapper that would send their gradients around.
    """
    distributed, stage = importlib.import_module("torch.distributed"), stage_of(module)
    if stage is None or not stage.observing or not distributed.is_available() or not distributed.is_initialized():
        return
    found = [one for _, one in roundings_of(module)]
    learned = [scale for _, scales in learned_scales(module) for scale in scales]
    if distributed.get_world_size() < 2 or not (found or learned):
        return
    told = [_told(one) for one in found]
    packed = torch().cat([one.detach().reshape(-1) for one in (*told, *learned)])
    distributed.all_reduce(packed)
    parts = packed.split([one.numel() for one in (*told, *learned)])
    with torch().no_grad():
        for one, (count, low, high) in zip(found, parts):
            if bool(count > 0):
                one.take(low / count, high / count)
        for scale, total in zip(learned, parts[len(found) :]):
            scale.copy_((total / distributed.get_world_size()).reshape(scale.shape))


def _told(one: Rounding) -> Any:
    """One where the range is known here, and the range; a layer may not be run in every process."""
    known = torch().isfinite(one.low) & torch().isfinite(one.high) & one.known
    return torch().where(known, torch().stack([torch().ones_like(one.low), one.low, one.high]), 0)


# -- what a checkpoint holds beside the module's own state


OBSERVING, FROZEN = "observing", "frozen"
SIDES = ("low", "high", "scale", "zero_point")


def state_of(module: Any) -> State:
    """All scales and ranges, as tensors by name."""
    stage = stage_of(module)
    if stage is None:
        return {}
    found: State = {
        OBSERVING: torch().tensor(stage.observing),
        FROZEN: torch().tensor(any(map(is_still, module.modules()))),
    }
    for path, _, _, weight in rounded_weights(module):
        found.update({f"{path}.{side}": getattr(weight, side).detach().clone() for side in SIDES[2:]})
    for path, one in roundings_of(module):
        if one.known:
            found.update({f"{path}.{side}": getattr(one, side).detach().clone() for side in SIDES})
    return found


def load(module: Any, state: Mapping[str, Any]) -> None:
    """Go on with the scales and ranges of a state."""
    stage = stage_of(module)
    assert stage is not None
    places = [*((path, one) for path, _, _, one in rounded_weights(module)), *roundings_of(module)]
    names = {f"{path}.{side}" for path, _ in places for side in SIDES}
    other = sorted(set(state) - names - {OBSERVING, FROZEN})
    if other:
        raise OptionError(f"the state is that of another recipe or module: {other[0]} is not in this one")
    with torch().no_grad():
        for path, one in places:
            for side in SIDES:
                if f"{path}.{side}" in state:
                    _put(one, side, state[f"{path}.{side}"], path)
    stage.observing = bool(state[OBSERVING])
    for _, scales in learned_scales(module):
        for scale in scales:
            scale.requires_grad_(stage.observing)
    (freeze_normalization if bool(state[FROZEN]) else thaw_normalization)(module)


def _put(one: Any, side: str, given: Any, path: str) -> None:
    there = getattr(one, side)
    if not torch().is_tensor(given) or given.shape != there.shape:
        raise OptionError(f"the {side} of {path} in the state is not that of this module: its shape is another")
    if isinstance(there, torch().nn.Parameter):
        there.copy_(given)
    else:
        setattr(one, side, given.to(there))
    if isinstance(one, Rounding):
        one.known = True


# -- statistics of normalizations


class StaysInEvaluation:
    """What stands for `train` of a layer. Compilers would not notice a hook that comes later."""

    def __call__(self, mode: bool = True) -> None:
        """It is not set into training."""


def freeze_normalization(module: Any) -> None:
    """The statistics of normalizations stand still, and are what they normalize by, whatever `train()` says."""
    for layer in module.modules():
        if "_NormBase" in kinds_of(layer) and layer.track_running_stats:
            layer.training, layer.train = False, StaysInEvaluation()


def thaw_normalization(module: Any) -> None:
    """They are those of any module again."""
    for layer in filter(is_still, module.modules()):
        del layer.train
        layer.training = module.training


def is_still(layer: Any) -> bool:
    return isinstance(layer.__dict__.get("train"), StaysInEvaluation)
