"""Channels are taken out of graphs: where nothing reads them the outputs stay, and what stands in the way is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxsparse.channel_classes.permutation import METADATA
from onnxsparse.errors import PlanError
from onnxsparse.graph.model import Model
from onnxsparse.graph.torch_match import Match, Matched, record_match, recorded_match
from onnxsparse.passes.permuting import channels_of
from onnxsparse.passes.thin import blocking, places_in, readers_of, roles_of, thinned
from tests.channels import judge, traps

RANDOM = np.random.default_rng(0)


def array(name: str, *shape: int, kind: Any = np.float32) -> TensorProto:
    return numpy_helper.from_array(RANDOM.standard_normal(shape).astype(kind), name)


def ints(name: str, *numbers: int) -> TensorProto:
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def model(nodes: list[Any], stored: list[TensorProto], values: Any = None, y: Any = 3) -> ModelProto:
    declared = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (values or {}).items()]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", y])], stored, value_info=declared,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def node(op: str, inputs: str, output: str, **more: Any) -> Any:
    return helper.make_node(op, inputs.split(), [output], output, **more)


def taken_out(proto: ModelProto, seed: int = 0) -> tuple[ModelProto, ModelProto, list[str]]:
    """The model with zeros where some channels of all classes that can go are read, and without these channels; and
    what stands in the way of the others."""
    whole, dice = Model.over(Model.over(proto).copy_proto()), np.random.default_rng(seed)
    channels, roles = channels_of(whole), roles_of(whole)
    reasons = {one.number: blocking(whole, channels, one) for one in channels.classes}
    kept = {one.number: dice.random(one.size) < 0.5 for one in channels.classes if not reasons[one.number]}
    for number, keep in kept.items():
        keep[0], one = True, channels.classes[number]
        for member in readers_of(one, roles):
            numbers = member.tensor.array().copy()
            numbers[places_in(member, one.channels[~keep])] = 0
            member.tensor.store(np.ascontiguousarray(numbers).reshape(-1))
    zeroed = Model.over(whole.proto)
    return zeroed.copy_proto(), thinned(zeroed, kept), [why for why in reasons.values() if why]


def held(proto: ModelProto, feeds: Any = None) -> tuple[ModelProto, list[str]]:
    """Some channels less, and the same outputs."""
    zeroed, made, reasons = taken_out(proto)
    onnx.checker.check_model(made, full_check=feeds is None)
    feeds = feeds or {"x": RANDOM.standard_normal((3, 2, 4, 4)).astype(np.float32)}
    for before, after in zip(*(judge.session(one).run(None, feeds) for one in (zeroed, made))):
        assert judge.relative_distance(before, after) < 1e-4
    return made, reasons


def sizes(proto: ModelProto) -> dict[str, tuple[int, ...]]:
    return {one.name: tuple(one.dims) for one in proto.graph.initializer}


CONV = [node("Conv", "x a b", "c", pads=[1] * 4), node("Relu", "c", "r")]
STORED = [array("a", 8, 2, 3, 3), array("b", 8), array("head", 3, 128)]
HEAD = node("Gemm", "f head", "y", transB=1)
VALUES = {"c": ["N", 8, 4, 4], "r": ["N", 8, 4, 4], "f": ["N", 128]}
"""Declared sizes that become others."""


@pytest.mark.parametrize("shape", [(-1, 128), (0, 128), (0, -1)])
def test_numbers_that_are_sizes_follow(shape: tuple[int, int]) -> None:
    made, _ = held(model([*CONV, node("Reshape", "r s", "f"), HEAD], [*STORED, ints("s", *shape)], VALUES))
    left = sizes(made)["a"][0]
    assert 0 < left < 8
    assert sizes(made)["b"] == (left,)
    assert sizes(made)["head"] == (3, 16 * left)
    declared = {one.name: [dim.dim_value for dim in one.type.tensor_type.shape.dim] for one in made.graph.value_info}
    assert declared == {"c": [0, left, 4, 4], "r": [0, left, 4, 4], "f": [0, 16 * left]}


def test_a_shape_that_is_put_together_and_one_that_two_share() -> None:
    nodes = [
        node("Shape", "r", "shape"), node("Gather", "shape zero", "n"), node("Unsqueeze", "n axis", "first"),
        node("Concat", "first rest", "s", axis=0), node("Reshape", "r s", "f"), HEAD,
    ]  # fmt: skip
    stored = [*STORED, ints("axis", 0), ints("rest", 128), numpy_helper.from_array(np.array(0, np.int64), "zero")]
    assert sizes(held(model([*CONV, *nodes], stored))[0])["head"][1] < 128
    twice = [node("Reshape", "r s", "f"), node("Relu", "x", "other"), node("Reshape", "other t", "g")]
    twice += [node("Gemm", "g more", "m", transB=1), node("Gemm", "f head", "h", transB=1), node("Add", "m h", "y")]
    stored = [*STORED, array("more", 3, 32), ints("s", -1, 128), ints("t", -1, 32)]
    assert sizes(held(model([*CONV, *twice], stored))[0])["more"] == (3, 32)


def test_what_goes_along() -> None:
    """A depthwise convolution, a normalization, a transposed convolution, Concat, Resize with sizes, a gate."""
    nodes = [
        *CONV, node("Conv", "r dw", "d", group=8, pads=[1] * 4),
        node("BatchNormalization", "d scale shift mean var", "n"), node("PRelu", "n slope", "p"),
        node("ConvTranspose", "p up upb", "u"), node("Resize", "u", "v"), node("Concat", "v x", "w", axis=1),
        node("GlobalAveragePool", "v", "g"), node("Conv", "g g1", "h"), node("Sigmoid", "h", "i"),
        node("Conv", "i g2", "j"), node("HardSigmoid", "j", "k"), node("Mul", "k v", "gated"),
        node("Concat", "gated w", "all", axis=1), node("ReduceMean", "all", "f", axes=[2, 3], keepdims=0), HEAD,
    ]  # fmt: skip
    nodes[6] = helper.make_node("Resize", ["u", "", "", "sizes"], ["v"], "v")
    stored = [
        *STORED[:2], array("dw", 8, 1, 3, 3), *(array(name, 8) for name in ("scale", "shift", "mean")),
        numpy_helper.from_array(np.ones(8, np.float32), "var"), array("slope", 8, 1, 1), array("up", 8, 6, 1, 1),
        array("upb", 6), ints("sizes", 1, 6, 4, 4), array("g1", 4, 6, 1, 1), array("g2", 6, 4, 1, 1),
        array("head", 3, 14),
    ]  # fmt: skip
    proto = model(nodes, stored, y=3)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    made, reasons = held(proto, {"x": RANDOM.standard_normal((1, 2, 4, 4)).astype(np.float32)})
    assert not reasons
    found = sizes(made)
    left, wide = found["a"][0], found["up"][1]
    assert left < 8
    assert wide < 6
    assert {found[name] for name in ("scale", "shift", "mean", "var", "b")} == {(left,)}
    assert found["dw"] == (left, 1, 3, 3)
    assert found["up"] == (left, wide, 1, 1)
    assert found["head"] == (3, 2 * wide + 2)
    assert next(one.i for one in made.graph.node[2].attribute if one.name == "group") == left


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([node("Softmax", "r", "s", axis=1), node("Flatten", "s", "f")], "Softmax 's' reads them, and is no operator"),
        ([node("Conv", "r grouped", "s", group=2), node("Flatten", "s", "f")], ""),
        (
            [node("ReduceMean", "r", "m", axes=[1]), node("Mul", "m r", "s"), node("Flatten", "s", "f")],
            "ReduceMean 'm' mixes them",
        ),
        (
            [node("Shape", "r", "n"), node("Cast", "n", "m", to=1), node("Mul", "r m", "s"), node("Flatten", "s", "f")],
            "Shape 'n' tells how many there are",
        ),
    ],
)
def test_what_blocks_is_named(nodes: list[Any], why: str) -> None:
    proto = model([*CONV, *nodes, HEAD], [*STORED, array("grouped", 8, 4, 1, 1)])
    opened = Model.over(proto)
    found = channels_of(opened)
    own = [one for one in found.classes if any(member.name == "a" for member in one.members)]
    if why:
        assert blocking(opened, found, own[0]).startswith(why)
        with pytest.raises(PlanError, match=f"channels cannot be taken out: {why}"):
            thinned(opened, {own[0].number: np.arange(own[0].size) > 0})
    else:
        assert all(blocking(opened, found, one) for one in own)


def test_one_channel_stays() -> None:
    opened = Model.over(model([*CONV, node("Flatten", "r", "f"), HEAD], STORED))
    with pytest.raises(PlanError, match="of the 8 channels of 'a' at least one has to stay"):
        thinned(opened, {0: np.zeros(8, bool)})
    assert thinned(opened, {}).SerializeToString() == opened.proto.SerializeToString()


def test_what_was_recorded_of_other_sizes_is_not_kept() -> None:
    """A permutation, and where parameters of torch lie."""
    opened = Model.over(model([*CONV, node("Flatten", "r", "f"), HEAD], STORED))
    rows = {"conv.weight": ("a", (8, 2, 3, 3)), "other": ("kept", (3,))}
    opened.proto.graph.initializer.append(array("kept", 3))
    opened.forget()
    record_match(opened, Match({name: Matched(one, "", "same", "name", shape) for name, (one, shape) in rows.items()}))
    opened.set_metadata({METADATA: "{}"})
    made = Model.over(thinned(opened, {0: np.arange(8) > 4}))
    match = recorded_match(made)
    assert match is not None
    assert METADATA not in made.metadata
    assert ([*match.matched], dict(match.refused)) == (["other"], {"conv.weight": "channels were taken out of it"})


NAMES = traps.names()


@pytest.mark.parametrize("name", NAMES[::6])
def test_traps_keep_their_outputs(name: str) -> None:
    trap = traps.build(name)
    held(trap.model, trap.feeds)


@pytest.mark.slow
@pytest.mark.parametrize("name", [one for one in NAMES if one != "expand_of_one_channel"])
def test_all_traps_keep_their_outputs(name: str) -> None:
    trap = traps.build(name)
    held(trap.model, trap.feeds)
