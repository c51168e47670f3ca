"""Collecting statistics: a model is run on samples with inner values as outputs, and each batch is added up.

`Stepwise` runs it piece by piece instead, so that what a layer gives can be changed before the next ones see it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np
from onnx import ModelProto, NodeProto, ValueInfoProto
from onnx.helper import make_tensor_value_info, np_dtype_to_tensor_dtype

from onnxsparse.calibration.statistics import Statistics
from onnxsparse.engines.inference import Session
from onnxsparse.graph.edit import copied, reads
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
            statistics.add(np.asarray(outputs.pop(name) if name in outputs else feed[name]))
    return found


def with_outputs(proto: ModelProto, names: Iterable[str]) -> ModelProto:
    """A copy that gives inner values, too."""
    copy = copied(proto)
    known = {value.name for value in copy.graph.output}
    copy.graph.output.extend(ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in known)
    return copy


class Stepwise:
    """A model that is run piece by piece, on all feeds, in the order of its nodes.

    What later nodes read is kept between two pieces, and each piece is made of the model as it is then: both may be
    changed on the way. Nothing is fused: integer kernels of some CPUs saturate, and the numbers here have to be
    the same on all.
    """

    def __init__(self, proto: ModelProto, feeds: Iterable[Mapping[str, Array]]) -> None:
        self._proto, self._done = proto, 0
        self._kept = [dict(feed) for feed in feeds]
        self._last = {name: place for place, node in enumerate(proto.graph.node) for name in reads(node)}
        self._makers = {name: place for place, node in enumerate(proto.graph.node) for name in node.output if name}

    def run_to(self, name: str) -> list[Array]:
        """A value, of each feed; later nodes see what is changed in it. What only earlier ones read is forgotten."""
        end = self._makers.get(name, -1) + 1
        if end > self._done:
            self._run(end, name)
        return [kept[name] for kept in self._kept]

    def _run(self, end: int, wanted: str) -> None:
        nodes = self._proto.graph.node[self._done : end]
        made = [name for node in nodes for name in node.output if name]
        outputs = [name for name in made if name == wanted or self._last.get(name, -1) >= end]
        read = {name for node in nodes for name in reads(node)} - set(made)
        session: Session | None = None
        for place, kept in enumerate(self._kept):
            inputs = {name: kept[name] for name in sorted(read) if name in kept}
            session = session or Session(self._piece(nodes, read, inputs, outputs), optimized=False)
            found = session.run(inputs)
            kept.update({name: np.asarray(found[name]) for name in outputs})
            still = {name: value for name, value in kept.items() if name == wanted or self._last.get(name, -1) >= end}
            self._kept[place] = still
        self._done = end

    def _piece(
        self, nodes: Iterable[NodeProto], read: set[str], inputs: Mapping[str, Array], outputs: Iterable[str]
    ) -> ModelProto:
        piece = ModelProto(ir_version=self._proto.ir_version)
        piece.opset_import.extend(self._proto.opset_import)
        piece.functions.extend(self._proto.functions)
        piece.graph.name = "piece"
        piece.graph.node.extend(nodes)
        piece.graph.initializer.extend(one for one in self._proto.graph.initializer if one.name in read)
        for name, value in inputs.items():
            piece.graph.input.append(make_tensor_value_info(name, np_dtype_to_tensor_dtype(value.dtype), None))
        piece.graph.output.extend(ValueInfoProto(name=name) for name in outputs)
        return piece
