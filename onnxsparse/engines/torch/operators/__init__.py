"""ONNX operators as plain functions on torch tensors, found through one table by name and domain.

1. A function is named as its operator, and its parameters as in the ONNX schema. What moved from attribute to input
   kept its name, so inputs (by position) and attributes (by keyword) bind to the same parameter.
2. A parameter marked `Ints` or `Real` takes plain Python numbers where the file stores them, tensors where not.
3. A function whose result is marked `Outputs` returns all outputs of the operator as a tuple.
4. `outputs`, where a function asks for it, is how many outputs the node names.
5. `VARIANTS` are the meanings an operator had before: up to the opset that is given, under another name.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

MICROSOFT = "com.microsoft"
CLASSIC = "ai.onnx.ml"
_FAMILIES = {
    "": (
        "activations",
        "arithmetic",
        "attention",
        "convolution",
        "indexing",
        "normalization",
        "pooling",
        "recurrent",
        "reductions",
        "regions",
        "resampling",
        "sequences",
        "shaping",
        "signals",
        "windows",
    ),
    MICROSOFT: ("microsoft", "microsoft_attention"),
    CLASSIC: ("classic",),
}
CONTROL = ("If", "Loop", "Scan")  # their bodies become child modules, see control.py

# (domain, operator): the last opset of the earlier meaning, and the function that has it
VARIANTS: dict[tuple[str, str], tuple[tuple[int, str], ...]] = {
    ("", "BatchNormalization"): ((13, "BatchNormalization_6"),),
    ("", "PRelu"): ((6, "PRelu_6"),),
    ("", "Softmax"): ((12, "Softmax_1"),),
    ("", "LogSoftmax"): ((12, "LogSoftmax_1"),),
    ("", "Hardmax"): ((12, "Hardmax_1"),),
    ("", "Resize"): ((10, "Resize_10"),),
    ("", "DFT"): ((19, "DFT_17"),),
    ("", "GroupNormalization"): ((20, "GroupNormalization_18"),),
}
# written in both domains, with one meaning
_IN_MICROSOFT_TOO = ("Gelu", "GridSample", "LayerNormalization", "Pad", "Trilu")
_OF_MICROSOFT = ("SimplifiedLayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
Function = Callable[..., Any]


@cache
def table() -> dict[tuple[str, str], Function]:
    """Every function by domain and name; exporters write a few fused operators in ONNX's own domain, too."""
    found = {
        (domain, name): function
        for domain, families in _FAMILIES.items()
        for family in families
        for name, function in _functions(family)
    }
    found.update({(MICROSOFT, name): found["", name] for name in _IN_MICROSOFT_TOO})
    found.update({("", name): found[MICROSOFT, name] for name in _OF_MICROSOFT})
    return found


def _functions(family: str) -> list[tuple[str, Function]]:
    module = importlib.import_module(f"onnxsparse.engines.torch.operators.{family}")
    own = inspect.getmembers(module, inspect.isfunction)
    return [(name, one) for name, one in own if name[0].isupper() and one.__module__ == module.__name__]


def find(domain: str, name: str, opset: int) -> Function | None:
    """The function for an operator at an opset."""
    for last, variant in VARIANTS.get((domain, name), ()):
        if opset <= last:
            return table()[domain, variant]
    return table().get((domain, name))
