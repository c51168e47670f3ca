"""Sparsers as nodes of a training graph: how a weight is replaced in the forward pass.

Only operators whose gradient the engine has, and has right:

1. Sign has none: sign(w) relu(|w| - t) is relu(w - t) - relu(-w - t), to the last bit.
2. Where is right as long as the branch that needs a gradient has the full shape: that of the weight.
3. The engine's Sigmoid is 0 from -18 on, too early for what is divided by a tiny number later: 1 / (1 + exp(-x)).
4. A straight-through mask is `mask + (score - anchor)`, where the anchor is the score again, frozen: that adds
   exactly 0, and the score gets the mask's gradient. For a hard step, FakeQuant with the levels 0 and 1 does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from onnxsparse.errors import OptionError
from onnxsparse.graph.edit import Writer
from onnxsparse.math.values import Array
from onnxsparse.sparsers.probabilistic import LARGEST_EXPONENT, TINY
from onnxsparse.sparsers.sparser import MaskMultiply, Moment, Sparser

Names = dict[str, str]
Nodes = Callable[[Writer, str, Names], str]
"""Writes the nodes of a weight of that name, with the arrays around it by role; returns what the network reads."""

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Written:
    """The name of what the network has to read, and the initializers by role: trained ones, and those fed as frozen."""

    effective: str
    trained: dict[str, str]
    frozen: dict[str, str]
    domains: tuple[str, ...] = ()
    """Operator sets, other than ONNX's own, that the model has to import (version 1)."""


def write(writer: Writer, sparser: Sparser, name: str, weight: Array, mask: Array | None = None) -> Written:
    """Write the nodes of one weight; new initializers hold the first values of what is trained beside it and of what
    is fed. The mask keeps everything unless one is given."""
    nodes = _MASKS[sparser.storage] if type(sparser) is MaskMultiply else _WRITERS.get(sparser.name)
    if nodes is None:
        known = ", ".join((MaskMultiply.name, *_WRITERS))
        raise OptionError(f"the onnxruntime engine cannot train with the sparser {sparser.name!r} (known: {known})")
    trained = sparser.trained(weight)
    kept = np.ones(weight.shape, bool) if mask is None else mask
    fed = sparser.feed(weight, trained, kept, Moment(name))
    names = {role: writer.constant(array, f"{name}.{role}", array.dtype) for role, array in {**trained, **fed}.items()}
    effective = nodes(writer, name, names)
    domains = (MICROSOFT,) if nodes is _hard_threshold else ()
    return Written(effective, {r: names[r] for r in trained}, {r: names[r] for r in fed}, domains)


def _mask_of_floats(writer: Writer, weight: str, names: Names) -> str:
    return writer.node("Mul", weight, names["mask"])


def _mask_of_bytes(writer: Writer, weight: str, names: Names) -> str:
    return writer.node("Mul", weight, writer.cast(names["mask"], TensorProto.FLOAT))


def _mask_of_bools(writer: Writer, weight: str, names: Names) -> str:
    return writer.node("Where", names["mask"], weight, writer.constant(0.0, "zero"))


def _soft_threshold(writer: Writer, weight: str, names: Names) -> str:
    threshold = _sigmoid(writer, names["threshold"])
    above = writer.node("Relu", writer.node("Sub", weight, threshold))
    below = writer.node("Relu", writer.node("Sub", writer.node("Neg", weight), threshold))
    return writer.node("Sub", above, below)


def _hard_threshold(writer: Writer, weight: str, names: Names) -> str:
    half, one, zero = (writer.constant(number, "level") for number in (0.5, 1.0, 0.0))
    above = writer.node("Sub", writer.node("Abs", weight), _sigmoid(writer, names["threshold"]))
    above = writer.node("Clip", above, writer.constant(-1.0, "level"), one)
    share = writer.node("Add", writer.node("Mul", above, half), half)
    # Rounding a number in 0..1 to whole levels gives 0 or 1; a half becomes 0.
    mask, _ = writer.many(
        "FakeQuant", share, one, zero, to=[writer.fresh("mask"), writer.fresh("inside")],
        domain=MICROSOFT, quant_min=0, quant_max=1,
    )  # fmt: skip
    return writer.node("Mul", weight, mask)


def _straight_through(writer: Writer, weight: str, names: Names) -> str:
    nothing = writer.node("Sub", names["score"], names["anchor"])
    return writer.node("Mul", weight, writer.node("Add", names["mask"], nothing))


def _probabilistic(writer: Writer, weight: str, names: Names) -> str:
    one, tiny = writer.constant(1.0, "one"), writer.constant(TINY, "tiny")
    score = writer.node("Clip", names["score"], writer.constant(0.0, "level"), one)
    keep = writer.node("Log", writer.node("Add", score, tiny))
    drop = writer.node("Log", writer.node("Add", writer.node("Sub", one, score), tiny))
    exponent = writer.node("Sub", writer.node("Sub", drop, keep), names["noise"])
    return writer.node("Mul", weight, _logistic(writer, writer.node("Mul", exponent, names["temperature"])))


def _sigmoid(writer: Writer, number: str) -> str:
    return _logistic(writer, writer.node("Neg", number))


def _logistic(writer: Writer, exponent: str) -> str:
    """1 / (1 + exp(x)); x is cut so that neither exp nor its gradient leaves the numbers."""
    cut = writer.node("Min", exponent, writer.constant(LARGEST_EXPONENT, "largest"))
    return writer.node("Reciprocal", writer.node("Add", writer.node("Exp", cut), writer.constant(1.0, "one")))


_MASKS: dict[str, Nodes] = {"float": _mask_of_floats, "uint8": _mask_of_bytes, "bool": _mask_of_bools}
_WRITERS: dict[str, Nodes] = {
    "soft-threshold": _soft_threshold,
    "hard-threshold": _hard_threshold,
    "straight-through": _straight_through,
    "probabilistic": _probabilistic,
}
