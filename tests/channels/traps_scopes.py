"""If, Loop, Scan, sequences and local functions, with channels and weights inside and outside of bodies."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.channels.net import Net, Trap, generator
from tests.channels.traps import trap

Info = onnx.ValueInfoProto


def _info(name: str, kind: int = TensorProto.FLOAT, shape: list[int] | None = None) -> Info:
    return helper.make_tensor_value_info(name, kind, shape)


def _body(net: Net, first: int, inputs: list[Info], outputs: list[Info], stored: int | None = None) -> onnx.GraphProto:
    """The nodes that were added last, and the tensors if `stored` is given, as the body of a node."""
    nodes, net.nodes = net.nodes[first:], net.nodes[:first]
    tensors: list[TensorProto] = []
    if stored is not None:
        tensors, net.initializers = net.initializers[stored:], net.initializers[:stored]
    return helper.make_graph(nodes, net.name("body"), inputs, outputs, tensors)


def _stem(channels: int = 16) -> tuple[Net, str]:
    net = Net()
    return net, net.relu(net.conv(net.image(8), "first", 8, channels))


def _condition(net: Net) -> str:
    return net.feed("condition", np.array(True))


@trap
def if_with_weights_inside() -> Trap:
    """Each branch has a weight in its own body; what goes in comes from outside, what comes out is one class."""
    net, h = _stem()
    condition = _condition(net)
    bodies = []
    for name in ("then_w", "else_w"):
        nodes, stored = len(net.nodes), len(net.initializers)
        out = net.conv(h, name, 16, 16)
        bodies.append(_body(net, nodes, [], [_info(out)], stored))
    h = net("If", condition, then_branch=bodies[0], else_branch=bodies[1])
    return net.trap(net.conv(h, "last", 16, 6), move="then_w else_w last", stay="first")


@trap
def if_of_two_orders() -> Trap:
    """One branch hands the channels on, the other swaps their halves: i and i + 8 are tied."""
    net, h = _stem()
    condition = _condition(net)
    nodes = len(net.nodes)
    same = _body(net, nodes, [], [_info(net("Identity", h))])
    halves = net.split(h, 8, 8)
    swapped = _body(net, nodes, [], [_info(net.concat(halves[1], halves[0]))])
    h = net("If", condition, then_branch=same, else_branch=swapped)
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def if_with_weights_of_the_same_name() -> Trap:
    """Both branches call their weight `w`: two tensors, of which the second reads other channels."""
    net, h = _stem()
    other = net.conv(h, "other", 16, 16)
    condition = _condition(net)
    bodies = []
    for read in (h, other):
        nodes = len(net.nodes)
        weight = generator(f"w of {read}").standard_normal((12, 16, 1, 1)).astype(np.float32)
        body = _body(net, nodes, [], [_info(net("Conv", read, "w"))])
        body.initializer.append(numpy_helper.from_array(weight, "w"))
        bodies.append(body)
        del net.nodes[nodes:]
    h = net("If", condition, then_branch=bodies[0], else_branch=bodies[1])
    return net.trap(net.conv(h, "last", 12, 6), move="other last", stay="first")


@trap
def if_inside_if() -> Trap:
    net, h = _stem()
    condition = _condition(net)
    outer = len(net.nodes)
    inner = len(net.nodes)
    deep = _body(net, inner, [], [_info(net.conv(h, "deep", 16, 16))])
    plain = _body(net, inner, [], [_info(net("Neg", h))])
    nested = _body(net, outer, [], [_info(net("If", condition, then_branch=deep, else_branch=plain))])
    away = _body(net, outer, [], [_info(net("Abs", h))])
    h = net("If", condition, then_branch=nested, else_branch=away)
    return net.trap(net.conv(h, "last", 16, 6), move="deep last", stay="first")


def _loop(net: Net, state: str, body: onnx.GraphProto, outputs: int = 1) -> list[str]:
    trips = net.store("trips", np.array(3, np.int64))
    return net.many("Loop", outputs, trips, "", state, body=body)


@trap
def loop_of_residual_blocks() -> Trap:
    """The channels are carried from turn to turn; the weights are captured from outside."""
    net, h = _stem()
    first, stored = len(net.nodes), len(net.initializers)
    inner = net.relu(net.conv("carried", "up", 16, 12))
    out = net("Add", "carried", net.conv(inner, "down", 12, 16))
    going = net("Identity", "going")
    body = _body(net, first, [_info("turn", 7, []), _info("going", 9, []), _info("carried")],
                 [_info(going, 9, []), _info(out)])  # fmt: skip
    assert len(net.initializers) > stored
    h = _loop(net, h, body)[0]
    return net.trap(net.conv(h, "last", 16, 6), move="up down last", stay="first")


@trap
def loop_that_rolls() -> Trap:
    """Each turn moves the channels on by one: what is carried has no free order."""
    net, h = _stem()
    first = len(net.nodes)
    out = net.concat(net.slice("carried", 1, 16), net.slice("carried", 0, 1))
    going = net("Identity", "going")
    body = _body(net, first, [_info("turn", 7, []), _info("going", 9, []), _info("carried")],
                 [_info(going, 9, []), _info(out)])  # fmt: skip
    h = _loop(net, h, body)[0]
    return net.trap(net.conv(h, "last", 16, 6), stay="first")


@trap
def shape_joined_from_a_stored_part() -> Trap:
    """What a Loop carries has no known shape; a shape is joined from its first size and two stored ones."""
    net, h = _stem()
    first = len(net.nodes)
    out, going = net("Tanh", "carried"), net("Identity", "going")
    body = _body(net, first, [_info("turn", 7, []), _info("going", 9, []), _info("carried")],
                 [_info(going, 9, []), _info(out)])  # fmt: skip
    h = _loop(net, net("Flatten", net("GlobalMaxPool", h)), body)[0]
    lead = net.slice(net("Shape", h), 0, 1, axis=0)
    pairs = net("Reshape", h, net("Concat", lead, net.ints(2, -1), axis=0))
    return net.trap(net("ReduceL1", pairs, axes=[2]), stay="first")


@trap
def loop_that_collects() -> Trap:
    """What each turn hands out is stacked: a new axis in front of the channels."""
    net, h = _stem()
    first = len(net.nodes)
    out = net.relu(net.conv("carried", "turn_w", 16, 16))
    going, seen = net("Identity", "going"), net("GlobalAveragePool", out)
    body = _body(net, first, [_info("turn", 7, []), _info("going", 9, []), _info("carried")],
                 [_info(going, 9, []), _info(out), _info(seen)])  # fmt: skip
    final, rows = _loop(net, h, body, 2)
    y = net.gemm(net.reshape(net("ReduceSum", rows, net.ints(0), keepdims=0), 2, 16), "rows", 16, 6)
    return net.trap(net.conv(final, "last", 16, 6), y, move="turn_w rows last", stay="first")


@trap
def scan_as_a_cell() -> Trap:
    """A hand-written recurrent cell: its units are carried, its inputs arrive step by step."""
    net = Net()
    h = net.linear(net.input("x", 5, 2, 8), "first", 8, 16)
    start = net.weight("start", 2, 12)
    first = len(net.nodes)
    new = net("Tanh", net("Add", net.linear("step", "w", 16, 12), net.linear("state", "r", 12, 12, bias=False)))
    out = net("Identity", new)
    body = _body(net, first, [_info("state"), _info("step")], [_info(new), _info(out)])
    states = net.many("Scan", 2, start, h, body=body, num_scan_inputs=1)
    return net.trap(net.linear(states[1], "last", 12, 6), move="w r last", stay="first")


@trap
def scan_over_the_channels() -> Trap:
    """The steps are the channels: their order is the order of computation."""
    net = Net()
    h = net.transpose(net.linear(net.input("x", 2, 8), "first", 8, 16), 1, 0)
    start = net.store("start", np.zeros(2, np.float32))
    first = len(net.nodes)
    new = net("Tanh", net("Add", "state", "step"))
    out = net("Identity", new)
    body = _body(net, first, [_info("state"), _info("step")], [_info(new), _info(out)])
    states = net.many("Scan", 2, start, h, body=body, num_scan_inputs=1)
    return net.trap(net.linear(net.transpose(states[1], 1, 0), "last", 16, 6), stay="first last")


@trap
def sequence_of_parts() -> Trap:
    """Split to a sequence, taken out in another order, joined."""
    net, h = _stem()
    parts = net("SplitToSequence", h, net.store("size", np.array(8, np.int64)), axis=1)
    second, first = (net("SequenceAt", parts, net.store(f"at_{i}", np.array(i, np.int64))) for i in (1, 0))
    return net.trap(net.conv(net.concat(second, first), "last", 16, 6), stay="first")


# -- local functions


def _function(net: Net, name: str, inputs: list[str], outputs: list[str], nodes: list[onnx.NodeProto]) -> None:
    net.domains["local"] = 1
    net.functions.append(
        helper.make_function("local", name, inputs, outputs, nodes, [helper.make_opsetid("", net.opset)])
    )


def _block(stored: bool = False) -> list[onnx.NodeProto]:
    """Conv and Relu; the weight comes in, or is stored in the function."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    if stored:
        weight = generator("inside").standard_normal((16, 16, 1, 1)).astype(np.float32) / 4
        constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weight, "inside"))
        nodes.insert(0, constant)
    return nodes


