"""If, Loop, Scan, sequences, optionals and functions: what goes on is one channel, whichever way it came."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxsparse.channel_classes.classes import Channels
from tests.channels.forms import held
from tests.channels.net import Net, Reduction

C = 8
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def stem(opset: int = 17) -> tuple[Net, str]:
    """(4, C), written by a weight of the model."""
    net = Net(opset=opset)
    return net, net.linear(net.input("x", 4, 5), "first", 5, C)


def end(net: Net, h: str, name: str = "last", width: int = C) -> str:
    return net.linear(h, name, width, 3)


def info(name: str, kind: int = FLOAT, shape: list[int] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def body(
    net: Net, made: Callable[[], list[str]], inputs: Sequence[onnx.ValueInfoProto] = (), inside: bool = True
) -> onnx.GraphProto:
    """What `made` adds to the net, as a body; its weights in it, or outside."""
    nodes, stored = len(net.nodes), len(net.initializers)
    outputs = made()
    taken = net.nodes[nodes:]
    del net.nodes[nodes:]
    tensors = net.initializers[stored:] if inside else []
    if inside:
        del net.initializers[stored:]
    return helper.make_graph(
        taken, net.name("body"), inputs, [onnx.ValueInfoProto(name=one) for one in outputs], tensors
    )


def branches(
    net: Net, then: Callable[[], str], other: Callable[[], str], condition: str = "", inside: bool = True
) -> str:
    condition = condition or net.feed("condition", np.array(True))
    both = [body(net, lambda make=make: [make()], inside=inside) for make in (then, other)]
    return net("If", condition, then_branch=both[0], else_branch=both[1])


def typed(graph: onnx.GraphProto, kinds: list[int]) -> onnx.GraphProto:
    for value, kind in zip(graph.output, kinds):
        value.CopyFrom(info(value.name, kind))
    return graph


def loop(
    net: Net, states: list[str], made: Callable[..., list[str]], inside: bool = True, trips: int | None = 3
) -> list[str]:
    """`made` is called with the names of the turn and of the states; it returns the states and what is collected."""
    names = [net.name("state") for _ in states]
    turn, going = net.name("turn"), net.name("going")

    def whole() -> list[str]:
        return [net("Identity", going), *made(turn, *names)]

    inputs = [info(turn, INT64, []), info(going, BOOL, []), *map(info, names)]
    graph = body(net, whole, inputs, inside)
    graph.output[0].CopyFrom(info(graph.output[0].name, BOOL, []))
    count = (
        net.store(net.name("trips"), np.array(trips, np.int64)) if trips is not None else net.feed("trips", np.array(2))
    )
    yes = net.store(net.name("yes"), np.array(True))
    return net.many("Loop", len(graph.output) - 1, count, yes, *states, body=graph)


def moving(found: Channels) -> set[str]:
    return {member.name for one in found.classes for member in one.members}


# -- If


@pytest.mark.parametrize("inside", [True, False])
def test_weights_in_branches(inside: bool) -> None:
    net, h = stem()
    h = branches(net, lambda: net.linear(h, "a", C, 12), lambda: net.linear(h, "b", C, 12), inside=inside)
    held(net, end(net, h, width=12), move="a b last", stay="first")


def test_one_branch_hands_on_what_it_captures() -> None:
    net, h = stem()
    made = branches(net, lambda: net("Identity", h), lambda: net.linear(h, "b", C, C))
    held(net, end(net, made), move="b last", stay="first")


def test_a_branch_that_comes_from_outside_keeps_the_other() -> None:
    net, h = stem()
    given = net.input("given", 4, C)
    made = branches(net, lambda: net("Identity", given), lambda: net.linear(h, "b", C, C))
    held(net, end(net, made), move="b", stay="first last")


def test_a_branch_of_zeros_keeps_nothing() -> None:
    net, h = stem()
    made = branches(net, lambda: net("ConstantOfShape", net.ints(4, C)), lambda: net.linear(h, "b", C, C))
    held(net, end(net, made), move="b last", stay="first")


def test_a_branch_that_is_a_stored_tensor_moves_with_the_other() -> None:
    net, h = stem()
    made = branches(net, lambda: net.weight("table", 4, C), lambda: net.linear(h, "b", C, C))
    found = held(net, end(net, made), move="b last", stay="first")
    assert any(name.endswith("table") for name in moving(found))


def test_branches_in_two_orders() -> None:
    """One rolls the channels: all are tied in one ring."""
    net, h = stem()

    def rolled() -> str:
        return net.concat(net.slice(h, 1, C), net.slice(h, 0, 1))

    held(net, end(net, branches(net, lambda: net("Neg", h), rolled)), stay="first last")


def test_branches_of_other_sizes() -> None:
    """The channels differ in number: nothing of them moves, what is before does."""
    net, h = stem()
    made = branches(net, lambda: net.linear(h, "a", C, 12), lambda: net.linear(h, "b", C, 10))
    made = net("ReduceSum", made, net.ints(1), keepdims=1)
    held(net, net.linear(made, "last", 1, 3), move="a b", stay="first")


def test_branches_of_other_lengths() -> None:
    """Half of the rows in one branch; the channels are the same."""
    net, h = stem()
    made = branches(net, lambda: net("Identity", h), lambda: net.slice(h, 0, 2, axis=0))
    held(net, end(net, made), move="last", stay="first")


def test_branches_of_other_ranks() -> None:
    net, h = stem()
    made = branches(
        net, lambda: net("Unsqueeze", net.linear(h, "a", C, C), net.ints(0)), lambda: net.linear(h, "b", C, C)
    )
    found = held(net, net("ReduceSum", made, keepdims=0), move="a b", stay="first")
    assert [one.size for one in found.classes] == [C], "only what is before them"


@pytest.mark.parametrize("taken", [True, False])
def test_a_known_condition(taken: bool) -> None:
    """As an exporter writes Squeeze of an axis that may be none: only one branch is ever taken."""
    net, h = stem()
    yes = net.store("yes", np.array(taken))
    both = [lambda: net.linear(h, "a", C, C), lambda: net("Unsqueeze", h, net.ints(0))]
    made = branches(net, *(both if taken else both[::-1]), condition=yes)
    held(net, end(net, made), move="a last", stay="first")


def test_a_condition_known_by_sizes() -> None:
    """An axis that has one element after a Pad whose numbers an exporter turns round: Squeeze, or nothing."""
    net = Net()
    pads = net("Reshape", net.ints(0, 0, 0, 1, 0, 0, 0, 0), net.ints(-1, 2))
    pads = net("Slice", pads, net.ints(-1), net.ints(-(2**63)), net.ints(0), net.ints(-1))
    pads = net("Reshape", net.transpose(pads, 1, 0), net.ints(-1))
    x = net.reshape(net("Pad", net.input("x", 2, 3, 4, 3), pads), 2, 3, 15)
    h = net("Conv", x, net.weight("first", C, 3, 15, axis=1))
    one = net("Equal", net("Gather", net("Shape", h), net.ints(2)), net.ints(1))
    made = branches(net, lambda: net("Squeeze", h, net.ints(2)), lambda: net("Identity", h), condition=one)
    made = net("Unsqueeze", made, net.ints(0))
    held(net, end(net, made), move="last")


def test_a_condition_by_which_either_branch_may_be_taken() -> None:
    """It is known by a size that may have been assumed: the branches have one order where they can."""
    net, h = stem()
    one = net("Equal", net("Gather", net("Shape", h), net.ints(0)), net.ints(4))
    made = branches(net, lambda: net.linear(h, "a", C, C), lambda: net.linear(h, "b", C, C), condition=one)
    found = held(net, end(net, made), move="a last", stay="first")
    rows = [{member.name.split("/")[-1] for member in one.members} for one in found.classes]
    assert any({"a_b", "b_b", "last"} <= some for some in rows)


def test_a_condition_made_of_channels_keeps_them() -> None:
    net, h = stem()
    one = net("Gather", net("Gather", h, net.ints(0), axis=0), net.ints(3), axis=1)
    asked = net("Greater", net("Squeeze", one), net.number(0.0))
    made = branches(net, lambda: net("Neg", h), lambda: net("Abs", h), condition=asked)
    found = held(net, end(net, made), move="last", stay="first")
    assert max(one.size for one in found.classes) == C - 1


def test_several_results() -> None:
    net, h = stem()
    condition = net.feed("condition", np.array(True))
    both = [
        body(net, lambda: [net.linear(h, "a", C, 12), net("Neg", h)]),
        body(net, lambda: [net.linear(h, "b", C, 12), net("Abs", h)]),
    ]
    one, other = net.many("If", 2, condition, then_branch=both[0], else_branch=both[1])
    held(net, end(net, one, width=12), end(net, other, "second"), move="a b last second", stay="first")


# -- Loop


@pytest.mark.parametrize("trips", [3, 0, None])
@pytest.mark.parametrize("inside", [True, False])
def test_a_residual_block_in_a_loop(inside: bool, trips: int | None) -> None:
    net, h = stem()

    def block(turn: str, state: str) -> list[str]:
        return [net("Add", state, net.linear(net("Relu", net.linear(state, "up", C, 12)), "down", 12, C))]

    made = loop(net, [h], block, inside, trips)[0]
    # Without a turn nothing depends on what is inside.
    move = "last" if trips == 0 else "up down last"
    held(net, end(net, made), move=move, stay="first")


def test_a_loop_from_zeros() -> None:
    """What is added up starts as zeros, in which no channel has a place."""
    net, h = stem()
    zeros = net("ConstantOfShape", net.ints(4, 12))
    made = loop(net, [zeros], lambda turn, state: [net("Tanh", net("Add", state, net.linear(h, "a", C, 12)))])[0]
    held(net, end(net, made, width=12), move="a last", stay="first")


def test_a_loop_from_outside() -> None:
    net, h = stem()
    given = net.input("given", 4, 12)
    made = loop(net, [given], lambda turn, state: [net("Tanh", net("Add", state, net.linear(h, "a", C, 12)))])[0]
    held(net, end(net, made, width=12), move="a", stay="first last")


def test_a_loop_from_a_stored_start() -> None:
    net, h = stem()
    start = net.weight("start", 1, 12)
    made = loop(net, [start], lambda turn, state: [net("Mul", state, net("ReduceSum", net.linear(state, "a", 12, 12),
                                                                        net.ints(0), keepdims=1))])[0]  # fmt: skip
    made = net("Add", made, net.linear(h, "b", C, 12))
    found = held(net, end(net, made, width=12), move="a b last", stay="first")
    assert "start" in moving(found)


def test_a_state_that_is_equal_in_all_channels_only_at_first() -> None:
    """Rows of zeros and of ones, in which no channel has a place; the body adds numbers from outside that have one."""
    net, h = stem()
    rows = [net("ConstantOfShape", net.ints(2, C), value=numpy_helper.from_array(np.float32([at]))) for at in (0, 1)]
    given = net.input("given", 4, C)
    made = loop(net, [net.concat(*rows, axis=0)], lambda turn, state: [net("Add", state, given), net("Mul", state, h)])
    outputs = [end(net, made[0]), end(net, net("ReduceSum", made[1], net.ints(0), keepdims=0), "rows")]
    held(net, *outputs, stay="first last rows")


def test_a_state_that_stays_equal_in_all_channels() -> None:
    net, h = stem()
    rows = [net("ConstantOfShape", net.ints(2, C), value=numpy_helper.from_array(np.float32([at]))) for at in (0, 1)]
    made = loop(net, [net.concat(*rows, axis=0)], lambda turn, state: [net("Neg", state), net("Mul", state, h)])
    rows_of_turns = net("ReduceSum", made[1], net.ints(0), keepdims=0)
    held(net, end(net, rows_of_turns, "rows"), move="rows", stay="first")


def test_two_states_that_change_places() -> None:
    """a, b = b, a: one order for both."""
    net, h = stem()
    other = net.linear(h, "other", C, C)
    made = loop(net, [h, other], lambda turn, a, b: [net("Identity", b), net("Neg", a)])
    held(net, end(net, made[0]), end(net, made[1], "second"), move="other last second", stay="first")


def test_a_chain_of_states() -> None:
    """A value takes three turns from the first state to the last: one order for all, though only some turns are run."""
    net, h = stem()
    others = [net.linear(h, f"other_{at}", C, C) for at in range(3)]
    made = loop(net, [h, *others], lambda turn, a, b, c, d: [net("Identity", a), net("Neg", a), net("Abs", b),
                                                            net("Neg", c)])  # fmt: skip
    outputs = [end(net, one, f"last_{at}") for at, one in enumerate(made)]
    held(net, *outputs, move="last_0 last_1 last_2 last_3", stay="first")


def test_a_state_that_grows() -> None:
    """Rows are appended: their number is not known, their channels are."""
    net, h = stem()
    made = loop(net, [h], lambda turn, state: [net.concat(state, net.linear(h, "a", C, C), axis=0)])[0]
    held(net, end(net, made), move="a last", stay="first")


def test_a_state_whose_channels_grow() -> None:
    net, h = stem()
    made = loop(net, [h], lambda turn, state: [net.concat(state, net.linear(h, "a", C, 4), axis=1)])[0]
    held(net, net("ReduceSum", made, net.ints(1), keepdims=1), net.linear(h, "b", C, 3), stay="first a")


def test_a_state_that_is_turned() -> None:
    """(C, C), transposed in each turn: rows and columns have one order."""
    net, h = stem()
    square = net("MatMul", net.transpose(h, 1, 0), net.linear(h, "a", C, C))
    made = loop(net, [square], lambda turn, state: [net.transpose(state, 1, 0)])[0]
    held(net, end(net, made), stay="first")


def test_collected_values_get_an_axis_in_front() -> None:
    net, h = stem()

    def block(turn: str, state: str) -> list[str]:
        state = net("Tanh", net.linear(state, "a", C, C))
        return [state, net.linear(state, "b", C, 12)]

    final, rows = loop(net, [h], block)
    rows = net.linear(net("ReduceMax", rows, axes=[0], keepdims=0), "rows", 12, 3)
    held(net, end(net, final), rows, move="a b rows last", stay="first")


def test_a_weight_for_each_turn() -> None:
    """A stack of matrices, of which each turn takes its own: the stack keeps its order."""
    net, h = stem()
    stack = net.weight("stack", 3, C, C, axis=1)
    made = loop(net, [h], lambda turn, state: [net("Tanh", net("MatMul", state, net("Gather", stack, turn)))])[0]
    held(net, end(net, made), move="stack last", stay="first")


def test_a_condition_that_the_body_computes() -> None:
    """It looks at one channel, which stays."""
    net, h = stem()
    state, turn, going = "state", "turn", "going"

    def whole() -> list[str]:
        new = net("Tanh", net.linear(state, "a", C, C))
        one = net("Gather", net("Gather", new, net.ints(0), axis=0), net.ints(3), axis=1)
        return [net("Less", net("Squeeze", one), net.number(0.9)), new]

    graph = body(net, whole, [info(turn, INT64, []), info(going, BOOL, []), info(state)])
    graph.output[0].CopyFrom(info(graph.output[0].name, BOOL, []))
    made = net("Loop", net.store("trips", np.array(4)), "", h, body=graph)
    found = held(net, end(net, made), move="a last", stay="first")
    assert max(one.size for one in found.classes) == C - 1


def test_a_number_of_turns_that_is_no_constant_of_the_body() -> None:
    """A counter starts at a known number, and is another one in each turn."""
    net, h = stem()
    start = net.ints(0)

    def block(turn: str, state: str, counter: str) -> list[str]:
        kept = net("Gather", state, counter, axis=1)
        return [net("Add", state, kept), net("Add", counter, net.ints(1))]

    names = [net.name("state"), net.name("counter")]
    inputs = [info("turn", INT64, []), info("going", BOOL, []), info(names[0]), info(names[1], INT64)]
    graph = body(net, lambda: [net("Identity", "going"), *block("turn", *names)], inputs)
    graph = typed(graph, [BOOL, FLOAT, INT64])
    made = net.many("Loop", 2, net.store("trips", np.array(3)), "", h, start, body=graph)
    held(net, end(net, made[0]), stay="first last")


def test_a_loop_in_a_loop_with_a_branch() -> None:
    net, h = stem()
    condition = net.feed("condition", np.array(True))

    def inner(turn: str, state: str) -> list[str]:
        return [branches(net, lambda: net.linear(state, "a", C, C), lambda: net("Neg", state), condition)]

    def outer(turn: str, state: str) -> list[str]:
        return [net("Tanh", loop(net, [state], inner)[0])]

    held(net, end(net, loop(net, [h], outer)[0]), move="a last", stay="first")


# -- Scan


def scan(net: Net, states: list[str], steps: list[str], made: Callable[..., list[str]], **more: object) -> list[str]:
    names = [net.name("state") for _ in states], [net.name("step") for _ in steps]
    graph = body(net, lambda: made(*names[0], *names[1]), [info(one) for some in names for one in some])
    return net.many("Scan", len(graph.output), *states, *steps, body=graph, num_scan_inputs=len(steps), **more)


@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("backward", [0, 1])
@pytest.mark.parametrize("to", [0, 1, -1])
def test_a_cell_written_as_scan(axis: int, backward: int, to: int) -> None:
    """Steps along one axis, in one of two directions, collected along another."""
    net = Net()
    h = net.linear(net.input("x", 4, 4, 5), "first", 5, C)
    start = net.weight("start", 4, 12)

    def cell(state: str, step: str) -> list[str]:
        new = net("Tanh", net("Add", net.linear(step, "w", C, 12), net.linear(state, "r", 12, 12)))
        return [new, net("Identity", new)]

    more = {"scan_input_axes": [axis], "scan_input_directions": [backward], "scan_output_axes": [to]}
    rows = scan(net, [start], [h], cell, scan_output_directions=[backward], **more)[1]
    rows = net.transpose(rows, 0, 2, 1) if to == -1 else rows
    found = held(net, end(net, rows, width=12), move="w r last", stay="first")
    assert "start" in moving(found)


def test_a_scan_over_stored_matrices() -> None:
    net, h = stem()
    stack = net.weight("stack", 3, C, C, axis=1)
    made = scan(net, [h], [stack], lambda state, matrix: [net("Tanh", net("MatMul", state, matrix))])[0]
    held(net, end(net, made), move="stack last", stay="first")


def test_a_scan_over_channels() -> None:
    """The channels are the steps: they stay, and what a step makes of each is apart."""
    net, h = stem()
    start = net.store("start", np.zeros(4, np.float32))

    def cell(state: str, step: str) -> list[str]:
        return [net("Tanh", net("Add", state, step)), net("Neg", step)]

    rows = scan(net, [start], [h], cell, scan_input_axes=[1], scan_output_axes=[1])[1]
    held(net, end(net, rows), stay="first last")


# -- sequences and optionals


def test_a_sequence_of_known_places() -> None:
    net, h = stem()
    parts = [net.linear(h, name, C, 12) for name in ("a", "b", "c")]
    held_in = net("SequenceConstruct", *parts)
    held_in = net("SequenceInsert", held_in, net.linear(h, "d", C, 12), net.store("place", np.array(-1)))
    held_in = net("SequenceErase", held_in, net.store("gone", np.array(0)))
    outputs = [
        end(net, net("SequenceAt", held_in, net.store(f"at_{at}", np.array(at))), f"last_{at}", 12) for at in (0, 1, -1)
    ]
    found = held(net, *outputs, move="b c d last_0 last_1 last_-1", stay="first")
    assert sorted(one.size for one in found.classes) == [C, 12, 12, 12, 12], "each has an order of its own"


def test_a_sequence_of_an_unknown_place() -> None:
    net, h = stem()
    held_in = net("SequenceConstruct", net.linear(h, "a", C, 12), net.linear(h, "b", C, 12))
    made = net("SequenceAt", held_in, net.feed("place", np.array(1)))
    found = held(net, end(net, made, width=12), move="a b last", stay="first")
    assert len(found.classes) == 2, "one order for all, whichever it is"


def test_stored_tensors_in_a_sequence() -> None:
    """Only one is read by a layer; the other keeps its rows, which a Gather takes by numbers from outside."""
    net, h = stem()
    held_in = net("SequenceConstruct", net.weight("a", C, 12, axis=0), net.weight("b", 5, 12))
    first = net("MatMul", h, net("SequenceAt", held_in, net.store("zero", np.array(0))))
    second = net(
        "Gather", net("SequenceAt", held_in, net.store("one", np.array(1))), net.feed("rows", np.array([1, 4]))
    )
    held(net, end(net, first, width=12), net.linear(second, "other", 12, 3), move="a last other", stay="first")


def test_a_sequence_that_starts_empty() -> None:
    net, h = stem()
    held_in = net("SequenceInsert", net("SequenceEmpty"), net.linear(h, "a", C, 12))
    held_in = net("SequenceInsert", held_in, net.linear(h, "b", C, 12))
    made = net("ConcatFromSequence", held_in, axis=1)
    found = held(net, end(net, made, width=24), move="a b last", stay="first")
    assert sorted(one.size for one in found.classes) == [C, 12, 12]


@pytest.mark.parametrize(("axis", "width"), [(1, 12), (-1, 12), (2, 12)])
def test_a_sequence_stacked_along_a_new_axis(axis: int, width: int) -> None:
    net, h = stem()
    held_in = net("SequenceConstruct", net.linear(h, "a", C, 12), net.linear(h, "b", C, 12))
    made = net("ConcatFromSequence", held_in, axis=axis, new_axis=1)
    made = net("ReduceMean", made, axes=[axis], keepdims=0)
    held(net, end(net, made, width=width), move="a b last", stay="first")


@pytest.mark.parametrize(("sizes", "count"), [(np.array(3), 3), (np.array([2, 6]), 2), (None, C)])
def test_channels_split_into_a_sequence(sizes: np.ndarray | None, count: int) -> None:
    """Each part has its own order; single channels stay."""
    net, h = stem()
    given = [] if sizes is None else [net.store("sizes", sizes)]
    held_in = net("SplitToSequence", h, *given, axis=1)
    parts = [net("SequenceAt", held_in, net.store(f"at_{at}", np.array(at))) for at in range(count)]
    made = net.concat(net("Neg", parts[0]), *parts[1:])
    found = held(net, end(net, made), move="" if sizes is None else "last", stay="first")
    assert all(one.size < C for one in found.classes)


def test_rows_split_into_a_sequence_without_their_axis() -> None:
    net, h = stem()
    held_in = net("SplitToSequence", h, axis=0, keepdims=0)
    made = net("SequenceAt", held_in, net.store("at", np.array(2)))
    held(net, end(net, made), move="last", stay="first")


def test_a_sequence_that_grows_in_a_loop() -> None:
    """Of unknown length: what is put in stays, what only goes by does not."""
    net, h = stem()
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    state = helper.make_value_info("state", kind)

    def whole() -> list[str]:
        return [net("Identity", "going"), net("SequenceInsert", "state", net.linear(h, "a", C, 12))]

    graph = body(net, whole, [info("turn", INT64, []), info("going", BOOL, []), state])
    graph.output[0].CopyFrom(info(graph.output[0].name, BOOL, []))
    graph.output[1].type.CopyFrom(kind)
    made = net("Loop", net.store("trips", np.array(3)), "", net("SequenceEmpty"), body=graph)
    made = net("ConcatFromSequence", made, axis=0)
    held(net, end(net, made, width=12), end(net, h, "second"), move="a second", stay="first last")


def test_a_sequence_handed_through_a_loop() -> None:
    """Its length stays: each tensor in it has its own order."""
    net, h = stem()
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))

    def whole() -> list[str]:
        taken = net("SequenceAt", "state", net.store("zero", np.array(0)))
        rest = net("SequenceErase", "state", net.store("none", np.array(0)))
        return [net("Identity", "going"), net("SequenceInsert", rest, net("Neg", taken))]

    graph = body(net, whole, [info("turn", INT64, []), info("going", BOOL, []), helper.make_value_info("state", kind)])
    graph.output[0].CopyFrom(info(graph.output[0].name, BOOL, []))
    graph.output[1].type.CopyFrom(kind)
    start = net("SequenceConstruct", net.linear(h, "a", C, 12), net.linear(h, "b", C, 12))
    made = net("Loop", net.store("trips", np.array(3)), "", start, body=graph)
    made = net("SequenceAt", made, net.store("one", np.array(1)))
    held(net, end(net, made, width=12), move="a b last", stay="first")


def test_how_many_are_in_a_sequence() -> None:
    net, h = stem()
    made = net("SequenceLength", net("SequenceConstruct", net.linear(h, "a", C, 12), h))
    made = net("Mul", h, net("Cast", made, to=FLOAT))
    held(net, end(net, made), move="last", stay="first")


def test_an_optional() -> None:
    net, h = stem(opset=18)
    made = net("OptionalGetElement", net("Optional", net.linear(h, "a", C, 12)))
    held(net, end(net, made, width=12), move="a last", stay="first")


# -- functions


def test_an_if_in_a_function() -> None:
    net, h = stem()
    condition = net.feed("condition", np.array(True))
    nodes = [
        helper.make_graph([helper.make_node(op, ["x"], [f"y_{op}"])], op, [], [info(f"y_{op}")])
        for op in ("Neg", "Abs")
    ]
    choice = helper.make_node("If", ["c"], ["y"], then_branch=nodes[0], else_branch=nodes[1])
    local(net, "Choose", ["x", "c"], ["y"], [choice])
    made = net("Choose", h, condition, domain="local")
    held(net, end(net, made), move="last", stay="first")


def test_a_function_that_is_called_twice_with_a_constant_inside() -> None:
    """The weight is stored once, so that both calls read the same channels."""
    net, h = stem()
    other = net.linear(h, "other", C, C)
    weight = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(
        np.random.default_rng(3).standard_normal((C, C)).astype(np.float32), "w"))  # fmt: skip
    local(net, "Layer", ["x"], ["y"], [weight, helper.make_node("MatMul", ["x", "w"], ["y"])])
    net.reductions["w"] = Reduction(0)
    outputs = [net("Layer", one, domain="local") for one in (h, other)]
    made = [end(net, one, f"last_{at}") for at, one in enumerate(outputs)]
    held(net, *made, move="w other last_0 last_1", stay="first")


def test_nested_functions_with_an_attribute_of_the_caller() -> None:
    net, h = stem()
    joined = helper.make_node("Concat", ["a", "b"], ["y"])
    joined.attribute.append(onnx.AttributeProto(name="axis", ref_attr_name="along", type=onnx.AttributeProto.INT))
    local(net, "Join", ["a", "b"], ["y"], [joined], ["along"])
    call = helper.make_node("Join", ["n", "a"], ["y"], domain="local")
    call.attribute.append(onnx.AttributeProto(name="along", ref_attr_name="along", type=onnx.AttributeProto.INT))
    local(net, "Twice", ["a"], ["y"], [helper.make_node("Neg", ["a"], ["n"]), call], ["along"])
    made = net("Twice", h, domain="local", along=1)
    rows = net("Twice", h, domain="local", along=0)
    held(net, end(net, made, width=2 * C), end(net, rows, "rows"), move="last rows", stay="first")


def local(
    net: Net, name: str, inputs: list[str], outputs: list[str], nodes: list[onnx.NodeProto], named: Sequence[str] = ()
) -> None:
    opsets = [helper.make_opsetid("", net.opset), helper.make_opsetid("local", 1)]
    net.functions.append(helper.make_function("local", name, inputs, outputs, nodes, opsets, list(named)))
    net.domains["local"] = 1


# -- what has no rule


def test_a_body_without_a_rule_keeps_what_it_reads() -> None:
    """SequenceMap: it is blocked with everything that its body reads from outside."""
    net, h = stem()
    other = net.linear(h, "other", C, C)
    graph = typed(body(net, lambda: [net("Add", "one", other)], [info("one", FLOAT, [4, C])]), [FLOAT])
    mapped = net("SequenceMap", net("SequenceConstruct", h, h), body=graph)
    made = net("SequenceAt", mapped, net.store("at", np.array(1)))
    found = held(net, end(net, made), stay="first last")
    member = next(one for one in found.members if one.name == "last")
    assert found.why(member)
