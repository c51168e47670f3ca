"""Which layers of a torch module a quantization scheme means, and which of them stay float, and why.

1. Linear layers, convolutions, embeddings and the projections of attention have weights and inputs on grids. Other
   layers have their inputs and outputs rounded where the scheme names them or their class.
2. What is no layer cannot be reached: products in `forward`, and those inside of attention.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from onnxsparse.engines.torch.quantized_module import Layer, is_on, kinds_of, own_parameters
from onnxsparse.errors import OptionError
from onnxsparse.planning.quantization import LayerScheme, Scheme

Weights = tuple[tuple[str, "int | None"], ...]
WEIGHTS_OF_ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
RECURRENT = ("RNNBase", "RNNCellBase")
KERNEL = "a recurrent layer is one kernel, with float gates inside"
INSIDE = "only its projections are rounded; its products of activations are inside of one function"
NOTHING = (
    "there is nothing to quantize in this module: no linear layer, convolution or embedding that the recipe means; "
    "a module made of an ONNX file has none, `onnxsparse finetune` trains such a file"
)
SHOWN = 6


def layers_of(module: Any, scheme: Scheme) -> tuple[list[Layer], dict[str, str]]:
    """The layers that a scheme quantizes, and by path why others stay float."""
    found, left = [], {}
    for path, layer in module.named_modules():
        kinds = kinds_of(layer)
        weights = _weights(layer, kinds)
        asked = scheme.of((path,), kinds) if weights else scheme.asked((path,), kinds)
        if asked is None or is_on(layer):
            continue
        reason = _why_float(layer, kinds, weights)
        if reason:
            left[path] = reason
            continue
        found.append(_layer(path, layer, weights, asked, kinds))
        if "MultiheadAttention" in kinds:
            left[path] = INSIDE
    return found, left


def quantizable(module: Any, scheme: Scheme) -> list[str]:
    """What has to be said of quantizing a module; an error where that cannot be."""
    layers, left = layers_of(module, scheme)
    told = scheme.missed([((path,), kinds_of(layer)) for path, layer in module.named_modules()])
    if not layers:
        reasons = f" ({_listed(left)})" if left else ""
        raise OptionError(f"{NOTHING}{reasons}")
    return [*told, *([f"not all is quantized: {_listed(left)}"] if left else [])]


def _listed(left: Mapping[str, str]) -> str:
    shown = [f"{path or 'the module'}: {reason}" for path, reason in list(left.items())[:SHOWN]]
    return "; ".join([*shown, *([f"and {len(left) - SHOWN} more"] if len(left) > SHOWN else [])])


def _layer(path: str, layer: Any, weights: Weights, asked: LayerScheme, kinds: tuple[str, ...]) -> Layer:
    if asked.block:
        raise OptionError(f"{path}: blocks of a weight with scales of their own are for `quantize`, not for training")
    along = tuple((name, axis if asked.per_channel else None) for name, axis in weights)
    return Layer(path, layer, along, _inputs(layer, kinds), asked.weights, asked.inputs, asked.outputs)


def _weights(layer: Any, kinds: tuple[str, ...]) -> Weights:
    """The weights of a layer, with the axis of their outputs; a table has one scale, so that it can be looked up in."""
    if "MultiheadAttention" in kinds:
        return tuple((name, 0) for name in WEIGHTS_OF_ATTENTION if getattr(layer, name, None) is not None)
    if "Embedding" in kinds or "EmbeddingBag" in kinds:
        return (("weight", None),)
    if "_ConvNd" in kinds:
        return (("weight", 1 if layer.transposed else 0),)
    if "Conv1D" in kinds:  # of transformers: a matrix with its inputs first
        return (("weight", 1),)
    if "Linear" in kinds or any(kind in RECURRENT for kind in kinds):
        return (("weight", 0),)
    return ()


def _inputs(layer: Any, kinds: tuple[str, ...]) -> tuple[str, ...]:
    if "MultiheadAttention" in kinds:
        return ("query", "key", "value")
    if "NonDynamicallyQuantizableLinear" in kinds:  # the last projection of attention, which is never called
        return ()
    return tuple(inspect.signature(layer.forward).parameters)


def _why_float(layer: Any, kinds: tuple[str, ...], weights: Weights) -> str:
    own = own_parameters(layer)
    held = [own[name] for name, _ in weights if name in own]
    if any(kind in RECURRENT for kind in kinds):
        return KERNEL
    if getattr(layer, "sparse", False):
        return "its gradient is sparse"
    if len(held) < len(weights):
        return "something else stands in for its weight"
    if any(not one.is_floating_point() for one in held):
        return "its weight is no float"
    if any(hasattr(one, "placements") for one in held):
        return "its weight is spread over several machines"
    return ""
