"""Which layers the names and module types in a quantization scheme mean, in an ONNX graph and in a torch module.

1. A name is the path of a module, or of one that it lies in: `encoder` means `encoder.layer.0.query`, and `model.1`
   does not mean `model.10`. Slashes of ONNX and dots of torch are the same. `re:` patterns are matched from the start.
2. A type is the class of a torch module. In a graph an operator stands for it: Gemm and MatMul are Linear, a Conv of
   rank 4 is Conv2d. What exporters write as several operators, such as LlamaRMSNorm, is not seen there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from onnxsparse.planning.names import matcher, module_path

REGULAR = "re:"
WRAPPER = "module."
"""What torch's wrappers for several devices put before every name."""
CLASS = re.compile(r"[A-Z]\w*")

CONVOLUTIONS = {3: "1d", 4: "2d", 5: "3d"}
CLASSES: dict[str, tuple[str, ...]] = {
    "AveragePool": ("AvgPool1d", "AvgPool2d", "AvgPool3d"),
    "BatchNormalization": ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"),
    "Clip": ("ReLU6", "Hardtanh"),
    "Concat": ("Concat",),
    "Elu": ("ELU",),
    "Gather": ("Embedding",),
    "Gelu": ("GELU", "GELUActivation"),
    "Gemm": ("Linear",),
    "GlobalAveragePool": ("AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d"),
    "GlobalMaxPool": ("AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d"),
    "GroupNormalization": ("GroupNorm",),
    "GRU": ("GRU",),
    "HardSigmoid": ("Hardsigmoid",),
    "HardSwish": ("Hardswish",),
    "InstanceNormalization": ("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"),
    "LayerNormalization": ("LayerNorm",),
    "LeakyRelu": ("LeakyReLU",),
    "LSTM": ("LSTM",),
    "MatMul": ("Linear",),
    "MaxPool": ("MaxPool1d", "MaxPool2d", "MaxPool3d"),
    "PRelu": ("PReLU",),
    "Relu": ("ReLU",),
    "Resize": ("Upsample",),
    "RMSNormalization": ("RMSNorm",),
    "Sigmoid": ("Sigmoid", "SiLU"),
    "Softmax": ("Softmax",),
    "Softplus": ("Softplus",),
    "Swish": ("SiLU",),
    "Tanh": ("Tanh",),
}
"""By operator the classes of torch that exporters write so."""
PRODUCT = ("QuantizableMatMul", "QuantizableBatchMatMul")
ROLES = ("QK", "PV")
"""The products of attention: of queries and keys, of probabilities and values."""
OUTPUTS = ("MatMulOutput_", "BMMOutput_")
"""Modules that are made for what such a product gives: what goes into them is what comes out of it."""
SIDES = ("MatMulLeftInput_", "MatMulRightInput_", "BMMLeftInput_", "BMMRightInput_")


def kinds_of_node(operator: str, rank: int = 0, live: bool = False, role: str = "") -> tuple[str, ...]:
    """The module types that a node stands for, and its operator.

    `rank` is that of its weight. `live` says that both factors of a product are activations, `role` which product of
    attention it is, QK or PV, where that is known.
    """
    if operator in ("Conv", "ConvTranspose"):
        return (f"{operator}{CONVOLUTIONS.get(rank, '2d')}", operator)
    if live and operator in ("MatMul", "Gemm", "Einsum"):
        sides = (f"{side}{one}" for one in ([role] if role else ROLES) for side in SIDES)
        return (*sides, *PRODUCT, operator)
    return (*CLASSES.get(operator, ()), operator)


def is_class(entry: str) -> bool:
    """Whether an entry is the name of a class, and none of a module."""
    return CLASS.fullmatch(entry) is not None


def means_name(entry: str, names: Iterable[str]) -> bool:
    """Whether an entry means a layer by one of its names."""
    if entry.startswith(REGULAR):
        matches = matcher(entry, "a scheme:", start=True)
        return any(matches(way) for name in names for way in {name, *_paths(name)})
    wanted = _bare(entry)
    return any(f"{way}.".startswith(f"{wanted}.") for name in names for way in _paths(name)) if wanted else False


def module_meant(entry: str, names: Iterable[str]) -> str:
    """The outermost module of a layer that an entry means, which may be the layer; nothing where it means none.

    Other than in a scheme a pattern may mean a module that holds the layer: `re:layers.\\d+$` is all that is in them.
    """
    inner = sorted({way for name in names for way in _paths(name)} - {""})
    outer = {path[:at] for path in inner for at, letter in enumerate(path) if letter == "."}
    ways = sorted({*inner, *outer}, key=lambda way: (way.count("."), way))
    if not entry.startswith(REGULAR):
        return next((way for way in ways if way == _bare(entry)), "")
    matches = matcher(entry, "targets:", start=True)
    return next((way for way in ways if matches(way)), "")


def _paths(name: str) -> set[str]:
    bare = name.strip("/")
    return {_bare(bare), module_path(bare).removeprefix(WRAPPER)}


def _bare(name: str) -> str:
    return name.strip("/").replace("/", ".").removeprefix(WRAPPER)