@trap
def function_called_twice() -> Trap:
    """Two calls with a weight each: the function is the same, the channels are not."""
    net, h = _stem()
    _function(net, "Block", ["x", "w"], ["y"], _block())
    h = net("Block", h, net.weight("one", 20, 16, 1, 1, axis=1), domain="local")
    h = net("Block", h, net.weight("two", 16, 20, 1, 1, axis=1), domain="local")
    return net.trap(net.conv(h, "last", 16, 6), move="one two last", stay="first")


@trap
def function_called_twice_with_one_weight() -> Trap:
    """The same stored constant in both calls: inputs and outputs of both are one class."""
    net, h = _stem()
    _function(net, "Block", ["x", "w"], ["y"], _block())
    weight = net.weight("both", 16, 16, 1, 1, axis=1)
    h = net("Block", net("Block", h, weight, domain="local"), weight, domain="local")
    return net.trap(net.conv(h, "last", 16, 6), move="both last", stay="first")


@trap
def function_with_a_weight_inside() -> Trap:
    """The function holds the weight and is called on two streams that have nothing else in common."""
    net, h = _stem()
    _function(net, "Block", ["x"], ["y"], _block(stored=True))
    other = net.conv("x", "second", 8, 16)
    h, other = net("Block", h, domain="local"), net("Block", other, domain="local")
    y = net.conv(h, "last", 16, 6), net.conv(other, "second_last", 16, 6)
    return net.trap(*y, stay="first second")


