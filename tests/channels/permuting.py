"""Permutes every channel class of a small graph at random: the outputs stay, and what could move has moved."""

from __future__ import annotations

import numpy as np
import onnx.shape_inference
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxsparse.channel_classes.classes import analyse
from onnxsparse.channel_classes.permutation import Move, MovedTensor
from onnxsparse.graph.model import Model
from tests.channels import judge
from tests.channels.net import Array, Net


def held(
    net: Net, *outputs: str, move: str = "", stay: str = "", shapes: dict[str, tuple[int, ...]] | None = None
) -> None:
    """`move`: names of stored tensors whose numbers can move, or of one axis, such as "w:0"; `stay`: that cannot.

    What is in neither may.
    """
    model = net.build(*outputs)
    moved: set[str] = set()
    for seed in range(3):
        made, names = permuted(model, seed, shapes)
        moved |= names
        wrong = judge.judge(model, made, net.feeds, exact=False)
        assert not wrong, wrong
    _demand(moved, move, stay)


def held_by_reference(net: Net, output: str, move: str = "", stay: str = "") -> None:
    """The same for an operator that onnxruntime does not have: judged by the reference of onnx."""
    graph = helper.make_graph(net.nodes, "net", net.inputs, [ValueInfoProto(name=output)], net.initializers)
    imports = [helper.make_opsetid("", net.opset)]
    model = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=imports, ir_version=net.ir))
    made, moved = permuted(model, 0)
    was, now = (ReferenceEvaluator(one).run(None, net.feeds)[0] for one in (model, made))
    assert judge.relative_distance(was, now) < judge.TOLERANCE[was.dtype]
    _demand(moved, move, stay)


def _demand(moved: set[str], move: str, stay: str) -> None:
    assert moved >= set(move.split()), f"cannot move: {sorted(set(move.split()) - moved)}"
    assert not moved & set(stay.split()), f"can move: {sorted(moved & set(stay.split()))}"


def permuted(
    model: ModelProto, seed: int, shapes: dict[str, tuple[int, ...]] | None = None
) -> tuple[ModelProto, set[str]]:
    """The model with all classes in a random order, and which of its stored tensors moved; the inverse is tried."""
    channels = analyse(Model.open(model), shapes)
    draw = np.random.default_rng(seed)
    orders = {one.number: _order(draw, one.size) for one in channels.classes}
    made = ModelProto()
    made.CopyFrom(model)
    stored = judge.tensors(made)
    names = set()
    for tensor, moves in channels.rearranged(orders).items():
        own = stored[tensor.name]
        before = numpy_helper.to_array(own)
        moving = MovedTensor(tensor.name, before.shape, tuple(Move(axes, order) for axes, order in moves))
        after = moving(before)
        assert moving.inverse()(after).tobytes() == before.tobytes()
        if after.tobytes() != before.tobytes():
            names |= {tensor.name, *(f"{tensor.name}:{axes[-1]}" for axes, _ in moves)}
            own.CopyFrom(numpy_helper.from_array(after, own.name))
    return made, names


def _order(draw: np.random.Generator, size: int) -> Array:
    """Any order but the one that is."""
    order = draw.permutation(size)
    return np.roll(order, 1) if np.array_equal(order, np.arange(size)) else order
