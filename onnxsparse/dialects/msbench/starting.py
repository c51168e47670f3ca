"""What a training starts with: the dense model, the numbers that belong into it, and those that training begins with.

1. The dense model is `saver.pretrain_model`, or `model` as it is. It is the one to learn from, wherever a training
   starts: a network that is sparse already is no teacher, least of all its own.
2. Numbers are found by the names of stored tensors. Where nothing is learned from the dense model, a start state takes
   its place; an ONNX file then as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import NodeProto

from onnxsparse.dialects.msbench.job import Job
from onnxsparse.graph.model import Model
from onnxsparse.graph.storage import FLOAT_KINDS, StoredTensor
from onnxsparse.loops.onnx_network import OnnxNetwork
from onnxsparse.loops.options import LoopOptions
from onnxsparse.math.values import Array
from onnxsparse.passes.trainable import as_float32

DIVERGENCES = ("distill", "kl")


@dataclass(frozen=True)
class Start:
    """An ONNX file; numbers for all of it, which is the dense model then; and numbers for what trains in it."""

    source: str
    dense: str = ""
    first: str = ""
    note: str = ""

    @property
    def named(self) -> str:
        """The file of numbers that decides how a training ends."""
        return self.first or self.dense


def is_onnx(path: str) -> bool:
    return path.lower().endswith(".onnx")


def learns(options: Mapping[str, Any], has_labels: bool) -> bool:
    """Whether the dense model's outputs are learned from."""
    loss = options.get("loss")
    return loss in DIVERGENCES or bool(options.get("hardness")) or (loss is None and not has_labels)


def start_of(job: Job, given: str, learning: bool) -> Start:
    """Where to start, of what the command line and the configuration say."""
    first = given or job.resume
    dense = "" if is_onnx(job.pretrained) else job.pretrained
    known = next((one for one in (job.pretrained, job.model) if is_onnx(one)), "")
    if not first:
        return Start(known, dense)
    if not is_onnx(first):
        return Start(known, dense, first) if learning else Start(known, first)
    if not learning or not known:
        return Start(first)
    if first == known:
        return Start(known, dense, first if dense else "")
    if not os.path.isfile(first) or same_network(known, first, job.options):
        return Start(known, dense, first)
    return Start(first, note=f"{first} is another network than {known}, so it learns from itself as it is")


def same_network(known: str, other: str, options: Mapping[str, Any]) -> bool:
    """Whether two files are one network: nothing but what trains may be other numbers."""
    trained = set(OnnxNetwork(known, LoopOptions(**options)).trains)
    ours, theirs = Model.open(known), Model.open(other)
    if [_wired(node) for node in ours.proto.graph.node] != [_wired(node) for node in theirs.proto.graph.node]:
        return False
    left, right = homes(ours), homes(theirs)
    alike = [(one.name, one.kind, one.shape) for one in left] == [(one.name, one.kind, one.shape) for one in right]
    return alike and all(np.array_equal(a.read(), b.read()) for a, b in zip(left, right) if a.name not in trained)


def _wired(node: NodeProto) -> tuple[Any, ...]:
    """A node without the numbers that it holds."""
    held = node.op_type == "Constant"
    said = () if held else tuple(one.SerializeToString(deterministic=True) for one in node.attribute)
    return (node.domain, node.op_type, tuple(node.input), tuple(node.output), said)


def homes(model: Model) -> list[StoredTensor]:
    """All stored tensors, in the order of the file."""
    _ = model.weights
    return list(model.flow.stores.homes)


def numbers_in(path: str) -> dict[str, Array]:
    """The floats in an ONNX file, by name."""
    return {one.name: as_float32(one) for one in homes(Model.open(path)) if one.kind in FLOAT_KINDS}
