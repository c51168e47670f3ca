"""QuantizationModifier of SparseML 1.8 and llm-compressor: groups of layers, presets such as W4A16.

1. A group has targets, which are module types, names or `re:` patterns, and what is rounded in them. A preset is one.
2. Scales of activations that are found for every token while a model runs are found in training here, one for the
   tensor, and stand in the file; that is told.
3. What is no whole number (FP8, NVFP4), or has no form in ONNX, makes the modifier one that nothing runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from onnxsparse.acts.act import TimedAct
from onnxsparse.errors import OptionError, nearest
from onnxsparse.planning.quantization import LayerScheme, Scheme
from onnxsparse.recipes.modifiers.modifier import Scheduled, WrongOptionError
from onnxsparse.recipes.modifiers.quantization import Quantizing
from onnxsparse.recipes.modifiers.quantization_options import PARTS, activation_grid, is_of_groups, weight_grid

GROUP = 128
"""Neighbours with one scale, where that is not said."""
TARGETS = "targets"
EVERY_LINEAR = ("Linear",)
BY_CHANNEL = {"num_bits": 8, "symmetric": True, "strategy": "channel"}
BY_GROUP = {"num_bits": 4, "symmetric": True, "strategy": "group", "group_size": 128}
BY_TOKEN = {"num_bits": 8, "symmetric": True, "strategy": "token", "dynamic": True}
PRESETS: dict[str, dict[str, Any]] = {
    "UNQUANTIZED": {},
    "INT8": {"weights": BY_CHANNEL, "input_activations": BY_TOKEN},
    "W8A8": {"weights": BY_CHANNEL, "input_activations": BY_TOKEN},
    "W8A16": {"weights": BY_CHANNEL},
    "W4A16": {"weights": BY_GROUP},
    "W4A16_ASYM": {"weights": {**BY_GROUP, "symmetric": False}},
    "W4A8": {"weights": BY_GROUP, "input_activations": BY_TOKEN},
}
"""Those of whole numbers."""
OF_FLOATS = ("FP4", "FP8", "MX", "NVFP")
MEANT = ("num_bits", "type", "symmetric", "strategy", "group_size", "dynamic")
NO_INTEGERS = "numbers with a floating point in 4 or 8 bits"
NO_FORM = "{} {}: weights have one scale, or one for each channel, activations have one"
CACHE = "a cache of keys and values that is rounded"
DYNAMIC = (
    "scales of activations are found in training and stand in the file, one for each tensor; the recipe asks for one "
    "for each token, found while the model runs"
)
IN_GROUPS = "weights with a scale for every few neighbours while it trains; `onnxsparse quantize` makes them afterwards"
BESIDE = "weights with a scale for every few neighbours beside rounded activations"
NOTHING = "something to round: neither config_groups nor a scheme says what"


@dataclass(frozen=True)
class GroupQuantizationModifier(Quantizing):
    """Train with rounded weights and activations, by groups of layers.

    - !QuantizationModifier
      config_groups: {group_0: {targets: [Linear], weights: {num_bits: 4, strategy: group, group_size: 128}}}
      ignore: [lm_head]
    """

    name: ClassVar[str] = "GroupQuantizationModifier"
    tag: ClassVar[str] = "QuantizationModifier"
    unwritten: ClassVar[tuple[str, ...]] = ("end_epoch", "update_frequency", "strict")

    config_groups: dict[str, Any] | None = None
    targets: str | tuple[str, ...] | None = None
    scheme: str | dict[str, Any] | None = None
    ignore: tuple[str, ...] | None = ()
    kv_cache_scheme: dict[str, Any] | None = None
    strict: bool = False

    @classmethod
    def is_meant(cls, options: Mapping[str, Any]) -> bool:
        return is_of_groups(options)

    def check(self) -> None:
        super().check()
        object.__setattr__(self, "ignore", self.ignore or ())
        for name in self._presets():
            if name not in PRESETS and not name.startswith(OF_FLOATS):
                hint = nearest(name, PRESETS) or f" (known: {', '.join(PRESETS)})"
                raise WrongOptionError("scheme", f"{name!r:.40} is no scheme{hint}")
        for group in (self.config_groups or {}).values():
            _check_group(group)
        object.__setattr__(self, "missing", self._not_run())

    def _not_run(self, trained: bool = True) -> str:
        """It depends on the options whether anything runs it."""
        if any(name.startswith(OF_FLOATS) for name in self._presets()):
            return NO_INTEGERS
        parts = [group.get(part) for _, group in self._groups() for part in PARTS]
        if any(isinstance(part, Mapping) and part.get("type", "int") != "int" for part in parts):
            return NO_INTEGERS
        if self.kv_cache_scheme:
            return CACHE
        if not any(parts):
            return NOTHING
        return next((why for _, group in self._groups() if (why := _no_form(group, trained))), "")

    def act(self) -> TimedAct:
        return Scheduled.act(self) if self.missing else super().act()

    def scheme_of(self) -> Scheme:
        """What no group means stays float."""
        overrides = {target: _layer(group) for targets, group in self._groups() for target in targets}
        ignore = self.ignore or ()
        checked = (*overrides, *ignore)
        return Scheme(LayerScheme(None, None), overrides, ignore, strict=self.strict, checked=checked, called=TARGETS)

    def afterwards(self) -> Scheme:
        """The scheme of a model that is not trained: there weights may have a scale for every few neighbours."""
        reason = self._not_run(trained=False)
        if reason:
            raise OptionError(f"nothing runs it yet: {reason}")
        overrides = {target: _in_blocks(group) for targets, group in self._groups() for target in targets}
        ignore = self.ignore or ()
        return Scheme(LayerScheme(None, None), overrides, ignore, checked=(*overrides, *ignore), called=TARGETS)

    @property
    def meaningless(self) -> str:
        parts = [(part, group.get(part) or {}) for _, group in self._groups() for part in PARTS]
        unknown = dict.fromkeys(f"{name} of {part}" for part, given in parts for name in given if name not in MEANT)
        told = [f"{', '.join(unknown)}: it means nothing here"] if unknown else []
        return "; ".join([*told, *([DYNAMIC] if any(given.get("dynamic") for _, given in parts) else [])])

    def _presets(self) -> list[str]:
        names = self.scheme if isinstance(self.scheme, dict) else [self.scheme] if self.scheme else []
        return [str(name).upper() for name in names]

    def _groups(self) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
        """Targets, and what is rounded in them."""
        for group in (self.config_groups or {}).values():
            yield _names(group.get("targets")), group
        if isinstance(self.scheme, dict):
            for name, targets in self.scheme.items():
                yield _names(targets), PRESETS.get(str(name).upper(), {})
        elif self.scheme:
            yield _names(self.targets), PRESETS.get(self.scheme.upper(), {})


def _names(targets: Any) -> tuple[str, ...]:
    return (targets,) if isinstance(targets, str) else tuple(targets or EVERY_LINEAR)


def _check_group(group: Any) -> None:
    if not isinstance(group, Mapping):
        raise WrongOptionError("config_groups", f"a group has targets, {', '.join(PARTS)}")
    for part in PARTS:
        if not isinstance(group.get(part) or {}, Mapping):
            raise WrongOptionError("config_groups", f"{part} is null or has num_bits, symmetric, strategy, ...")


def _no_form(group: Mapping[str, Any], trained: bool = True) -> str:
    strategy, inputs = _strategy(group.get("weights") or {}), group.get("input_activations") or {}
    if strategy == "group" and (trained or inputs):
        return IN_GROUPS if trained else BESIDE
    if strategy not in ("tensor", "channel", "group"):
        return NO_FORM.format("weights by", strategy)
    if inputs.get("strategy", "tensor") not in ("tensor", "token"):
        return NO_FORM.format("activations by", inputs["strategy"])
    try:
        _layer(group)
    except OptionError as error:
        return str(error)
    return ""


def _layer(group: Mapping[str, Any]) -> LayerScheme:
    weights = group.get("weights") or {}
    inputs, outputs = (
        activation_grid({"symmetric": True, **group[part]}) if group.get(part) else None
        for part in ("input_activations", "output_activations")
    )
    return LayerScheme(weight_grid(weights) if weights else None, inputs, outputs, _strategy(weights) == "channel")


def _in_blocks(group: Mapping[str, Any]) -> LayerScheme:
    """With the scales of neighbours, where those are asked for."""
    weights, layer = group.get("weights") or {}, _layer(group)
    if _strategy(weights) != "group":
        return layer
    return replace(layer, per_channel=True, block=int(weights.get("group_size") or GROUP))


def _strategy(weights: Mapping[str, Any]) -> str:
    """A group of -1 is a channel."""
    size = weights.get("group_size")
    said = str(weights.get("strategy") or ("group" if size else "tensor"))
    return "channel" if said == "group" and size == -1 else said
