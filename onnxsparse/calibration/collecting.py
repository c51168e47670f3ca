"""Collecting statistics: a model is run on samples with inner values as outputs, and each batch is added up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np
from onnx import ModelProto, ValueInfoProto

from onnxsparse.calibration.statistics import Statistics
from onnxsparse.engines.inference import Session
from onnxsparse.graph.edit import copied
from onnxsparse.math.values import Array

Kept = TypeVar("Kept", bound=Statistics)


def collect(
    proto: ModelProto, names: Iterable[str], feeds: Iterable[Mapping[str, Array]], make: Callable[[str], Kept]
) -> dict[str, Kept]:
    """The statistics of inner values, by name, over all feeds; a model's own inputs are taken as they are fed."""
    found = {name: make(name) for name in names}
    inputs = {value.name for value in proto.graph.input}
    inner = [name for name in found if name not in inputs]
    session = Session(with_outputs(proto, inner))
    for feed in feeds:
        outputs = session.run(dict(feed))
        for name, statistics in found.items():
            statistics.add(np.asarray(outputs[name] if name in outputs else feed[name]))
    return found


def with_outputs(proto: ModelProto, names: Iterable[str]) -> ModelProto:
    """A copy that gives inner values, too."""
    copy = copied(proto)
    known = {value.name for value in copy.graph.output}
    copy.graph.output.extend(ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in known)
    return copy
