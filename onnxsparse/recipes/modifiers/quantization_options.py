"""From the options of quantization modifiers to a `Scheme`: parts of a scheme, arguments of observers, presets.

1. A part that a scheme leaves out is the default one: weights symmetric, inputs asymmetric in 8 bits, outputs float.
2. Weights have a scale for each output channel, unless `strategy: tensor` is said; SparseML has one for the tensor,
   unless `strategy: channel` is. What says nothing of `symmetric` is symmetric for weights, asymmetric for activations.
3. Activations have 8 bits, which is what QuantizeLinear rounds to; weights have 2 to 8, stored as int8 or int4.
4. What torch's observers take and means nothing here is told, and changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from onnxsparse.errors import OptionError, nearest
from onnxsparse.math.quantization import ACTIVATIONS, SYMMETRIC_ACTIVATIONS, WEIGHTS, Grid
from onnxsparse.planning.quantization import LayerScheme
from onnxsparse.recipes.modifiers.modifier import WrongOptionError

SCHEMES = ("default", "deepsparse", "tensorrt")
PARTS = ("input_activations", "weights", "output_activations")
ARGUMENTS = ("num_bits", "symmetric", "strategy", "kwargs")
TENSOR, CHANNEL = "tensor", "channel"
WORDS_FOR_NOTHING = ("null", "None")
TENSORRT = "tensorrt"
EMBEDDING = "Embedding"
PRESET = re.compile(r"[A-Z][A-Z0-9_]*")
"""A scheme of compressed-tensors, such as W4A16 or FP8_DYNAMIC."""
FEWEST, MOST = 2, 8
"""Bits of weights."""
LIKE_HERE = ("MovingAverageMinMaxObserver", "MovingAveragePerChannelMinMaxObserver")
"""Torch's classes of observers that find ranges as it is done here."""


# -- texts


def without_words(scheme: Any) -> Any:
    """SparseML writes a part of a scheme that is not there as the text `null`, and reads `None` as that, too."""
    if not isinstance(scheme, dict):
        return scheme
    return {part: None if arguments in WORDS_FOR_NOTHING else arguments for part, arguments in scheme.items()}


def check_scheme(option: str, scheme: Any) -> None:
    """Refuse what is no scheme; what a scheme does not know is passed over, as ever, but for typing mistakes."""
    if isinstance(scheme, str) and scheme not in SCHEMES:
        hint = nearest(scheme, SCHEMES) or f" (known: {', '.join(SCHEMES)})"
        raise WrongOptionError(option, f"{scheme!r:.40} is no scheme{hint}")
    for part, arguments in scheme.items() if isinstance(scheme, dict) else ():
        if part not in PARTS and (hint := nearest(part, PARTS)):
            raise WrongOptionError(option, f"a scheme has no {part!r:.40}{hint}")
        if part not in PARTS:
            continue
        if arguments is not None and not isinstance(arguments, dict):
            raise WrongOptionError(option, f"{part} is null or has {', '.join(ARGUMENTS)}")
        for name in set(arguments or ()) - set(ARGUMENTS):
            if hint := nearest(str(name), ARGUMENTS):
                raise WrongOptionError(option, f"{part} has no {name!r:.40}{hint}")


def is_of_groups(options: Mapping[str, Any]) -> bool:
    """Whether the options of a QuantizationModifier are those of groups."""
    scheme = options.get("scheme")
    presets = list(scheme) if isinstance(scheme, Mapping) else [scheme]
    named = any(isinstance(one, str) and PRESET.fullmatch(one) for one in presets)
    return named or bool({"config_groups", "targets", "kv_cache_scheme"} & set(options))


# -- grids


def is_for_tensorrt(scheme: Any) -> bool:
    return scheme == TENSORRT or (isinstance(scheme, dict) and scheme.get("target_hardware") == TENSORRT)


def layer_scheme(scheme: Any, default: LayerScheme) -> LayerScheme:
    """What one scheme says of a layer."""
    if scheme is None or scheme == "default":
        return default
    if scheme == TENSORRT:
        return LayerScheme(inputs=SYMMETRIC_ACTIVATIONS)
    parts = scheme if isinstance(scheme, dict) else {}
    weights = parts.get("weights", {})
    return LayerScheme(
        None if weights is None else weight_grid(weights),
        None if parts.get("input_activations", {}) is None else activation_grid(parts.get("input_activations", {})),
        None if parts.get("output_activations") is None else activation_grid(parts["output_activations"]),
        (weights or {}).get("strategy", CHANNEL) != TENSOR,
    )


def weight_grid(arguments: Mapping[str, Any]) -> Grid:
    """The integers of a weight."""
    bits, symmetric = arguments.get("num_bits", 8), bool(arguments.get("symmetric", True))
    if not isinstance(bits, int) or not FEWEST <= bits <= MOST:
        raise OptionError(f"weights have {FEWEST} to {MOST} bits, not {bits!r:.40}")
    return _by_kwargs(replace(WEIGHTS, bits=bits, symmetric=symmetric, narrow=symmetric), arguments, "weights")


def activation_grid(arguments: Mapping[str, Any]) -> Grid:
    """The integers of activations."""
    if arguments.get("num_bits", 8) != 8:
        raise OptionError(f"activations have 8 bits, which QuantizeLinear rounds to, not {arguments['num_bits']!r:.40}")
    return _by_kwargs(SYMMETRIC_ACTIVATIONS if arguments.get("symmetric") else ACTIVATIONS, arguments, "activations")


def _by_kwargs(grid: Grid, arguments: Mapping[str, Any], called: str) -> Grid:
    """What arguments of torch's observers change in a grid: the range of its integers."""
    kwargs = arguments.get("kwargs") or {}
    reduced = replace(grid, reduced=True) if kwargs.get("reduce_range") else grid
    if not {"quant_min", "quant_max"} & set(kwargs):
        return reduced
    low, high = kwargs.get("quant_min", reduced.low), kwargs.get("quant_max", reduced.high)
    ways = [replace(grid, signed=signed, narrow=narrow, reduced=less) for signed in (True, False)
            for narrow in (False, True) for less in (False, True)]  # fmt: skip
    found = next((one for one in ways if (one.low, one.high) == (low, high)), None)
    if found is None:
        raise OptionError(f"{called} of {grid.bits} bits have no integers from {low!r:.40} to {high!r:.40}")
    return found


def _without_meaning(called: str, arguments: Any) -> list[str]:
    """What is written in a part of a scheme and changes nothing here."""
    if not isinstance(arguments, dict):
        return []
    kwargs = arguments.get("kwargs") or {}
    observer = str(kwargs.get("observer", LIKE_HERE[0])).rpartition(".")[2]
    known = {"reduce_range", "quant_min", "quant_max", *(["observer"] if observer in LIKE_HERE else [])}
    told = [f"{name} of {called}" for name in kwargs if name not in known]
    if called != "weights" and arguments.get("strategy", TENSOR) != TENSOR:
        told.append(f"strategy {arguments['strategy']!r:.40} of {called}")
    return told


def parts_of(schemes: Iterable[Any]) -> list[tuple[str, Any]]:
    """The parts of all schemes, and what they have."""
    return [(part, scheme.get(part)) for scheme in schemes if isinstance(scheme, dict) for part in PARTS]


def told(parts: Iterable[tuple[str, Any]]) -> str:
    """One sentence on all that has no meaning."""
    found = [one for part, arguments in parts for one in _without_meaning(part, arguments)]
    return f"{', '.join(dict.fromkeys(found))}: it means nothing here" if found else ""