@trap
def function_inside_function() -> Trap:
    """An attribute of the caller reaches the axis of a Concat two functions down."""
    net, h = _stem(8)
    joined = helper.make_node("Concat", ["a", "b"], ["y"])
    joined.attribute.append(onnx.AttributeProto(name="axis", ref_attr_name="along", type=onnx.AttributeProto.INT))
    body = [joined]
    opsets = [helper.make_opsetid("", net.opset), helper.make_opsetid("local", 1)]
    net.functions.append(helper.make_function("local", "Join", ["a", "b"], ["y"], body, opsets, ["along"]))
    call = helper.make_node("Join", ["n", "a"], ["y"], domain="local")
    call.attribute.append(onnx.AttributeProto(name="along", ref_attr_name="along", type=onnx.AttributeProto.INT))
    nodes = [helper.make_node("Neg", ["a"], ["n"]), call]
    net.functions.append(helper.make_function("local", "Twice", ["a"], ["y"], nodes, opsets, ["along"]))
    net.domains["local"] = 1
    h = net("Twice", h, domain="local", along=1)
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")


@trap
def function_that_shadows_a_name() -> Trap:
    """A function named as a standard operator, in a domain of its own, swaps the halves of the channels."""
    net, h = _stem()
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2),
        helper.make_node("Concat", ["b", "a"], ["y"], axis=1),
    ]
    net.domains["local"] = 1
    net.functions.append(helper.make_function("local", "Relu", ["x"], ["y"], nodes, [helper.make_opsetid("", 18)]))
    net.opset = 18
    h = net("Add", h, net("Relu", h, domain="local"))
    return net.trap(net.conv(h, "last", 16, 6), move="last", stay="first")
