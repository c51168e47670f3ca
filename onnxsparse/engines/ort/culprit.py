"""Which operator the engine dies of: ever shorter parts of a training graph, each in a process of its own.

    python -m onnxsparse.engines.ort.worker culprit FOLDER COUNT

builds the gradients of the first COUNT nodes of the graph that a trial has set aside in the folder, and takes a step.
Its loss is the sum of the means of all that these nodes give and none of them reads. The parent halves the range until
one node is left: with the nodes before it the engine lives, with it, it dies.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.helper import make_tensor_value_info

from onnxsparse.engines.ort import value_shapes
from onnxsparse.engines.ort.generate import generate
from onnxsparse.engines.ort.reach import reduce_to
from onnxsparse.engines.ort.rewrites.rewrite import View, reads
from onnxsparse.engines.ort.session import Session
from onnxsparse.engines.ort.writer import Writer

MODEL, FEED, NAMES = "assembled.onnx", "feed.npz", "assembled.json"
TRIES = 12


@dataclass(frozen=True)
class Culprit:
    """The operator, and the name of the node in the rewritten graph."""

    operator: str
    node: str


def find(folder: str, dies: Callable[[int], bool]) -> Culprit | None:
    """The node without which the engine lives; `dies` tries the first so many nodes. None if that cannot be told."""
    try:
        nodes = onnx.load(os.path.join(folder, MODEL)).graph.node
    except (OSError, ValueError):
        return None
    lives, kills = 0, len(nodes)
    if not dies(kills):
        return None
    for _ in range(TRIES):
        if kills - lives <= 1:
            break
        middle = (lives + kills) // 2
        lives, kills = (lives, middle) if dies(middle) else (middle, kills)
    return Culprit(nodes[kills - 1].op_type, nodes[kills - 1].name)


def attempt(folder: str, count: int) -> None:
    """Build the gradients of the first nodes, and take a step."""
    with open(os.path.join(folder, NAMES), encoding="utf-8") as file:
        names = json.load(file)
    model = onnx.load(os.path.join(folder, MODEL))
    trained = shorten(model, count, set(names["trained"].values()) | set(names["anchors"]))
    if not trained:
        return
    stored = {tensor.name for tensor in model.graph.initializer}
    frozen = [name for name in names["frozen"].values() if name in stored]
    with np.load(os.path.join(folder, FEED), allow_pickle=False) as arrays:
        feed = {name: arrays[f"a{place}"] for place, name in enumerate(names["fed"])}
    with tempfile.TemporaryDirectory(prefix="onnxsparse-") as work:
        generate(model, trained, frozen, [], work)
        Session(work, {"trained": {name: name for name in trained}, "frozen": {}}).step(feed)


def shorten(model: ModelProto, count: int, trained: set[str]) -> list[str]:
    """Leave the first nodes, with a loss of all that they give; returns the trained tensors that a gradient reaches."""
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in model.graph.node[:count]]
    read = {name for node in nodes for name in reads(node)}
    loose = [name for node in nodes for name in node.output if name and name not in read]
    _hold(model, nodes, [ValueInfoProto(name=name) for name in loose])
    value_shapes.infer(model)
    view = View.of(model, trained)
    ends = [name for name in loose if name in view.gradients]
    if not ends:
        return []
    writer = Writer(model.graph, view.opset)
    means = [writer.node("ReduceMean", name, keepdims=0) for name in ends]
    total = means[0]
    for mean in means[1:]:
        total = writer.node("Add", total, mean)
    _hold(model, [*nodes, *writer.nodes], [make_tensor_value_info(total, TensorProto.FLOAT, [])])
    reduce_to(model, [total])
    value_shapes.infer(model)
    return sorted(trained & View.of(model, trained).gradients)


def _hold(model: ModelProto, nodes: Sequence[NodeProto], outputs: Sequence[ValueInfoProto]) -> None:
    del model.graph.node[:], model.graph.output[:]
    model.graph.node.extend(nodes)
    model.graph.output.extend(outputs)


def main(folder: str, count: str) -> int:
    attempt(folder, int(count))
    return 0
