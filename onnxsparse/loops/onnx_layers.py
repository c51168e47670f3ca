"""The layers of an ONNX model as a loop sees them, and what it is told of the shapes of the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxsparse.errors import OptionError
from onnxsparse.graph.convolution import convolution_of
from onnxsparse.loops.network import Site
from onnxsparse.passes.names import named
from onnxsparse.passes.plan import PlanRow, does_not_fit
from onnxsparse.patterns import Pattern


def site_of(tag: str, row: PlanRow) -> Site:
    """A planned weight as a layer; it answers to the names of its tensor and of its nodes."""
    weight, use = row.weight, row.use
    stem = row.name[: -len(".weight")] if row.name.endswith(".weight") else row.name
    names, answers = tuple(dict.fromkeys((stem, row.name, *weight.layers))), named(weight)

    def refuses(pattern: Pattern) -> str:
        reason = does_not_fit(weight, pattern)
        return reason.text if reason else ""

    scopes = [use.op, *(part for name in (*weight.layers, *answers.layers, stem) for part in _scopes(name))]
    return Site(
        tag, stem, names, use.op, weight.shape, use.shape4, use.matrix, use.restore, convolution_of(use), refuses,
        tuple(dict.fromkeys(scopes)), answers,
    )  # fmt: skip


def _scopes(name: str) -> list[str]:
    """All that a name begins with, part by part: /head/fc/Gemm is inside of /head/fc and /head."""
    ends = [at for at, letter in enumerate(name) if letter in "./" and at]
    return [name, *(name[:at] for at in ends), *(name[1:at] for at in ends if name[0] == "/")]


def shapes_of(shape: Any, real: Any, names: Sequence[str]) -> list[Sequence[int]]:
    """The shape of every input, as far as it is given."""
    if isinstance(real, Mapping):
        return [np.shape(real[name]) if name in real else () for name in names]
    if real is not None:
        each = real if isinstance(real, (list, tuple)) else [real]
        return [np.shape(one) for one in each]
    if isinstance(shape, Mapping):
        return [shape.get(name, ()) for name in names]
    if shape is not None and not all(isinstance(size, int) and size > 0 for size in shape):
        raise OptionError(f"default_input_shape is a list of sizes such as [1, 3, 224, 224], not {shape!r:.60}")
    return [] if shape is None else [tuple(shape)]
